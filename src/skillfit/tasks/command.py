"""A task graded by any program: it reads the item as JSON on stdin and the skill at `SKILLFIT_SKILL`, and prints a score.

    #!/bin/sh
    answer=$(my-agent --skill "$SKILLFIT_SKILL")
    echo '{"score": 1.0, "feedback": "…", "answer": "…"}'

`SKILLFIT_SEED` tells repeats apart. Our keys stay out of its environment. An exit code other than 0 is a failure, not a zero.
"""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillfit.errors import InputError
from skillfit.models.json_text import whole_json
from skillfit.skill import Skill
from skillfit.skill.package import find_document
from skillfit.tasks.attempt import Attempt, Score, TaskFailure
from skillfit.tasks.function import evaluated, plain
from skillfit.tasks.item import Item, stable_hash
from skillfit.tasks.process import plain_environment, run_process


@dataclass(frozen=True, slots=True)
class CommandEvaluator:
    argv: tuple[str, ...]
    cwd: Path
    timeout: float

    @classmethod
    def parse(cls, line: str, base: Path, timeout: float) -> CommandEvaluator:
        """A command line, relative to `base`; the program must be there."""
        try:
            program, *arguments = shlex.split(line) or [""]
        except ValueError as error:
            raise InputError(
                f"command: {line.strip()!r} is no command line: {error}.", hint="Close the quote, or escape it."
            ) from error
        found = shutil.which(str(base / program) if "/" in program else program)
        if found is None:
            raise InputError(
                f"command: {program or 'nothing'!r} is not a program.", hint="Check the path and that it is executable."
            )
        return cls((str(Path(found).resolve()) if "/" in program else found, *arguments), base.resolve(), timeout)

    async def __call__(self, skill: Skill, item: Item, seed: int) -> tuple[Attempt, Score]:
        where = f"{Path(self.argv[0]).name} on item {item.id}"
        given = json.dumps(plain(item), ensure_ascii=False).encode()
        with tempfile.TemporaryDirectory(prefix="skillfit-command-") as folder:
            skill.save(Path(folder) / "skill")
            document = find_document(Path(folder) / "skill")
            env = {**plain_environment(), "SKILLFIT_SKILL": str(document), "SKILLFIT_SEED": str(seed)}
            try:
                result = await run_process(self.argv, cwd=self.cwd, timeout=self.timeout, env=env, stdin=given)
            except OSError as error:
                raise TaskFailure("command", f"{where}: cannot be started: {error}") from error
        if result.timed_out:
            raise TaskFailure("timeout", f"{where}: no end after {self.timeout:g} s; killed.")
        if result.code != 0:
            raise TaskFailure("command", f"{where}: exit code {result.code}: {result.stderr.strip()[-500:] or 'nothing on stderr'}")
        return evaluated(_printed(result.stdout, where), source=where)

    def describe(self) -> dict[str, Any]:
        """The command line, and the content of the files in it: another program is another task."""
        files = [path for part in self.argv if (path := self.cwd / part).is_file() and path.is_relative_to(self.cwd)]
        argv = [str(Path(part).relative_to(self.cwd)) if Path(part).is_relative_to(self.cwd) else part for part in self.argv]
        return {"command": argv, "files": [stable_hash(path.read_bytes().hex()) for path in files]}


def _printed(stdout: str, where: str) -> Any:
    """The score: all of stdout, or its last line when the program also talks."""
    for text in (stdout, stdout.rstrip().rpartition("\n")[2]):
        try:
            return whole_json(text)
        except json.JSONDecodeError:
            continue
    raise TaskFailure("command", f"{where}: no JSON score on stdout, but {stdout.strip()[-200:]!r}.", hint='Print {"score": 0.5}.')
