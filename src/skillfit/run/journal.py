"""The journal: every paid effect runs once, and later runs of the same code get its recorded value.

`await journal.once(key, effect, returns=Type)` returns the recorded value, or runs the effect and
records value and usage in one transaction. Effects nest: a rollout is one, and so is each model
call inside it. A failure is not a value: its cost is recorded, and the effect runs again next time.
To resume a run, start it again.

After the first write that fails (full disk, deleted run directory), `once` starts no effect any
more: its value would be paid for and lost. Effects in progress end with the same error.

`RecordedModel` sends the requests of a model through the journal.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from skillfit.errors import SkillfitError
from skillfit.extensions import JsonValue
from skillfit.models.failures import can_be_lost, make_failure
from skillfit.models.protocol import Model, ModelError, Reply, Request, Role, Usage
from skillfit.models.secrets import hide_keys_in_use
from skillfit.run.store import ReadAhead, Redact, Store, dump, in_pages, load

T = TypeVar("T")

ROLLOUTS = "rollout/"  # begins the keys of rollouts
_Row = dict[str, str | bytes | float]  # column -> value
Losses = dict[str, Callable[[], None]]  # journal key of a loss -> what records it

# The key of the effect that the current task runs in, so that nested effects know their parent.
_enclosing: ContextVar[str] = ContextVar("enclosing_effect", default="")

_TABLES = """
CREATE TABLE IF NOT EXISTS effects (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE,
  stage TEXT NOT NULL, role TEXT NOT NULL, model TEXT NOT NULL,
  value BLOB NOT NULL, usage TEXT NOT NULL, at REAL NOT NULL, seconds REAL NOT NULL,
  parent TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS losses (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL,
  stage TEXT NOT NULL, role TEXT NOT NULL, model TEXT NOT NULL,
  kind TEXT NOT NULL, message TEXT NOT NULL, usage TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class BillRow:
    """What a stage used through a role's model."""

    stage: str
    role: str
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class Bill:
    """What a run has used, over all resumes and with failed attempts."""

    rows: tuple[BillRow, ...] = ()  # one for each stage, role and model, sorted
    known_usd: float = 0.0  # the sum of the known prices, also where others are unknown
    failures: Mapping[str, int] = field(default_factory=dict)  # kind -> failed calls
    last_effect: int = 0  # the last records that are in here
    last_loss: int = 0

    @property
    def total(self) -> Usage:
        """`usd` is None where a price is unknown."""
        return sum((row.usage for row in self.rows), Usage())

    @property
    def by_stage(self) -> dict[str, Usage]:
        return self._summed(lambda row: row.stage)

    @property
    def by_role(self) -> dict[str, Usage]:
        return self._summed(lambda row: row.role)

    def _summed(self, name_of: Callable[[BillRow], str]) -> dict[str, Usage]:
        sums: defaultdict[str, Usage] = defaultdict(Usage)
        for row in self.rows:
            sums[name_of(row)] += row.usage
        return dict(sorted(sums.items()))


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded effect."""

    seq: int
    key: str
    stage: str
    role: str
    model: str
    at: float
    seconds: float
    usage: Usage
    json: bytes
    parent: str = ""  # key of the effect that it is part of: the rollout of a model call

    def value(self, kind: type[T]) -> T:
        return load(kind, self.json)


class _Execution:
    """An effect in progress, shared by its callers. It runs as long as one of them waits, and is
    cancelled with the last one.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], on_end: Callable[[], object]) -> None:
        self.abandoned = False
        self._on_end = on_end
        self._waiters: list[asyncio.Future[Any]] = []
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._deliver)

    async def value(self) -> Any:
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if self._waiters == [waiter] and not self._task.done():
                self.abandoned = True
                self._task.cancel()
                # Let it clean up, and record a value that arrived in spite of the cancellation.
                await self.end()
            raise
        finally:
            self._waiters.remove(waiter)

    async def end(self) -> None:
        await asyncio.wait({self._task})

    def _deliver(self, task: asyncio.Task[Any]) -> None:
        self._on_end()
        error = None if task.cancelled() else task.exception()
        for waiter in [waiter for waiter in self._waiters if not waiter.done()]:
            if task.cancelled():
                waiter.cancel()
            elif error is not None:
                waiter.set_exception(error)
                # Mark it as retrieved: its caller may be cancelled at this moment, and asyncio
                # would log the exception.
                waiter.exception()
            else:
                waiter.set_result(task.result())


class Journal(Store):
    """Every paid effect of a run, and facts about the run."""

    _tables = _TABLES
    _keyed = "effects"

    def __init__(
        self, path: Path, *, redact: Redact = hide_keys_in_use, readonly: bool = False
    ) -> None:
        super().__init__(path, redact=redact, readonly=readonly)
        self._rows = ReadAhead(
            self._db, "SELECT seq, value FROM effects WHERE seq >= ? AND seq < ?"
        )
        self._running: dict[str, _Execution] = {}
        self._billed: weakref.WeakSet[ModelError] = weakref.WeakSet()
        self._decision = ""  # the one in progress
        self._lost: Losses = {}  # for it
        self._spent = Usage() if readonly else self.bill().total

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
        """Return the value recorded under `key`; or run `effect`, record its value and return it.

        Concurrent callers with the same key share one execution. It runs as long as one of them
        waits, and is cancelled with the last one.
        """
        key = self._redact(key)
        while key not in self._known:
            execution = self._running.get(key)
            if execution is None:
                self.ensure_writable()
                row: _Row = {"key": key, "stage": stage, "role": role, "model": model}
                execution = self._running[key] = _Execution(
                    self._run(key, row, effect, returns, usage),
                    on_end=partial(self._running.pop, key),
                )
            elif execution.abandoned:
                await execution.end()
                continue
            value: T = await execution.value()
            return value
        return self._read(self._known[key], returns)

    @contextmanager
    def may_lose(self, key: str) -> Iterator[None]:
        """Enclose an effect that a decision can be made without, such as the call of an analyst. A
        failure that was lost for the decision in progress is raised again.
        """
        loss_key = self.loss_key(key)
        known = self.get(loss_key, _LostCall)
        if known is not None:
            raise make_failure(known.kind, known.message, hint=known.hint)
        try:
            yield
        except ModelError as error:
            if can_be_lost(error.kind):
                self.lose(loss_key, _LostCall(error.kind, error.message, error.hint), _LostCall)
            raise
        self._lost.pop(loss_key, None)

    @contextmanager
    def decision(self, name: str) -> Iterator[Losses]:
        """Make a decision of the run from the effects in this block: a step, the end of an epoch.

        What is lost in the block becomes permanent when it ends without an error, so that a
        replay decides the same. Until then, a resumed run tries the lost effects again. `name`
        tells the decisions of a run apart: what was lost for one is tried again for the next.
        Yield the losses; without them, the decision will be made again with new attempts.
        """
        if self._decision:
            raise RuntimeError(f"decision {name!r} begins inside of {self._decision!r}")
        self._decision = name
        try:
            yield self._lost
            while self._lost:
                self._lost.pop(next(iter(self._lost)))()
        finally:
            self._decision = ""
            self._lost.clear()

    def loss_key(self, key: str) -> str:
        """Return the key that records that the decision in progress was made without an effect."""
        return f"lost/{self._decision}/{key}"

    def lose(self, loss_key: str, value: T, returns: type[T], *, stage: str = "") -> None:
        """Note what stands for a lost effect; it is recorded when the decision in progress ends.
        Outside of decisions nothing is recorded, so the next start tries the effect again.
        """
        if self._decision:
            self._lost[loss_key] = partial(self.record, loss_key, value, returns, stage=stage)

    def record(self, key: str, value: T, returns: type[T], *, stage: str = "") -> None:
        """Record a value that is already known, unless one is recorded under `key`."""
        key = self._redact(key)
        if key not in self._known:
            self.ensure_writable()
            row: _Row = {"key": key, "stage": stage, "role": "", "model": "", "at": time.time()}
            self._insert_effect(row | {"seconds": 0.0}, dump(returns, value), Usage())

    async def _run(
        self,
        key: str,
        row: _Row,
        effect: Callable[[], Awaitable[T]],
        returns: type[T],
        usage: Callable[[T], Usage],
    ) -> T:
        """Run the effect and record its value, or what its failure cost."""
        parent = _enclosing.get()
        _enclosing.set(key)  # this coroutine is a separate task, with its own context
        started = time.time()
        row = {**row, "at": started}
        try:
            value = await effect()
        except SkillfitError as error:
            self._record_loss(row, error)
            raise
        dumped = dump(returns, value)
        row |= {"seconds": time.time() - started, "parent": parent}
        kept = self._insert_effect(row, dumped, usage(value))
        # Continue with the value that a resumed run will read.
        return value if kept == dumped else load(returns, kept)

    def _insert_effect(self, row: _Row, dumped: bytes, usage: Usage) -> bytes:
        """Record an effect, and return its value without secrets."""
        kept = self._redact(dumped.decode()).encode()
        row = {**row, "value": kept}
        self._known[str(row["key"])] = self._insert("effects", row, usage)
        return kept

    def _record_loss(self, row: _Row, error: SkillfitError) -> None:
        """Record what a failed model call cost. The same error passes through the outer effects;
        its cost is recorded once.
        """
        # When the budget ends a call, the cause carries what its attempts cost.
        failure = error if isinstance(error, ModelError) else error.__cause__
        if not isinstance(failure, ModelError) or failure.usage == _NOTHING:
            return
        if failure in self._billed:
            return
        self._billed.add(failure)
        row = {**row, "kind": failure.kind, "message": failure.message}
        usage = failure.usage
        if not usage.failed:  # the failure of a program
            usage += Usage(failed=1, failed_tokens=usage.tokens)
        self._insert("losses", row, usage)

    def _insert(self, table: str, row: _Row, usage: Usage) -> int:
        usage = _countable(usage)
        row = {**row, "usage": dump(Usage, usage)}
        safe = [self._redact(value) if isinstance(value, str) else value for value in row.values()]
        marks = ",".join("?" * len(row))
        number = self._write(f"INSERT INTO {table} ({','.join(row)}) VALUES ({marks})", safe)
        self._spent += usage
        return number

    def has(self, key: str) -> bool:
        return self._find(self._redact(key)) is not None

    def get(self, key: str, returns: type[T]) -> T | None:
        """Return the value recorded under `key`; None when there is none."""
        seq = self._find(self._redact(key))
        return None if seq is None else self._read(seq, returns)

    def _find(self, key: str) -> int | None:
        if not self._readonly:  # the only writer has all keys in memory
            return self._known.get(key)
        row = self._db.execute("SELECT seq FROM effects WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def latest(self, prefix: str, returns: type[T]) -> T | None:
        """Return the value recorded last under a key that begins with `prefix`; None when there is
        none. Fast where such keys are among the last ones.
        """
        query = (
            "SELECT seq FROM effects NOT INDEXED WHERE key >= ? AND key < ? ORDER BY seq DESC"
            " LIMIT 1"
        )
        row = self._db.execute(query, _key_range(prefix)).fetchone()
        return None if row is None else self._read(row[0], returns)

    def entries(self, prefix: str = "", after: int = 0) -> Iterator[Entry]:
        """Yield recorded effects behind number `after` whose key begins with `prefix`, in the order
        of recording.
        """
        query = (
            "SELECT seq, key, stage, role, model, at, seconds, usage, value, parent "
            "FROM effects WHERE key >= ? AND key < ? AND seq > ? ORDER BY seq LIMIT ?"
        )
        for row in in_pages(self._db, query, *_key_range(prefix), after=after):
            seq, key, stage, role, model, at, seconds, usage, value, parent = row
            self._require_text(key, stage, role, model, parent)
            spent = self._usage(usage)
            when, took = self._time(at), self._time(seconds)
            yield Entry(seq, key, stage, role, model, when, took, spent, value, parent)

    def count(self, prefix: str = "") -> int:
        """Count the effects that are recorded under keys that begin with `prefix`."""
        query = "SELECT count(*) FROM effects WHERE key >= ? AND key < ?"
        return int(self._db.execute(query, _key_range(prefix)).fetchone()[0])

    def _read(self, seq: int, returns: type[T]) -> T:
        data = self._rows.row(seq)[1]
        return self._decoded(returns, data, f"record {seq} ({returns.__name__})")

    def _usage(self, text: str | bytes) -> Usage:
        return self._decoded(Usage, text, "the usage of a record")

    def bill(self, since: Bill | None = None) -> Bill:
        """Sum up everything used so far. `since` is an earlier bill of this run: only what was
        recorded after it is read, and added to it.
        """
        before = since or Bill()
        rows = {(row.stage, row.role, row.model): row.usage for row in before.rows}
        known_usd = before.known_usd
        last = {"effects": before.last_effect, "losses": before.last_loss}
        for table, seen in list(last.items()):
            query = f"SELECT seq, stage, role, model, usage FROM {table} WHERE seq > ? ORDER BY seq"
            for seq, stage, role, model, recorded in self._db.execute(query, (seen,)):
                last[table] = seq
                self._require_text(stage, role, model)
                usage = _NOTHING if recorded == _RECORDED_NOTHING else self._usage(recorded)
                if usage != _NOTHING:
                    key = (stage, role, model)
                    rows[key] = rows.get(key, _NOTHING) + usage
                    known_usd += usage.usd or 0.0
        failures = Counter(before.failures)
        query = "SELECT kind, count(*) FROM losses WHERE seq > ? AND seq <= ? GROUP BY kind"
        for kind, count in self._db.execute(query, (before.last_loss, last["losses"])):
            self._require_text(kind)
            failures[kind] += count
        sums = tuple(BillRow(*key, usage) for key, usage in sorted(rows.items()))
        return Bill(sums, known_usd, failures, last["effects"], last["losses"])

    def spent(self) -> Usage:
        """Return the total usage; `usd` is None where a price is unknown. The writer knows it
        without a look into the file.
        """
        return self.bill().total if self._readonly else self._spent

    def fact(self, name: str, returns: type[T]) -> T | None:
        """Return a fact about the run (its identity, its clock); None when unknown."""
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return self._decoded(returns, row[0], f"the run's {name}") if row else None

    def set_fact(self, name: str, value: JsonValue) -> None:
        text = self._redact(json.dumps(value, ensure_ascii=False))
        self._write("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, text))


def _key_range(prefix: str) -> tuple[str, str]:
    return prefix, prefix + "\U0010ffff"


def _countable(usage: Usage) -> Usage:
    """Set every number of the usage that cannot be added up (NaN, negative) to 0, and an impossible
    price to unknown. The models' own code checks replies first; this protects the totals of the run
    from values that pass those checks.
    """
    return Usage(
        calls=_count(usage.calls),
        input=_count(usage.input),
        cached=_count(usage.cached),
        output=_count(usage.output),
        reasoning=_count(usage.reasoning),
        usd=_price(usage.usd),
        written=_count(usage.written),
        failed=_count(usage.failed),
        failed_tokens=_count(usage.failed_tokens),
    )


def _count(number: float | None) -> int:
    return int(number) if _is_amount(number) else 0


def _price(number: float | None) -> float | None:
    return float(number) if _is_amount(number) else None


def _is_amount(number: object) -> TypeGuard[float]:
    return isinstance(number, int | float) and 0 <= number <= sys.float_info.max


# For effects whose cost is recorded elsewhere: the model calls of a rollout are effects themselves.
_NOTHING = Usage()
_RECORDED_NOTHING = dump(Usage, _NOTHING)


@dataclass(frozen=True, slots=True)
class _LostCall:
    """The failure of an effect that the run continued without."""

    kind: str
    message: str
    hint: str = ""


class RecordedModel:
    """A model behind the journal: a recorded reply comes back at once, and its request is never
    sent again.
    """

    def __init__(self, model: Model, journal: Journal, role: Role) -> None:
        self._model = model
        self._journal = journal
        self._role = role

    @property
    def id(self) -> str:
        return self._model.id

    @property
    def context_window(self) -> int:
        return self._model.context_window

    async def complete(self, request: Request) -> Reply:
        key = f"call/{self._role}/{request.stage}/{request.fingerprint()}"
        # The calls of agents and judges belong to rollouts, whose losses the engine records.
        with self._journal.may_lose(key) if self._role == "optimizer" else nullcontext():
            return await self._journal.once(
                key,
                lambda: self._model.complete(request),
                returns=Reply,
                stage=request.stage,
                role=self._role,
                model=self._model.id,
                usage=lambda reply: reply.usage,
            )
