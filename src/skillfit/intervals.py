"""Means, weighted means, and the confidence intervals around them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, TypeVar

_K = TypeVar("_K")
Lift = Literal["helps", "no effect shown", "hurts"]
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the ends of its confidence interval."""

    mean: float
    low: float
    high: float

    def __neg__(self) -> Interval:
        return Interval(-self.mean, -self.high, -self.low)


def lift_of(gain: Interval) -> Lift:
    """Say what the gain of a skill over no skill shows."""
    if gain.low > 0:
        return "helps"
    return "hurts" if gain.high < 0 else "no effect shown"


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def variance(values: Sequence[float]) -> float:
    """Return the sample variance; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


def weighted_mean(values: Mapping[_K, float], weights: Mapping[_K, float]) -> float:
    """Return the mean of values whose weight is 1 where none is given; 0 of nothing."""
    total = math.fsum(weights.get(key, 1.0) for key in values)
    return (
        math.fsum(value * weights.get(key, 1.0) for key, value in values.items()) / total
        if values
        else 0.0
    )


def weighted_values(values: Mapping[_K, float], weights: Mapping[_K, float]) -> dict[_K, float]:
    """Scale the values so that their plain mean is the weighted one."""
    whole = math.fsum(weights.get(key, 1.0) for key in values) / len(values) if values else 1.0
    return {key: value * weights.get(key, 1.0) / whole for key, value in values.items()}


def t_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's t by the Cornish-Fisher expansion: two correct
    decimals from 4 degrees of freedom on, too large below.
    """
    z, v = _NORMAL.inv_cdf(probability), max(freedom, 1)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def interval(differences: Sequence[float], confidence: float = 0.9) -> Interval:
    """Return the mean difference with a small-sample interval. One pseudo-item, half a full win
    and half a full loss, widens it: ten equal items do not prove an effect of exactly 0.
    """
    if not differences:
        return Interval(0.0, -1.0, 1.0)
    middle = mean(differences)
    squares = math.fsum((value - middle) ** 2 for value in differences)
    half = half_width(squares, len(differences), confidence)
    return Interval(middle, max(middle - half, -1.0), min(middle + half, 1.0))


def half_width(squares: float, count: int, confidence: float = 0.9) -> float:
    """Return half the width of the interval around the mean of `count` values, by the sum of their
    squared deviations. The pseudo-item adds 1 to it.
    """
    spread = (squares + 1.0) / count
    return t_quantile(0.5 + confidence / 2, count) * math.sqrt(spread / (count + 1))
