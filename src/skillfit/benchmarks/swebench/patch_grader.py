"""Grade a patch without Docker: apply it to a clean copy, add the hidden tests, run them in the
sandbox, and compare the results with those that resolve the issue.

Results are read from pytest's summary (`-rA`) as the swebench package reads them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skillfit.sandbox.isolation import run_untrusted
from skillfit.sandbox.process import ProcessResult, SandboxNotStarted, run_process, scratch_folder
from skillfit.tasks.graders.base import BuiltIn
from skillfit.tasks.item import Attempt, Item, Score, TaskFailure

TEST_COMMAND = "python -m pytest -rA -p no:cacheprovider"
REPOSITORY = "repo"  # the folder of the repository in the agent's workspace
_DIFF = re.compile(r"```(?:diff|patch)[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_MEMORY = 4 << 30
_PATCHED = re.compile(r"^diff --git a/(.+?) b/(.+)$", re.MULTILINE)
_SKIPPED = shutil.ignore_patterns(".git", "__pycache__", "*.pyc", ".pytest_cache")
_SECONDS = 120.0
_LINE = re.compile(r"^(PASSED|FAILED|SKIPPED|ERROR|XFAIL)[ \t]+(\S+)", re.MULTILINE)
_COUNT = re.compile(r"^\[\d+\]$")  # SKIPPED [3] path:line: reason, which names no test


class PatchGrader(BuiltIn, name="patch"):
    """Hard and soft: whether the issue is resolved."""

    test_command: str = TEST_COMMAND
    timeout_per_instance: float = 600.0

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        content = item.content()
        base = Path(str(content["repository"]))
        patch = attempt.answer if attempt.bare else await patch_of(attempt, base)
        if not patch.strip():
            return Score(0.0, feedback="Nothing was changed.")
        test_patch = str(content["test_patch"])
        with checkout(base) as repository:
            try:
                await repository.apply(patch)
            except PatchFailed as error:
                return Score(0.0, feedback=f"The patch does not apply: {error}")
            tests = files_in(test_patch)
            repository.restore(tests)
            try:
                await repository.apply(test_patch)
            except PatchFailed as error:
                raise TaskFailure("grader", f"the tests of item {item.id}: {error}") from error
            return await self._tested(item, repository.folder, tests)

    async def _tested(self, item: Item, folder: Path, tests: list[str]) -> Score:
        program, *arguments = shlex.split(self.test_command)
        python = sys.executable if program == "python" else program
        try:
            result = await run_untrusted(
                [python, *arguments, *(name for name in tests if name.endswith(".py"))],
                cwd=folder,
                timeout=self.timeout_per_instance,
                memory=_MEMORY,
                max_output=1 << 22,
            )
        except SandboxNotStarted as error:
            raise TaskFailure("sandbox", error.message, hint=error.hint) from error
        if result.killed:
            return Score(0.0, feedback=f"The tests were ended at the {result.killed}.")
        if "No module named pytest" in result.stderr:
            raise TaskFailure("grader", "pytest is not installed.", hint="pip install pytest")
        statuses = parse_log(result.stdout)
        # A patch can print lines that look like results. A failed run must show a failure.
        failed = any(status in ("FAILED", "ERROR") for status in statuses.values())
        if result.code != 0 and not failed:
            statuses = {}
        content = item.content()
        found = judge(statuses, content["FAIL_TO_PASS"], content["PASS_TO_PASS"])
        if found.resolved:
            return Score(1.0)
        feedback = (
            f"{len(found.unresolved)} of {len(content['FAIL_TO_PASS'])} tests for the issue fail; "
            f"{len(found.broken)} tests that passed before fail now."
        )
        evidence = (*found.unresolved, *found.broken, result.stdout[-2000:])
        return Score(0.0, feedback=feedback, evidence=evidence)

    def problem(self, item: Item) -> str:
        content = item.content()
        if not content.get("FAIL_TO_PASS") or not content.get("test_patch"):
            return "has no FAIL_TO_PASS tests or no test_patch"
        return ""

    def patterns_of(self, item: Item) -> tuple[str, ...]:
        return tuple(item.content().get("FAIL_TO_PASS") or ())


async def patch_of(attempt: Attempt, base: Path) -> str:
    """What the agent changed in its copy of the repository, or the diff in its answer."""
    changed = Path(attempt.workspace) / REPOSITORY
    if attempt.workspace and changed.is_dir():
        return await changes(base, changed)
    return str((_DIFF.findall(attempt.answer) or [""])[-1])


class PatchFailed(Exception):
    """A patch that git cannot apply."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A copy of the folder `base`."""

    base: Path
    folder: Path

    async def apply(self, patch: str) -> None:
        """Apply a patch. Raises `PatchFailed` when it does not fit."""
        text = patch if patch.endswith("\n") else f"{patch}\n"
        result = await _git("apply", "--whitespace=nowarn", "-", cwd=self.folder, stdin=text)
        if result.code != 0:
            raise PatchFailed(result.stderr.strip()[-500:])

    def restore(self, names: list[str]) -> None:
        """Bring files back to the base state; files that do not exist there are removed."""
        for name in names:
            here, there = self.folder / name, self.base / name
            if there.is_file():
                here.parent.mkdir(parents=True, exist_ok=True)
                here.unlink(missing_ok=True)
                shutil.copyfile(there, here)
            else:
                here.unlink(missing_ok=True)


@contextmanager
def checkout(base: Path) -> Iterator[Checkout]:
    """A copy of the base state; it is removed with the block."""
    with scratch_folder("checkout") as scratch:
        shutil.copytree(base, scratch / "repo", symlinks=True, ignore=_SKIPPED)
        yield Checkout(base, scratch / "repo")


async def changes(base: Path, changed: Path) -> str:
    """What differs between the base state and an agent's copy, as a patch."""
    with scratch_folder("changes") as scratch:
        for name, folder in (("a", base), ("b", changed)):
            shutil.copytree(folder, scratch / name, symlinks=True, ignore=_SKIPPED)
        # The names of the two folders take the place of git's usual prefixes.
        arguments = ("diff", "--no-index", "--no-prefix", "--binary", "--no-renames", "a", "b")
        result = await _git(*arguments, cwd=scratch)
    if result.code not in (0, 1):
        raise TaskFailure("git", f"git diff failed: {result.stderr.strip()[-300:]}")
    return result.stdout


async def _git(*arguments: str, cwd: Path, stdin: str = "") -> ProcessResult:
    program = shutil.which("git")
    if program is None:
        raise TaskFailure("git", "the program git is not installed.")
    env = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(cwd.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(cwd.parent),  # no repository above the folder matters
    }
    return await run_process(
        [program, *arguments],
        cwd=cwd,
        timeout=_SECONDS,
        env=env,
        stdin=stdin.encode(),
        max_output=1 << 24,
    )


def files_in(patch: str) -> list[str]:
    """The files that a patch changes, under their new names."""
    return [new for _, new in _PATCHED.findall(patch)]


def parse_log(log: str) -> dict[str, str]:
    """Test -> its status; the last line about a test counts."""
    found = {}
    for status, name in _LINE.findall(log):
        if not (status == "SKIPPED" and _COUNT.match(name)):
            found[name] = status
    return found


@dataclass(frozen=True, slots=True)
class SuiteVerdict:
    """Which of the tests that decide have not the result they must have."""

    unresolved: tuple[str, ...]  # should pass now, and do not
    broken: tuple[str, ...]  # passed before, and do not now

    @property
    def resolved(self) -> bool:
        return not self.unresolved and not self.broken


def judge(
    statuses: Mapping[str, str], fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]
) -> SuiteVerdict:
    """Tests that should be fixed must pass. Tests that passed before may also be skipped."""
    return SuiteVerdict(
        tuple(name for name in fail_to_pass if _status(name, statuses) not in ("PASSED", "XFAIL")),
        tuple(
            name
            for name in pass_to_pass
            if _status(name, statuses) not in ("PASSED", "XFAIL", "SKIPPED")
        ),
    )


def _status(name: str, statuses: Mapping[str, str]) -> str | None:
    """The status of a test. Some published names are cut off inside their parameters; such a name
    stands for all tests that begin with it, if they agree.
    """
    if name in statuses or name.count("[") <= name.count("]"):
        return statuses.get(name)
    passing = ("PASSED", "XFAIL")
    matching = [status for test, status in statuses.items() if test.startswith(name)]
    agree = len({status in passing for status in matching}) == 1
    return matching[0] if agree else None
