"""Lists in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """One page of a list."""

    rows: Sequence[Row]
    number: int
    pages: int
    first: int  # number of the first row, counted from 1; 0 when there is none
    total: int
    query: str  # of the other pages, without their number

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1 if self.rows else 0


def page_of(rows: Sequence[Row], number: int, size: int, query: QueryParams) -> Page[Row]:
    """The page with this number, or the last one."""
    pages = max(1, -(-len(rows) // size))
    number = min(number, pages)
    kept = [(key, value) for key, value in query.multi_items() if key not in ("page", "message")]
    start = (number - 1) * size
    first = start + 1 if rows else 0
    return Page(rows[start : start + size], number, pages, first, len(rows), urlencode(kept))
