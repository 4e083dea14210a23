"""SpreadsheetBench: change a workbook as a user of a forum asked, by writing a program.

Rows (dataset.json): `id`, `instruction`, `instruction_type`, `answer_position`, `answer_sheet`,
`spreadsheet_path` (a folder with pairs of workbooks). The agent sees the instruction and a preview
of the first workbook, and writes a Python program that uses openpyxl.

Modes: `single`, one reply with the program; `multi`, the model sees errors and may correct the
program; `react`, an agent with tools works in a folder and leaves solution.py.

The feedback of `multi` is the same for all splits and never uses the expected workbook: an error,
or that the program ran. The rounds end with the first program that runs and saves a workbook.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from skillfit.benchmarks.benchmark import (
    Benchmark,
    HubFiles,
    data_root_of,
    find_in_data,
    optional,
    read_any,
    skillopt_splits,
    text,
)
from skillfit.benchmarks.dialogue import Dialogue, packaged_text, required_model, system_message
from skillfit.benchmarks.spreadsheetbench.workbooks import (
    WorkbookGrader,
    cases_in,
    executed,
    program_in,
)
from skillfit.errors import InputError
from skillfit.models.protocol import Message, Model
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Score, Step
from skillfit.tasks.load import LoadContext, SourceItems, SourceReference, TaskSource
from skillfit.tasks.rows import Row, read_rows
from skillfit.tasks.task import Evaluator

MODES = ("single", "multi", "react")
_ROWS, _COLUMNS, _CELL = 5, 20, 40  # of a preview: rows, columns, characters of a cell
_FEEDBACK = """Your program was run on the workbook:

{problem}

Reply with the whole corrected program in one ```python block."""


def read(path: Path) -> Iterator[Row]:
    """The rows of dataset.json, wherever it is in the folder."""
    found = sorted(path.rglob("dataset.json")) if path.is_dir() else []
    files = [file for file in found if isinstance(json.loads(file.read_bytes()), list)]
    for file in files:
        yield from read_rows(file)
    if not files:
        yield from read_any(path)


BENCHMARK = Benchmark(
    name="spreadsheetbench",
    title="SpreadsheetBench: changing workbooks as forum users asked",
    homepage="https://huggingface.co/datasets/KAKA22/SpreadsheetBench",
    licence="CC BY-SA 4.0",
    folder=Path(__file__).parent,
    downloads=(HubFiles("KAKA22/SpreadsheetBench", ("spreadsheetbench_verified_400.tar.gz",)),),
    splits=skillopt_splits("spreadsheetbench_id_split", 80, 40, 280),
    read=read,
)


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
    if mode not in MODES:
        raise InputError(
            f"env.task_args: mode is {mode!r}.", hint=f"Choose one of {', '.join(MODES)}."
        )
    if find_spec("openpyxl") is None:
        raise InputError(
            "spreadsheetbench needs the package openpyxl.",
            hint="pip install 'skillfit[spreadsheetbench]'",
        )
    root = data_root_of(reference, data_root)
    grader = WorkbookGrader(program_timeout=program_timeout)

    def convert(row: Row) -> Mapping[str, Any]:
        folder = _folder(row, root)
        position = optional(row, "answer_position")
        sheet = optional(row, "answer_sheet")
        first = cases_in(folder)[0].input
        place = f"{position}{f' on sheet {sheet}' if sheet and '!' not in position else ''}"
        item: dict[str, object] = {
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
        prompt = packaged_text(__package__, "write_program.md")
        return SourceItems((), evaluator=CodeRounds(context.model, prompt, grader, max_turns))

    return BENCHMARK.source(reference, convert, how=how, config={"env": _env(mode, max_turns)})


def _env(mode: str, max_turns: int) -> dict[str, str | int]:
    if mode == "single":
        return {"agent": "chat", "prompt": packaged_text(__package__, "write_program.md")}
    if mode == "react":
        prompt = packaged_text(__package__, "work_in_folder.md")
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
    """Sheets with their sizes and first rows."""
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

    async def __call__(self, skill: Skill, item: Item, seed: int) -> tuple[Attempt, Score]:
        dialogue = Dialogue(required_model(self.model, "spreadsheetbench"), item, seed)
        messages = (system_message(self.prompt, skill), *item.messages)
        workbook = cases_in(Path(str(item.content()["workbooks"])))[0].input
        answer = ""
        for _ in range(self.max_turns):
            reply = await dialogue.ask(messages)
            answer = reply.text
            program = program_in(answer)
            async with executed(program, workbook, self.grader.program_timeout) as result:
                problem = result.problem
            outcome = problem or "The program ran and saved output.xlsx."
            dialogue.steps.append(Step("tool_result", outcome, role="tool", name="run"))
            if not problem:
                break
            feedback = Message("user", _FEEDBACK.format(problem=problem))
            messages = (*messages, Message("assistant", answer), feedback)
        else:
            dialogue.note(f"Ended after {self.max_turns} programs, none of which ran.")
        attempt = Attempt(answer, tuple(dialogue.steps), usage=dialogue.usage)
        return attempt, await self.grader.grade(item, attempt)

    def describe(self) -> dict[str, Any]:
        return {
            "mode": "multi",
            "max_turns": self.max_turns,
            "prompt": self.prompt,
            "grader": self.grader.describe(),
            "model": self.model.id if self.model else "",
        }
