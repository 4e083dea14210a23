"""A world of noisy rollouts whose truth is known.

Items belong to eight clusters (kinds of problem). An item's chance of success is a logistic of its
cluster's level, the item's own difficulty and the effects of the edits in the skill. A rollout is
one coin with that chance, or, for graded tasks, a noisy grade around it. Edits act on kinds of
items, so what is gained on the selection items is gained on unseen items too: the true score is the
mean over a large population.

The kinds of worlds:
- clusters: 30 % of edits help one or two clusters (some of these hurt a third a little), 40 % do
  nothing, 30 % harm.
- sparse: 20 % of edits are rules that matter to one item in ten and help much there; 10 % harm
  every item a little; the rest do nothing.
- crowding: clusters, and every line of text costs 0.02 logits on every item.
- interactions: clusters, and every fourth edit cancels an earlier one: with both in the skill
  neither has an effect.
- useless: clusters, but 80 % of the edits do nothing, 12 % help and 8 % harm.
- duplicates: clusters, but 40 % of the edits say in other words what an earlier one said: both
  together have the effect of one.
- null: no edit does anything. harmful: 80 % do nothing, 20 % harm.

Every edit also makes the training items that it was written from easy (it gives their answer away).
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skillfit.models.protocol import Usage
from skillfit.rollout.outcome import Arm, Failure, Outcome
from skillfit.skill import Edit, Skill
from skillfit.tasks.item import Item, Score

Kind = Literal[
    "clusters",
    "sparse",
    "crowding",
    "interactions",
    "useless",
    "duplicates",
    "null",
    "harmful",
]
CLUSTERS = 8
POPULATION = 400
TRAINING = 320  # training items: eight batches of 40
GIVEN_AWAY = 2.0  # logits by which an edit helps the items it was written from
LINE_COST = 0.02  # logits that each line costs where lines crowd
GRADE_NOISE = 0.25  # standard deviation of a grade
_USAGE = Usage()
_MISS, _HIT = Score(0.0), Score(1.0)
_BROKEN = Failure("timeout", "simulated")
_RULE = re.compile(r"rule-(\d+)")
Vector = NDArray[np.float64]


class Exhausted(Exception):
    """All rollouts of the comparison are used up."""


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    items: int
    spread: float  # of item difficulty in logits: small = every item is a coin
    rollouts: int  # in total, training rollouts included
    kind: Kind = "clusters"
    level: float = -0.6  # of the initial skill, in logits
    effect: float = 1.0  # scale of all edits
    graded: bool = False
    failures: float = 0.0  # share of rollouts that fail


@dataclass(frozen=True, slots=True)
class Proposed:
    """An edit and the training items it was written from."""

    edit: Edit
    sources: tuple[str, ...]


class World:
    """Implements the gate's Measure. Raises Exhausted when the rollouts are used up."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self._rng = np.random.default_rng([seed, 1])
        shape = random.Random(f"world/{seed}/{setting.name}")
        levels = np.array([shape.gauss(setting.level, 0.8) for _ in range(CLUSTERS)])
        counts = {"selection": setting.items, "population": POPULATION, "training": TRAINING}
        self._part: dict[str, slice] = {}
        cluster: list[int] = []
        difficulty: list[float] = []
        for part, count in counts.items():
            self._part[part] = slice(len(cluster), len(cluster) + count)
            cluster += [number % CLUSTERS for number in range(count)]
            difficulty += [shape.gauss(0, setting.spread) for _ in range(count)]
        self._cluster = np.array(cluster)
        self._start = levels[self._cluster] + np.array(difficulty)
        self.items = [Item(f"i{number}", {}) for number in range(setting.items)]
        self.training = [Item(f"t{number}", {}) for number in range(TRAINING)]
        self._place = {item.id: number for number, item in enumerate(self.items)}
        first = self._part["training"].start
        self._place |= {item.id: first + at for at, item in enumerate(self.training)}
        self._edits = random.Random(f"edits/{seed}")
        self._effects: list[Vector] = []  # per edit, on every item
        self._own: list[list[int]] = []  # per edit: places of the items it was written from
        self._cancels: dict[int, int] = {}  # edit -> the earlier edit it cancels
        self._same: dict[int, int] = {}  # edit -> the earlier edit it repeats
        self._chances: dict[str, Vector] = {}
        self.spent = 0

    # Proposals

    def propose(self, count: int, batch: Sequence[Item] = ()) -> list[Proposed]:
        """The edits that reflection on a batch of training items brings."""
        return [self._propose(batch) for _ in range(count)]

    def _propose(self, batch: Sequence[Item]) -> Proposed:
        number, rng = len(self._effects), self._edits
        sources = rng.sample(list(batch), min(2, len(batch)))
        effect = self._effect(rng)
        kind = self.setting.kind
        if kind == "interactions" and number % 4 == 3:
            other = rng.randrange(max(0, number - 40), number)
            if other not in self._cancels and other not in self._cancels.values():
                self._cancels[number] = other
        if kind == "duplicates" and number and rng.random() < 0.4:
            other = rng.randrange(max(0, number - 80), number)
            self._same[number] = self._same.get(other, other)
            effect = self._effects[self._same[number]]
        return self._add(effect, sources)

    def _add(self, effect: Vector, sources: Sequence[Item] = ()) -> Proposed:
        number = len(self._effects)
        self._effects.append(effect)
        self._own.append([self._place[item.id] for item in sources])
        edit = Edit("append", content=f"- rule-{number}")
        return Proposed(edit, tuple(item.id for item in sources))

    def _effect(self, rng: random.Random) -> Vector:
        kind, scale = self.setting.kind, self.setting.effect
        chance = rng.random()
        if kind == "sparse":
            return np.asarray(self._sparse(rng, chance) * scale)
        helps, harms = {
            "useless": (0.12, 0.08),
            "null": (0.0, 0.0),
            "harmful": (0.0, 0.2),
        }.get(kind, (0.3, 0.3))
        sign = 1 if chance < helps else -1 if chance > 1 - harms else 0
        by_cluster = np.zeros(CLUSTERS)
        for cluster in rng.sample(range(CLUSTERS), rng.choice((1, 2))):
            by_cluster[cluster] += sign * rng.uniform(0.3, 1.3)
        if sign > 0 and rng.random() < 0.3:
            by_cluster[rng.randrange(CLUSTERS)] -= rng.uniform(0.15, 0.65)
        return np.asarray(by_cluster[self._cluster] * scale)

    def _sparse(self, rng: random.Random, chance: float) -> Vector:
        count = len(self._cluster)
        if chance < 0.2:
            matters = np.random.default_rng(rng.getrandbits(32)).random(count) < 0.1
            return np.asarray(matters * rng.uniform(1.5, 3.5))
        return np.full(count, -rng.uniform(0.1, 0.4) if chance > 0.9 else 0.0)

    def planted(self, effect: float) -> Edit:
        """A proposal that moves every item by `effect` logits: 0 for a change in words only."""
        return self._add(np.full(len(self._cluster), effect)).edit

    # Truth

    def rules(self, skill: Skill) -> list[int]:
        """The edits in a skill."""
        return [int(number) for number in _RULE.findall(skill.body)]

    def harms(self, rule: int) -> bool:
        return float(self._effects[rule][self._part["population"]].mean()) < -1e-9

    def helps(self, rule: int) -> bool:
        return float(self._effects[rule][self._part["population"]].mean()) > 1e-9

    def true_score(self, skill: Skill, part: str = "population") -> float:
        return float(self.chances(skill)[self._part[part]].mean())

    def chances(self, skill: Skill) -> Vector:
        """Chance of success of every item under a skill."""
        if skill.hash not in self._chances:
            self._chances[skill.hash] = _logistic(self._predictor(self.rules(skill)))
        return self._chances[skill.hash]

    def _predictor(self, rules: Sequence[int]) -> Vector:
        present = set(rules)
        cancelled = set()
        for rule in present & self._cancels.keys():
            if self._cancels[rule] in present:
                cancelled |= {rule, self._cancels[rule]}
        said = {self._same.get(rule, rule) for rule in present - cancelled}
        predictor = self._start.copy()
        for rule in sorted(said):
            predictor += self._effects[rule]
        for rule in sorted(present):
            predictor[self._own[rule]] += GIVEN_AWAY
        if self.setting.kind == "crowding":
            predictor -= LINE_COST * len(rules)
        return np.asarray(predictor)

    # Rollouts

    @property
    def left(self) -> int:
        return self.setting.rollouts - self.spent

    def spend(self, rollouts: int) -> None:
        if rollouts > self.left:
            raise Exhausted
        self.spent += rollouts

    async def __call__(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> list[Outcome]:
        return self.roll_out([(arm.skill, item) for arm, item in arms], repeat)

    def roll_out(self, arms: Sequence[tuple[Skill, Item]], repeat: int = 0) -> list[Outcome]:
        self.spend(len(arms))
        chances = [float(self.chances(skill)[self._place[item.id]]) for skill, item in arms]
        draws, losses = self._rng.random(len(arms)), self._rng.random(len(arms))
        noise = self._rng.normal(0, GRADE_NOISE, len(arms)) if self.setting.graded else draws
        outcomes = []
        for at, (_, item) in enumerate(arms):
            if losses[at] < self.setting.failures:
                outcome = Outcome(item.id, repeat, "failed", failure=_BROKEN, usage=_USAGE)
            elif self.setting.graded:
                grade = min(1.0, max(0.0, chances[at] + float(noise[at])))
                score = Score(float(grade >= 0.5), grade)
                outcome = Outcome(item.id, repeat, "scored", score, usage=_USAGE)
            else:
                score = _HIT if draws[at] < chances[at] else _MISS
                outcome = Outcome(item.id, repeat, "scored", score, usage=_USAGE)
            outcomes.append(outcome)
        return outcomes


def _logistic(x: Vector) -> Vector:
    return np.asarray(1 / (1 + np.exp(-x)))
