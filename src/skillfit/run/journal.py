"""The journal: every paid effect happens once, and its value comes back on every later run of the same code.

`await journal.once(key, effect, returns=Type)` gives the recorded value, or runs the effect and records value and usage in one
transaction. Effects nest (a rollout, and each model call inside it). Failures are not values: what they cost is kept, and
the effect runs again next time. Resuming a run is therefore nothing but starting it again.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from skillfit.models.protocol import ModelError, Usage

T = TypeVar("T")

_TABLES = """
CREATE TABLE IF NOT EXISTS effects (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, stage TEXT NOT NULL, role TEXT NOT NULL, model TEXT NOT NULL,
  value BLOB NOT NULL, usage TEXT NOT NULL, at REAL NOT NULL, seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS losses (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, stage TEXT NOT NULL, role TEXT NOT NULL, model TEXT NOT NULL,
  kind TEXT NOT NULL, message TEXT NOT NULL, usage TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Spend:
    """One row of the bill: what a stage used through a role's model."""

    stage: str
    role: str
    model: str
    usage: Usage


class Journal:
    """One SQLite file (WAL) in the run directory. One writer process; any number of readers."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_TABLES)
        self._known: dict[str, int] = dict(self._db.execute("SELECT key, seq FROM effects"))
        self._running: dict[str, asyncio.Future[Any]] = {}

    async def once(
        self,
        key: str,
        effect: Callable[[], Awaitable[T]],
        *,
        returns: type[T],
        stage: str = "",
        role: str = "",
        model: str = "",
        usage: Callable[[T], Usage] = lambda _: Usage(),
    ) -> T:
        """The value recorded under `key`, or that of `effect`, recorded. Callers of one key at one time share one execution."""
        if key in self._known:
            return self._read(key, returns)
        if key in self._running:
            return await asyncio.shield(self._running[key])
        task = asyncio.ensure_future(self._run(key, effect, returns, stage, role, model, usage))
        self._running[key] = task
        try:
            return await task
        finally:
            self._running.pop(key, None)

    async def _run(
        self,
        key: str,
        effect: Callable[[], Awaitable[T]],
        returns: type[T],
        stage: str,
        role: str,
        model: str,
        usage: Callable[[T], Usage],
    ) -> T:
        begun = time.time()
        try:
            value = await effect()
        except ModelError as error:
            if error.usage.calls:
                self._db.execute(
                    "INSERT INTO losses (key, stage, role, model, kind, message, usage, at) VALUES (?,?,?,?,?,?,?,?)",
                    (key, stage, role, model, error.kind, error.message, _dump(Usage, error.usage), begun),
                )
            raise
        row = (key, stage, role, model, _dump(returns, value), _dump(Usage, usage(value)), begun, time.time() - begun)
        cursor = self._db.execute(
            "INSERT INTO effects (key, stage, role, model, value, usage, at, seconds) VALUES (?,?,?,?,?,?,?,?)", row
        )
        self._known[key] = int(cursor.lastrowid or 0)
        return value

    def has(self, key: str) -> bool:
        return key in self._known

    def _read(self, key: str, returns: type[T]) -> T:
        (value,) = self._db.execute("SELECT value FROM effects WHERE seq = ?", (self._known[key],)).fetchone()
        return _adapter(returns).validate_json(value)  # type: ignore[arg-type, no-any-return]

    def bill(self) -> Iterator[Spend]:
        """Everything spent so far, failed attempts included, over all resumes."""
        query = "SELECT stage, role, model, usage FROM effects UNION ALL SELECT stage, role, model, usage FROM losses"
        for stage, role, model, usage in self._db.execute(query):
            spent = _adapter(Usage).validate_json(usage)
            if spent.calls:
                yield Spend(stage, role, model, spent)

    def fact(self, name: str) -> Any:
        """A fact about the run (its identity, its clock), None when unknown."""
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return json.loads(row[0]) if row else None

    def set_fact(self, name: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, json.dumps(value)))

    def close(self) -> None:
        self._db.close()


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _dump(kind: Any, value: Any) -> bytes:
    return _adapter(kind).dump_json(value)
