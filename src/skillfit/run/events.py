"""The event log of a run: the one source for terminal, studio, report, trackers and files.

Events are typed data. Each has a key; the deterministic loop emits the same key again on replay,
so an event is stored once. Another process can follow the log while the run is running:
`EventLog.open_readonly(path).read(after=seq)`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from pydantic_core import from_json

from skillfit import __version__
from skillfit.extensions import JsonValue
from skillfit.models.json_text import JsonObject
from skillfit.models.secrets import hide_keys_in_use
from skillfit.plain_text import one_line
from skillfit.run.control import Action
from skillfit.run.journal import ROLLOUTS
from skillfit.run.records import (
    LEAK_CHECK,
    CandidateComparison,
    CheckResult,
    Decision,
    EditEffect,
    Evidence,
    EvidenceMemory,
    ItemRecord,
    Level,
    MeasuredScore,
    MeasuredSplit,
    MetaSkillRecord,
    PairRecord,
    PatchRecord,
    PhasePlan,
    ProposalRecord,
    ProposalSource,
    Recorded,
    RecordedConfig,
    RewriteRecord,
    RolloutPlan,
    RolloutStatus,
    RunFinishReason,
    RunSummary,
    ScoreEstimate,
    SelectionDecision,
    ShipResult,
    SlowUpdateAction,
    SlowUpdateRecord,
    StageName,
    StepAction,
    StepMemory,
    StepRecord,
    TypeScore,
    UnitWorth,
)
from skillfit.run.store import ReadAhead, Redact, Store, dump, in_pages, load
from skillfit.skill import EditResult, Skill
from skillfit.skill.document import DOCUMENT_NAMES
from skillfit.skill.parts import part_texts

if TYPE_CHECKING:
    from skillfit.config.schema import Config

_TABLE = """
CREATE TABLE IF NOT EXISTS events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
  data TEXT NOT NULL, at REAL NOT NULL);
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
    """A run begins: its settings, its initial skill and how much is planned."""

    run: str
    config: RecordedConfig
    version: str
    skill: str  # full text of the initial skill
    skill_hash: str
    splits: dict[str, int]
    total_epochs: int
    steps_per_epoch: int
    planned_steps: int = 0  # fewer than the epochs hold when a budget cuts the last one
    fit_only: bool = False  # too few selection items: results are suggestions, not verified
    rollout_plan: RolloutPlan | None = None  # what budget.rollouts buys
    phases: tuple[PhasePlan, ...] = ()  # grow, prune and prove, with the reasons
    evidence: EvidenceMemory | None = None  # of earlier runs, from optimizer.memory
    files: dict[str, str] = field(default_factory=dict)  # of the skill that edits may change

    @classmethod
    def of(
        cls,
        run: str,
        config: Config,
        skill: Skill,
        splits: Mapping[str, int],
        *,
        total_epochs: int = 0,
        steps_per_epoch: int = 0,
        planned_steps: int = 0,
        fit_only: bool = False,
        rollout_plan: RolloutPlan | None = None,
        phases: tuple[PhasePlan, ...] = (),
        evidence: EvidenceMemory | None = None,
    ) -> RunStarted:
        """Describe the start of a run with this version. A run that only measures has no steps."""
        return cls(
            run=run,
            config=RecordedConfig.of(config),
            version=__version__,
            skill=skill.text,
            skill_hash=skill.hash,
            splits=dict(splits),
            total_epochs=total_epochs,
            steps_per_epoch=steps_per_epoch,
            planned_steps=planned_steps,
            fit_only=fit_only,
            rollout_plan=rollout_plan,
            phases=phases,
            evidence=evidence,
            files=part_texts(skill, config.optimizer.parts),
        )

    @property
    def skill_name(self) -> str:
        """What people call the skill: the name in its frontmatter, else its folder or file."""
        path = Path(self.config.settings.env.skill)
        in_folder = path.name in DOCUMENT_NAMES
        title = path.parent.name if in_folder else path.name.removesuffix(".md")
        blank = "a blank skill" if not self.skill.strip() else "a skill"
        return Skill.from_text(self.skill, name=title or blank).name

    @property
    def total_steps(self) -> int:
        return self.planned_steps or self.total_epochs * self.steps_per_epoch

    def model_of(self, role: str) -> str:
        """Return the id of a role's model, or of all models of the agent; empty where there is
        none.
        """
        return self.config.settings.model.named(role)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsRead(Event):
    """The items of the run, long texts cut."""

    items: list[ItemRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFinished(Event):
    """The result of the check before a run."""

    verdict: Recorded[Level]
    checks: list[CheckResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted(Event):
    """A stage begins. `total` rollouts follow, each with its own RolloutFinished; 0 for a stage
    that only asks the optimizer.
    """

    identity = ("epoch", "step", "stage")
    epoch: int
    step: int
    stage: Recorded[StageName]
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFinished(Event):
    """A stage ended."""

    identity = ("epoch", "step", "stage")
    epoch: int
    step: int
    stage: Recorded[StageName]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFinished(Event):
    """One rollout ended. A rollout that several phases share is reported once for each of them."""

    identity = ("phase", "step", "rollout")
    rollout: str  # the journal key, under which the trajectory is stored
    phase: Recorded[StageName]
    step: int
    item: str
    repeat: int
    skill_hash: str
    status: Recorded[RolloutStatus]  # never skipped
    hard: float | None
    soft: float | None
    failure: str = ""  # kind: message
    seconds: float = 0.0
    calls: int = 0
    tokens: int = 0
    usd: float | None = 0.0
    edits: list[str] = field(default_factory=list)  # ids of the pool's edits the skill carried
    answer: str = ""  # what the agent answered, cut
    feedback: str = ""  # what the grader said, cut
    skill_read: bool | None = None  # whether the agent loaded the skill; None: unknown


class RolloutsDone(NamedTuple):
    """How many rollouts a phase of a step has finished."""

    phase: str
    step: int
    done: int
    latest: float  # time of the last one


class MarkedRollout(NamedTuple):
    """Fields of a `RolloutFinished` that failed, or whose agent is known to have loaded the skill
    or not.
    """

    phase: str
    step: int
    failure: str
    skill_read: bool | None


class RolloutScore(NamedTuple):
    """Fields of a `RolloutFinished` that say how an item scored, and when in the run."""

    phase: str
    step: int
    hard: float | None
    soft: float | None
    initial: bool  # under the initial skill


def _columns(kind: type[Event], names: Sequence[str]) -> str:
    """Return SQL that selects fields of a kind of event as columns."""
    return ", ".join(f"json_extract(data, {path})" for path in _paths(kind, names))


def _paths(kind: type[Event], names: Sequence[str]) -> list[str]:
    unknown = set(names) - {one.name for one in fields(kind)}
    if unknown:
        raise TypeError(f"{kind.__name__} has no fields {', '.join(sorted(unknown))}.")
    return [f"'$.{name}'" for name in names]


# A run may have 100,000 rollouts. Pages that need sums or single fields of all of them let SQLite
# read those. The key of a rollout is RolloutFinished/phase/step/rollout/…, so the index alone can
# count them.
_AFTER_KIND = f"substr(key, {len(RolloutFinished.__name__) + 2})"
_ROLLOUTS_DONE = f"""
SELECT counted.stage, counted.done, events.at FROM (
  SELECT substr({_AFTER_KIND}, 1, instr({_AFTER_KIND}, '/{ROLLOUTS}') - 1) AS stage,
    count(*) AS done, max(seq) AS last
  FROM events WHERE key >= ? AND key < ? GROUP BY stage
) AS counted JOIN events ON events.seq = counted.last
"""
_ROLLOUT_KEYS = f"""
SELECT substr({_AFTER_KIND}, instr({_AFTER_KIND}, '/{ROLLOUTS}') + 1) FROM events
WHERE key >= ? AND key < ?
"""
_MARKED_ROLLOUTS = f"""
SELECT {_columns(RolloutFinished, MarkedRollout._fields)} FROM events NOT INDEXED
WHERE kind = ? AND ({_columns(RolloutFinished, ["failure"])} <> ''
  OR {_columns(RolloutFinished, ["skill_read"])} IS NOT NULL)
"""
_ROLLOUT_SCORES = f"""
SELECT {_columns(RolloutFinished, ["item"])},
  json_extract(data, {", ".join(_paths(RolloutFinished, RolloutScore._fields[:-1]))}),
  {_columns(RolloutFinished, ["skill_hash"])} = ?
FROM events NOT INDEXED WHERE kind = ?
"""
_SOME_SCORES = f"""
SELECT {_columns(RolloutFinished, ["hard"])} FROM events WHERE key >= ? AND key < ? LIMIT ?
"""
_ROLLOUTS_OF_ITEM = f"""
SELECT data FROM events NOT INDEXED
WHERE kind = ? AND {_columns(RolloutFinished, ["item"])} = ? ORDER BY seq
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFinished(Event):
    """The score of a skill on a split: the points of the score curve."""

    identity = ("name",)
    # baseline, step_0003, slow_update_epoch_02, composed, final, test_baseline, test_best, …
    name: str
    split: Recorded[MeasuredSplit]
    skill_hash: str
    hard: float
    soft: float
    scored: int  # rollouts
    planned: int
    items: int | None = None  # distinct ones that were scored; None: an earlier version's event
    by_type: dict[str, TypeScore] = field(default_factory=dict)
    estimate: ScoreEstimate | None = None  # screening: predicted under the gate's metric

    @property
    def has_score(self) -> bool:
        """False where every rollout failed: hard and soft are then 0 and mean nothing."""
        return self.scored > 0 or self.estimate is not None

    @property
    def scored_items(self) -> int:
        return self.scored if self.items is None else self.items


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionFinished(Event):
    """What one analyst, or the examples proposer, proposed from a group of items."""

    identity = ("step", "group")
    step: int
    group: str  # minibatch_fail_000
    source: Recorded[ProposalSource]
    items: list[str]
    patch: PatchRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded(Event):
    """Something the optimizer sent was not used, or a stage used its default instead."""

    identity = ("step", "stage", "what")
    step: int
    stage: str  # a stage, a part of one (reflect.diagnosis), or LEAK_CHECK
    what: str  # which call or edit
    reason: str
    evidence: str = ""  # of LEAK_CHECK: the words that leak; else what happens instead

    @property
    def leak(self) -> bool:
        return self.stage == LEAK_CHECK

    @property
    def blocked(self) -> str:
        """Of a leak: the words found, the text that was blocked, and why."""
        found = f'"{one_line(self.evidence, 80)}" in ' if self.evidence else ""
        return f'{found}"{one_line(self.what, 120)}", which {self.reason}'


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchMerged(Event):
    """All patches of a step as one."""

    identity = ("step",)
    step: int
    patch: PatchRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class EditsSelected(Event):
    """The proposals of a step that are applied, and how they were chosen."""

    identity = ("step",)
    step: int
    edit_budget: int | None  # None: no limit
    edits: list[ProposalRecord]
    decision: SelectionDecision = field(default_factory=SelectionDecision)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateBuilt(Event):
    """The skill that a step's selected edits make from the incumbent."""

    identity = ("step",)
    step: int
    label: str
    skill: str
    skill_hash: str
    report: list[EditResult]
    rewrite: RewriteRecord = field(default_factory=RewriteRecord)  # the reply of a rewrite mode


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecided(Event):
    """A verdict of the gate, with its evidence."""

    identity = ("name",)
    name: str  # step_0003, slow_update_epoch_02, prune_1
    step: int
    decision: Recorded[Decision]
    reason: str
    evidence: Evidence
    score: ScoreEstimate | None = None  # of the incumbent after the step
    candidates: list[CandidateComparison] = field(default_factory=list)  # strict
    effects: list[EditEffect] = field(default_factory=list)  # screening: the pool afterwards


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished(Event):
    """A step ended. `skill` is the incumbent that the next step starts from."""

    identity = ("step",)
    epoch: int
    step: int
    action: Recorded[StepAction]
    skill: str
    skill_hash: str
    best_skill: str
    record: StepRecord
    digest: StepMemory | None = None
    appendix_notes: list[str] = field(default_factory=list)
    skill_files: dict[str, str] = field(default_factory=dict)  # that changed; empty: removed
    best_files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowUpdateFinished(Event):
    """The slow update at the end of an epoch. `skill` is the incumbent after it."""

    identity = ("epoch",)
    epoch: int
    action: Recorded[SlowUpdateAction]
    result: SlowUpdateRecord
    pairs: list[PairRecord]
    all_pairs: list[PairRecord]
    candidate: str
    skill: str
    best_skill: str
    skill_files: dict[str, str] = field(default_factory=dict)
    best_files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaSkillFinished(Event):
    """The optimizer's advice to itself at the end of an epoch."""

    identity = ("epoch",)
    epoch: int
    result: MetaSkillRecord
    pairs: list[PairRecord] = field(default_factory=list)  # where no slow update compared them
    all_pairs: list[PairRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipTested(Event, ShipResult):
    """The final comparison with the initial skill on fresh rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationFinished(Event):
    """What each part of a skill is worth (`skillfit ablate`)."""

    units: list[UnitWorth]
    rollouts: int
    score: ScoreEstimate  # of the whole skill
    tokens_before: int
    tokens_after: int  # without the parts that can be cut
    shorter_skill: str  # the skill without them; empty when nothing can be cut
    shorter_files: dict[str, str] = field(default_factory=dict)  # that changed; empty: removed
    comparison: Evidence | None = None  # the shorter skill against the whole one, fresh rollouts
    holds: bool | None = None  # None: not compared; whether the shorter skill is as good
    all_zero: bool = False  # no rollout scored above 0, so nothing is known about the parts


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillsMeasured(Event):
    """Scores of skills on a split (`skillfit eval`)."""

    split: str  # train, selection, test or all
    repeats: int
    scores: list[MeasuredScore]


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonDecided(Event):
    """A person steered the run: pinned, vetoed, reworded, approved or declined an edit, changed a
    budget, or said that an answer is right or wrong. `command` is the CLI command that does the
    same.
    """

    identity = ("number",)
    number: int
    action: Recorded[Action]
    target: str = ""  # an edit's id, or what was changed
    text: str = ""  # the new wording or value
    command: str = ""
    cap: float | None = None  # budget: the cap that the request led to


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """Something that the user should know. `what` tells warnings apart."""

    identity = ("what",)
    what: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """The run ended. `best_skill` is what it hands back: the initial skill unless it improved."""

    finish_reason: Recorded[RunFinishReason]
    diagnosis: str
    best_skill: str
    summary: RunSummary
    unproven_skill: str = ""  # what was found where it is not handed back
    # Ids of the pool's edits that the skill which was found consists of; None: not recorded.
    edits: list[str] | None = None
    files: dict[str, str] = field(default_factory=dict)  # of that skill which changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown(Event):
    """An event that this version cannot read, from a run of an older or newer version."""

    kind: str
    data: JsonObject


@dataclass(frozen=True, slots=True)
class Stored:
    """An event as stored in the log."""

    seq: int
    at: float
    event: Event


E = TypeVar("E", bound=Event)


class EventLog(Store):
    """Append-only table beside the journal. Listeners get new events, and on replay get the
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
        self._rows = ReadAhead(
            self._db, "SELECT seq, at, data FROM events WHERE seq >= ? AND seq < ?"
        )
        self._listeners: list[Callable[[Stored], None]] = []

    def listen(self, listener: Callable[[Stored], None]) -> None:
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Store the event unless it is known, and tell the listeners what is stored.

        A known event that is emitted again with other clock times stays as it was, so that replay
        changes nothing. One with other content (a failed rollout that succeeded now, a run that
        ended later than before) replaces the old one.
        """
        kind, key = type(event).__name__, self._redact(event.key)
        dumped = dump(type(event), event).decode()
        data = self._redact(dumped)
        seq = self._known.get(key)
        if seq is None:
            seq, at = self._insert(key, kind, data)
        else:
            _, at, old = self._rows.row(seq)
            if _same(old, data) or _same(self._in_this_version(kind, old), data):
                data = old
            else:
                seq, at = self._replace(seq, key, kind, data)
        if self._listeners:
            self._tell(Stored(seq, at, event if data == dumped else self._parse(kind, data)))

    def replay(self) -> None:
        """Tell the listeners everything that is stored, in order."""
        for stored in self.read():
            self._tell(stored)

    def _tell(self, stored: Stored) -> None:
        for listener in self._listeners:
            listener(stored)

    def _in_this_version(self, kind: str, data: str) -> str:
        """Return a stored event as this version writes it: with the fields that a later version
        added.
        """
        with suppress(TypeError, ValueError):
            event = load(Event.kinds[kind], data)
            return self._redact(dump(type(event), event).decode())
        return data

    def _insert(self, key: str, kind: str, data: str) -> tuple[int, float]:
        at = time.time()
        self._known[key] = self._write(
            "INSERT INTO events (key, kind, data, at) VALUES (?,?,?,?)", (key, kind, data, at)
        )
        return self._known[key], at

    def _replace(self, seq: int, key: str, kind: str, data: str) -> tuple[int, float]:
        if kind == RunStarted.__name__:  # stays the first row
            self._write("UPDATE events SET data = ? WHERE seq = ?", (data, seq))
            return seq, time.time()
        self._write("DELETE FROM events WHERE seq = ?", (seq,))
        return self._insert(key, kind, data)

    def resume(self) -> None:
        """Delete the end of the run: a resumed run has not finished."""
        self._write("DELETE FROM events WHERE kind = ?", (RunFinished.__name__,))
        self._known.pop(RunFinished.__name__, None)

    def clear(self) -> None:
        """Delete all events, for a new run in the same directory."""
        self._write("DELETE FROM events", ())
        self._known.clear()

    def last(self, *kinds: type[Event]) -> Stored | None:
        """Return the last event of these kinds; None when there is none."""
        marks = ",".join("?" * len(kinds))
        query = (
            f"SELECT seq, at, kind, data FROM events WHERE kind IN ({marks}) ORDER BY "
            "seq DESC LIMIT 1"
        )
        row = self._db.execute(query, [kind.__name__ for kind in kinds]).fetchone()
        return self._stored(*row) if row else None

    def read(self, after: int = 0, kinds: tuple[type[Event], ...] = ()) -> Iterator[Stored]:
        """Yield events behind `after`, in order; all kinds, or only these. Kinds of a newer version
        come as `Unknown`.
        """
        names = [kind.__name__ for kind in kinds]
        wanted = f"kind IN ({','.join('?' * len(names))}) AND " if names else ""
        query = f"SELECT seq, at, kind, data FROM events WHERE {wanted}seq > ? ORDER BY seq LIMIT ?"
        for seq, at, kind, data in in_pages(self._db, query, *names, after=after):
            yield self._stored(seq, at, kind, data)

    def without(self, kind: type[Event]) -> Iterator[Stored]:
        """Yield all events but those of one kind, in order. The rows of that kind are not read, so
        a run of 100,000 rollouts takes no longer than one of few.
        """
        first, behind = _key_range(kind)
        query = (
            "SELECT seq, at, kind, data FROM (SELECT * FROM events WHERE key < ?"
            " UNION ALL SELECT * FROM events WHERE key >= ?) ORDER BY seq"
        )
        for seq, at, name, data in self._db.execute(query, (first, behind)).fetchall():
            yield self._stored(seq, at, name, data)

    def of_kind(self, kind: type[Event], *identity: object) -> Iterator[Stored]:
        """Yield the events of a kind whose first identity fields have these values, in order. They
        are found by index, whatever the size of the log.
        """
        first, behind = _key_range(kind, *identity)
        exact = first.removesuffix("/")
        query = (
            "SELECT seq, at, kind, data FROM events"
            " WHERE (key >= ? AND key < ?) OR key = ? ORDER BY seq"
        )
        for seq, at, name, data in self._db.execute(query, (first, behind, exact)).fetchall():
            yield self._stored(seq, at, name, data)

    def found(self, kind: type[E], *identity: object) -> list[E]:
        """Return the events of `of_kind` without number and time. What another version wrote and
        cannot be read is left out.
        """
        events = [stored.event for stored in self.of_kind(kind, *identity)]
        return [event for event in events if isinstance(event, kind)]

    def rollouts_done(self) -> list[RolloutsDone]:
        """Count the finished rollouts of each phase and step."""
        counts = []
        for stage, done, at in self._db.execute(_ROLLOUTS_DONE, _key_range(RolloutFinished)):
            phase, _, step = stage.rpartition("/")
            counts.append(RolloutsDone(phase, int(step), done, self._time(at)))
        return counts

    def rollout_keys(self) -> list[str]:
        """Return the journal keys of finished rollouts; one that several phases share repeats."""
        return [key for (key,) in self._db.execute(_ROLLOUT_KEYS, _key_range(RolloutFinished))]

    def marked_rollouts(self) -> list[MarkedRollout]:
        """Return the rollouts that failed, and those that say whether the skill was loaded, in
        order.
        """
        rows = self._db.execute(_MARKED_ROLLOUTS, (RolloutFinished.__name__,))
        return [
            MarkedRollout(phase, step, failure, None if read is None else bool(read))
            for phase, step, failure, read in rows
        ]

    def rollout_scores(self, initial: str) -> dict[RolloutScore, list[str]]:
        """Map every score to the items of the rollouts that had it. `initial`: the hash of the
        initial skill. Of very many rollouts few differ in their scores, so each score is parsed
        once.
        """
        rows = self._db.execute(_ROLLOUT_SCORES, (initial, RolloutFinished.__name__))
        items: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        for item, score, is_initial in rows:
            items[score, is_initial].append(item)
        return {
            RolloutScore._make([*from_json(score), bool(is_initial)]): found
            for (score, is_initial), found in items.items()
        }

    def some_hard_scores(self, most: int) -> list[float | None]:
        """Return the hard scores of some rollouts, for a guess at their kind."""
        rows = self._db.execute(_SOME_SCORES, (*_key_range(RolloutFinished), most))
        return [hard for (hard,) in rows]

    def rollouts_of_item(self, item: str) -> list[RolloutFinished]:
        """Return every rollout of an item, in order. What another version wrote and cannot be read
        is left out.
        """
        kind = RolloutFinished.__name__
        rows = self._db.execute(_ROLLOUTS_OF_ITEM, (kind, item))
        events = [self._parse(kind, data) for (data,) in rows]
        return [event for event in events if isinstance(event, RolloutFinished)]

    def _stored(self, seq: int, at: float, kind: str, data: str) -> Stored:
        return Stored(seq, self._time(at), self._parse(kind, data))

    def _parse(self, kind: str, data: str) -> Event:
        known = Event.kinds.get(kind)
        if known is not None and known is not Unknown:
            with suppress(TypeError, ValueError):
                return load(known, data)
        return Unknown(kind=kind, data=self._decoded(JsonObject, data, f"an event ({kind})"))


def _key_range(kind: type[Event], *identity: object) -> tuple[str, str]:
    """Return the first key of these events, and the first key behind them."""
    prefix = "/".join([kind.__name__, *map(str, identity)])
    return f"{prefix}/", f"{prefix}0"  # "0" follows "/"


def as_json(stored: Stored) -> JsonObject:
    """Return the fields of the line that a tracker or `events.jsonl` gets."""
    kind = type(stored.event)
    fields: JsonObject = from_json(dump(kind, stored.event))
    return {"seq": stored.seq, "at": stored.at, "kind": kind.__name__, **fields}


def _same(old: str, new: str) -> bool:
    if old == new:
        return True
    try:
        return _timeless(from_json(old)) == _timeless(from_json(new))
    except ValueError:  # a record that was changed is written again
        return False


def _timeless(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {name: _timeless(item) for name, item in value.items() if name not in _CLOCK_FIELDS}
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    return value
