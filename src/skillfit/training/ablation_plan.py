"""Which skill each rollout of an ablation runs under.

An ablation goes in rounds that use each item once. A share of the rollouts runs under the whole
skill: the items take turns, so each is measured under it once before any is measured twice. All
others run under the skill without a random subset of its units. The shares were chosen with known
skills and seeds: the interval of the whole skill's score covers the truth, and the estimates of
single units are as good as if no rollout ran under the whole skill.

Rounds depend on the seed, the units and the items only. How many rollouts are asked for decides
where the last round ends and nothing else, so a longer ablation uses the rollouts of a shorter one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from skillfit.gate.pool import Pool
from skillfit.gate.regression import Matrix
from skillfit.rollout import Arm
from skillfit.tasks.item import Item

WHOLE = 0.15  # the share of rollouts under the whole skill
LEFT_OUT = 0.35  # the share of all rollouts that run without a unit
SUBSETS = 16  # distinct subsets per round: few keep prompt caches warm
DRAWS = 30  # sets of subsets drawn for a round, of which the most balanced one is used


@dataclass(frozen=True, slots=True)
class PlannedRollout:
    arm: Arm
    item: Item


@dataclass(frozen=True, slots=True)
class AblationPlan:
    """Says which skill each rollout runs under, round after round."""

    seed: int
    pool: Pool  # of removals, one for each unit
    items: Sequence[Item]

    def rounds(self) -> Iterator[list[PlannedRollout]]:
        turns = _shuffled(f"{self.seed}/ablate/whole", self.items)
        whole_skill, size = self.pool.apply([]), len(self.items)
        overlap = np.zeros((len(self.pool.edits), len(self.pool.edits)))
        for number in count():
            key = f"{self.seed}/ablate/{number}"
            at_whole = [_is_whole(number * size + place) for place in range(size)]
            begun = _whole_before(number * size)
            whole = [turns[(begun + turn) % size] for turn in range(sum(at_whole))]
            used = {item.id for item in whole}
            rest = [item for item in _shuffled(key, self.items) if item.id not in used]
            subsets = self._balanced_subsets(key, min(SUBSETS, len(rest)), overlap)
            overlap += subsets.T @ subsets
            arms = self.pool.assign(key, self._arms(subsets), rest)
            in_parts = zip(arms, rest, strict=True)
            as_whole = ((whole_skill, item) for item in whole)
            yield [
                PlannedRollout(*next(as_whole if is_whole else in_parts)) for is_whole in at_whole
            ]

    def _balanced_subsets(self, key: str, size: int, overlap: Matrix) -> Matrix:
        """Choose subsets, one per row: 1 for a unit that is left out, -1 for one that stays.

        The effects of two units are easy to tell apart when they are left out together as often as
        apart, over all rounds. All numbers are integers, so the choice is the same everywhere.
        """
        rng = random.Random(key)
        drawn = [self._draw(rng, size) for _ in range(DRAWS)]
        return min(drawn, key=lambda subsets: _imbalance(subsets, overlap))

    def _draw(self, rng: random.Random, size: int) -> Matrix:
        share = LEFT_OUT / (1 - WHOLE) * size
        subsets = np.full((size, len(self.pool.edits)), -1.0)
        for unit in range(len(self.pool.edits)):
            times = int(share) + (rng.random() < share % 1)
            subsets[rng.sample(range(size), times), unit] = 1.0
        return subsets

    def _arms(self, subsets: Matrix) -> list[Arm]:
        units = list(self.pool.edits)
        arms = [
            self.pool.apply([unit for unit, sign in zip(units, row, strict=True) if sign > 0])
            for row in subsets
        ]
        return list({arm.skill.hash: arm for arm in arms}.values())


def _shuffled(key: str, items: Sequence[Item]) -> list[Item]:
    order = list(items)
    random.Random(key).shuffle(order)
    return order


def _whole_before(place: int) -> int:
    """Return how many of the first `place` rollouts of an ablation are under the whole skill."""
    return int(place * WHOLE + 0.5)


def _is_whole(place: int) -> bool:
    return _whole_before(place + 1) > _whole_before(place)


def _imbalance(subsets: Matrix, overlap: Matrix) -> float:
    """Return by how much these subsets raise the sum of squares of `overlap`, up to a constant."""
    return float(2 * ((subsets @ overlap) * subsets).sum() + ((subsets @ subsets.T) ** 2).sum())
