"""Scores of a run: the points of the score curve, the fresh comparison at the end, scores per
type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

from skillfit.gate import GateSettings
from skillfit.gate.samples import interval, t_quantile
from skillfit.report.story_parts import GateSummary, Point, PointSplit, TypeSummary
from skillfit.rollout.outcome import weighted_values
from skillfit.run.events import EvaluationFinished, GateDecided, RolloutFinished, ShipTested


@dataclass(slots=True)
class ScoreBook:
    """Collects measurements under the run's metric."""

    settings: GateSettings = field(default_factory=GateSettings)
    weights: dict[str, float] = field(default_factory=dict)  # of items that do not count 1
    ship_rows: dict[str, RolloutFinished] = field(default_factory=dict)  # by rollout key
    _points: dict[str, Point] = field(default_factory=dict)
    _typed: dict[str, EvaluationFinished] = field(default_factory=dict)

    def evaluated(self, event: EvaluationFinished, gate: GateSummary | None) -> None:
        """A skill was measured on a split; `gate` is the decision about it, if there is one."""
        if event.by_type:
            self._typed[event.name] = event
        if event.split not in ("selection", "test"):
            return
        # With a pool of edits the score is that of the skill the loop goes on with, whatever was
        # decided about single edits.
        rejected = gate is not None and not gate.accepted and gate.pending is None
        decision = gate.action if gate is not None and rejected else "accept"
        found, estimated = event.estimate, False
        if found is None:
            score = self.settings.value(event.hard, event.soft)
            low, high = score_interval(score, event.scored)
        else:
            score, low, high, estimated = found.mean, found.low, found.high, found.estimated
        self._points[event.name] = Point(
            name=event.name,
            split=cast(PointSplit, event.split),
            score=score,
            low=low,
            high=high,
            items=event.scored,
            decision=decision,
            estimated=estimated,
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
                values.setdefault(row.item, []).append(row_value(self.settings, row))
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
        return None if found is None else self.settings.value(found.hard_acc, found.soft_acc)


def row_value(settings: GateSettings, row: RolloutFinished) -> float:
    """The score of a scored rollout under the run's metric."""
    hard = row.hard or 0.0
    return settings.value(hard, hard if row.soft is None else row.soft)


def score_interval(score: float, count: int) -> tuple[float, float]:
    """A 90 % interval around a mean of `count` scores. It assumes scores of 0 and 1, the case with
    the widest interval.
    """
    if not count:
        return 0.0, 1.0
    spread = (count * score * (1 - score) + 1.0) / count
    half = t_quantile(0.95, count) * math.sqrt(max(0.0, spread) / (count + 1))
    return max(0.0, score - half), min(1.0, score + half)
