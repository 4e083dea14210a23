"""Runs the answer and the gold query on the shop's database, built anew each time, and compares
their rows.
"""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path
from typing import Any

SHOP = Path(__file__).with_name("shop.sql").read_text(encoding="utf-8")
FENCE = re.compile(r"```(?:sql|sqlite)?\s*\n(.*?)```", re.DOTALL | re.IGNORECASE)
READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
SECONDS = 2.0
Rows = list[tuple[Any, ...]]


def grade(item: dict[str, Any], answer: str) -> tuple[float, str]:
    gold = item["answers"]
    expected = run(gold if isinstance(gold, str) else gold[0])
    try:
        found = run(query_in(answer))
    except (sqlite3.Error, sqlite3.Warning) as error:
        return 0.0, f"The query fails: {error}."
    if found == expected:
        return 1.0, ""
    if sorted(map(repr, found)) == sorted(map(repr, expected)):
        return 0.0, "The rows are right, their order is not."
    return (
        0.0,
        (
            f"Wrong rows: {len(found)} instead of {len(expected)}, the first is {found[:1]} "
            f"instead of {expected[:1]}."
        ),
    )


def query_in(answer: str) -> str:
    """Return the query in a fenced block, or the whole answer."""
    fenced = FENCE.findall(answer)
    return (fenced[-1] if fenced else answer).strip().rstrip(";")


def run(query: str) -> Rows:
    """Return the rows of one reading query, numbers rounded as people compare them. Raises when it
    fails, writes, or takes too long.
    """
    shop = sqlite3.connect(":memory:")
    try:
        shop.executescript(SHOP)
        shop.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY
        )
        deadline = time.monotonic() + SECONDS
        shop.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        return [
            tuple(round(cell, 4) if isinstance(cell, float) else cell for cell in row)
            for row in shop.execute(query)
        ]
    finally:
        shop.close()
