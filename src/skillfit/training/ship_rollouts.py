"""The rollouts of the ship test, kept by skill and scored by both graders where there are two."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skillfit.gate import GateSettings
from skillfit.gate.samples import Samples
from skillfit.gate.statistics import mean
from skillfit.rollout import Arm, Outcome, Tally
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Grader, Item, Score, TaskFailure
from skillfit.training.components import SelectionRollouts


@dataclass(frozen=True, slots=True)
class BothGraders:
    """Grades with the ship grader, and with the training grader on the same attempt.

    The ship grader decides. When the training grader fails, the rollout is kept without its score.
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
    """Measures skills for the ship test and keeps the outcomes."""

    def __init__(
        self, rollouts: SelectionRollouts, settings: GateSettings, *, second_grader: bool
    ) -> None:
        self.rollouts = rollouts
        self._settings = settings
        self._second_grader = second_grader
        self._outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)

    async def measure(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> list[Outcome]:
        outcomes = await self.rollouts(arms, repeat=repeat, series=series)
        for (arm, _), outcome in zip(arms, outcomes, strict=True):
            self._outcomes[arm.skill.hash].append(outcome)
        return outcomes

    def tally(self, skill: Skill) -> Tally | None:
        """Scores under the training grader; None where nothing was scored."""
        samples = self._samples(skill, self._trained_score)
        return samples.tally() if samples.scored else None

    def gap(self, skill: Skill, initial: Skill) -> float | None:
        """With a second grader: the gain under the training grader minus the gain under the second
        one, on the same rollouts.
        """
        if not self._second_grader or skill.hash == initial.hash:
            return None
        gains = []
        for score in (self._trained_score, _ship_score):
            differences = self._samples(skill, score).against(self._samples(initial, score))
            gains.append(mean(list(differences.values())))
        return gains[0] - gains[1]

    def _samples(self, skill: Skill, score_of: Callable[[Score], Score | None]) -> Samples:
        samples = Samples(self._settings)
        for outcome in self._outcomes[skill.hash]:
            score = score_of(outcome.score) if outcome.score is not None else None
            samples.add([replace(outcome, score=score)])
        return samples

    def _trained_score(self, score: Score) -> Score | None:
        if not self._second_grader:
            return score
        return Score(*score.trained) if score.trained else None


def _ship_score(score: Score) -> Score | None:
    """By the ship grader, where the training grader has a score too."""
    return score if score.trained else None
