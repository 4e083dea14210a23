"""Writes the sample of spreadsheetbench: tasks with two pairs of workbooks each, and a program that
solves the task. Run it after changing the tasks below:

    python -m bench.samples.workbooks

The expected workbooks are computed by the functions here, not by the programs.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from openpyxl import Workbook

import skillfit.plugins.benchmarks

SAMPLE = Path(skillfit.plugins.benchmarks.__file__).parent / "spreadsheetbench" / "sample"
Rows = list[list[Any]]
Cells = Mapping[str, Any]
TOWNS = ["Arden", "Birk", "Calla", "Dorn", "Elm", "Fenwick", "Gale", "Holt"]
GOODS = ["bolts", "cable", "drills", "epoxy", "files", "gloves", "hinges"]
FIXED = datetime(2026, 1, 1)  # creation date of all workbooks, so that they do not change


@dataclass(frozen=True)
class Sheet:
    name: str
    rows: Rows


@dataclass(frozen=True)
class SheetTask:
    """`fill` makes the sheets, `answer` the cells that must change in the sheet `where`."""

    kind: str
    instruction: str
    position: Callable[[Sequence[Sheet]], str]
    fill: Callable[[random.Random], list[Sheet]]
    answer: Callable[[Sequence[Sheet]], Cells]
    program: str
    where: str = "Data"


def table(luck: random.Random, count: int, *columns: Callable[[random.Random, int], Any]) -> Rows:
    return [[column(luck, number) for column in columns] for number in range(count)]


def sales(luck: random.Random) -> list[Sheet]:
    rows = table(
        luck,
        luck.randrange(6, 11),
        lambda luck, number: f"S-{100 + number}",
        lambda luck, number: luck.choice(TOWNS),
        lambda luck, number: luck.choice(GOODS),
        lambda luck, number: luck.randrange(1, 40),
        lambda luck, number: round(luck.uniform(1, 90), 2),
    )
    return [Sheet("Data", [["Order", "Town", "Goods", "Units", "Price"], *rows])]


def people(luck: random.Random) -> list[Sheet]:
    first = ["Ada", "Ben", "Chloe", "Dev", "Eva", "Finn", "Gus", "Hana", "Ivo"]
    last = ["Marsh", "Nolan", "Ochs", "Price", "Quill", "Reed"]
    rows = table(
        luck,
        luck.randrange(6, 10),
        lambda luck, number: f"{first[number]} {luck.choice(last)}",
        lambda luck, number: datetime(2024, 1, 5) + timedelta(days=luck.randrange(500)),
        lambda luck, number: luck.choice(["yes", "no", None]),
        lambda luck, number: luck.randrange(20, 66),
    )
    return [Sheet("Data", [["Name", "Joined", "Paid", "Age"], *rows])]


def two_sheets(luck: random.Random) -> list[Sheet]:
    codes = luck.sample(range(10, 99), 6)
    prices = [[f"P{code}", round(luck.uniform(2, 60), 2)] for code in codes]
    orders = [[f"P{luck.choice(codes)}", luck.randrange(1, 9)] for _ in range(8)]
    return [
        Sheet("Data", [["Code", "Units"], *orders]),
        Sheet("Price list", [["Code", "Price"], *prices]),
    ]


def body(sheets: Sequence[Sheet]) -> Rows:
    return sheets[0].rows[1:]


def column(letter: str, values: Sequence[Any], start: int = 2) -> Cells:
    return {f"{letter}{start + at}": value for at, value in enumerate(values)}


def below(letter: str) -> Callable[[Sequence[Sheet]], str]:
    """The column beside the table, from the second row to the last."""
    return lambda sheets: f"{letter}2:{letter}{len(sheets[0].rows)}"


def at(cell: str) -> Callable[[Sequence[Sheet]], str]:
    return lambda sheets: cell


OPEN = "import openpyxl\n\nbook = openpyxl.load_workbook('input.xlsx')\nsheet = book['Data']\n"
SAVE = "\nbook.save('output.xlsx')\n"
LOOP = "for row in range(2, sheet.max_row + 1):\n"


def program(text: str) -> str:
    return f"{OPEN}{text}{SAVE}"


def totals_by_town(sheets: Sequence[Sheet]) -> list[tuple[str, int]]:
    towns = sorted({row[1] for row in body(sheets)})
    return [(town, sum(row[3] for row in body(sheets) if row[1] == town)) for town in towns]


TASKS: dict[str, list[SheetTask]] = {
    "train": [
        SheetTask(
            "Cell-Level Manipulation",
            "Put the amount of each order, units times price, into column F, starting in F2.",
            below("F"),
            sales,
            lambda sheets: column("F", [row[3] * row[4] for row in body(sheets)]),
            program(f"{LOOP}    amount = sheet.cell(row, 4).value * sheet.cell(row, 5).value\n"
                    "    sheet.cell(row, 6).value = amount"),
        ),
        SheetTask(
            "Cell-Level Manipulation",
            "How many units were sold in all? Write the number into H1.",
            at("H1"),
            sales,
            lambda sheets: {"H1": sum(row[3] for row in body(sheets))},
            program("sheet['H1'] = sum(sheet.cell(row, 4).value for row in "
                    "range(2, sheet.max_row + 1))"),
        ),
        SheetTask(
            "Cell-Level Manipulation",
            "Split the names: first name into column F, last name into column G, from row 2 on.",
            lambda sheets: f"F2:G{len(sheets[0].rows)}",
            people,
            lambda sheets: {
                **column("F", [row[0].split()[0] for row in body(sheets)]),
                **column("G", [row[0].split()[1] for row in body(sheets)]),
            },
            program(f"{LOOP}    first, last = sheet.cell(row, 1).value.split()\n"
                    "    sheet.cell(row, 6).value = first\n    sheet.cell(row, 7).value = last"),
        ),
        SheetTask(
            "Cell-Level Manipulation",
            "In column E write Senior for everyone aged 60 or more; leave the others empty.",
            below("E"),
            people,
            lambda sheets: column("E", ["Senior" if r[3] >= 60 else None for r in body(sheets)]),
            program(f"{LOOP}    if sheet.cell(row, 4).value >= 60:\n"
                    "        sheet.cell(row, 5).value = 'Senior'"),
        ),
        SheetTask(
            "Sheet-Level Manipulation",
            "Look up the price of each code in the sheet Price list and put it into column C.",
            below("C"),
            two_sheets,
            lambda sheets: column(
                "C", [dict(map(tuple, sheets[1].rows[1:]))[row[0]] for row in body(sheets)]
            ),
            program("prices = {r[0].value: r[1].value for r in book['Price list'].iter_rows()}"
                    f"\n{LOOP}    sheet.cell(row, 3).value = prices[sheet.cell(row, 1).value]"),
        ),
    ],
    "val": [
        SheetTask(
            "Cell-Level Manipulation",
            "Write the highest price into J2.",
            at("J2"),
            sales,
            lambda sheets: {"J2": max(row[4] for row in body(sheets))},
            program("sheet['J2'] = max(sheet.cell(row, 5).value for row in "
                    "range(2, sheet.max_row + 1))"),
        ),
        SheetTask(
            "Cell-Level Manipulation",
            "In column F put the month number in which each person joined.",
            below("F"),
            people,
            lambda sheets: column("F", [row[1].month for row in body(sheets)]),
            program(f"{LOOP}    sheet.cell(row, 6).value = sheet.cell(row, 2).value.month"),
        ),
        SheetTask(
            "Cell-Level Manipulation",
            "Where column C is empty write `unknown` into it.",
            below("C"),
            people,
            lambda sheets: column("C", [row[2] or "unknown" for row in body(sheets)]),
            program(f"{LOOP}    if sheet.cell(row, 3).value is None:\n"
                    "        sheet.cell(row, 3).value = 'unknown'"),
        ),
        SheetTask(
            "Sheet-Level Manipulation",
            "List the towns in alphabetical order in column H from H2 on, each once, and the units "
            "sold there beside them in column I.",
            lambda sheets: f"H2:I{1 + len(totals_by_town(sheets))}",
            sales,
            lambda sheets: {
                **column("H", [town for town, _ in totals_by_town(sheets)]),
                **column("I", [units for _, units in totals_by_town(sheets)]),
            },
            program("totals = {}\n"
                    f"{LOOP}    town = sheet.cell(row, 2).value\n"
                    "    totals[town] = totals.get(town, 0) + sheet.cell(row, 4).value\n"
                    "for row, town in enumerate(sorted(totals), 2):\n"
                    "    sheet.cell(row, 8).value = town\n"
                    "    sheet.cell(row, 9).value = totals[town]"),
        ),
        SheetTask(
            "Sheet-Level Manipulation",
            "Add up units times price over all orders, with prices from the sheet Price list, and "
            "write the sum into F1.",
            at("F1"),
            two_sheets,
            lambda sheets: {
                "F1": sum(
                    row[1] * dict(map(tuple, sheets[1].rows[1:]))[row[0]] for row in body(sheets)
                )
            },
            program("prices = {r[0].value: r[1].value for r in book['Price list'].iter_rows()}"
                    "\nsheet['F1'] = sum(sheet.cell(row, 2).value * "
                    "prices[sheet.cell(row, 1).value] for row in range(2, sheet.max_row + 1))"),
        ),
    ],
    "test": [
        SheetTask(
            "Cell-Level Manipulation",
            "Count the people who have paid (yes in column C) and put the count into G2.",
            at("G2"),
            people,
            lambda sheets: {"G2": sum(row[2] == "yes" for row in body(sheets))},
            program("sheet['G2'] = sum(sheet.cell(row, 3).value == 'yes' for row in "
                    "range(2, sheet.max_row + 1))"),
        ),
        SheetTask(
            "Cell-Level Manipulation",
            "Put the date 30 days after joining into column F.",
            below("F"),
            people,
            lambda sheets: column("F", [row[1] + timedelta(days=30) for row in body(sheets)]),
            program("from datetime import timedelta\n"
                    f"{LOOP}    sheet.cell(row, 6).value = sheet.cell(row, 2).value + "
                    "timedelta(days=30)"),
        ),
        SheetTask(
            "Sheet-Level Manipulation",
            "Write the goods of each order in upper case into column G.",
            below("G"),
            sales,
            lambda sheets: column("G", [row[2].upper() for row in body(sheets)]),
            program(f"{LOOP}    sheet.cell(row, 7).value = sheet.cell(row, 3).value.upper()"),
        ),
    ],
}  # fmt: skip


def save(sheets: Sequence[Sheet], changes: Cells, where: str, path: Path) -> None:
    book = Workbook()
    book.remove(book.active)
    for sheet in sheets:
        made = book.create_sheet(sheet.name)
        for row in sheet.rows:
            made.append(row)
    for cell, value in changes.items():
        book[where][cell] = value
    book.properties.created = book.properties.modified = FIXED
    path.parent.mkdir(parents=True, exist_ok=True)
    book.save(path)


def main() -> None:
    shutil.rmtree(SAMPLE, ignore_errors=True)
    number = 0
    for split, tasks in TASKS.items():
        rows = []
        for task in tasks:
            number += 1
            positions = []
            for case in (1, 2):
                sheets = task.fill(random.Random(100 * number + case))
                folder = SAMPLE / "spreadsheet" / str(number)
                save(sheets, {}, task.where, folder / f"{case}_{number}_init.xlsx")
                golden = folder / f"{case}_{number}_golden.xlsx"
                save(sheets, task.answer(sheets), task.where, golden)
                positions.append(task.position(sheets))
            rows.append(
                {
                    "id": str(number),
                    "instruction": task.instruction,
                    "instruction_type": task.kind,
                    "spreadsheet_path": f"spreadsheet/{number}",
                    "answer_position": f"'{task.where}'!{max(positions, key=_rows_of)}",
                    "solution": task.program,
                }
            )
        (SAMPLE / split).mkdir(parents=True)
        text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
        (SAMPLE / split / "items.json").write_text(text, encoding="utf-8")


def _rows_of(position: str) -> int:
    return int("".join(letter for letter in position.rpartition(":")[2] if letter.isdigit()))


if __name__ == "__main__":
    main()
