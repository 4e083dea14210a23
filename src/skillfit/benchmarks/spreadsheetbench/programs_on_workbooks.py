"""Run an agent's program on workbooks, and grade what it saves.

The program runs in a sandbox, in a folder that holds the workbook as `input.xlsx`; it must save
`output.xlsx`. Each test case gets a fresh folder and a fresh run, so nothing from an earlier round
is ever graded.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from skillfit.benchmarks.spreadsheetbench.cell_comparison import (
    BadRange,
    Difference,
    compare_workbooks,
)
from skillfit.sandbox.isolation import run_untrusted
from skillfit.sandbox.process import SandboxNotStarted, scratch_folder
from skillfit.tasks.graders.base import BuiltIn
from skillfit.tasks.item import Attempt, Item, Score, TaskFailure

SOLUTION = "solution.py"
GOLDEN = "the golden workbooks"  # the gold "answer" of items that come without a program
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_PAIRS = (("_input.xlsx", "_answer.xlsx"), ("_init.xlsx", "_golden.xlsx"))
_MEMORY = 2 << 30
_SHOWN = 5  # differences


@dataclass(frozen=True, slots=True)
class Case:
    """One workbook to change, and the workbook that should come out."""

    input: Path
    golden: Path


def cases_in(folder: Path) -> list[Case]:
    """The test cases of a task: `1_ID_input.xlsx` with `1_ID_answer.xlsx`, `…_init.xlsx` with
    `…_golden.xlsx`, or `initial.xlsx` with `golden.xlsx`.
    """
    found = []
    for start, end in _PAIRS:
        for path in sorted(folder.glob(f"*{start}")):
            found.append(Case(path, path.with_name(path.name.removesuffix(start) + end)))
    single = Case(folder / "initial.xlsx", folder / "golden.xlsx")
    if not found and single.input.is_file():
        found = [single]
    return [case for case in found if case.golden.is_file()]


def program_in(text: str) -> str:
    """The last fenced block, or the whole text."""
    return str((_FENCE.findall(text) or [text])[-1])


@dataclass(frozen=True, slots=True)
class Executed:
    """What a program did: the workbook it saved, if it did, and why it did not."""

    output: Path | None
    problem: str
    stdout: str = ""


@asynccontextmanager
async def executed(program: str, workbook: Path, timeout: float) -> AsyncIterator[Executed]:
    """Run a program on a workbook. The result's files last as long as the block."""
    with scratch_folder("workbook") as folder:
        shutil.copyfile(workbook, folder / "input.xlsx")
        (folder / SOLUTION).write_text(program, encoding="utf-8", errors="replace")
        try:
            result = await run_untrusted(
                [sys.executable, "-I", SOLUTION], cwd=folder, timeout=timeout, memory=_MEMORY
            )
        except SandboxNotStarted as error:
            raise TaskFailure("sandbox", error.message, hint=error.hint) from error
        output = folder / "output.xlsx"
        problem = ""
        if result.killed:
            problem = f"the program was ended at the {result.killed} ({timeout:g} s)."
        elif result.code != 0:
            lines = result.stderr.strip().splitlines()[-8:]
            problem = "\n".join(lines) or f"the program ended with exit code {result.code}."
        elif not output.is_file():
            problem = "the program did not save output.xlsx."
        yield Executed(None if problem else output, problem, result.stdout)


class WorkbookGrader(BuiltIn, name="workbook"):
    """Hard: the program changes every workbook as expected; soft: the share of workbooks."""

    program_timeout: float = 60.0

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        if attempt.bare and attempt.answer == GOLDEN:
            found = [self._differences(item, case, case.golden) for case in _cases(item)]
            return _score([str(differences[0]) if differences else "" for differences in found])
        program = program_of(attempt)
        if not program.strip():
            return Score(0.0, feedback="There is no program.")
        problems, evidence = [], []
        for case in _cases(item):
            async with executed(program, case.input, self.program_timeout) as result:
                problem = result.problem
                if result.output is not None:
                    differences = self._differences(item, case, result.output)
                    problem = _shown(differences)
                    evidence += [f"{case.input.name}: {one}" for one in differences[:_SHOWN]]
            problems.append(problem)
        return _score(problems, tuple(evidence))

    def _differences(self, item: Item, case: Case, output: Path) -> list[Difference]:
        content = item.content()
        position, sheet = str(content["answer_position"]), str(content.get("answer_sheet") or "")
        try:
            return compare_workbooks(case.golden, output, position, sheet)
        except BadRange as error:
            raise TaskFailure("grader", f"item {item.id}: {error}.") from error
        except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
            return [Difference("output.xlsx", f"not a readable workbook ({error})", "a workbook")]

    def golds(self, item: Item) -> tuple[str, ...]:
        return item.answers or (GOLDEN,)

    def problem(self, item: Item) -> str:
        if not str(item.content().get("answer_position") or "").strip():
            return "has no answer_position, so that nothing would be compared"
        return "" if _cases(item) else "has no workbooks with expected results"


def program_of(attempt: Attempt) -> str:
    """The program that the agent left in its workspace, or the one in its answer."""
    file = Path(attempt.workspace) / SOLUTION
    if attempt.workspace and file.is_file() and not file.is_symlink():
        return file.read_text(encoding="utf-8", errors="replace")
    return program_in(attempt.answer)


def _cases(item: Item) -> list[Case]:
    return cases_in(Path(str(item.content()["workbooks"])))


def _shown(differences: list[Difference]) -> str:
    """The differences as the optimizer may see them: without the expected values."""
    if not differences:
        return ""
    some = "; ".join(f"{one.where} is {one.found}" for one in differences[:_SHOWN])
    return f"{len(differences)} cells are wrong: {some}."


def _score(problems: list[str], evidence: tuple[str, ...] = ()) -> Score:
    wrong = [problem for problem in problems if problem]
    share = 1 - len(wrong) / len(problems)
    feedback = f"{len(wrong)} of {len(problems)} workbooks are wrong. {wrong[0]}" if wrong else ""
    return Score(float(not wrong), share, feedback, evidence)
