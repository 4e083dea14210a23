"""A world of noisy rollouts whose truth is known.

Items stand in eight clusters (kinds of problem). An item's chance of success is a logistic of its
cluster's level plus the item's own difficulty; a rollout is one coin with that chance (or, for
graded tasks, a noisy grade around it). 30 % of edits help one or two clusters (some of these hurt a
third a little), 40 % do nothing, 30 % harm. Edits act on clusters, so what is gained on the
selection items is gained on unseen items too: the true score is the mean over a large population.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from skillfit.models.protocol import Usage
from skillfit.rollout.outcome import Failure, Outcome
from skillfit.skill import Edit, Skill
from skillfit.tasks.item import Item, Score

CLUSTERS = 8
POPULATION = 400
_USAGE = Usage()
_MISS, _HIT = Score(0.0), Score(1.0)
_BROKEN = Failure("timeout", "simulated")


class Exhausted(Exception):
    """All rollouts of the comparison are used up."""


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    items: int
    # of item difficulty in logits: small = every item is a coin, large = most items are sure
    spread: float
    rollouts: int  # in total, training rollouts included
    level: float = -0.6  # of the initial skill, in logits
    effect: float = 1.0  # scale of all edits
    graded: bool = False
    failures: float = 0.0  # share of rollouts that the machinery loses


class World:
    """Implements the gate's Measure. `spent` counts what was asked for; past `limit` it raises
    Exhausted.
    """

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self._rng = random.Random(f"rollouts/{seed}")
        shape = random.Random(f"world/{seed}/{setting.name}")
        self._levels = [shape.gauss(setting.level, 0.8) for _ in range(CLUSTERS)]
        self._difficulty = [shape.gauss(0, setting.spread) for _ in range(setting.items)]
        self._population = [shape.gauss(0, setting.spread) for _ in range(POPULATION)]
        self._edits = random.Random(f"edits/{seed}")
        self._effects: dict[str, list[float]] = {}
        self._chances: dict[str, list[float]] = {}
        self.items = [Item(f"i{number}", {}) for number in range(setting.items)]
        self._position = {item.id: number for number, item in enumerate(self.items)}
        self.spent = 0

    def spend(self, rollouts: int) -> None:
        if self.spent + rollouts > self.setting.rollouts:
            raise Exhausted
        self.spent += rollouts

    def edit(self) -> Edit:
        """The next proposal: a line of text whose effect the world knows."""
        rng, effect = self._edits, [0.0] * CLUSTERS
        kind, scale = rng.random(), self.setting.effect
        sign = 1 if kind < 0.3 else -1 if kind > 0.7 else 0
        for cluster in rng.sample(range(CLUSTERS), rng.choice((1, 2))):
            effect[cluster] += sign * scale * rng.uniform(0.3, 1.3)
        if sign > 0 and rng.random() < 0.3:
            effect[rng.randrange(CLUSTERS)] -= scale * rng.uniform(0.15, 0.65)
        name = f"rule-{len(self._effects)}"
        self._effects[name] = effect
        return Edit("append", content=f"- {name}")

    def planted(self, effect: float) -> Edit:
        """A proposal that moves every cluster by `effect` logits: 0 for a change in words only."""
        name = f"rule-{len(self._effects)}"
        self._effects[name] = [effect] * CLUSTERS
        return Edit("append", content=f"- {name}")

    def _level(self, skill: Skill) -> list[float]:
        level = list(self._levels)
        for word in skill.body.split():
            for cluster, change in enumerate(self._effects.get(word, ())):
                level[cluster] += change
        return level

    def true_score(self, skill: Skill) -> float:
        level = self._level(skill)
        return (
            sum(_logistic(level[n % CLUSTERS] + d) for n, d in enumerate(self._population))
            / POPULATION
        )

    def chances(self, skill: Skill) -> list[float]:
        if skill.hash not in self._chances:
            level = self._level(skill)
            self._chances[skill.hash] = [
                _logistic(level[n % CLUSTERS] + d) for n, d in enumerate(self._difficulty)
            ]
        return self._chances[skill.hash]

    async def __call__(
        self, skill: Skill, items: Sequence[Item], *, repeat: int, series: str
    ) -> list[Outcome]:
        self.spend(len(items))
        chances = self.chances(skill)
        return [self._outcome(item.id, chances[self._position[item.id]], repeat) for item in items]

    def _outcome(self, item: str, chance: float, repeat: int) -> Outcome:
        if self.setting.failures and self._rng.random() < self.setting.failures:
            return Outcome(item, repeat, "failed", failure=_BROKEN, usage=_USAGE)
        if self.setting.graded:
            grade = min(1.0, max(0.0, self._rng.gauss(chance, 0.25)))
            return Outcome(item, repeat, "scored", Score(float(grade >= 0.5), grade), usage=_USAGE)
        return Outcome(
            item, repeat, "scored", _HIT if self._rng.random() < chance else _MISS, usage=_USAGE
        )


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))
