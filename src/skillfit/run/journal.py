"""The journal: every paid effect happens once, and its value comes back on every later run of the
same code.

`await journal.once(key, effect, returns=Type)` gives the recorded value, or runs the effect and
records value and usage in one transaction. Effects nest (a rollout, and each model call inside it).
Failures are not values: what they cost is kept, and the effect runs again next time. Resuming a run
is therefore nothing but starting it again.

A model whose every reply is paid for once.
"""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from skillfit.models.protocol import (
    BadReply,
    ContextTooLong,
    Model,
    ModelError,
    NetworkFailed,
    Overloaded,
    RateLimited,
    Refused,
    Reply,
    Request,
    Role,
    TimedOut,
    Usage,
)
from skillfit.models.secrets import hide_keys_in_use
from skillfit.run.store import Redact, Store, dump, in_pages, load

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

_SUM = """
SELECT sum(calls), sum(input), sum(output), sum(usd), sum(CASE WHEN usd IS NULL THEN 0 ELSE calls END) FROM (
  SELECT json_extract(usage, '$.calls') AS calls, json_extract(usage, '$.input') AS input,
    json_extract(usage, '$.output') AS output, json_extract(usage, '$.usd') AS usd
  FROM (SELECT usage FROM effects UNION ALL SELECT usage FROM losses))
"""


@dataclass(frozen=True, slots=True)
class Spend:
    """One row of the bill: what a stage used through a role's model."""

    stage: str
    role: str
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded effect as it stands in the journal."""

    seq: int
    key: str
    stage: str
    role: str
    model: str
    at: float
    seconds: float
    usage: Usage
    json: bytes

    def value(self, kind: type[T]) -> T:
        value: T = load(kind, self.json)
        return value


class _Execution:
    """An effect under way. It belongs to none of its callers: it goes on while anybody waits, and
    is cancelled with the last.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], ended: Callable[[], object]) -> None:
        self.abandoned = False
        self._ended = ended
        self._waiters: list[asyncio.Future[Any]] = []
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._tell)

    async def value(self) -> Any:
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if self._waiters == [waiter] and not self._task.done():
                self.abandoned = True
                self._task.cancel()
                await self.end()  # its cleanup, and a value that came all the same, are not lost
            raise
        finally:
            self._waiters.remove(waiter)

    async def end(self) -> None:
        await asyncio.wait({self._task})

    def _tell(self, task: asyncio.Task[Any]) -> None:
        self._ended()
        error = None if task.cancelled() else task.exception()
        for waiter in [waiter for waiter in self._waiters if not waiter.done()]:
            if task.cancelled():
                waiter.cancel()
            elif error is not None:
                waiter.set_exception(error)
                # seen, even if its caller is cancelled at this moment: asyncio need not log it
                waiter.exception()
            else:
                waiter.set_result(task.result())


class Journal(Store):
    """Every paid effect of a run, and facts about it."""

    _tables = _TABLES
    _keyed = "effects"

    def __init__(
        self, path: Path, *, redact: Redact = hide_keys_in_use, readonly: bool = False
    ) -> None:
        super().__init__(path, redact=redact, readonly=readonly)
        self._running: dict[str, _Execution] = {}
        self._billed: weakref.WeakSet[ModelError] = weakref.WeakSet()

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
        """The value recorded under `key`, or that of `effect`, recorded. Callers of one key at one
        time share one execution, which goes on while anybody waits for it, and is cancelled with
        its last waiter.
        """
        key = self._redact(key)
        while key not in self._known:
            execution = self._running.get(key)
            if execution is None:
                work = self._run(key, effect, returns, stage, role, model, usage)
                execution = self._running[key] = _Execution(
                    work, ended=partial(self._running.pop, key)
                )
            elif execution.abandoned:
                await execution.end()
                continue
            value: T = await execution.value()
            return value
        return self._read(self._known[key], returns)

    async def note(self, key: str, value: T, returns: type[T], *, stage: str = "") -> None:
        """Record a value that is already there, unless one is recorded under `key`."""

        async def known() -> T:
            return value

        await self.once(key, known, returns=returns, stage=stage)

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
            # Outer effects see the same error pass by; its cost is one cost.
            if error.usage.calls and error not in self._billed:
                self._billed.add(error)
                self._insert(
                    "losses",
                    key,
                    stage,
                    role,
                    model,
                    error.kind,
                    error.message,
                    dump(Usage, error.usage),
                    begun,
                )
            raise
        dumped = dump(returns, value)
        kept = self._redact(dumped.decode()).encode()
        seconds = time.time() - begun
        self._known[key] = self._insert(
            "effects", key, stage, role, model, kept, dump(Usage, usage(value)), begun, seconds
        )
        if kept != dumped:  # what this run goes on with is what a later one will read
            value = load(returns, kept)
        return value

    def _insert(self, table: str, *values: object) -> int:
        safe = [self._redact(value) if isinstance(value, str) else value for value in values]
        return self._write(f"INSERT INTO {table} VALUES (NULL{',?' * len(safe)})", safe)

    def has(self, key: str) -> bool:
        return self._find(self._redact(key)) is not None

    def get(self, key: str, returns: type[T]) -> T | None:
        """The value recorded under `key`, None when there is none."""
        seq = self._find(self._redact(key))
        return None if seq is None else self._read(seq, returns)

    def _find(self, key: str) -> int | None:
        if not self._readonly:  # the one writer knows them all
            return self._known.get(key)
        row = self._db.execute("SELECT seq FROM effects WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """Recorded effects whose key begins with `prefix`, in the order of recording."""
        columns = "seq, key, stage, role, model, at, seconds, usage, value"
        query = f"SELECT {columns} FROM effects WHERE key >= ? AND key < ? AND seq > ? ORDER BY seq LIMIT ?"
        for *plain, usage, value in in_pages(self._db, query, prefix, prefix + "\U0010ffff"):
            seq, key, stage, role, model, at, seconds = plain
            yield Entry(seq, key, stage, role, model, at, seconds, load(Usage, usage), value)

    def _read(self, seq: int, returns: type[T]) -> T:
        (text,) = self._db.execute("SELECT value FROM effects WHERE seq = ?", (seq,)).fetchone()
        value: T = load(returns, text)
        return value

    def bill(self) -> Iterator[Spend]:
        """Everything spent so far, failed attempts included, over all resumes."""
        query = "SELECT stage, role, model, usage FROM effects UNION ALL SELECT stage, role, model, usage FROM losses"
        for stage, role, model, usage in self._db.execute(query).fetchall():
            spent = load(Usage, usage)
            if spent.calls:
                yield Spend(stage, role, model, spent)

    def spent(self) -> Usage:
        """The bill in one sum: calls, tokens and dollars (None where a price is unknown). Quick
        enough to ask every second.
        """
        calls, read, written, usd, priced = self._db.execute(_SUM).fetchone()
        return Usage(
            calls=calls or 0,
            input=read or 0,
            output=written or 0,
            usd=(usd or 0.0) if priced == calls else None,
        )

    def fact(self, name: str) -> Any:
        """A fact about the run (its identity, its clock), None when unknown."""
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return json.loads(row[0]) if row else None

    def set_fact(self, name: str, value: Any) -> None:
        text = self._redact(json.dumps(value, ensure_ascii=False))
        self._write("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, text))


# Failures a run may go on without; the others stop it.
_BEARABLE = {
    kind.kind: kind
    for kind in (
        BadReply,
        ContextTooLong,
        NetworkFailed,
        Overloaded,
        RateLimited,
        Refused,
        TimedOut,
    )
}


@dataclass(frozen=True, slots=True)
class _GivenUp:
    kind: str
    message: str
    hint: str = ""


class RecordedModel:
    """Sends each request through the journal: a recorded reply comes back at once and is never sent
    again.
    """

    def __init__(self, model: Model, journal: Journal, role: Role) -> None:
        self._model = model
        self._journal = journal
        self._role = role
        self._lost: dict[str, _GivenUp] = {}

    @property
    def id(self) -> str:
        return self._model.id

    @property
    def context_window(self) -> int:
        return self._model.context_window

    async def complete(self, request: Request) -> Reply:
        key = f"call/{self._role}/{request.stage}/{request.fingerprint()}"
        given_up = self._journal.get(f"given_up/{key}", _GivenUp)
        if given_up is not None:
            raise _BEARABLE[given_up.kind](given_up.message, hint=given_up.hint)
        try:
            reply = await self._journal.once(
                key,
                lambda: self._model.complete(request),
                returns=Reply,
                stage=request.stage,
                role=self._role,
                model=self._model.id,
                usage=lambda reply: reply.usage,
            )
        except ModelError as error:
            if error.kind in _BEARABLE:
                self._lost[key] = _GivenUp(error.kind, error.message, error.hint)
            raise
        self._lost.pop(key, None)
        return reply

    async def persist_failures(self) -> None:
        """The run now decides without the replies it could not get. A later run of the same code
        must decide the same, so from here on they stay lost; until this is called, starting again
        asks for them again.
        """
        lost, self._lost = self._lost, {}
        for key, given_up in lost.items():
            await self._journal.note(f"given_up/{key}", given_up, _GivenUp)
