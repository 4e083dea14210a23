"""What the record of a run leaves out because there may be very much of it: steps, items, rollouts
and their trajectories. `open_details` reads it from the log of the run when a page or a command
asks for it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from skillfit.config.schema import EvaluationSection
from skillfit.models.json_text import parse_json
from skillfit.plain_text import display_name, head_and_tail, note_text
from skillfit.record.fold import row_value
from skillfit.record.record import Record
from skillfit.rollout.outcome import Outcome
from skillfit.run.control import NOTE_ACTIONS, NoteAction, read_requests
from skillfit.run.events import (
    CandidateBuilt,
    Discarded,
    EditsSelected,
    EvaluationFinished,
    GateDecided,
    ItemsRead,
    PatchMerged,
    ReflectionFinished,
    RolloutFinished,
    RunStarted,
    StepFinished,
    Stored,
)
from skillfit.run.records import SOLVED, ItemRecord, Recorded, TypeSummary, step_name
from skillfit.run.view import RunView
from skillfit.tasks.item import TrajectoryStep

# Of items that fail or are right only one skill has scores; of those without a score none has.
ItemChange = Literal[
    "broken",
    "lower",
    "still fails",
    "higher",
    "fixed",
    "always right",
    "unstable",
    "fails",
    "right",
    "no score",
]
ITEM_CHANGES: tuple[ItemChange, ...] = get_args(ItemChange)
# The same in fewer words, for lists of items.
ItemGroup = Literal["still fails", "broken", "fixed", "always right", "unstable", "no score"]
ITEM_GROUPS: tuple[ItemGroup, ...] = get_args(ItemGroup)
_NOTICEABLE = 0.05  # a smaller difference of graded scores counts as none


@contextmanager
def open_details(run: Path) -> Iterator[RunDetails]:
    """Open the details of the run in a directory, which may still be running, and close them at the
    end.
    """
    with closing(RunView.open(run)) as view:
        yield RunDetails(view)


@dataclass(frozen=True, slots=True)
class StepDetails:
    """What happened in one step, stage by stage; None where the step has no such stage."""

    rollouts: Sequence[RolloutFinished]  # the training batch
    reflections: Sequence[ReflectionFinished]
    merged: PatchMerged | None
    selected: EditsSelected | None
    candidate: CandidateBuilt | None
    gate: GateDecided | None
    gate_rollouts: int
    discarded: Sequence[Discarded]
    finished: StepFinished | None


@dataclass(frozen=True, slots=True)
class RolloutDetails:
    """One rollout, with what was recorded of it and of its item."""

    row: RolloutFinished
    outcome: Outcome | None  # None: it failed and was not recorded
    item: ItemRecord | None


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item on which a skill did not get full marks. Long texts are cut."""

    id: str
    score: float | None  # None: the rollout failed and has no score
    input: str
    expected: str
    answer: str
    feedback: str  # what the grader said
    failure: str  # why there is no score


@dataclass(frozen=True, slots=True)
class PersonNote:
    """A person says that an answer is right or wrong. feedback.json is a list of these."""

    item: str
    verdict: Recorded[NoteAction]
    text: str  # the reason, in a sentence; may be empty
    answer: str = ""  # that it is about
    score: float | None = None  # hard score of that answer; None: none, or the note names none
    rollout: str = ""
    at: float = 0.0

    @property
    def said(self) -> str:
        return note_text(self.verdict, self.text)

    @property
    def agrees(self) -> bool | None:
        """Whether the grader says the same; None where the answer has no score."""
        return None if self.score is None else (self.score >= SOLVED) == (self.verdict == "right")


class RunDetails:
    """The log of a run, for questions about its steps, items and rollouts."""

    def __init__(self, view: RunView) -> None:
        self._path = view.path
        self._events = view.events
        self._journal = view.journal

    def events(self, after: int = 0) -> Iterator[Stored]:
        """Yield the events behind number `after`, in order, for those who follow a run."""
        return self._events.read(after)

    def verdicts(self) -> list[GateDecided]:
        """Return the decisions of the gate, with their whole evidence."""
        return self._events.found(GateDecided)

    def step(self, number: int) -> StepDetails | None:
        """Return the events of a step; None when the run has no such step."""
        events = self._events
        gate_rollouts = events.found(RolloutFinished, "gate", number)
        found = StepDetails(
            rollouts=events.found(RolloutFinished, "rollout", number),
            reflections=events.found(ReflectionFinished, number),
            merged=next(iter(events.found(PatchMerged, number)), None),
            selected=next(iter(events.found(EditsSelected, number)), None),
            candidate=next(iter(events.found(CandidateBuilt, number)), None),
            gate=next(iter(events.found(GateDecided, step_name(number))), None),
            gate_rollouts=len(gate_rollouts),
            discarded=events.found(Discarded, number),
            finished=next(iter(events.found(StepFinished, number)), None),
        )
        known = found.rollouts or found.reflections or found.finished or gate_rollouts
        return found if known else None

    def training_rollouts(self, step: int) -> list[RolloutFinished]:
        return self._events.found(RolloutFinished, "rollout", step)

    def rollouts(self) -> Iterator[RolloutFinished]:
        """Yield every rollout, in the order in which they finished."""
        for stored in self._events.read(kinds=(RolloutFinished,)):
            if isinstance(stored.event, RolloutFinished):
                yield stored.event

    def paces(self) -> list[float]:
        """Return the seconds from the end of one rollout to that of the next, within stages."""
        stored = list(self._events.read(kinds=(RolloutFinished,)))
        return [
            later.at - earlier.at
            for earlier, later in pairwise(stored)
            if _stage_of(earlier) == _stage_of(later)
        ]

    def rollouts_of_item(self, item: str) -> list[RolloutFinished]:
        """Return every rollout of an item, in the order in which they finished."""
        return self._events.rollouts_of_item(item)

    def rollout(self, phase: str, step: int, key: str) -> RolloutDetails | None:
        rows = self._events.found(RolloutFinished, phase, step, key)
        if not rows:
            return None
        return RolloutDetails(rows[0], self.outcome(key), self.item_records().get(rows[0].item))

    def outcome(self, rollout: str) -> Outcome | None:
        """Return what was recorded of the rollout with this key; None when nothing was."""
        return self._journal.get(rollout, Outcome)

    def notes(self) -> list[PersonNote]:
        """Return what people said about answers, the latest note about each rollout."""
        found: dict[tuple[str, str], PersonNote] = {}
        for request in read_requests(self._path):
            if request.action not in NOTE_ACTIONS:
                continue
            outcome = self.outcome(request.rollout) if request.rollout else None
            found[request.target, request.rollout] = PersonNote(
                item=request.target,
                verdict=request.action,
                text=request.text,
                answer=outcome.attempt.answer if outcome and outcome.attempt else "",
                score=outcome.score.hard if outcome and outcome.score else None,
                rollout=request.rollout,
                at=request.at,
            )
        return list(found.values())

    def item_records(self) -> dict[str, ItemRecord]:
        """Return the items as the run read them, by id."""
        return {known.id: known for read in self._events.found(ItemsRead) for known in read.items}

    def compared_items(self, record: Record) -> tuple[ItemSummary, ...]:
        """Return the items under both skills: of the selection split on fresh rollouts where there
        were some, else on the baseline; of the test split where it was read. Of an evaluation, the
        first and the last skill; of a run that was only checked, the items that were tried.
        """
        initial, records = self.initial_hash, self.item_records()
        evaluation = record.config.settings.evaluation
        summaries: list[ItemSummary] = []
        for split, rows in self._compared_rows(record).items():
            found = self._found_hash(record, split)
            others = [row for row in rows if row.skill_hash != initial]
            before = _results(evaluation, [row for row in rows if row.skill_hash == initial])
            after = _results(evaluation, [row for row in others if found in ("", row.skill_hash)])
            for item in dict.fromkeys([*before, *after]):
                known = records.get(item)
                summaries.append(
                    ItemSummary(
                        item,
                        known.split if known else split,
                        before.get(item, ItemResult()),
                        after.get(item, ItemResult()),
                        type=known.type if known else "",
                        input=known.input if known else "",
                        expected=known.expected if known else "",
                    )
                )
        return tuple(summaries)

    def failed_items(self, record: Record, skill_hash: str) -> list[FailedItem]:
        """Return the items on which a skill did not get full marks, worst first, each with its
        lowest rollout. Only those that `compared_items` shows are searched.
        """
        evaluation, records = record.config.settings.evaluation, self.item_records()
        lowest: dict[str, RolloutFinished] = {}
        rows = [row for rows in self._compared_rows(record).values() for row in rows]
        for row in rows:
            best = lowest.get(row.item)
            if row.skill_hash == skill_hash and (best is None or _below(evaluation, row, best)):
                lowest[row.item] = row
        failed = []
        for item, row in lowest.items():
            score = None if row.hard is None else row_value(evaluation, row)
            if score is None or score < 1:
                known = records.get(item) or ItemRecord(item, "")
                failed.append(
                    FailedItem(
                        item,
                        score,
                        known.input,
                        known.expected,
                        row.answer,
                        row.feedback,
                        row.failure,
                    )
                )
        return sorted(failed, key=lambda one: (one.score is not None, one.score or 0.0))

    def _compared_rows(self, record: Record) -> dict[str, list[RolloutFinished]]:
        """Return the rollouts that `compared_items` shows, by split."""
        rows_of = partial(self._events.found, RolloutFinished)
        if record.is_evaluation:
            measured = {item.id for item in self._measured_items(record)}
            return {"": [row for row in rows_of("evaluate") if row.item in measured]}
        compared = {"selection": rows_of("ship") or rows_of("baseline"), "test": rows_of("test")}
        return compared if any(compared.values()) else {"train": rows_of("preflight")}

    def _measured_items(self, record: Record) -> list[ItemRecord]:
        """Return the items of the split that an evaluation measured last."""
        split = record.measured.split if record.measured else "all"
        return [item for item in self.item_records().values() if split in ("all", item.split)]

    def matrix(self, record: Record, most: int = 24) -> ItemMatrix:
        """Tabulate how every item went over the run, in at most about `most` columns of steps."""
        evaluation = record.config.settings.evaluation
        last = max(1, record.total_steps, record.steps_done)
        width = -(-last // most)
        columns: dict[tuple[str, int, bool], _Column] = {}
        cells: defaultdict[str, defaultdict[str, Cell]] = defaultdict(lambda: defaultdict(Cell))
        for score, items in self._events.rollout_scores(self.initial_hash).items():
            if score.hard is None:
                continue
            value = row_value(evaluation, score)
            place = (score.phase, score.step, score.initial)
            column = columns.get(place)
            if column is None:
                column = columns[place] = _column(*place, width, last)
            for item in items:
                cells[item][column.name].add(value)
        order = {column.name: column.place for column in columns.values()}
        return ItemMatrix(tuple(sorted(order, key=lambda name: order[name])), cells)

    @property
    def initial_hash(self) -> str:
        """Of the skill that the run began with, or of the first one that it measured."""
        return next((started.skill_hash for started in self._events.found(RunStarted)), "")

    def _found_hash(self, record: Record, split: str) -> str:
        """Return the hash of the skill found, as it was measured on a split; empty when that is not
        recorded. Without a ship test, test_final is the last skill, which may be another one.
        """
        if record.measured is not None:
            return record.measured.scores[-1].skill_hash
        if split == "train":
            return self.initial_hash  # the other rollouts have a part of the skill left out
        if split == "selection":
            return record.ship.skill_hash if record.ship else ""
        measured = self._events.found(
            EvaluationFinished, "test_final" if record.ship else "test_best"
        )
        return measured[0].skill_hash if measured else ""

    def trajectories(self, items: Iterable[ItemSummary]) -> dict[str, Trajectory]:
        """Return trajectories by rollout key, in the items' order until the report's room is used
        up.
        """
        found: dict[str, Trajectory] = {}
        room = _FILE
        for item in items:
            for result in (item.before, item.after):
                if not result.rollout or result.rollout in found:
                    continue
                outcome = self.outcome(result.rollout)
                if outcome is None:
                    continue
                trajectory = short_trajectory(outcome)
                room -= sum(len(turn.text) for turn in trajectory.turns)
                if room < 0:
                    return found
                found[result.rollout] = trajectory
        return found


@dataclass(frozen=True, slots=True)
class ItemResult:
    """An item under one skill: the scores of its rollouts, and the one to read: the lowest."""

    scores: tuple[float, ...] = ()
    failures: tuple[str, ...] = ()
    rollout: str = ""
    answer: str = ""  # of that rollout; long texts are cut
    feedback: str = ""

    @property
    def mean(self) -> float | None:
        return sum(self.scores) / len(self.scores) if self.scores else None

    @property
    def solved(self) -> bool:
        return (self.mean or 0.0) >= SOLVED

    @property
    def flaky(self) -> bool:
        """The same skill solves the item in one rollout and not in another."""
        return min(self.scores, default=1.0) < SOLVED <= max(self.scores, default=0.0)


@dataclass(frozen=True, slots=True)
class ItemSummary:
    """An item under the initial skill (`before`) and under the skill that was found (`after`)."""

    id: str
    split: str
    before: ItemResult
    after: ItemResult
    type: str = ""
    input: str = ""
    expected: str = ""

    @property
    def difference(self) -> float | None:
        if self.before.mean is None or self.after.mean is None:
            return None
        return self.after.mean - self.before.mean

    @property
    def change(self) -> ItemChange:
        """Fixed and broken items cross half of the score; lower and higher ones move on one side
        of it. Unstable ones are solved, but not in every rollout.
        """
        if self.difference is None:
            if not self.before.scores:
                return "no score"
            if self.before.solved:
                return "unstable" if self.before.flaky else "right"
            return "fails"
        if self.before.solved != self.after.solved:
            return "fixed" if self.after.solved else "broken"
        if abs(self.difference) >= _NOTICEABLE:
            return "higher" if self.difference > 0 else "lower"
        if self.after.solved:
            return "unstable" if self.after.flaky else "always right"
        return "still fails"

    @property
    def group(self) -> ItemGroup:
        """The change without how far a score moved on one side of half, and whether one skill was
        measured or two.
        """
        change = self.change
        if change in ("broken", "fixed", "no score"):
            return change
        if not self.result.solved:
            return "still fails"
        return "unstable" if self.result.flaky else "always right"

    @property
    def flaky(self) -> bool:
        return self.before.flaky or self.after.flaky

    @property
    def result(self) -> ItemResult:
        """Under the latest skill that was measured."""
        return self.after if self.after.rollout else self.before

    @property
    def latest(self) -> float:
        """The score under the latest skill that was measured; -1 when none was."""
        result = self.after if self.after.scores else self.before
        return -1.0 if result.mean is None else result.mean

    @property
    def fails(self) -> bool:
        """The latest skill did not solve it in every rollout."""
        return min(self.result.scores, default=0.0) < SOLVED


def worst_first(
    items: Iterable[ItemSummary], scores: Mapping[str, float] | None = None
) -> list[ItemSummary]:
    """Sort items: broken ones first, then those that fail, then lower ones; within these by their
    score under the skill found, or by `scores` where they were not compared.
    """
    urgency = {"broken": 0, "lower": 2}

    def order(item: ItemSummary) -> tuple[int, float, str, str]:
        score = item.latest if item.latest >= 0 else (scores or {}).get(item.id, 0.0)
        return urgency.get(item.change, 3 if item.result.solved else 1), score, item.split, item.id

    return sorted(items, key=order)


def _stage_of(stored: Stored) -> tuple[str, int]:
    row = stored.event
    return (row.phase, row.step) if isinstance(row, RolloutFinished) else ("", 0)


def _below(evaluation: EvaluationSection, row: RolloutFinished, other: RolloutFinished) -> bool:
    """Return whether a rollout is a better example of a failure: scored, and with a lower score."""
    if row.hard is None or other.hard is None:
        return other.hard is None and row.hard is not None and row_value(evaluation, row) < 1
    return row_value(evaluation, row) < row_value(evaluation, other)


def _results(
    evaluation: EvaluationSection, rows: Sequence[RolloutFinished]
) -> dict[str, ItemResult]:
    grouped: defaultdict[str, list[RolloutFinished]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.repeat):
        grouped[row.item].append(row)
    return {item: _item_result(evaluation, found) for item, found in grouped.items()}


def _item_result(evaluation: EvaluationSection, rows: Sequence[RolloutFinished]) -> ItemResult:
    """Summarize the rollouts of an item. One that failed is the example to read only where no other
    has a score.
    """
    scored = [(row_value(evaluation, row), row) for row in rows if row.hard is not None]
    lowest = min(scored, key=lambda pair: pair[0])[1] if scored else rows[0]
    return ItemResult(
        scores=tuple(score for score, _ in scored),
        failures=tuple(row.failure for row in rows if row.failure),
        rollout=lowest.rollout,
        answer=lowest.answer,
        feedback=lowest.feedback or lowest.failure,
    )


def types_of(items: Iterable[ItemSummary]) -> tuple[TypeSummary, ...]:
    """Return means per type over these items; empty when there is at most one type."""
    groups: defaultdict[str, list[ItemSummary]] = defaultdict(list)
    for item in items:
        groups[item.type or "(no type)"].append(item)
    if len(groups) < 2:
        return ()
    return tuple(
        TypeSummary(
            name,
            len(found),
            _mean([item.before.mean for item in found]),
            _mean([item.after.mean for item in found]),
        )
        for name, found in sorted(groups.items())
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def count_changes(items: Iterable[ItemSummary]) -> dict[ItemChange, int]:
    counts: dict[ItemChange, int] = dict.fromkeys(ITEM_CHANGES, 0)
    for item in items:
        counts[item.change] += 1
    return counts


@dataclass(slots=True)
class Cell:
    """An item's scored rollouts in one column of the matrix."""

    rollouts: int = 0
    total: float = 0.0
    lowest: float = 1.0
    highest: float = 0.0

    def add(self, score: float) -> None:
        self.rollouts += 1
        self.total += score
        self.lowest = min(self.lowest, score)
        self.highest = max(self.highest, score)

    @property
    def mean(self) -> float:
        return self.total / self.rollouts if self.rollouts else 0.0

    @property
    def flaky(self) -> bool:
        """Solved in one rollout and not in another."""
        return self.lowest < SOLVED <= self.highest


@dataclass(frozen=True, slots=True)
class ItemMatrix:
    """Items by stages. A column is a stage of one step, or several steps when there are many."""

    columns: tuple[str, ...]
    cells: Mapping[str, Mapping[str, Cell]]  # item -> column -> cell

    def mean(self, item: str) -> float:
        """Return the mean over all rollouts of the item; 0 when none was scored."""
        cells = self.cells.get(item, {}).values()
        count = sum(cell.rollouts for cell in cells)
        return sum(cell.total for cell in cells) / count if count else 0.0


class _Column(NamedTuple):
    name: str
    place: tuple[int, int]


_ENDS = {"ship": (3, "fresh"), "test": (4, "test")}


def _column(phase: str, step: int, initial: bool, width: int, last: int) -> _Column:
    """Return the column of a score. `initial`: under the initial skill, which the end of a run
    compares with the one found.
    """
    if phase in ("compose", "final"):
        return _Column("final", (2, 0))
    if phase in _ENDS:
        group, name = _ENDS[phase]
        return _Column(f"{name}: initial" if initial else f"{name}: found", (group, not initial))
    if not step:
        return _Column("initial" if phase == "baseline" else display_name(phase), (0, 0))
    first = (step - 1) // width * width + 1
    behind = min(last, first + width - 1)
    return _Column(str(first) if first == behind else f"{first}–{behind}", (1, first))


_TEXT = 2_000  # characters of one turn in a report
_TURNS = 24  # of one trajectory in a report: the first and the last ones
_FILE = 1_500_000  # characters of all trajectories of a report

Speaker = Literal["agent", "user", "system", "call", "result", "note", "answer"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message, tool call or tool result."""

    speaker: Speaker
    who: str  # as a heading
    text: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout as people read it."""

    turns: tuple[Turn, ...]
    feedback: str = ""
    evidence: tuple[str, ...] = ()  # what the grader looked at; never shown to the optimizer
    failure: str = ""
    cut: int = 0  # characters left out


def full_trajectory(outcome: Outcome) -> Trajectory:
    """Return the trajectory with everything that was recorded."""
    attempt, score = outcome.attempt, outcome.score
    turns = [_turn(step) for step in attempt.steps] if attempt else []
    if attempt and attempt.answer:
        repeated = turns and turns[-1].text.strip() == attempt.answer.strip()
        if not repeated:
            turns.append(Turn("answer", "answer", attempt.answer))
    failure = outcome.failure
    return Trajectory(
        turns=tuple(turns),
        feedback=score.feedback if score else "",
        evidence=score.evidence if score else (),
        failure=f"{failure.kind}: {failure.message}" if failure else "",
    )


def short_trajectory(outcome: Outcome) -> Trajectory:
    """Return the trajectory with the beginning and the end of its turns and of each text."""
    full = full_trajectory(outcome)
    turns = full.turns
    if len(turns) > _TURNS:
        turns = (*turns[: _TURNS // 2], *turns[-_TURNS // 2 :])
    before = sum(len(turn.text) for turn in full.turns)
    after = sum(min(len(turn.text), _TEXT) for turn in turns)
    return Trajectory(
        turns=tuple(
            Turn(turn.speaker, turn.who, head_and_tail(turn.text, _TEXT, 2 / 3)) for turn in turns
        ),
        feedback=head_and_tail(full.feedback, _TEXT, 2 / 3),
        evidence=tuple(head_and_tail(line, _TEXT, 2 / 3) for line in full.evidence[:5]),
        failure=head_and_tail(full.failure, _TEXT, 2 / 3),
        cut=before - after,
    )


def _turn(step: TrajectoryStep) -> Turn:
    if step.kind == "tool_call":
        return Turn("call", f"calls {step.name}", _readable(step.text))
    if step.kind == "tool_result":
        return Turn("result", f"{step.name} returned", step.text)
    if step.kind == "note":
        return Turn("note", "note", step.text)
    speaker: Speaker = "agent"
    if step.role in ("user", "system"):
        speaker = "user" if step.role == "user" else "system"
    return Turn(speaker, "agent" if step.role == "assistant" else step.role, step.text)


def _readable(arguments: str) -> str:
    """Indent tool arguments, which are JSON on one line. A single text is returned alone."""
    try:
        value = parse_json(arguments)
    except ValueError:
        return arguments
    if not isinstance(value, dict):
        return arguments
    if len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return json.dumps(value, ensure_ascii=False, indent=2)
