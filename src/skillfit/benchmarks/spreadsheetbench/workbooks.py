"""Run an agent's program on workbooks, and compare what it saves with the expected workbooks.

The program runs in a sandbox, in a folder that holds the workbook as `input.xlsx`; it must save
`output.xlsx`. Each test case gets a fresh folder and a fresh run, so nothing from an earlier round
is ever graded.

The comparison is SpreadsheetBench's, cell by cell in the answer range. Values count as equal when
their types and values agree after these changes: numbers, and texts that are numbers, are rounded
to two decimals; dates become whole serial days; times lose their seconds; an empty text is the same
as an empty cell. Formulas are compared by the value that was saved with them.
"""

from __future__ import annotations

import datetime
import re
import shutil
import sys
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
_EPOCH = datetime.datetime(1899, 12, 30)
_RANGE = re.compile(r"^\$?([A-Z]{1,3})?\$?(\d+)?(?::\$?([A-Z]{1,3})?\$?(\d+)?)?$", re.IGNORECASE)


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


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where the workbooks differ."""

    where: str
    found: str
    expected: str


class BadRange(ValueError):
    """An answer position that names no cells."""


def compare_workbooks(
    expected: Path, found: Path, position: str, sheet: str = ""
) -> list[Difference]:
    """The differences in the cells at `position` (`A1:B3`, `'My sheet'!A1,Other!C2`). Parts that
    name no sheet are in `sheet`, or in the first sheet of the expected workbook.

    Raises `BadRange` for a position without cells, and what openpyxl raises for a broken file.
    """
    import openpyxl

    wanted = openpyxl.load_workbook(expected, data_only=True)
    given = openpyxl.load_workbook(found, data_only=True)
    differences = []
    for name, cells in _parts(position, sheet or wanted.sheetnames[0]):
        if name not in wanted.sheetnames:
            raise BadRange(f"there is no sheet {name!r} in the expected workbook")
        if name not in given.sheetnames:
            differences.append(Difference(name, "no such sheet", "the sheet"))
            continue
        first, second = wanted[name], given[name]
        size = (max(first.max_row, second.max_row), max(first.max_column, second.max_column))
        for row, column in _cells(cells, *size):
            one, other = first.cell(row, column), second.cell(row, column)
            if comparable(one.value) != comparable(other.value):
                where = f"{name}!{one.coordinate}"
                differences.append(Difference(where, repr(other.value), repr(one.value)))
    return differences


def comparable(value: Any) -> tuple[str, Any]:
    """What two equal values have in common: a kind, and the value in the compared form."""
    if value is None or value == "":
        return "empty", None
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, (int, float)):
        return "number", round(float(value), 2)
    if isinstance(value, datetime.datetime):
        return "number", float(round((value - _EPOCH) / datetime.timedelta(days=1)))
    if isinstance(value, datetime.time):
        return "text", str(value)[:-3]
    if isinstance(value, str):
        try:
            return "number", round(float(value), 2)
        except ValueError:
            return "text", value
    return type(value).__name__, value


def _parts(position: str, default: str) -> Iterator[tuple[str, str]]:
    """Sheet and range of each part. Commas inside quoted sheet names do not separate parts."""
    found = re.findall(r"((?:'[^']*'|[^,'])+)", position)
    parts = [part.strip() for part in found if part.strip()]
    if not parts:
        raise BadRange("the answer position is empty")
    for part in parts:
        name, mark, cells = part.rpartition("!")
        yield (name.strip().strip("'") if mark else default), cells.strip().strip("'")


def _cells(text: str, rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Row and column numbers of a range; whole rows and columns end where the sheets end."""
    from openpyxl.utils import column_index_from_string

    match = _RANGE.match(text)
    if match is None or not any(match.groups()):
        raise BadRange(f"{text!r} is not a range of cells")
    left, top, right, bottom = match.groups()
    if ":" not in text:
        right, bottom = left, top
    first_row, last_row = int(top or 1), int(bottom or rows)
    first_column = column_index_from_string(left.upper()) if left else 1
    last_column = column_index_from_string(right.upper()) if right else columns
    for row in range(first_row, last_row + 1):
        for column in range(first_column, last_column + 1):
            yield row, column
