"""Scores by item: the statistics of paired differences, the samples of one skill, the sampler that
asks for the rollouts (`Measure`), and the comparison of two skills.

Repeats of an item are averaged first, so they never count as more items.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Protocol

from skillfit.config.schema import Config
from skillfit.intervals import interval, mean, t_quantile, variance, weighted_mean, weighted_values
from skillfit.rollout.outcome import Arm, Outcome, Tally, gather, mark_retrieved
from skillfit.run.records import SOLVED, Evidence, ScoreEstimate
from skillfit.skill import Skill
from skillfit.tasks.item import Item, Score

ALPHA = 0.05  # level of the ship test, and of the tests that it is planned with
POWER = 0.8  # probability with which a planned test finds the effect that it is planned for
_NORMAL = NormalDist()
# grid of the sign-flip test: holds thirds, quarters, fifths and sixths exactly, so ties stay ties
_FRACTION = 60
_UNITS = 4000  # finer grid for graded scores: the absolute differences together are this long


def item_differences(
    candidate: Mapping[str, float], incumbent: Mapping[str, float]
) -> dict[str, float]:
    """Subtract the incumbent's item means from the candidate's, on items scored in both. Order
    follows `incumbent`.
    """
    return {item: candidate[item] - old for item, old in incumbent.items() if item in candidate}


def probability_positive(mean: float, variance: float) -> float:
    """Return the probability that a normal quantity is above 0; 0.5 if mean and variance are 0."""
    if variance <= 0:
        return 0.5 if mean == 0 else float(mean > 0)
    return _NORMAL.cdf(mean / math.sqrt(variance))


def sign_flip_p(differences: Iterable[float]) -> float:
    """Return the one-sided p-value of the sign-flip test: the share of all sign assignments whose
    sum is at least the observed one.

    Under "no difference" each item's sign is a fair coin, so this holds for every n, few items and
    saturated tasks included. Differences are put on a grid (symmetric around 0, so the test stays
    exact), and the distribution of the sum of positive differences is built up item by item: n
    additions of arrays instead of 2^n sums.
    """
    import numpy as np

    values = [value for value in differences if abs(value) > 1e-12]
    even = all(abs(value * _FRACTION - round(value * _FRACTION)) < 1e-6 for value in values)
    scale = _FRACTION if even else max(_FRACTION, _UNITS / math.fsum(map(abs, values)))
    sizes = [round(abs(value) * scale) for value in values]
    won = sum(size for size, value in zip(sizes, values, strict=True) if value > 0)
    unit = math.gcd(*sizes) or 1  # all 1 for scores of 0 and 1
    chances = np.ones(1)  # chances[s]: that the positive differences add up to s units
    for size in sorted(sizes):
        steps = size // unit
        grown = np.zeros(len(chances) + steps)
        grown[: len(chances)] = chances
        grown[steps:] += chances
        chances = grown / 2
    return min(1.0, float(chances[won // unit :].sum()))


def within_item_variance(samples: Mapping[str, Sequence[float]]) -> float | None:
    """Return the noise of one rollout: the variance between repeats of the same item, pooled; None
    when no item was repeated.
    """
    repeated = [values for values in samples.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in repeated)
    if not freedom:
        return None
    return math.fsum(variance(values) * (len(values) - 1) for values in repeated) / freedom


def detectable_effect(items: int, noise: float, repeats: int = 1) -> float:
    """Return the smallest true mean difference that a paired one-sided test at level ALPHA finds
    with probability POWER. `noise` is the within-item variance. However quiet the rollouts, a
    sign-flip test needs log2(1/ALPHA) winning items.
    """
    if items < 2:
        return 1.0
    return min(
        1.0,
        max(
            math.log2(1 / ALPHA) / items,
            _z(items) * math.sqrt(2 * noise / repeats / items),
        ),
    )


def _z(items: int) -> float:
    """Return how many standard errors above 0 an effect must be for the test to find it with
    probability POWER.
    """
    return t_quantile(1 - ALPHA, items - 1) + _NORMAL.inv_cdf(POWER)


TOLERANCE = 1e-9  # smaller differences are floating-point error
PRIOR_VARIANCE = 0.06**2  # of a true mean difference: most candidates move it by a few points
EXTRA_VARIANCE = 0.03  # added to the observed variance: a few equal differences prove little


class Measure(Protocol):
    """Runs selection rollouts for a gate.

    One rollout for each (arm, item) pair, in that order. The same arguments give the same
    outcomes, because the journal records each rollout under its skill, item, repeat and series.
    """

    async def __call__(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> list[Outcome]: ...


@dataclass(frozen=True, slots=True)
class GateSettings:
    """The settings of the run, and what a gate is told of the run's items and plan.

    The screening thresholds are constants of `pool.py`.
    """

    config: Config = field(default_factory=Config)
    weights: Mapping[str, float] = field(default_factory=dict)  # item id -> weight; default 1
    subsets: int = 16  # screening: distinct subsets of the pending edits per step


@dataclass(slots=True)
class Samples:
    """Scores of one skill by item. Failed rollouts count as planned and are otherwise missing."""

    settings: GateSettings
    scores: dict[str, list[Score]] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)  # item id -> mean under the metric
    tokens: dict[str, list[int]] = field(default_factory=dict)  # item id -> of each scored rollout
    planned: int = 0
    scored: int = 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self.planned += outcome.status != "skipped"
            if outcome.score is not None:
                self.scored += 1
                self.scores.setdefault(outcome.item_id, []).append(outcome.score)
                self.tokens.setdefault(outcome.item_id, []).append(outcome.usage.tokens)
                self.means[outcome.item_id] = mean(self.values(outcome.item_id))

    def values(self, item: str) -> list[float]:
        """Return the scores of an item under the gate's metric, one per scored rollout."""
        evaluation = self.settings.config.evaluation
        return [evaluation.value(score.hard, score.soft) for score in self.scores.get(item, ())]

    @property
    def by_item(self) -> dict[str, list[float]]:
        return {item: self.values(item) for item in self.scores}

    @property
    def coverage(self) -> float:
        return self.scored / self.planned if self.planned else 0.0

    @property
    def score(self) -> float:
        """Mean over items of the item means: repeats of one item do not raise its weight."""
        return weighted_mean(self.means, self.settings.weights)

    def against(self, incumbent: Samples) -> dict[str, float]:
        """Return the differences to the incumbent on items scored under both, scaled so that their
        plain mean is the weighted one.
        """
        differences = item_differences(self.means, incumbent.means)
        return weighted_values(differences, self.settings.weights)

    def estimate(self) -> ScoreEstimate:
        """Return the mean score with its 90 % interval."""
        bounds = interval(list(weighted_values(self.means, self.settings.weights).values()))
        return ScoreEstimate(self.score, max(0.0, bounds.low), min(1.0, bounds.high))

    def tally(self) -> Tally:
        hard = {item: mean([score.hard for score in found]) for item, found in self.scores.items()}
        soft = {item: mean([score.soft for score in found]) for item, found in self.scores.items()}
        weights = self.settings.weights
        return Tally(
            weighted_mean(hard, weights),
            weighted_mean(soft, weights),
            self.scored,
            self.planned,
            len(self.scores),
        )


def pair_differences(
    new: Mapping[str, Sequence[float]], old: Mapping[str, Sequence[float]]
) -> list[float]:
    """Return the difference of each pair of rollouts of the same item, whatever its weight."""
    pairs = [zip(new[item], old[item], strict=False) for item in old if item in new]
    return [after - before for rows in pairs for after, before in rows]


def savings(
    new: Mapping[str, Sequence[float]], old: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Return the share of tokens saved, by item. The values are those of single rollouts."""
    return {
        item: 1 - mean(new[item]) / mean(old[item])
        for item in old
        if item in new and mean(old[item])
    }


class Sampler:
    """Asks for rollouts, never for the same one twice: a further rollout of the same skill and item
    gets the next repeat number.
    """

    def __init__(self, measure: Measure, series: str, settings: GateSettings) -> None:
        self._measure, self._series, self._settings = measure, series, settings
        self._next: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.rollouts = 0  # that have finished; skipped ones do not count
        self.scored = 0

    def start(self, arms: Sequence[tuple[Arm, Item]]) -> asyncio.Task[list[Outcome]]:
        """Start one more rollout for each pair. All are queued at once, before later ones."""
        by_repeat: dict[int, list[int]] = {}
        for index, (arm, item) in enumerate(arms):
            by_repeat.setdefault(self._next[arm.skill.hash, item.id], []).append(index)
            self._next[arm.skill.hash, item.id] += 1
        batches = sorted(by_repeat.items())
        running = [
            self._measure([arms[index] for index in indexes], repeat=repeat, series=self._series)
            for repeat, indexes in batches
        ]
        collecting = self._collect([indexes for _, indexes in batches], running)
        task = asyncio.get_running_loop().create_task(collecting)
        task.add_done_callback(mark_retrieved)
        return task

    async def roll_out(self, arms: Sequence[tuple[Arm, Item]]) -> list[Outcome]:
        """Run one more rollout for each pair; return the outcomes in the order of the pairs."""
        return await self.start(arms)

    async def _collect(
        self, places: Sequence[Sequence[int]], running: Sequence[Awaitable[list[Outcome]]]
    ) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        for indexes, batch in zip(places, await gather(running), strict=True):
            outcomes.update(zip(indexes, batch, strict=True))
        self.rollouts += sum(outcome.status != "skipped" for outcome in outcomes.values())
        self.scored += sum(outcome.score is not None for outcome in outcomes.values())
        return [outcomes[index] for index in range(len(outcomes))]

    async def samples(self, skill: Skill, items: Sequence[Item], repeats: int = 1) -> Samples:
        """Run fresh rollouts of one skill: `repeats` of each item."""
        samples = Samples(self._settings)
        arm = Arm(skill)
        samples.add(await self.roll_out([(arm, item) for _ in range(repeats) for item in items]))
        return samples


class RolloutCount:
    """The rollouts of one judgement, as the part of the sampler's total since it began."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._rollouts_before, self._scored_before = sampler.rollouts, sampler.scored

    @property
    def rollouts(self) -> int:
        return self._sampler.rollouts - self._rollouts_before

    @property
    def coverage(self) -> float:
        scored = self._sampler.scored - self._scored_before
        return scored / self.rollouts if self.rollouts else 1.0


@dataclass(frozen=True, slots=True)
class Belief:
    """Posterior of a candidate's true mean difference to the incumbent; the prior has mean 0."""

    mean: float = 0.0
    variance: float = PRIOR_VARIANCE
    items: int = 0

    @property
    def probability(self) -> float:
        """That the difference is above 0."""
        return probability_positive(self.mean, self.variance)


def believe(differences: Iterable[float], prior_variance: float = PRIOR_VARIANCE) -> Belief:
    """Return the posterior of the mean difference, from one difference per item."""
    values = list(differences)
    if not values:
        return Belief(variance=prior_variance)
    noise = (variance(values) + EXTRA_VARIANCE) / len(values)
    shrink = prior_variance / (prior_variance + noise)
    # Rounded, so that a sum in another order cannot turn a tie into a win.
    return Belief(round(shrink * mean(values), 12), shrink * noise, len(values))


def paired_evidence(
    candidate: Samples, incumbent: Samples, *, rollouts: int, coverage: float
) -> Evidence:
    """Compare two skills in pairs on the items scored under both."""
    differences = candidate.against(incumbent)
    estimate = interval(list(differences.values()))
    groups: dict[tuple[bool, bool], list[str]] = defaultdict(list)
    for item in differences:
        groups[candidate.means[item] >= SOLVED, incumbent.means[item] >= SOLVED].append(item)
    return Evidence(
        fixed=tuple(groups[True, False]),
        broken=tuple(groups[False, True]),
        both=tuple(groups[True, True]),
        neither=tuple(groups[False, False]),
        difference=estimate.mean,
        interval=(estimate.low, estimate.high),
        probability=believe(differences.values()).probability,
        rollouts=rollouts,
        coverage=coverage,
        higher=sum(value > TOLERANCE for value in differences.values()),
        lower=sum(value < -TOLERANCE for value in differences.values()),
    )
