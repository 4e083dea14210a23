"""What is known about one skill on the selection items, and a way to learn more: every draw is a fresh rollout."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from skillfit.gate.verdict import GateSettings, Measure
from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Outcome, Tally
from skillfit.skill import Skill
from skillfit.tasks.attempt import Score
from skillfit.tasks.item import Item

TOLERANCE = 1e-9  # differences below this are float error, not evidence


@dataclass(slots=True)
class Samples:
    """Scores per item. Failed rollouts are counted as planned and are otherwise missing data."""

    scores: dict[str, list[Score]] = field(default_factory=dict)
    planned: int = 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self.planned += outcome.status != "skipped"
            if outcome.score is not None:
                self.scores.setdefault(outcome.item_id, []).append(outcome.score)

    @property
    def scored(self) -> int:
        return sum(map(len, self.scores.values()))

    @property
    def coverage(self) -> float:
        return self.scored / self.planned if self.planned else 0.0

    def tally(self) -> Tally:
        """Means over items of the items' means, so that extra repeats of some items don't tilt it."""
        hard = [math.fsum(score.hard for score in scores) / len(scores) for scores in self.scores.values()]
        soft = [math.fsum(score.soft for score in scores) / len(scores) for scores in self.scores.values()]
        count = len(self.scores)
        return Tally(
            hard=math.fsum(hard) / count if count else 0.0,
            soft=math.fsum(soft) / count if count else 0.0,
            scored=self.scored,
            planned=self.planned,
        )

    def values(self, settings: GateSettings) -> dict[str, list[float]]:
        """Item id -> its scores under the metric."""
        weight = {"hard": 0.0, "soft": 1.0, "mixed": settings.mixed_weight}[settings.metric]
        return {item: [(1 - weight) * s.hard + weight * s.soft for s in scores] for item, scores in self.scores.items()}

    def score(self, settings: GateSettings) -> float:
        return settings.score(self.tally())


class Drawer:
    """Draws rollouts and never the same one twice: a skill that comes back is measured anew, its old luck does not come with it."""

    def __init__(self, measure: Measure, series: str) -> None:
        self._measure = measure
        self._series = series
        self._next: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.spent = 0
        self.scored = 0

    async def draw(self, skill: Skill, items: Sequence[Item]) -> list[Outcome]:
        """One more rollout of each item, in the items' order."""
        by_repeat: dict[int, list[Item]] = {}
        for item in items:
            by_repeat.setdefault(self._next[skill.hash, item.id], []).append(item)
            self._next[skill.hash, item.id] += 1
        batches = await gather(
            self._measure(skill, batch, repeat=repeat, series=self._series) for repeat, batch in sorted(by_repeat.items())
        )
        outcomes = {outcome.item_id: outcome for batch in batches for outcome in batch}
        self.spent += sum(outcome.status != "skipped" for outcome in outcomes.values())
        self.scored += sum(outcome.score is not None for outcome in outcomes.values())
        return [outcomes[item.id] for item in items]
