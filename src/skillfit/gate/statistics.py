"""Formulas for paired differences of item means. Repeats of an item are averaged first, so they
never count as more items.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

_NORMAL = NormalDist()
# grid of the sign-flip test: holds thirds, quarters, fifths and sixths exactly, so ties stay ties
_FRACTION = 60
_UNITS = 4000  # finer grid for graded scores: the absolute differences together are this long


@dataclass(frozen=True, slots=True)
class Interval:
    mean: float
    low: float
    high: float


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def variance(values: Sequence[float]) -> float:
    """Sample variance; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


def item_differences(
    candidate: Mapping[str, float], incumbent: Mapping[str, float]
) -> dict[str, float]:
    """Candidate's item means minus the incumbent's, on items scored in both. Order follows
    `incumbent`.
    """
    return {item: candidate[item] - old for item, old in incumbent.items() if item in candidate}


def probability_positive(mean: float, variance: float) -> float:
    """Probability that a normal quantity is above 0; 0.5 when mean and variance are both 0."""
    if variance <= 0:
        return 0.5 if mean == 0 else float(mean > 0)
    return _NORMAL.cdf(mean / math.sqrt(variance))


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t by the Cornish-Fisher expansion: two correct decimals from 4 degrees
    of freedom on, too large below.
    """
    z, v = _NORMAL.inv_cdf(probability), max(freedom, 1)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def interval(differences: Sequence[float], confidence: float = 0.9) -> Interval:
    """Mean difference with a small-sample interval. One pseudo-item, half a full win and half a
    full loss, widens it: ten equal items do not prove an effect of exactly 0.
    """
    count = len(differences)
    if not count:
        return Interval(0.0, -1.0, 1.0)
    middle = mean(differences)
    spread = (math.fsum((value - middle) ** 2 for value in differences) + 1.0) / count
    half = t_quantile(0.5 + confidence / 2, count) * math.sqrt(spread / (count + 1))
    return Interval(middle, max(middle - half, -1.0), min(middle + half, 1.0))


def sign_flip_p(differences: Iterable[float]) -> float:
    """One-sided p-value of the sign-flip test: the share of all sign assignments whose sum is at
    least the observed one.

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
    """Noise of one rollout: variance between repeats of the same item, pooled; None when no item
    was repeated.
    """
    repeated = [values for values in samples.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in repeated)
    if not freedom:
        return None
    return math.fsum(variance(values) * (len(values) - 1) for values in repeated) / freedom


def detectable_effect(
    items: int, noise: float, repeats: int = 1, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Smallest true mean difference that a paired one-sided test finds with this power. `noise` is
    the within-item variance. However quiet the rollouts, a sign-flip test needs log2(1/alpha)
    winning items.
    """
    if items < 2:
        return 1.0
    return min(
        1.0,
        max(
            math.log2(1 / alpha) / items,
            _z(items, alpha, power) * math.sqrt(2 * noise / repeats / items),
        ),
    )


def repeats_for(
    items: int, noise: float, effect: float, most: int, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Rollouts per item and skill that bring the noise down to where `effect` shows, between 1 and
    `most`.
    """
    needed = math.ceil(2 * noise / max(items, 1) * (_z(items, alpha, power) / effect) ** 2)
    return max(1, min(most, needed))


def _z(items: int, alpha: float, power: float) -> float:
    return t_quantile(1 - alpha, items - 1) + _NORMAL.inv_cdf(power)
