"""What only the end of a run needs: the part of the budget that is kept for the ship test, the
rollouts of the ship test, and the two graders it may use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from skillfit.config.schema import BudgetSection
from skillfit.errors import TaskFailure
from skillfit.extensions import PartDescription
from skillfit.gate import GateSettings
from skillfit.gate.samples import Samples, mean
from skillfit.gate.ship import MOST_REPEATS
from skillfit.rollout import Arm, Outcome, Rollouts, Tally
from skillfit.run.budget import Amounts, Budget
from skillfit.run.journal import Journal
from skillfit.run.records import RolloutPlan
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Grader, Item, Score
from skillfit.tasks.task import Task
from skillfit.training.estimate import SHIP_SAFETY, RolloutCost, step_cost
from skillfit.training.plan import compose_rollouts
from skillfit.training.state import Components, SelectionRollouts
from skillfit.training.user_parts import Abilities


@dataclass(frozen=True, slots=True)
class FinishComponents:
    """What only the end of a run needs."""

    journal: Journal
    budget: Budget
    ship_task: Task | None  # the same items under the second grader, where there is one
    ship_engine: Rollouts | None
    engines: Sequence[Rollouts] = ()
    rollout_plan: RolloutPlan | None = None  # what budget.rollouts buys

    def reserve_ship_test(self, run: Components, steps: int) -> int | None:
        """Keep a part of the budget for the ship test, sized by what rollouts cost so far.

        At most half of a cap is kept, and no more than leaves room for the first step, or than is
        left after `steps` of them. Where that is too little, the test gets fewer repeats. Returns
        the repeats (rollouts per item and skill) that there is room for; None: nothing is kept.
        """
        caps, stats = run.config.budget, run.engine.stats
        if not run.config.evaluation.ship_test or not stats.scored:
            return None
        most = MOST_REPEATS if self.rollout_plan is None else self.rollout_plan.ship_repeats
        needs = {repeats: _ship_need(run, repeats) for repeats in range(most, 0, -1)}
        halves = [repeats for repeats, need in needs.items() if _fits(need, caps, 0.5)] or [1]
        used = self._used_by(run, steps)
        fitting = [repeats for repeats in halves if _fits(used + needs[repeats], caps, 1)]
        if not fitting:  # before the first step, a shorter test would not make room for it either
            fitting = [halves[-1] if steps else halves[0]]
        need = needs[fitting[0]]
        minutes = self.budget.minutes / stats.scored * need.rollouts if steps else 0.0
        self.budget.hold_back(_at_most_half(need, caps), min(minutes, (caps.minutes or 0.0) / 2))
        return fitting[0]

    def _used_by(self, run: Components, steps: int) -> Amounts:
        """Before the first step: what will be used after it. Later: the calls so far. Computed from
        the usage of rollouts and not from the budget, so that a resumed run decides the same.
        """
        if self.rollout_plan is not None:
            return Amounts()  # the plan has room for its steps and the ship test
        stats = run.engine.stats
        cost = RolloutCost.mean(stats.scored, stats.usage)
        abilities = Abilities.of(run.gate, run.proposer)
        step = step_cost(run.config, run.task, run.initial, run.plan, cost, abilities)
        if not steps:
            return Amounts.of(stats.usage + step.rollouts + step.optimizer + step.reserved)
        return Amounts(calls=stats.usage.calls + steps * step.optimizer.calls)

    def release_ship_test(self) -> None:
        """Free what was kept."""
        self.budget.release_held()
        for engine in self.engines:
            engine.resume()


def _ship_need(run: Components, repeats: int) -> Amounts:
    """What the ship test takes, and the comparison before it, by what rollouts cost so far."""
    items, stats = len(run.task.selection), run.engine.stats
    ship = (1 + run.config.evaluation.finalists) * repeats * items
    rollouts = ship + compose_rollouts(items, run.gate.pools_edits)
    share = rollouts / stats.scored * SHIP_SAFETY
    return Amounts(
        usd=(stats.usage.usd or 0.0) * share,
        tokens=ceil(stats.usage.tokens * share),
        calls=ceil(stats.usage.calls * share),
        rollouts=rollouts,
    )


def _at_most_half(need: Amounts, caps: BudgetSection) -> Amounts:
    return Amounts(
        usd=need.usd if caps.usd is None else min(need.usd, caps.usd / 2),
        tokens=need.tokens if caps.tokens is None else min(need.tokens, caps.tokens // 2),
        calls=need.calls if caps.calls is None else min(need.calls, caps.calls // 2),
        rollouts=need.rollouts if caps.rollouts is None else min(need.rollouts, caps.rollouts // 2),
    )


def _fits(need: Amounts, caps: BudgetSection, share: float) -> bool:
    """Whether this is at most a share of every cap."""
    pairs = [
        (need.usd, caps.usd),
        (need.tokens, caps.tokens),
        (need.calls, caps.calls),
        (need.rollouts, caps.rollouts),
    ]
    return all(cap is None or amount <= cap * share for amount, cap in pairs)


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

    def describe(self) -> PartDescription:
        return self.ship.describe()


@dataclass(frozen=True, slots=True)
class ComparedTallies:
    """The initial skill and the one that was found, on comparable selection rollouts."""

    initial: Tally
    found: Tally


class ShipRollouts:
    """Measures skills for the ship test and keeps the outcomes."""

    def __init__(
        self, rollouts: SelectionRollouts, settings: GateSettings, *, second_grader: bool
    ) -> None:
        self.rollouts = rollouts
        self.settings = settings
        self._second_grader = second_grader
        self._outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)

    async def measure(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> list[Outcome]:
        outcomes = await self.rollouts(arms, repeat=repeat, series=series)
        for (arm, _), outcome in zip(arms, outcomes, strict=True):
            self._outcomes[arm.skill.hash].append(outcome)
        return outcomes

    def compared(self, initial: Skill, found: Skill) -> ComparedTallies | None:
        """Two skills under the training grader; None where one has no scored rollout."""
        before, after = (self._samples(skill, self._trained_score) for skill in (initial, found))
        if not before.scored or not after.scored:
            return None
        return ComparedTallies(before.tally(), after.tally())

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
        samples = Samples(self.settings)
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
