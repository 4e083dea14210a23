"""Grade a patch without Docker: apply it to a clean copy, add the hidden tests, run them in the
sandbox, and compare the results with those that resolve the issue.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from skillfit.benchmarks.swebench.checkout import PatchFailed, changes, checkout, files_in
from skillfit.benchmarks.swebench.pytest_log import judge, parse_log
from skillfit.sandbox.isolation import run_untrusted
from skillfit.sandbox.process import SandboxNotStarted
from skillfit.tasks.graders.base import BuiltIn
from skillfit.tasks.item import Attempt, Item, Score, TaskFailure

REPOSITORY = "repo"  # the folder of the repository in the agent's workspace
_DIFF = re.compile(r"```(?:diff|patch)[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_MEMORY = 4 << 30


class PatchGrader(BuiltIn, name="patch"):
    """Hard and soft: whether the issue is resolved."""

    test_command: str = "python -m pytest -rA -p no:cacheprovider"
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
