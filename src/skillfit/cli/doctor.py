"""The command `doctor`: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal, TypedDict

import typer

from skillfit import __version__
from skillfit.cli.output import Json, aligned, show
from skillfit.errors import Exit
from skillfit.plain_text import quantity

_LITTLE_SPACE = 200 * 2**20  # bytes; a run with many rollouts needs more
_FEW_FILES = 256  # open files; 32 rollouts at a time need about as many
_DEVELOPMENT = ("test", "dev", "docs", "benchmarks")  # extras that no command needs


class Finding(TypedDict):
    """A row of the table."""

    state: Literal["ok", "missing", "problem"]  # missing: nothing needs it unless you use it
    name: str
    found: str
    fix: str


def doctor_command(as_json: Json = False) -> None:
    """Check what works here: models and their keys, programs, the sandbox, extras. Sends nothing.

    Example: skillfit doctor
    """
    findings = [*_machine(), *_sandbox(), *_models(), *_programs(), *_extras()]
    rows = [(one["state"], one["name"], _text(one)) for one in findings]
    show(findings, aligned(("", "", ""), rows).lstrip("\n"), as_json)
    problems = sum(one["state"] == "problem" for one in findings)
    if not as_json:
        text = (
            f"{quantity(problems, 'problem')}: the rows say what to do."
            if problems
            else "Nothing is broken. Rows that say missing matter only if you use them."
        )
        show(findings, text, as_json)
    raise typer.Exit(int(Exit.USAGE if problems else Exit.OK))


def _text(finding: Finding) -> str:
    """Say what was found; of a row that is not ok, what to do about it."""
    if finding["state"] == "missing":
        return finding["fix"]
    return f"{finding['found']}. {finding['fix']}" if finding["fix"] else finding["found"]


def _found(name: str, found: str, fix: str = "", *, good: bool, needed: bool = False) -> Finding:
    state: Literal["ok", "missing", "problem"] = "problem" if needed else "missing"
    if good:
        return Finding(state="ok", name=name, found=found, fix="")
    return Finding(state=state, name=name, found=found, fix=fix)


def _machine() -> Iterator[Finding]:
    """Check the versions, and what runs out first."""
    yield _found(
        "skillfit", f"{__version__} on Python {platform.python_version()}, {os.name}", good=True
    )
    for what, folder in (("this folder", Path.cwd()), ("temporary files", tempfile.gettempdir())):
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            yield _found(what, str(error.strerror), "Use another folder.", good=False, needed=True)
            continue
        writable = os.access(folder, os.W_OK)
        fix = "Free some space." if writable else "Make the folder writable, or use another one."
        found = f"{free / 2**30:.1f} GiB free" + ("" if writable else ", not writable")
        good = writable and free >= _LITTLE_SPACE
        yield _found(what, found, fix, good=good, needed=True)
    try:
        import resource
    except ImportError:  # not on Windows
        return
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    fix = f"Raise it (ulimit -n {4 * _FEW_FILES}), or lower model.concurrency."
    few = limit != resource.RLIM_INFINITY and limit < _FEW_FILES
    shown = "no limit" if limit == resource.RLIM_INFINITY else f"{limit:,}"
    yield _found("open files", shown, fix, good=not few, needed=True)


def _sandbox() -> Iterator[Finding]:
    from skillfit.sandbox.programs import best_isolation

    best = best_isolation()
    fix = "Install bubblewrap (on Debian: apt install bubblewrap), or run a newer Linux kernel."
    yield _found("isolation of programs", best.name, fix, good=best.full)


def _models() -> Iterator[Finding]:
    from skillfit.models import known_providers

    for provider in known_providers():
        if provider.name == "cli":
            continue  # its programs have rows of their own
        readiness = provider.readiness()
        detail = readiness.detail if readiness.ready else "not ready"
        fix = readiness.detail[:1].upper() + readiness.detail[1:]
        yield _found(f"{provider.name}/…", detail or provider.about, fix, good=readiness.ready)


def _programs() -> Iterator[Finding]:
    from skillfit.agents.cli_programs import DESCRIPTIONS, load_description

    for file in sorted(DESCRIPTIONS.glob("*.yaml")):
        described = load_description(file.stem)
        path = shutil.which(described.program)
        lacking = [how for name, how in described.needs.items() if path and not shutil.which(name)]
        fix = " ".join(lacking) if path else described.install
        yield _found(
            f"cli/{file.stem}", path or "not installed", fix, good=bool(path) and not lacking
        )


def _extras() -> Iterator[Finding]:
    """Check the packages of every extra."""
    packages: dict[str, list[str]] = {}
    for requirement in requires("skillfit") or ():
        wanted, _, condition = requirement.partition(";")
        named = re.search(r"extra == ['\"]([\w-]+)['\"]", condition)
        package = re.split(r"[^\w.-]", wanted.strip())[0]
        if named and named[1] not in _DEVELOPMENT and package != "skillfit":
            packages.setdefault(named[1], []).append(package)
    for extra, needed in sorted(packages.items()):
        lacking = [package for package in needed if not _is_installed(package)]
        found = f"without {', '.join(lacking)}" if lacking else ", ".join(needed)
        fix = f"pip install {' '.join(lacking)}"
        yield _found(f"skillfit[{extra}]", found, fix, good=not lacking)


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


COMMANDS = (doctor_command,)
