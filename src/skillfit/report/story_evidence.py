"""What the events of a run add up to: its scores, the worth of its edits, and counts of rollouts.

With screening every decision of the gate lists the pool with effects. The strict gate decides about
a whole candidate, so its edits share one decision and have no separate effect.

A run may have 100,000 rollouts. Pages need sums of them, so a reader lets SQLite count; a live
terminal adds each event as it comes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import get_args

from skillfit.config.schema import EvaluationSection
from skillfit.gate.samples import Interval, interval, t_quantile
from skillfit.report.story import (
    EditSummary,
    EffectPoint,
    GateSummary,
    Point,
    Rejection,
    TypeSummary,
)
from skillfit.rollout.outcome import weighted_values
from skillfit.run.control import DONE_TO_EDIT, EDIT_ACTIONS
from skillfit.run.events import (
    CandidateBuilt,
    EvaluationFinished,
    EventLog,
    GateDecided,
    PersonDecided,
    RolloutFinished,
    ShipTested,
    Stored,
)
from skillfit.run.records import EditEffect, EditStatus, MeasuredSplit
from skillfit.skill import Skill
from skillfit.skill.edits import example_of
from skillfit.skill.regions import examples


@dataclass(slots=True)
class ScoreBook:
    """Collects measurements under the run's metric."""

    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    weights: dict[str, float] = field(default_factory=dict)  # of items that do not count 1
    ship_rows: dict[str, RolloutFinished] = field(default_factory=dict)  # by rollout key
    _points: dict[str, Point] = field(default_factory=dict)
    _typed: dict[str, EvaluationFinished] = field(default_factory=dict)

    def evaluated(self, event: EvaluationFinished, gate: GateSummary | None) -> None:
        """A skill was measured on a split; `gate` is the decision about it, if there is one."""
        if event.by_type:
            self._typed[event.name] = event
        if event.split not in get_args(MeasuredSplit):  # a split of another version
            return
        # With a pool of edits the score is that of the skill the loop continues with, whatever was
        # decided about single edits.
        rejected = gate is not None and not gate.accepted and gate.pending is None
        decision = gate.action if gate is not None and rejected else "accept"
        measured = score_interval(self.evaluation.value(event.hard, event.soft), event.scored)
        found = event.estimate or measured
        self._points[event.name] = Point(
            name=event.name,
            split=event.split,
            score=found.mean,
            low=found.low,
            high=found.high,
            items=event.scored,
            decision=decision,
            estimated=event.estimate is not None and event.estimate.estimated,
        )

    def decided(self, event: GateDecided) -> None:
        """Take the score that came with a decision, unless the skill was measured on its own."""
        found = event.score
        if found is None or event.name in self._points:
            return
        self._points[event.name] = Point(
            name=event.name,
            split="selection",
            score=found.mean,
            low=found.low,
            high=found.high,
            items=0,
            estimated=found.estimated,
        )

    def points(self, ship: ShipTested | None, initial_hash: str) -> tuple[Point, ...]:
        listed = list(self._points.values())
        if ship is not None:
            for name, skill in (("ship_initial", initial_hash), ("ship_best", ship.skill_hash)):
                point = self._ship_point(name, skill)
                if point is not None:
                    listed.append(point)
        return tuple(listed)

    def _ship_point(self, name: str, skill: str) -> Point | None:
        values: dict[str, list[float]] = {}
        for row in self.ship_rows.values():
            if row.skill_hash == skill and row.hard is not None:
                values.setdefault(row.item, []).append(row_value(self.evaluation, row))
        if not values:
            return None
        means = {item: sum(scores) / len(scores) for item, scores in values.items()}
        bounds = interval(list(weighted_values(means, self.weights).values()))
        low, high = max(0.0, bounds.low), min(1.0, bounds.high)
        return Point(name, "ship", bounds.mean, low, high, len(means))

    def types(self) -> tuple[TypeSummary, ...]:
        """Per type, on the test split if it was read, else on the selection split."""
        for first, last in (("test_baseline", "test_best"), ("baseline", "final")):
            before, after = self._typed.get(first), self._typed.get(last)
            if before is None:
                continue
            names = dict.fromkeys([*before.by_type, *(after.by_type if after else ())])
            return tuple(
                TypeSummary(
                    name,
                    before.by_type[name].total if name in before.by_type else 0,
                    self._type_score(before, name),
                    self._type_score(after, name),
                )
                for name in names
            )
        return ()

    def _type_score(self, event: EvaluationFinished | None, name: str) -> float | None:
        found = event.by_type.get(name) if event else None
        return None if found is None else self.evaluation.value(found.hard_acc, found.soft_acc)


def row_value(evaluation: EvaluationSection, row: RolloutFinished) -> float:
    """The score of a scored rollout under the run's metric."""
    hard = row.hard or 0.0
    return evaluation.value(hard, hard if row.soft is None else row.soft)


def score_interval(score: float, count: int) -> Interval:
    """A 90 % interval around a mean of `count` scores. It assumes scores of 0 and 1, the case with
    the widest interval.
    """
    if not count:
        return Interval(score, 0.0, 1.0)
    spread = (count * score * (1 - score) + 1.0) / count
    half = t_quantile(0.95, count) * math.sqrt(max(0.0, spread) / (count + 1))
    return Interval(score, max(0.0, score - half), min(1.0, score + half))


@dataclass(slots=True)
class EditPool:
    """All edits that were tried, in the order in which they came."""

    _edits: dict[str, EditSummary] = field(default_factory=dict)
    _history: dict[str, list[EffectPoint]] = field(default_factory=dict)
    _candidates: dict[int, CandidateBuilt] = field(default_factory=dict)
    screening: bool = False

    def steered(self, event: PersonDecided) -> None:
        """A person decided about an edit. After the last step no decision of the gate says so."""
        edit = self._edits.get(event.target)
        if edit is None or event.action not in EDIT_ACTIONS:
            return
        status: EditStatus = "promoted" if event.action in ("pin", "approve") else "dropped"
        reason = f"{DONE_TO_EDIT[event.action]} by a person"
        self._edits[edit.id] = replace(edit, status=status, reason=reason, awaits_approval=False)

    def measured(self, event: GateDecided, summary: GateSummary) -> GateSummary:
        """Take in the effects of a decision; the summary with what entered and left the pool."""
        if not event.effects:
            return summary
        self.screening = True
        before = {name: edit.status for name, edit in self._edits.items()}
        for effect in event.effects:
            self._take(effect, event.step)
        moved = [effect for effect in event.effects if before.get(effect.id) != effect.status]
        return replace(
            summary,
            entered=tuple(effect.id for effect in event.effects if effect.id not in before),
            promoted=tuple(effect.id for effect in moved if effect.status == "promoted"),
            dropped=tuple(effect.id for effect in moved if effect.status == "dropped"),
            pending=sum(edit.status == "pending" for edit in self._edits.values()),
        )

    def _take(self, effect: EditEffect, step: int) -> None:
        history = self._history.setdefault(effect.id, [])
        point = EffectPoint(
            step, effect.status, effect.mean, effect.low, effect.high, effect.rollouts
        )
        if history and history[-1].step == step:
            history[-1] = point
        else:
            history.append(point)
        self._edits[effect.id] = EditSummary(
            id=effect.id,
            step=effect.step,
            edit=effect.edit,
            status=effect.status,
            mean=effect.mean,
            low=effect.low,
            high=effect.high,
            probability=effect.probability,
            rollouts=effect.rollouts,
            reason=effect.reason,
            items=effect.items,
            awaits_approval=effect.awaits_approval,
        )

    def built(self, event: CandidateBuilt) -> list[Rejection]:
        """Note a candidate's edits; those that could not be applied are rejections."""
        self._candidates[event.step] = event
        return [
            Rejection(
                event.step, "update", report.edit.content or report.edit.target, report.reason
            )
            for report in event.report
            if not report.applied
        ]

    def decided(self, step: int, *, accepted: bool, skipped: bool, reason: str) -> None:
        """The gate's decision about a whole candidate, where edits are not measured one by one."""
        candidate = self._candidates.pop(step, None)
        if candidate is None or self.screening or skipped:
            return
        status: EditStatus = "promoted" if accepted else "dropped"
        applied = [report for report in candidate.report if report.applied]
        for number, report in enumerate(applied, 1):
            name = report.edit.id or f"s{step:04d}e{number:02d}"
            self._edits[name] = EditSummary(
                id=name, step=step, edit=report.edit, status=status, reason=reason
            )

    def listed(self, skill: str) -> tuple[EditSummary, ...]:
        """Every edit with its history, and whether its text is in `skill`."""
        return tuple(
            replace(
                edit,
                history=tuple(self._history.get(name, ())),
                in_best=_stands_in(skill, edit),
            )
            for name, edit in self._edits.items()
        )


def _stands_in(skill: str, edit: EditSummary) -> bool:
    example = example_of(edit.edit)
    if example is not None:
        shown = examples(Skill.from_text(skill))
        return any(one.item_id == example.item_id for one in shown)
    if edit.edit.content:
        return edit.edit.content.strip("\n") in skill
    return edit.status != "dropped" and edit.edit.target.strip("\n") not in skill


def by_effect(edits: Iterable[EditSummary]) -> list[EditSummary]:
    """Measured edits from the best to the worst, then those without a measurement."""
    return sorted(edits, key=lambda edit: (edit.mean is None, -(edit.mean or 0.0), edit.id))


_ROLLOUTS = "key >= 'RolloutFinished/' AND key < 'RolloutFinished0'"
# The key of a rollout is RolloutFinished/phase/step/rollout/…: the index alone can count them.
_COUNTS = f"""
SELECT substr(key, 17, instr(substr(key, 17), '/rollout/') - 1) AS stage, count(*), max(seq)
FROM events WHERE {_ROLLOUTS} GROUP BY stage
"""
_FAILURES = """
SELECT json_extract(data, '$.phase'), json_extract(data, '$.step'), json_extract(data, '$.failure')
FROM events NOT INDEXED
WHERE kind = 'RolloutFinished' AND json_extract(data, '$.failure') <> ''
"""
_TIME = "SELECT at FROM events WHERE seq = ?"
_SCORES = f"""
SELECT json_extract(data, '$.hard') FROM events WHERE {_ROLLOUTS} LIMIT 500
"""


@dataclass(slots=True)
class StageRollouts:
    """The rollouts of one stage of one step."""

    done: int = 0
    failed: int = 0
    latest: float = 0.0  # time of the last one


@dataclass(slots=True)
class RolloutTotals:
    """Sums over all rollouts so far. Fed with events, or read from a log at once."""

    stages: dict[tuple[str, int], StageRollouts] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    first_failure: dict[str, str] = field(default_factory=dict)  # kind -> message
    graded: bool = False  # some score is neither 0 nor 1

    @property
    def done(self) -> int:
        return sum(stage.done for stage in self.stages.values())

    def add(self, stored: Stored, event: RolloutFinished) -> None:
        stage = self._stage(event.phase, event.step)
        stage.done += 1
        stage.latest = max(stage.latest, stored.at)
        if event.failure:
            stage.failed += 1
            self._count(event.failure)
        self.graded = self.graded or event.hard not in (None, 0, 1)

    def read(self, events: EventLog) -> None:
        """Count the rollouts of a log. Nothing may have been added before."""
        for name, count, last in events.query(_COUNTS):
            phase, _, step = name.rpartition("/")
            stage = self._stage(phase, int(step))
            stage.done = count
            [(stage.latest,)] = events.query(_TIME, (last,))
        for phase, step, failure in events.query(_FAILURES):
            self._stage(phase, step).failed += 1
            self._count(failure)
        self.graded = any(score not in (None, 0, 1) for (score,) in events.query(_SCORES))

    def _stage(self, phase: str, step: int) -> StageRollouts:
        return self.stages.setdefault((phase, step), StageRollouts())

    def _count(self, failure: str) -> None:
        kind, _, message = failure.partition(": ")
        self.failures[kind] += 1
        self.first_failure.setdefault(kind, message)
