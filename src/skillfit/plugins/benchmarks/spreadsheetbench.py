"""SpreadsheetBench: change a workbook as a user of a forum asked, by writing a program.

Rows (dataset.json): `id`, `instruction`, `instruction_type`, `answer_position`, `answer_sheet`,
`spreadsheet_path` (a folder with pairs of workbooks). The agent sees the instruction and a preview
of the first workbook, and writes a Python program that uses openpyxl.

Modes: `single`, one reply with the program; `multi`, the model sees errors and may correct the
program; `react`, an agent with tools works in a folder and leaves solution.py.

The feedback of `multi` is the same for all splits and never uses the expected workbook: an error,
or that the program ran. The rounds end with the first program that runs and saves a workbook.

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
import json
import re
import shutil
import sys
import zipfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from skillfit.agents.agent import system_messages
from skillfit.errors import InputError, TaskFailure
from skillfit.extensions import PartDescription, SourceReference, TaskSource
from skillfit.models.protocol import Message, Model
from skillfit.plain_text import quantity
from skillfit.plugins.benchmarks.benchmark import (
    Benchmark,
    Dialogue,
    HubFiles,
    ItemRow,
    data_root_of,
    find_in_data,
    optional,
    packaged_text,
    read_any,
    required_model,
    skillopt_splits,
    text,
)
from skillfit.sandbox.known_good import KnownGood, refuse_forbidden
from skillfit.sandbox.programs import (
    Isolation,
    SandboxNotStarted,
    best_isolation,
    run_untrusted,
    scratch_folder,
)
from skillfit.skill import Skill
from skillfit.tasks.graders import known_good_programs
from skillfit.tasks.graders.built_in import BuiltIn
from skillfit.tasks.item import Attempt, Item, Score, ScoredAttempt, TrajectoryStep
from skillfit.tasks.rows import Row, read_rows
from skillfit.tasks.task import Evaluator, LoadContext, SourceItems

SOLUTION = "solution.py"
GOLDEN = "the golden workbooks"  # the gold "answer" of items that come without a program
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_PAIRS = (("_input.xlsx", "_answer.xlsx"), ("_init.xlsx", "_golden.xlsx"))
_MEMORY = 2 << 30
_SHOWN = 5  # differences
_OPEN_AND_SAVE = """\
import openpyxl
openpyxl.load_workbook("input.xlsx").save("output.xlsx")
"""
_EPOCH = datetime.datetime(1899, 12, 30)
_RANGE = re.compile(r"^\$?([A-Z]{1,3})?\$?(\d+)?(?::\$?([A-Z]{1,3})?\$?(\d+)?)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Case:
    """One workbook to change, and the workbook that should come out."""

    input: Path
    golden: Path


def cases_in(folder: Path) -> list[Case]:
    """Return the test cases of a task: `1_ID_input.xlsx` with `1_ID_answer.xlsx`, `…_init.xlsx`
    with `…_golden.xlsx`, or `initial.xlsx` with `golden.xlsx`.
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
    """Return the last fenced block, or the whole text."""
    return str((_FENCE.findall(text) or [text])[-1])


@dataclass(frozen=True, slots=True)
class Executed:
    """What a program did: the workbook it saved, if it did, and why it did not."""

    output: Path | None
    problem: str
    stdout: str = ""


@asynccontextmanager
async def executed(
    program: str, workbook: Path, timeout: float, isolation: Isolation | None = None
) -> AsyncIterator[Executed]:
    """Run a program on a workbook. The result's files last as long as the block."""
    isolation = isolation or best_isolation()
    with scratch_folder("workbook") as folder:
        shutil.copyfile(workbook, folder / "input.xlsx")
        (folder / SOLUTION).write_text(program, encoding="utf-8", errors="replace")
        try:
            result = await run_untrusted(
                [sys.executable, "-I", SOLUTION],
                cwd=folder,
                timeout=timeout,
                memory=_MEMORY,
                isolation=isolation,
            )
            if result.code != 0:
                await refuse_forbidden(result.stderr, isolation)
        except SandboxNotStarted as error:
            raise TaskFailure("sandbox", error.message, hint=error.hint) from error
        output = folder / "output.xlsx"
        problem = ""
        if result.killed:
            seconds = f" ({timeout:g} s)" if result.timed_out else ""
            problem = f"the program was stopped at the {result.killed}{seconds}."
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

    def known_good(self, items: Sequence[Item]) -> KnownGood | None:
        """Open a workbook and save it."""

        async def run(isolation: Isolation) -> str:
            import openpyxl

            with scratch_folder("known-good") as folder:
                workbook = folder / "empty.xlsx"
                openpyxl.Workbook().save(workbook)
                tried = executed(_OPEN_AND_SAVE, workbook, self.program_timeout, isolation)
                async with tried as result:
                    return result.problem

        return KnownGood(
            "programs of spreadsheetbench",
            best_isolation(),
            run,
            modules=("openpyxl",),
            extra="spreadsheetbench",
        )

    def golds(self, item: Item) -> tuple[str, ...]:
        return item.answers or (GOLDEN,)

    def problem(self, item: Item) -> str:
        if not str(item.content().get("answer_position") or "").strip():
            return "has no answer_position, so that nothing would be compared"
        return "" if _cases(item) else "has no workbooks with expected results"


def program_of(attempt: Attempt) -> str:
    """Return the program that the agent left in its workspace, or the one in its answer."""
    file = Path(attempt.workspace) / SOLUTION
    if attempt.workspace and file.is_file() and not file.is_symlink():
        return file.read_text(encoding="utf-8", errors="replace")
    return program_in(attempt.answer)


def _cases(item: Item) -> list[Case]:
    return cases_in(Path(str(item.content()["workbooks"])))


def _shown(differences: list[Difference]) -> str:
    """Return the differences as the optimizer may see them: without the expected values."""
    if not differences:
        return ""
    some = "; ".join(f"{one.where} is {one.found}" for one in differences[:_SHOWN])
    return f"{quantity(len(differences), 'wrong cell')}: {some}."


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
    """Return the differences in the cells at `position` (`A1:B3`, `'My sheet'!A1,Other!C2`). Parts
    that name no sheet are in `sheet`, or in the first sheet of the expected workbook.

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
    """Return what two equal values have in common: a kind, and the value in the compared form."""
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
    """Yield sheet and range of each part. Commas inside quoted sheet names do not separate
    parts.
    """
    found = re.findall(r"((?:'[^']*'|[^,'])+)", position)
    parts = [part.strip() for part in found if part.strip()]
    if not parts:
        raise BadRange("the answer position is empty")
    for part in parts:
        name, mark, cells = part.rpartition("!")
        yield (name.strip().strip("'") if mark else default), cells.strip().strip("'")


def _cells(text: str, rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Yield row and column numbers of a range; whole rows and columns end where the sheets end."""
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


_MODES = ("single", "multi", "react")
_ROWS, _COLUMNS, _CELL = 5, 20, 40  # of a preview: rows, columns, characters of a cell
_FEEDBACK = """Your program was run on the workbook:

{problem}

Reply with the whole corrected program in one ```python block."""


def read(path: Path) -> Iterator[Row]:
    """Yield the rows of dataset.json, wherever it is in the folder."""
    found = sorted(path.rglob("dataset.json")) if path.is_dir() else []
    files = [file for file in found if isinstance(json.loads(file.read_bytes()), list)]
    for file in files:
        yield from read_rows(file)
    if not files:
        yield from read_any(path)


SPREADSHEETBENCH = Benchmark(
    name="spreadsheetbench",
    title="SpreadsheetBench: changing workbooks as forum users asked",
    homepage="https://huggingface.co/datasets/KAKA22/SpreadsheetBench",
    licence="CC BY-SA 4.0",
    folder=Path(__file__).with_suffix(""),
    downloads=(HubFiles("KAKA22/SpreadsheetBench", ("spreadsheetbench_verified_400.tar.gz",)),),
    splits=skillopt_splits("spreadsheetbench_id_split", 80, 40, 280),
    read=read,
)


class _WorkbookRow(ItemRow):
    workbooks: str  # the folder with inputs and expected results
    answer_position: str
    answer_sheet: str


def spreadsheetbench(
    reference: SourceReference,
    *,
    mode: str = "multi",
    max_turns: int = 30,
    data_root: str = "",
    program_timeout: float = 60.0,
) -> TaskSource:
    """`max_turns`: programs (multi) or tool rounds (react). `data_root`: the folder that
    `spreadsheet_path` starts from. `program_timeout`: seconds for one run of a program.
    """
    if mode not in _MODES:
        raise InputError(
            f"env.task_args: mode is {mode!r}.", hint=f"Choose one of {', '.join(_MODES)}."
        )
    if find_spec("openpyxl") is None:
        raise InputError(
            "spreadsheetbench needs the package openpyxl.",
            hint="pip install 'skillfit[spreadsheetbench]'",
        )
    root = data_root_of(reference, data_root)
    grader = WorkbookGrader(program_timeout=program_timeout)

    def convert(row: Row) -> _WorkbookRow:
        folder = _folder(row, root)
        position = optional(row, "answer_position")
        sheet = optional(row, "answer_sheet")
        first = cases_in(folder)[0].input
        place = f"{position}{f' on sheet {sheet}' if sheet and '!' not in position else ''}"
        item: _WorkbookRow = {
            "id": text(row, "id"),
            "type": optional(row, "instruction_type"),
            "input": f"{text(row, 'instruction')}\n\nThe result is checked at: {place}\n\n"
            f"Beginning of the workbook input.xlsx:\n\n{preview(first)}",
            "workbooks": str(folder),
            "answer_position": position,
            "answer_sheet": sheet,
        }
        if program := optional(row, "solution"):
            item["answers"] = [program]
        if mode == "react":
            item["files"] = {"input.xlsx": str(first)}
        return item

    def how(context: LoadContext) -> SourceItems:
        if mode != "multi":
            return SourceItems((), grader=grader)
        prompt = packaged_text(SPREADSHEETBENCH.folder, "write_program.md")
        return SourceItems((), evaluator=CodeRounds(context.model, prompt, grader, max_turns))

    return SPREADSHEETBENCH.source(
        reference, convert, how=how, config={"env": _env(mode, max_turns)}
    )


def _env(mode: str, max_turns: int) -> dict[str, str | int]:
    if mode == "single":
        return {
            "agent": "chat",
            "prompt": packaged_text(SPREADSHEETBENCH.folder, "write_program.md"),
        }
    if mode == "react":
        prompt = packaged_text(SPREADSHEETBENCH.folder, "work_in_folder.md")
        return {"agent": "tools", "prompt": prompt, "max_turns": max_turns}
    return {}


def _folder(row: Row, root: Path | None) -> Path:
    name = text(row, "spreadsheet_path", "id")
    found = find_in_data(row, (name, f"spreadsheet/{name}"), root)
    if found is None or not cases_in(found):
        raise InputError(
            f"{row.where}: no workbooks with expected results in {root or row.root}/{name}.",
            hint="Name the folder of the data set in env.task_args: {data_root: …}.",
        )
    return found


def preview(workbook: Path) -> str:
    """Show sheets with their sizes and first rows."""
    import openpyxl

    book = openpyxl.load_workbook(workbook, read_only=True, data_only=True)
    try:
        return "\n\n".join(_sheet(sheet) for sheet in book.worksheets)
    finally:
        book.close()


def _sheet(sheet: Any) -> str:
    lines = [f"Sheet {sheet.title} ({sheet.max_row} rows, {sheet.max_column} columns)"]
    for row in sheet.iter_rows(max_row=_ROWS, max_col=_COLUMNS, values_only=True):
        cells = ["" if value is None else str(value)[:_CELL] for value in row]
        lines.append(" | ".join(cells).rstrip(" |"))
    return "\n".join(lines)


@dataclass(frozen=True)
class CodeRounds(Evaluator):
    needs_model: ClassVar[bool] = True

    model: Model | None
    prompt: str
    grader: WorkbookGrader
    max_turns: int

    async def __call__(self, skill: Skill, item: Item, seed: int) -> ScoredAttempt:
        dialogue = Dialogue(required_model(self.model, "spreadsheetbench"), item, seed)
        messages = (*system_messages(self.prompt, skill), *item.messages)
        workbook = _cases(item)[0].input
        answer = ""
        for _ in range(self.max_turns):
            reply = await dialogue.ask(messages)
            answer = reply.text
            program = program_in(answer)
            async with executed(program, workbook, self.grader.program_timeout) as result:
                problem = result.problem
            outcome = problem or "The program ran and saved output.xlsx."
            dialogue.steps.append(TrajectoryStep("tool_result", outcome, role="tool", name="run"))
            if not problem:
                break
            feedback = Message("user", _FEEDBACK.format(problem=problem))
            messages = (*messages, Message("assistant", answer), feedback)
        else:
            dialogue.note(f"Ended after {self.max_turns} programs, none of which ran.")
        attempt = dialogue.attempt(answer)
        return ScoredAttempt(attempt, await self.grader.grade(item, attempt))

    def known_good(self, items: Sequence[Item]) -> list[KnownGood]:
        return known_good_programs(self.grader, items)

    def describe(self) -> PartDescription:
        return {
            "mode": "multi",
            "max_turns": self.max_turns,
            "prompt": self.prompt,
            "grader": self.grader.describe(),
            "model": self.model.id if self.model else "",
        }
