"""The ship test's rollouts, kept by skill: what the grader trained on makes of them stands beside
what the ship grader says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skillfit.gate.samples import Samples
from skillfit.gate.statistics import mean
from skillfit.rollout.outcome import Outcome, Tally
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Grader, Item, Score, TaskFailure
from skillfit.training.parts import Parts


@dataclass(frozen=True, slots=True)
class BothGraders:
    """The ship grader decides. The one trained on grades the same attempt, while its files are
    still there; what breaks it is no reason to lose the rollout.
    """

    ship: Grader
    trained: Grader

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        score = await self.ship.grade(item, attempt)
        try:
            trained = await self.trained.grade(item, attempt)
        except TaskFailure:
            return score
        return replace(score, trained=(trained.hard, trained.soft))

    def patterns(self) -> tuple[str, ...]:
        return (*self.ship.patterns(), *self.trained.patterns())

    def describe(self) -> dict[str, Any]:
        return self.ship.describe()


class ShipRollouts:
    """Measures for the ship test and remembers what came out."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)

    async def measure(
        self, skill: Skill, items: Sequence[Item], *, repeat: int, series: str
    ) -> list[Outcome]:
        outcomes = await self._parts.measure(
            skill, items, repeat=repeat, series=series, by=self._parts.ship_rollouts
        )
        self._outcomes[skill.hash] += outcomes
        return outcomes

    def tally(self, skill: Skill) -> Tally | None:
        """How a skill did under the grader that was trained on; None where nothing of it was
        scored.
        """
        samples = self._samples(skill, self._trained)
        return samples.tally() if samples.scored else None

    def gap(self, skill: Skill, initial: Skill) -> float | None:
        """With a second grader: the gain under the one trained on minus the gain under the second,
        on the same rollouts.
        """
        if self._parts.ship_rollouts is None or skill.hash == initial.hash:
            return None
        trained, shipped = (
            mean(list(self._samples(skill, by).against(self._samples(initial, by)).values()))
            for by in (self._trained, _shipped)
        )
        return trained - shipped

    def _samples(self, skill: Skill, by: Callable[[Score], Score | None]) -> Samples:
        samples = Samples(self._parts.gate_settings)
        samples.add(
            replace(outcome, score=outcome.score and by(outcome.score))
            for outcome in self._outcomes[skill.hash]
        )
        return samples

    def _trained(self, score: Score) -> Score | None:
        if self._parts.ship_rollouts is None:
            return score
        return Score(*score.trained) if score.trained else None


def _shipped(score: Score) -> Score | None:
    """By the ship grader, where the other one has spoken too."""
    return score if score.trained else None
