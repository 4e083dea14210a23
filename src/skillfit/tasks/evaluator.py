"""Evaluators: tasks that run and score an item themselves, instead of leaving both to an agent and
a grader.

A task can be evaluated by any program. The program reads the item as JSON on stdin and the skill at
`SKILLFIT_SKILL`, and prints a score:

    #!/bin/sh
    answer=$(my-agent --skill "$SKILLFIT_SKILL")
    echo '{"score": 1.0, "feedback": "…", "answer": "…"}'

`SKILLFIT_SEED` differs between repeats of an item. API keys are not in the program's environment.
An exit code other than 0 is a failed rollout, not a score of 0.
"""

from __future__ import annotations

import inspect
import json
import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from skillfit.errors import InputError
from skillfit.models.json_text import parse_json
from skillfit.sandbox.process import (
    SandboxNotStarted,
    plain_environment,
    run_process,
    scratch_folder,
)
from skillfit.skill import Skill
from skillfit.skill.document import find_document
from skillfit.tasks.item import Attempt, Grader, Item, Score, TaskFailure, stable_hash
from skillfit.tasks.user_code import (
    Reported,
    call,
    described,
    evaluated,
    name_of,
    plain,
    reported_by,
)

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Evaluator(ABC):
    """Runs and scores items. Subclass it for a task with its own environment or harness."""

    needs_model: ClassVar[bool] = False
    """True: it calls the agent's model itself, through the `Model` it was given when the task was
    loaded, so that each call is recorded, budgeted and limited. `model.agent` is required then.
    """

    @property
    def reports(self) -> frozenset[Reported]:
        """What its attempts report about their usage, if it does not call the agent's model."""
        return frozenset()

    @abstractmethod
    async def __call__(self, skill: Skill, item: Item, seed: int) -> tuple[Attempt, Score]:
        """Run the item under the skill and score it. `seed` differs between repeats.

        Raises `TaskFailure` or `ModelError` when there is nothing to score: that is a failed
        rollout, never a score of 0.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What distinguishes this evaluator from others, as JSON, for the run's identity."""

    def opened(self, run_path: Path) -> AbstractAsyncContextManager[None]:
        """Entered before the first rollout of a run and left after the last. Override it to start
        and stop servers, or to write logs under `run_path`.
        """
        return nullcontext()


@dataclass(frozen=True, slots=True)
class FunctionEvaluator(Evaluator):
    """A user's functions as an evaluator: `evaluate(skill, item)` returns the score itself, or
    `run(skill, item)` returns the answer and a grader scores it. Either may take a third argument,
    the seed. The skill is passed as text, the item as a dict.
    """

    function: Callable[..., Any]
    grader: Grader | None = None  # None: the function returns the score

    @property
    def reports(self) -> frozenset[Reported]:
        return reported_by(self.function)

    async def __call__(self, skill: Skill, item: Item, seed: int) -> tuple[Attempt, Score]:
        name = name_of(self.function)
        parameters = inspect.signature(self.function).parameters.values()
        wanted = [one for one in parameters if one.default is one.empty and one.kind in _POSITIONAL]
        arguments = (skill.text, plain(item), seed)[: max(2, len(wanted))]
        kind = "evaluate" if self.grader is None else "agent"
        value = await call(self.function, *arguments, kind=kind, where=f"{name} on item {item.id}")
        if self.grader is None:
            return evaluated(value, source=name)
        attempt = value if isinstance(value, Attempt) else Attempt(str(value))
        return attempt, await self.grader.grade(item, attempt)

    def describe(self) -> dict[str, Any]:
        return {
            "function": described(self.function),
            "grader": self.grader.describe() if self.grader else None,
        }


@dataclass(frozen=True, slots=True)
class CommandEvaluator(Evaluator):
    """Runs a program for each item; see the module's docstring for what it reads and prints."""

    argv: tuple[str, ...]
    cwd: Path
    timeout: float  # seconds

    @classmethod
    def parse(cls, line: str, base: Path, timeout: float) -> CommandEvaluator:
        """From a command line, relative to `base`. The program must exist."""
        try:
            program, *arguments = shlex.split(line) or [""]
        except ValueError as error:
            raise InputError(
                f"command: {line.strip()!r} is not a valid command line: {error}.",
                hint="Close the quote, or escape it.",
            ) from error
        found = shutil.which(str(base / program) if "/" in program else program)
        if found is None:
            raise InputError(
                f"command: {program or 'nothing'!r} is not a program.",
                hint="Check the path and that it is executable.",
            )
        executable = str(Path(found).resolve()) if "/" in program else found
        return cls((executable, *arguments), base.resolve(), timeout)

    async def __call__(self, skill: Skill, item: Item, seed: int) -> tuple[Attempt, Score]:
        where = f"{Path(self.argv[0]).name} on item {item.id}"
        stdin = json.dumps(plain(item), ensure_ascii=False).encode()
        with scratch_folder("command") as folder:
            skill.save(folder / "skill")
            document = find_document(folder / "skill")
            env = {
                **plain_environment(),
                "SKILLFIT_SKILL": str(document),
                "SKILLFIT_SEED": str(seed),
            }
            try:
                result = await run_process(
                    self.argv, cwd=self.cwd, timeout=self.timeout, env=env, stdin=stdin
                )
            except SandboxNotStarted as error:
                raise TaskFailure("command", f"{where}: {error.message}") from error
        if result.timed_out:
            raise TaskFailure(
                "timeout", f"{where}: still running after {self.timeout:g} s; killed."
            )
        if result.code != 0:
            stderr = result.stderr.strip()[-500:] or "nothing on stderr"
            raise TaskFailure("command", f"{where}: exit code {result.code}: {stderr}")
        return evaluated(_printed_score(result.stdout, where), source=where)

    def describe(self) -> dict[str, Any]:
        """The command line and the content of the files in it, so that editing the program changes
        the run's identity.
        """
        argv, hashes = [], []
        for part in self.argv:
            path = self.cwd / part
            if path.is_relative_to(self.cwd) and path.is_file():
                hashes.append(stable_hash(path.read_bytes().hex()))
            inside = Path(part).is_relative_to(self.cwd)
            argv.append(str(Path(part).relative_to(self.cwd)) if inside else part)
        return {"command": argv, "files": hashes}


def _printed_score(stdout: str, where: str) -> Any:
    """The JSON that the program printed: all of stdout, or its last line."""
    for text in (stdout, stdout.rstrip().rpartition("\n")[2]):
        try:
            return parse_json(text)
        except ValueError:
            continue
    raise TaskFailure(
        "command",
        f"{where}: no JSON score on stdout, but {stdout.strip()[-200:]!r}.",
        hint='Print {"score": 0.5}.',
    )
