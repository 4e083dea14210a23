"""Find out before a run that programs of agents and answers can work on this machine.

Graders and agents that run programs describe a known-good one: it does nothing but what every
right program does, such as importing the packages of the task. `prove` runs it as theirs will be
run. When it fails, right answers would fail too, and their scores would say nothing about a skill.

`refuse_forbidden` is for the programs of a run: it tells a program that failed from one that the
isolation kept from a file which every program may read.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from skillfit.errors import InfrastructureError, InputError
from skillfit.plain_text import last_part
from skillfit.sandbox.file_view import is_for_every_program
from skillfit.sandbox.programs import (
    NO_ISOLATION,
    Isolation,
    SandboxNotStarted,
    run_untrusted,
    scratch_folder,
)

_MISSING = re.compile(r"No module named '?([\w.]+)")
_IMPORT = re.compile(r"^(?:import|from)\s", re.MULTILINE)
_NOT_READ = re.compile(
    r"(?:PermissionError: \[Errno 13\]|FileNotFoundError: \[Errno 2\]) [^'\n]*: '(/[^'\n\0]+)'"
)
_SHOWN = 600  # characters of what a program printed
_MOST_READ = 5  # files that one program names
_READ_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class KnownGood:
    """A program that must work. `run` returns why it does not under an isolation; empty: it works.

    `what` names the programs that it stands for: "answers that the grader 'code' runs".
    """

    what: str
    isolation: Isolation
    run: Callable[[Isolation], Awaitable[str]]
    modules: tuple[str, ...] = ()  # that the program imports
    extra: str = ""  # of skillfit, which brings them


async def prove(known: KnownGood) -> None:
    """Raise why right programs cannot work here: a missing package (`InputError`), the isolation
    (`SandboxNotStarted`), or something else on this machine (`InfrastructureError`).
    """
    problem = await known.run(known.isolation)
    if problem:  # once more: a limit may have been reached because the machine was busy
        problem = await known.run(known.isolation)
    if not problem:
        return
    isolated = known.isolation != NO_ISOLATION
    elsewhere = await known.run(NO_ISOLATION) if isolated else problem
    lines = problem.strip().splitlines()
    shown = lines[-1] if lines[0].startswith("Traceback") else last_part("\n".join(lines), _SHOWN)
    if not elsewhere:
        raise SandboxNotStarted(
            f"A known-good program fails under the isolation {known.isolation.name} and works "
            f"without it. {_sentence(known.what)} would fail in the same way: {shown}",
            hint="docs/isolation.md says what programs can read. Packages that are installed from "
            "a folder of yours (pip install -e) are hidden: install them without -e.",
        )
    if missing := missing_module(elsewhere):
        package = f"'skillfit[{known.extra}]'" if known.extra else missing.partition(".")[0]
        raise InputError(
            f"{_sentence(known.what)} import {missing}, which is not installed in {sys.prefix}.",
            hint=f"pip install {package}",
        )
    raise InfrastructureError(
        f"A known-good program fails on this machine{', also without isolation' * isolated}. "
        f"{_sentence(known.what)} would fail in the same way: {shown}"
    )


def missing_module(output: str) -> str:
    """Return the module that a program could not import, by what it printed; empty: none."""
    found = _MISSING.search(output)
    return found[1] if found else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def imported_modules(codes: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that programs import when they start. Those that a program can do without
    (in a `try`), and code that is not Python, are left out.
    """
    found: dict[str, None] = {}
    for code in filter(_IMPORT.search, codes):
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for statement in tree.body:
            if isinstance(statement, ast.Import):
                found |= dict.fromkeys(alias.name for alias in statement.names)
            elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
                found[statement.module] = None
    return tuple(found)


async def refuse_forbidden(output: str, isolation: Isolation) -> None:
    """Raise `SandboxNotStarted` if `output`, which a failed program printed, says that it could not
    read a file that every program may read, and no program can read it under this isolation.
    """
    named = {Path(found) for found in _NOT_READ.findall(output)}
    for path in sorted(path for path in named if is_for_every_program(path))[:_MOST_READ]:
        with scratch_folder("read") as folder:
            code = "import sys; open(sys.argv[1], 'rb').close()"
            tried = await run_untrusted(
                [sys.executable, "-I", "-S", "-c", code, str(path)],
                cwd=folder,
                timeout=_READ_SECONDS,
                isolation=isolation,
            )
        if tried.code != 0:
            raise SandboxNotStarted(
                f"The isolation {isolation.name} kept a program from reading {path}, which every "
                "program may read.",
                hint="If the file is new, start again. See docs/isolation.md.",
            )
