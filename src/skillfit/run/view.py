"""A run for readers: the view of one run, its card, and lists of runs.

`RunView` reads the journal and the events of a run, also while another process writes them.

The card of a run holds the few facts that a list shows. The writer of a run keeps it in the journal
and updates it as events happen (`CardKeeper`). A list of a thousand runs then reads a thousand
small cards instead of all their events. A card says up to which event it goes, so a reader can add
what a killed process, or an older version without cards, left out: `fold` is the same for writer
and reader.

`list_runs` lists the runs in a folder, each by its card. A run that cannot be read does not hide
the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from skillfit.errors import InputError
from skillfit.models.providers.handoff import pending
from skillfit.run.control import read_requests
from skillfit.run.events import (
    AblationFinished,
    EvaluationFinished,
    Event,
    EventLog,
    GateDecided,
    PreflightFinished,
    RunFinished,
    RunStarted,
    ShipTested,
    SkillsMeasured,
    StepFinished,
    Stored,
)
from skillfit.run.journal import Journal
from skillfit.run.records import (
    Recorded,
    RecordedConfig,
    RunFinishReason,
    RunSummary,
    ShipResult,
    ShipVerdict,
)
from skillfit.run.store import HANDOFF, JOURNAL, damaged, dump, in_use, load

E = TypeVar("E", bound=Event)

CARD_FACT = "card"
# How a run ended; empty until then.
CardResult = RunFinishReason | Literal["ablation", "evaluation", ""]
_RESUMABLE: tuple[RunFinishReason, ...] = ("budget", "infrastructure")
CARD_EVENTS: tuple[type[Event], ...] = (
    RunStarted,
    PreflightFinished,
    EvaluationFinished,
    GateDecided,
    StepFinished,
    ShipTested,
    AblationFinished,
    SkillsMeasured,
    RunFinished,
)
_DEPTH = 4  # folders below the given one that `list_runs` searches
_REFRESH = 2.0  # seconds after which a running run's cost is written again


@dataclass(frozen=True, slots=True)
class RunView:
    """A run seen by a reader.

    Threads may share a view: statements run one after the other, and `close` waits for the one in
    progress; afterwards reading raises `RunClosed`. Threads that should not wait for each other
    open a view each.
    """

    path: Path
    journal: Journal
    events: EventLog

    @classmethod
    def open(cls, path: Path | str) -> RunView:
        """The run in `path`. Nothing is written; another process may be writing."""
        path = Path(path).absolute()
        if not (path / JOURNAL).is_file():
            raise InputError(
                f"{path} is not a run directory: it has no {JOURNAL}.",
                hint="Give the directory named with --run.",
            )
        journal = Journal.open_readonly(path / JOURNAL)
        return cls(path, journal, EventLog(path / JOURNAL, readonly=True, beside=journal))

    @property
    def run_id(self) -> str:
        return self.journal.fact("run", str) or ""

    @property
    def started(self) -> RunStarted | None:
        return self._last(RunStarted)

    @property
    def config(self) -> RecordedConfig:
        return started.config if (started := self.started) else RecordedConfig({})

    @property
    def pool_ids(self) -> tuple[str, ...]:
        """The ids of the edits in the pool after the last decision; empty before the first one,
        and for gates without a pool.
        """
        decided = self._last(GateDecided)
        return tuple(effect.id for effect in decided.effects) if decided else ()

    def _last(self, kind: type[E]) -> E | None:
        last = self.events.last(kind)
        return last.event if last and isinstance(last.event, kind) else None

    def close(self) -> None:
        """May be called more than once, and from any thread."""
        self.journal.close()
        self.events.close()


@dataclass(frozen=True, slots=True)
class ScorePoint:
    """A measurement on the selection split, for a small score curve."""

    name: str  # baseline, step_0003, final, …
    score: float


@dataclass(frozen=True, slots=True)
class ScorePair:
    """Score of the initial and of the best skill; None where not measured."""

    baseline: float | None = None
    best: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """What a list shows of one run."""

    seq: int = 0  # the last event that is in here
    run: str = ""  # the run's id; empty: not started yet
    version: str = ""  # of skillfit
    skill: str = ""  # name of the initial skill
    task: str = ""  # where the items come from
    models: Mapping[str, str] = field(default_factory=dict)  # role -> model id
    started_at: float = 0.0
    updated_at: float = 0.0
    total_steps: int = 0
    steps_done: int = 0
    metric: str = "hard"  # what scores are in: hard, soft or mixed
    soft_weight: float = 0.0  # of the soft score in the metric `mixed`
    best_step: int | None = None
    finish_reason: Recorded[CardResult] = ""
    diagnosis: str = ""
    ship: ShipResult | None = None
    selection: ScorePair = ScorePair()
    test: ScorePair = ScorePair()
    test_final: float | None = None  # of the last skill, where that is not the best
    points: tuple[ScorePoint, ...] = ()
    calls: int = 0
    tokens: int = 0
    usd: float | None = 0.0  # None: a price is unknown
    seconds: float | None = None  # time taken, once finished
    to_review: tuple[str, ...] = ()  # edits that wait for a person's approval
    unproven: bool = False  # something was found, but the initial skill is handed back
    checked: bool = False  # the check before a run is done

    @property
    def started(self) -> bool:
        return bool(self.run)

    @property
    def finished(self) -> bool:
        return bool(self.finish_reason)

    @property
    def only_checked(self) -> bool:
        """Whether nothing was measured since `skillfit check`."""
        return self.checked and not self.finished and not self.points and not self.steps_done

    @property
    def doubt(self) -> str:
        """Why `selection.best` is not the result of a finished run: fresh rollouts did not confirm
        that the skill is better, or there were none. Empty for a confirmed score, and for the
        initial skill's.
        """
        if not self.finished or self.selection.best in (None, self.selection.baseline):
            return ""
        return score_doubt(self.ship.verdict if self.ship and self.ship.pairs else None)

    @property
    def score(self) -> float | None:
        """The selection score of the skill that the run handed back; before that, the latest."""
        if self.unproven:
            return self.selection.baseline
        if self.selection.best is not None:
            return self.selection.best
        return self.points[-1].score if self.points else self.selection.baseline


def score_doubt(verdict: Recorded[ShipVerdict] | None) -> str:
    """Why the score of a skill that a run found is not its result; empty: it is. `verdict`: of the
    ship test; None: there were no fresh rollouts.
    """
    if verdict is None:
        return "not verified"
    return "" if verdict == "improved" else "not confirmed"


def fold(card: RunCard, stored: Stored) -> RunCard:
    """The card after one more event. Folding an event again changes nothing."""
    event = stored.event
    card = replace(card, seq=max(card.seq, stored.seq), updated_at=max(card.updated_at, stored.at))
    if isinstance(event, RunStarted):
        return _started(card, event, stored.at)
    if isinstance(event, EvaluationFinished) and event.split == "selection":
        return _measured(card, event)
    if isinstance(event, PreflightFinished):
        return replace(card, checked=True)
    if isinstance(event, GateDecided):
        waiting = tuple(effect.id for effect in event.effects if effect.awaits_approval)
        return replace(card, to_review=waiting)
    if isinstance(event, StepFinished):
        return replace(card, steps_done=max(card.steps_done, event.step))
    if isinstance(event, ShipTested):
        return replace(card, ship=event)
    if isinstance(event, AblationFinished):
        return replace(card, finish_reason="ablation")
    if isinstance(event, SkillsMeasured):
        scores = [score.hard for score in event.scores]
        measured = ScorePair(scores[0], max(scores) if scores[1:] else None)
        return replace(card, finish_reason="evaluation", selection=measured)
    if isinstance(event, RunFinished):
        return _finished(card, event)
    return card


def _started(card: RunCard, event: RunStarted, at: float) -> RunCard:
    settings = event.config.settings
    return replace(
        card,
        run=event.run,
        version=event.version,
        skill=event.skill_name,
        task=settings.env.tasks,
        models={role: spec.id for role, spec in settings.model.by_role().items()},
        started_at=card.started_at or at,
        total_steps=event.total_steps,
        metric=settings.evaluation.gate_metric,
        soft_weight=settings.evaluation.gate_mixed_weight,
    )


def _measured(card: RunCard, event: EvaluationFinished) -> RunCard:
    from skillfit.config.schema import metric_score  # here: a list of runs needs no schema

    if not event.has_score:
        return card
    if event.estimate is not None:
        score = event.estimate.mean
    else:
        score = metric_score(card.metric, event.hard, event.soft, card.soft_weight)
    points = {point.name: point for point in card.points}
    points[event.name] = ScorePoint(event.name, score)  # in its old place if it had one
    card = replace(card, points=tuple(points.values()))
    if event.name == "baseline":
        card = replace(card, selection=replace(card.selection, baseline=score))
    return card


def _finished(card: RunCard, event: RunFinished) -> RunCard:
    ended = replace(card, finish_reason=event.finish_reason, diagnosis=event.diagnosis)
    return with_summary(ended, event.summary)


def with_summary(card: RunCard, summary: RunSummary) -> RunCard:
    """The card with the results of a finished run."""
    scores = SummaryScores.of(summary)
    selection = scores.selection
    if selection.baseline is None:
        selection = replace(selection, baseline=card.selection.baseline)
    return replace(
        card,
        best_step=summary.best_step,
        selection=selection,
        test=scores.test,
        test_final=scores.test_final,
        unproven=summary.unproven,
        seconds=summary.total_wall_time_s,
    )


@dataclass(frozen=True, slots=True)
class SummaryScores:
    """The scores in the summary of a finished run, in the gate's metric."""

    selection: ScorePair
    test: ScorePair
    test_final: float | None

    @classmethod
    def of(cls, summary: RunSummary) -> SummaryScores:
        return cls(
            ScorePair(summary.baseline_selection_score, summary.best_selection_score),
            ScorePair(
                _score(summary.baseline_test_score, summary.baseline_test_hard),
                _score(summary.test_score, summary.test_hard),
            ),
            _score(summary.final_test_score, summary.final_test_hard),
        )


def _score(in_metric: float | None, hard: float | None) -> float | None:
    """A test score in the gate's metric. Summaries of early versions have hard scores only."""
    return hard if in_metric is None else in_metric


def with_cost(card: RunCard, journal: Journal) -> RunCard:
    """The card with what the run has used so far."""
    spent = journal.spent()
    return replace(card, calls=spent.calls, tokens=spent.tokens, usd=spent.usd)


def recorded_card(journal: Journal) -> RunCard:
    """The card as its writer left it; an empty one where there is none."""
    kept = journal.fact(CARD_FACT, str)
    if kept is None:
        return RunCard()
    try:
        return load(RunCard, kept)
    except ValueError as error:
        raise damaged(journal.path, "the run's card cannot be read") from error


class CardKeeper:
    """A listener on the event log that keeps the card in the journal up to date."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._saved_at = 0.0
        self._last: Stored | None = None
        self._card = recorded_card(journal)
        self._written = self._card

    def reopen(self, *, new: bool) -> None:
        """The run was resumed, so it has not finished; `new`: as another run, from the start."""
        unfinished = replace(self._card, finish_reason="", diagnosis="", ship=None, seconds=None)
        self._card = RunCard() if new else unfinished
        self.save()

    def __call__(self, stored: Stored) -> None:
        self._last = stored
        if isinstance(stored.event, CARD_EVENTS) or time.monotonic() - self._saved_at > _REFRESH:
            self.save()

    def save(self) -> None:
        """Write the card if it changed. Events of other kinds only move its position."""
        self._saved_at = time.monotonic()
        if self._last is not None:
            self._card = fold(self._card, self._last)
        self._card = with_cost(self._card, self._journal)
        if self._card != self._written and (self._card.started or self._written.started):
            self._written = self._card
            self._journal.set_fact(CARD_FACT, dump(RunCard, self._card).decode())


RunState = Literal["running", "waiting", "review", "stopped", "finished"]
"""What a run is doing now. waiting: handoff prompts need answers; review: edits need a person's
approval; stopped: before its end, it can be resumed.
"""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run of a list."""

    path: Path
    state: RunState
    card: RunCard

    @property
    def is_over(self) -> bool:
        """Whether the run has ended for good: there is nothing to resume."""
        return ended_for_good(self.state, self.card.finish_reason)


@dataclass(frozen=True, slots=True)
class RunListing:
    """Started runs, the one changed last at the end, and what could not be read."""

    runs: tuple[ListedRun, ...]
    problems: tuple[InputError, ...]


def list_runs(folder: Path) -> RunListing:
    """The started runs in a folder and its subfolders."""
    runs: list[ListedRun] = []
    problems: list[InputError] = []
    for path in find_runs(folder):
        try:
            listed = read_listed(path)
        except InputError as error:
            problems.append(error)
            continue
        if listed.card.started:
            runs.append(listed)
    runs.sort(key=lambda listed: (listed.card.updated_at, listed.path))
    return RunListing(tuple(runs), tuple(problems))


def find_runs(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Directories with a journal. Folders inside a run are not searched."""
    if not folder.is_dir():
        return
    below: list[Path] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == JOURNAL and entry.is_file():
                yield folder
                return
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                below.append(Path(entry.path))
    if depth:
        for path in sorted(below):
            yield from find_runs(path, depth - 1)


def read_listed(path: Path) -> ListedRun:
    """One run of a list, without reading the events that its card has already."""
    running = in_use(path)
    with closing(RunView.open(path)) as view:
        card = current_card(view, running=running)
    to_review = bool(card.to_review) and not _reviewed(path, card)
    state = state_of(path, running=running, finished=card.finished, to_review=to_review)
    return ListedRun(path.absolute(), state, card)


def _reviewed(path: Path, card: RunCard) -> bool:
    """Whether a person has decided about every edit. A resumed run carries the decisions out."""
    decided = {request.target for request in read_requests(path)}
    return decided.issuperset(card.to_review)


def current_card(view: RunView, *, running: bool = False) -> RunCard:
    """The card of a run, with the events that its writer has not folded in. While a run is
    running, its writer keeps the cost up to date.
    """
    card = recorded_card(view.journal)
    if view.events.newest() > card.seq:
        for stored in view.events.read(card.seq, CARD_EVENTS):
            card = fold(card, stored)
        if not running:
            card = with_cost(card, view.journal)
    return card


def state_of(path: Path, *, running: bool, finished: bool, to_review: bool) -> RunState:
    """What a run is doing now. `to_review`: whether a person has still to decide on an edit."""
    if running:
        return "running"
    if finished:
        return "finished"
    if pending(path / HANDOFF):
        return "waiting"
    return "review" if to_review else "stopped"


def ended_for_good(state: RunState, finish_reason: Recorded[CardResult]) -> bool:
    """Whether a run has ended and there is nothing to resume."""
    return state == "finished" and finish_reason not in _RESUMABLE
