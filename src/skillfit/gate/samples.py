"""What is known about a skill on the selection items, and a way to learn more: every draw is a
fresh rollout.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from skillfit.gate.statistics import item_differences, within_item_variance
from skillfit.gate.verdict import GateSettings, Measure
from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Outcome, Tally, weighted_mean
from skillfit.skill import Skill
from skillfit.tasks.item import Item, Score

TOLERANCE = 1e-9  # differences below this are float error, not evidence


@dataclass(slots=True)
class Samples:
    """Scores per item. Failed rollouts are counted as planned and are otherwise missing data."""

    settings: GateSettings
    scores: dict[str, list[Score]] = field(default_factory=dict)
    means: dict[str, float] = field(
        default_factory=dict
    )  # item id -> mean of its rollouts under the metric
    planned: int = 0
    scored: int = 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self.planned += outcome.status != "skipped"
            if outcome.score is not None:
                self.scored += 1
                self.scores.setdefault(outcome.item_id, []).append(outcome.score)
                values = self.values(outcome.item_id)
                self.means[outcome.item_id] = math.fsum(values) / len(values)

    def values(self, item: str) -> list[float]:
        return [self.settings.value(score.hard, score.soft) for score in self.scores.get(item, ())]

    @property
    def coverage(self) -> float:
        return self.scored / self.planned if self.planned else 0.0

    @property
    def score(self) -> float:
        """Mean over items of the items' means, so that extra repeats of some items don't tilt it."""
        return weighted_mean(self.means, self.settings.weights)

    def against(self, incumbent: Samples) -> dict[str, float]:
        """Differences to the incumbent on items scored in both, so weighted that their plain mean
        is the weighted one.
        """
        found = item_differences(self.means, incumbent.means)
        weights = {item: self.settings.weights.get(item, 1.0) for item in found}
        whole = math.fsum(weights.values()) / len(found) if found else 1.0
        return {item: value * weights[item] / whole for item, value in found.items()}

    def tally(self) -> Tally:
        hard = {
            item: math.fsum(s.hard for s in scores) / len(scores)
            for item, scores in self.scores.items()
        }
        soft = {
            item: math.fsum(s.soft for s in scores) / len(scores)
            for item, scores in self.scores.items()
        }
        weights = self.settings.weights
        return Tally(
            weighted_mean(hard, weights), weighted_mean(soft, weights), self.scored, self.planned
        )


class Drawer:
    """Draws rollouts and never the same one twice: a skill that comes back is measured anew, its
    old luck does not come with it.
    """

    def __init__(self, measure: Measure, series: str, settings: GateSettings) -> None:
        self._measure, self._series, self._settings = measure, series, settings
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
            self._measure(skill, batch, repeat=repeat, series=self._series)
            for repeat, batch in sorted(by_repeat.items())
        )
        outcomes = {outcome.item_id: outcome for batch in batches for outcome in batch}
        self.spent += sum(outcome.status != "skipped" for outcome in outcomes.values())
        self.scored += sum(outcome.score is not None for outcome in outcomes.values())
        return [outcomes[item.id] for item in items]

    async def sample(self, skill: Skill, items: Sequence[Item], repeats: int = 1) -> Samples:
        samples = Samples(self._settings)
        for _ in range(repeats):
            samples.add(await self.draw(skill, items))
        return samples


class Records:
    """The skills a gate carried on with, what is known of each, and which is best. Both gates stand
    on it.
    """

    def __init__(self, measure: Measure, items: Sequence[Item], settings: GateSettings) -> None:
        self.items, self.settings = list(items), settings
        self.drawer = Drawer(measure, "selection", settings)
        self._known: dict[str, Samples] = {}
        self._carried: dict[str, Skill] = {}
        self._initial: Skill | None = None
        self._best: Skill | None = None

    @property
    def best(self) -> Skill:
        if self._best is None:
            raise RuntimeError("The gate has no baseline yet.")
        return self._best

    @property
    def best_score(self) -> float:
        return self.known(self.best).score

    def finalists(self, limit: int) -> list[Skill]:
        """The best, then what was carried before it, latest first; never the initial skill."""
        ranked = {skill.hash: skill for skill in [self.best, *reversed(self._carried.values())]}
        return [
            skill
            for key, skill in ranked.items()
            if self._initial is None or key != self._initial.hash
        ][:limit]

    async def baseline(self, skill: Skill) -> Tally:
        self._initial = self._best = skill
        return (await self.record(skill)).tally()

    async def record(self, skill: Skill) -> Samples:
        """What is known of a skill; measured when it is new here (the first one, or changed outside
        the gate).
        """
        if skill.hash not in self._known:
            self._known[skill.hash] = await self.drawer.sample(skill, self.items)
        return self._known[skill.hash]

    def carry(self, skill: Skill, samples: Samples, *, better_than_best: bool = False) -> bool:
        """Remember a skill that is carried on with; True when it is the best so far."""
        self._known[skill.hash] = samples
        self._carried[skill.hash] = skill
        covered = samples.coverage >= self.settings.coverage_floor
        if not better_than_best and not (covered and samples.score > self.best_score + TOLERANCE):
            return False
        self._best = skill
        return True

    def take_over(self, skill: Skill, like: Skill) -> Samples:
        """One record for two skills that say the same."""
        return self._known.setdefault(skill.hash, self.known(like))

    async def adopt(self, skill: Skill, like: Skill | None = None) -> Tally:
        """A skill carried on without a verdict (slow update, notes, the last one) is measured too;
        it may be the best one.
        """
        samples = await self.record(skill)
        self.carry(skill, samples)
        return samples.tally()

    def known(self, skill: Skill) -> Samples:
        return self._known[skill.hash]

    def tally(self, skill: Skill) -> Tally:
        return self.known(skill).tally()

    def discordant(self, one: Skill, other: Skill) -> list[str]:
        """Items on which two measured skills differ."""
        known = [self._known.get(skill.hash) for skill in (one, other)]
        if known[0] is None or known[1] is None:
            return []
        return [
            item
            for item, gap in item_differences(known[0].means, known[1].means).items()
            if abs(gap) > TOLERANCE
        ]

    def noise(self) -> float | None:
        """Within-item variance, from skills that were measured more than once."""
        every = {
            (key, item): samples.values(item)
            for key, samples in self._known.items()
            for item in samples.scores
        }
        return within_item_variance(
            {f"{key}/{item}": values for (key, item), values in every.items()}
        )
