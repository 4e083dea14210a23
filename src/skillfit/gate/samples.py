"""Scores of one skill by item, the sampler that produces them, and the comparison of two skills."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from skillfit.gate.statistics import (
    interval,
    item_differences,
    mean,
    probability_positive,
    variance,
    within_item_variance,
)
from skillfit.gate.verdict import Arm, Evidence, GateSettings, Measure, ScoreEstimate
from skillfit.rollout.outcome import Outcome, Tally, gather, weighted_mean, weighted_values
from skillfit.skill import Skill
from skillfit.tasks.item import Item, Score

TOLERANCE = 1e-9  # smaller differences are floating-point error
PRIOR_VARIANCE = 0.06**2  # of a true mean difference: most candidates move it by a few points
EXTRA_VARIANCE = 0.03  # added to the observed variance: a few equal differences prove little


class NotMeasured(KeyError):
    """A gate was asked for the measurements of a skill that it never measured."""

    def __init__(self, skill: Skill) -> None:
        super().__init__(f"The gate has no measurements of skill {skill.hash}.")


@dataclass(slots=True)
class Samples:
    """Scores of one skill by item. Failed rollouts count as planned and are otherwise missing."""

    settings: GateSettings
    scores: dict[str, list[Score]] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)  # item id -> mean under the metric
    planned: int = 0
    scored: int = 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self.planned += outcome.status != "skipped"
            if outcome.score is not None:
                self.scored += 1
                self.scores.setdefault(outcome.item_id, []).append(outcome.score)
                self.means[outcome.item_id] = mean(self.values(outcome.item_id))

    def values(self, item: str) -> list[float]:
        return [self.settings.value(score.hard, score.soft) for score in self.scores.get(item, ())]

    @property
    def coverage(self) -> float:
        return self.scored / self.planned if self.planned else 0.0

    @property
    def score(self) -> float:
        """Mean over items of the item means: repeats of one item do not raise its weight."""
        return weighted_mean(self.means, self.settings.weights)

    def against(self, incumbent: Samples) -> dict[str, float]:
        """Differences to the incumbent on items scored under both, scaled so that their plain mean
        is the weighted one.
        """
        differences = item_differences(self.means, incumbent.means)
        return weighted_values(differences, self.settings.weights)

    def estimate(self) -> ScoreEstimate:
        """The mean score with its 90 % interval."""
        bounds = interval(list(weighted_values(self.means, self.settings.weights).values()))
        return ScoreEstimate(self.score, max(0.0, bounds.low), min(1.0, bounds.high))

    def tally(self) -> Tally:
        hard = {item: mean([score.hard for score in found]) for item, found in self.scores.items()}
        soft = {item: mean([score.soft for score in found]) for item, found in self.scores.items()}
        weights = self.settings.weights
        return Tally(
            weighted_mean(hard, weights), weighted_mean(soft, weights), self.scored, self.planned
        )


class Sampler:
    """Asks for rollouts, never for the same one twice: a further rollout of the same skill and item
    gets the next repeat number.
    """

    def __init__(self, measure: Measure, series: str, settings: GateSettings) -> None:
        self._measure, self._series, self._settings = measure, series, settings
        self._next: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.spent = 0
        self.scored = 0

    async def sample(self, arms: Sequence[tuple[Arm, Item]]) -> list[Outcome]:
        """One more rollout for each pair, in the order given."""
        by_repeat: dict[int, list[int]] = {}
        for index, (arm, item) in enumerate(arms):
            by_repeat.setdefault(self._next[arm.skill.hash, item.id], []).append(index)
            self._next[arm.skill.hash, item.id] += 1
        batches = sorted(by_repeat.items())
        measured = await gather(
            self._measure([arms[index] for index in indexes], repeat=repeat, series=self._series)
            for repeat, indexes in batches
        )
        outcomes: dict[int, Outcome] = {}
        for (_, indexes), batch in zip(batches, measured, strict=True):
            outcomes.update(zip(indexes, batch, strict=True))
        self.spent += sum(outcome.status != "skipped" for outcome in outcomes.values())
        self.scored += sum(outcome.score is not None for outcome in outcomes.values())
        return [outcomes[index] for index in range(len(arms))]

    async def samples(self, skill: Skill, items: Sequence[Item], repeats: int = 1) -> Samples:
        """Fresh rollouts of one skill: `repeats` of each item."""
        samples = Samples(self._settings)
        arm = Arm(skill)
        samples.add(await self.sample([(arm, item) for _ in range(repeats) for item in items]))
        return samples


class RolloutCount:
    """The rollouts of one judgement, as the part of the sampler's total since it began."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler, self._spent, self._scored = sampler, sampler.spent, sampler.scored

    @property
    def rollouts(self) -> int:
        return self._sampler.spent - self._spent

    @property
    def coverage(self) -> float:
        return (self._sampler.scored - self._scored) / self.rollouts if self.rollouts else 1.0


class SkillScores:
    """The skills a gate carried on with, their measurements, and which one is best.

    Base class of both gates: `baseline`, `adopt`, `best`, `tally` and `noise` of the protocol.
    """

    def __init__(self, measure: Measure, items: Sequence[Item], settings: GateSettings) -> None:
        self.items, self.settings = list(items), settings
        self.sampler = Sampler(measure, "selection", settings)
        self._known: dict[str, Samples] = {}
        self._carried: dict[str, Skill] = {}
        self._initial: Skill | None = None
        self._best: Skill | None = None
        self._incumbent: Skill | None = None

    @property
    def initial(self) -> Skill:
        return _measured(self._initial)

    @property
    def incumbent(self) -> Skill:
        return _measured(self._incumbent)

    @property
    def best(self) -> Skill:
        return _measured(self._best)

    @property
    def best_score(self) -> float:
        return self.known(self.best).score

    async def baseline(self, skill: Skill) -> Tally:
        self._initial = self._best = self._incumbent = skill
        return (await self.record(skill)).tally()

    async def adopt(self, skill: Skill, like: Skill | None = None) -> Tally:
        """Carry on with a skill. It is measured, unless `like` is: then both share one record."""
        if like is not None and skill.hash not in self._known:
            self._known[skill.hash] = self.known(like)
        samples = await self.record(skill)
        self.carry(skill, samples)
        return samples.tally()

    async def record(self, skill: Skill) -> Samples:
        """The measurements of a skill. A skill that is new here gets one pass over the items."""
        if skill.hash not in self._known:
            self._known[skill.hash] = await self.sampler.samples(skill, self.items)
        return self._known[skill.hash]

    def carry(self, skill: Skill, samples: Samples) -> bool:
        """Make a skill the incumbent. True when it is the best so far."""
        self._known[skill.hash] = samples
        self._carried[skill.hash] = self._incumbent = skill
        covered = samples.coverage >= self.settings.coverage_floor
        if not covered or samples.score <= self.best_score + TOLERANCE:
            return False
        self._best = skill
        return True

    def carried(self) -> list[Skill]:
        """The best skill, then earlier incumbents, latest first; never the initial skill."""
        ranked = {skill.hash: skill for skill in [self.best, *reversed(self._carried.values())]}
        return [skill for key, skill in ranked.items() if key != self.initial.hash]

    def known(self, skill: Skill) -> Samples:
        if skill.hash not in self._known:
            raise NotMeasured(skill)
        return self._known[skill.hash]

    def tally(self, skill: Skill) -> Tally:
        return self.known(skill).tally()

    def noise(self) -> float | None:
        values: dict[str, list[float]] = {}
        for key, samples in self._known.items():
            for item in samples.scores:
                values[f"{key}/{item}"] = samples.values(item)
        return within_item_variance(values)


def _measured(skill: Skill | None) -> Skill:
    if skill is None:
        raise RuntimeError("The gate has no baseline yet: call baseline() first.")
    return skill


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
    values = list(differences)
    if not values:
        return Belief()
    noise = (variance(values) + EXTRA_VARIANCE) / len(values)
    shrink = prior_variance / (prior_variance + noise)
    # Rounded, so that a sum in another order cannot turn a tie into a win.
    return Belief(round(shrink * mean(values), 12), shrink * noise, len(values))


def compare(candidate: Samples, incumbent: Samples, *, rollouts: int, coverage: float) -> Evidence:
    """The paired comparison of two skills on the items scored under both."""
    differences = candidate.against(incumbent)
    estimate = interval(list(differences.values()))
    groups: dict[tuple[bool, bool], list[str]] = defaultdict(list)
    for item in differences:
        groups[candidate.means[item] >= 0.5, incumbent.means[item] >= 0.5].append(item)
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
    )
