"""SpreadsheetBench's comparison of two workbooks, cell by cell in the answer range.

Values count as equal when their types and values agree after these changes: numbers, and texts
that are numbers, are rounded to two decimals; dates become whole serial days; times lose their
seconds; an empty text is the same as an empty cell. Formulas are compared by the value that was
saved with them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_EPOCH = datetime.datetime(1899, 12, 30)
_RANGE = re.compile(r"^\$?([A-Z]{1,3})?\$?(\d+)?(?::\$?([A-Z]{1,3})?\$?(\d+)?)?$", re.IGNORECASE)


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
