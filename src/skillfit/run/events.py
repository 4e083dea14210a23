"""What happened, in order: the one source for terminal, studio, report, trackers and the readable
files of a run.

Events are plain data. Each has a key that the deterministic loop gives it again on replay, so
emitting twice stores once. Another process may follow them live
(`EventLog.open_readonly(path).read(after=seq)` over SQLite's WAL).
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from skillfit.models.secrets import hide_keys_in_use
from skillfit.run.store import Redact, Store, dump, in_pages, load

_TABLE = """
CREATE TABLE IF NOT EXISTS events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, data TEXT NOT NULL, at REAL NOT NULL);
"""
_CLOCK_FIELDS = frozenset(
    {"seconds", "timing", "time_s", "wall_time_s", "total_wall_time_s", "minutes", "at"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events. `identity` names the fields that tell it from others of its kind within
    the run.
    """

    kinds: ClassVar[dict[str, type[Event]]] = {}
    identity: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__] = cls

    @property
    def key(self) -> str:
        return "/".join(
            [type(self).__name__, *(str(getattr(self, name)) for name in self.identity)]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    run: str
    config: dict[str, Any]
    version: str
    skill: str  # full text of the initial skill
    skill_hash: str
    splits: dict[str, int]
    total_epochs: int
    steps_per_epoch: int
    fit_only: bool = False  # too few selection items: results are suggestions, not verified

    @property
    def skill_name(self) -> str:
        """What people call the skill: its folder or file."""
        return (
            str(self.config.get("env", {}).get("skill") or "a blank skill")
            .rstrip("/")
            .rpartition("/")[2]
        )

    @property
    def total_steps(self) -> int:
        return self.total_epochs * self.steps_per_epoch

    def model_of(self, role: str) -> str:
        """The id of a role's model; empty where there is none."""
        return str((self.config.get("model", {}).get(role) or {}).get("id", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsRead(Event):
    """The items as faces show them, long texts cut: what a person needs to recognise one."""

    items: list[dict[str, Any]]  # {id, split, type, input, expected}, and weight where it is not 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFinished(Event):
    verdict: str  # go, warn, stop
    checks: list[dict[str, Any]]  # {name, verdict, message, detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted(Event):
    """`total` rollouts begin, each of which reports a RolloutFinished; 0 for stages that only ask
    the optimizer.
    """

    identity = ("epoch", "step", "stage")
    epoch: int
    step: int
    # baseline, rollout, reflect, aggregate, select, update, gate, slow_update, meta_skill, finish,
    # test, ship, credit
    stage: str
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFinished(Event):
    identity = ("epoch", "step", "stage")
    epoch: int
    step: int
    stage: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFinished(Event):
    """One per asking: a shared rollout is told again to each phase and step that uses it."""

    identity = ("phase", "step", "rollout")
    rollout: str  # the journal key: the trajectory is read from there
    phase: str  # as StageStarted.stage
    step: int
    item: str
    repeat: int
    skill_hash: str
    status: str
    hard: float | None
    soft: float | None
    failure: str = ""  # kind: message
    seconds: float = 0.0
    calls: int = 0
    tokens: int = 0
    usd: float | None = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFinished(Event):
    """A skill was measured on a split: the points of the score curve."""

    identity = ("name",)
    # baseline, step_0003, slow_update_epoch_02, final, pruned, test_baseline, test_best,
    # test_final, …
    name: str
    split: str
    skill_hash: str
    hard: float
    soft: float
    scored: int
    planned: int
    by_type: dict[str, dict[str, float]] = field(default_factory=dict)  # {type: {total, hard_acc}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionFinished(Event):
    identity = ("step", "group")
    step: int
    group: str  # minibatch_fail_000
    source: str  # failure, success, contrast, diagnosis, examples
    items: list[str]
    patch: dict[
        str, Any
    ]  # as the reference's minibatch file: batch_size, failure_summary | success_patterns, patch, appendix_notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded(Event):
    """Something an optimizer sent could not be used, or a stage fell back: said, never silent."""

    identity = ("step", "stage", "what")
    step: int
    stage: str
    what: str  # which call or edit
    reason: str
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchMerged(Event):
    identity = ("step",)
    step: int
    patch: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EditsSelected(Event):
    identity = ("step",)
    step: int
    edit_budget: int | None
    edits: list[dict[str, Any]]
    decision: dict[str, Any] = field(
        default_factory=dict
    )  # ranking details or autonomous learning-rate record


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateBuilt(Event):
    """A candidate of a step. `number` 0 is the whole patch; others are clusters or single edits."""

    identity = ("step", "number")
    step: int
    number: int
    label: str
    skill: str
    skill_hash: str
    report: list[dict[str, Any]]  # per edit: op, target, content, status
    detail: dict[str, Any] = field(default_factory=dict)  # rewrite_result / full_rewrite_result


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecided(Event):
    identity = ("name",)
    name: str  # step_0003, slow_update_epoch_02, final
    step: int
    decision: str  # accept, reject, inconclusive
    reason: str
    evidence: dict[
        str, Any
    ]  # fixed, broken, both, neither (item ids), difference, interval, probability, rollouts, coverage
    candidates: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished(Event):
    """`record` is the reference's step_record; `skill` the text carried on."""

    identity = ("step",)
    epoch: int
    step: int
    action: str
    skill: str
    skill_hash: str
    best_skill: str
    record: dict[str, Any]
    digest: dict[str, Any] = field(default_factory=dict)  # the step-memory entry
    appendix_notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowUpdateFinished(Event):
    identity = ("epoch",)
    epoch: int
    action: str  # inject_placeholder, accept, reject, force_accept, no_content
    result: dict[str, Any]
    pairs: list[dict[str, Any]]
    all_pairs: list[dict[str, Any]]
    candidate: str
    skill: str
    best_skill: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaSkillFinished(Event):
    identity = ("epoch",)
    epoch: int
    result: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipTested(Event):
    verdict: str  # improved, inconclusive, no improvement
    difference: float
    interval: list[float]
    probability: float
    repeats: int
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditAssigned(Event):
    """What each accepted edit is worth, and what was pruned."""

    edits: list[dict[str, Any]]  # {step, edit, worth, interval, kept, reason}
    tokens_before: int
    tokens_after: int
    skill: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    identity = ("what",)
    what: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    finish_reason: str  # improved, no_improvement, inconclusive, budget, infrastructure, fit_only
    diagnosis: str
    best_skill: str
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown(Event):
    """An event of a kind this version does not know, from a run of a newer one."""

    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """An event as it stands in the log."""

    seq: int
    at: float
    event: Event


class EventLog(Store):
    """Append-only table beside the journal. Listeners hear new events, and on replay hear the
    stored ones again in order.
    """

    _tables = _TABLE
    _keyed = "events"

    def __init__(
        self,
        path: Path,
        *,
        redact: Redact = hide_keys_in_use,
        readonly: bool = False,
        beside: Store | None = None,
    ) -> None:
        super().__init__(path, redact=redact, readonly=readonly, beside=beside)
        self._listeners: list[Callable[[Stored], None]] = []

    def listen(self, listener: Callable[[Stored], None]) -> None:
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Store the event unless it is known, and tell the listeners what is stored.

        A known event that comes again with other clock times stays as it was, so that replay
        changes nothing. One that comes with another meaning (a failed rollout that went well now, a
        run that ends later than it did) replaces the old.
        """
        kind, key = type(event).__name__, self._redact(event.key)
        data = self._redact(dump(type(event), event).decode())
        seq = self._known.get(key)
        if seq is None:
            seq, at = self._insert(key, kind, data)
        else:
            at, old = self._db.execute(
                "SELECT at, data FROM events WHERE seq = ?", (seq,)
            ).fetchone()
            if _same(old, data):
                data = old
            else:
                seq, at = self._replace(seq, key, kind, data)
        if self._listeners:
            heard = Stored(seq, at, _parse(kind, data))
            for listener in self._listeners:
                listener(heard)

    def _insert(self, key: str, kind: str, data: str) -> tuple[int, float]:
        at = time.time()
        self._known[key] = self._write(
            "INSERT INTO events (key, kind, data, at) VALUES (?,?,?,?)", (key, kind, data, at)
        )
        return self._known[key], at

    def _replace(self, seq: int, key: str, kind: str, data: str) -> tuple[int, float]:
        if kind == RunStarted.__name__:  # the first word of the log stays the first
            self._write("UPDATE events SET data = ? WHERE seq = ?", (data, seq))
            return seq, time.time()
        self._write("DELETE FROM events WHERE seq = ?", (seq,))
        return self._insert(key, kind, data)

    def go_on(self) -> None:
        """A run that goes on has not finished: forget that it did, until it does again."""
        self._write("DELETE FROM events WHERE kind = ?", (RunFinished.__name__,))
        self._known.pop(RunFinished.__name__, None)

    def clear(self) -> None:
        """Forget everything that was said: the run begins as another."""
        self._write("DELETE FROM events", ())
        self._known.clear()

    def last(self, *kinds: type[Event]) -> Stored | None:
        """The last event of these kinds."""
        marks = ",".join("?" * len(kinds))
        query = f"SELECT seq, at, kind, data FROM events WHERE kind IN ({marks}) ORDER BY seq DESC LIMIT 1"
        row = self._db.execute(query, [kind.__name__ for kind in kinds]).fetchone()
        return Stored(row[0], row[1], _parse(row[2], row[3])) if row else None

    def newest(self) -> int:
        """The number of the last event, 0 when there is none."""
        return int(self._db.execute("SELECT max(seq) FROM events").fetchone()[0] or 0)

    def read(self, after: int = 0, kinds: tuple[type[Event], ...] = ()) -> Iterator[Stored]:
        """Events behind `after`, in order; all kinds, or only these. Kinds of a newer version come
        as `Unknown`.
        """
        names = [kind.__name__ for kind in kinds]
        wanted = f"kind IN ({','.join('?' * len(names))}) AND " if names else ""
        query = f"SELECT seq, at, kind, data FROM events WHERE {wanted}seq > ? ORDER BY seq LIMIT ?"
        for seq, at, kind, data in in_pages(self._db, query, *names, after=after):
            yield Stored(seq, at, _parse(kind, data))


def as_json(stored: Stored) -> dict[str, Any]:
    """The line a tracker or `events.jsonl` gets."""
    return {
        "seq": stored.seq,
        "at": stored.at,
        "kind": type(stored.event).__name__,
        **dataclasses.asdict(stored.event),
    }


def _parse(kind: str, data: str) -> Event:
    known = Event.kinds.get(kind)
    if known is None or known is Unknown:
        return Unknown(kind=kind, data=json.loads(data))
    event: Event = load(known, data)
    return event


def _same(old: str, new: str) -> bool:
    return old == new or _timeless(json.loads(old)) == _timeless(json.loads(new))


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(item) for name, item in value.items() if name not in _CLOCK_FIELDS}
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    return value
