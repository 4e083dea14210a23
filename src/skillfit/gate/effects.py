"""Effects and scores in points of the mean score over the selection items.

The regression works on its own scale (logits for hard scores). People and decisions need points: by
how much does the mean score over the selection items change when an edit is added to the incumbent?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from skillfit.gate.regression import Contrast, Posterior, Vector
from skillfit.gate.statistics import probability_positive
from skillfit.gate.verdict import ScoreEstimate

_Z80 = NormalDist().inv_cdf(0.9)  # half width of an 80 % interval in standard deviations
_Z90 = NormalDist().inv_cdf(0.95)
HARMLESS_LOSS = 0.01  # points that removing a text may cost and still count as no loss


@dataclass(frozen=True, slots=True)
class Estimate:
    """The effect of one edit on the incumbent's mean score."""

    contrast: Contrast  # on the scale of the regression; decisions use its z
    mean: float  # in points, like the next four
    low: float  # 80 % interval
    high: float
    probability: float  # that the effect is above 0
    harmful: float  # probability that it costs more than HARMLESS_LOSS
    rollouts: int  # scored rollouts that carried it and count as evidence


@dataclass(frozen=True, slots=True)
class Change:
    """An edit that joins or leaves the incumbent, with all that comes and goes with it."""

    signs: Mapping[str, float]  # +1 for edits that come, -1 for edits that go
    present: bool  # already part of the incumbent: it is compared with its absence
    rollouts: int = 0  # scored rollouts that carried the edit


@dataclass(frozen=True, slots=True)
class Difference:
    """Estimated difference of two skills in points, with a 90 % interval."""

    mean: float
    low: float
    high: float
    probability: float  # that it is above 0

    @property
    def sd(self) -> float:
        return (self.high - self.low) / (2 * _Z90)


@dataclass(frozen=True, slots=True)
class SelectionItems:
    """The selection items and how much each counts; the weights add up to 1."""

    items: tuple[str, ...]
    weights: Vector

    @classmethod
    def of(cls, items: Sequence[str], weights: Mapping[str, float]) -> SelectionItems:
        raw = np.array([weights.get(item, 1.0) for item in items], dtype=np.float64)
        return cls(tuple(items), raw / raw.sum() if raw.sum() > 0 else raw)

    def score(self, posterior: Posterior, edits: Sequence[str]) -> ScoreEstimate:
        """The mean score under a set of edits with its 90 % interval."""
        expected = posterior.expected(posterior.predictor(self.items, edits))
        mean = float(self.weights @ expected)
        half = _Z90 * posterior.score_variance(self.items, self.weights, edits) ** 0.5
        low, high = max(0.0, mean - half), min(1.0, mean + half)
        return ScoreEstimate(round(mean, 9), round(low, 9), round(high, 9), estimated=True)

    def difference(
        self, posterior: Posterior, new: Sequence[str], old: Sequence[str]
    ) -> Difference:
        """The change of the mean score from one set of edits to another."""
        contrast = posterior.contrast(
            {edit: 1.0 for edit in new if edit not in old}
            | {edit: -1.0 for edit in old if edit not in new}
        )
        predictor = posterior.predictor(self.items, old)
        mean, low, high = self._change(posterior, predictor, contrast, _Z90)
        probability = probability_positive(contrast.mean, contrast.sd**2)
        return Difference(mean, low, high, probability)

    def effects(
        self, posterior: Posterior, incumbent: Sequence[str], changes: Sequence[Change]
    ) -> list[Estimate]:
        """The effect of each change on the incumbent."""
        predictor = posterior.predictor(self.items, incumbent)
        found = []
        for change in changes:
            contrast = posterior.contrast(change.signs)
            before = predictor - contrast.mean if change.present else predictor
            mean, low, high = self._change(posterior, before, contrast, _Z80)
            sd = max((high - low) / (2 * _Z80), 1e-9)
            found.append(
                Estimate(
                    contrast=contrast,
                    mean=mean,
                    low=low,
                    high=high,
                    probability=round(probability_positive(contrast.mean, contrast.sd**2), 9),
                    harmful=round(probability_positive(-HARMLESS_LOSS - mean, sd**2), 9),
                    rollouts=change.rollouts,
                )
            )
        return found

    def _change(
        self, posterior: Posterior, predictor: Vector, contrast: Contrast, width: float
    ) -> tuple[float, float, float]:
        """Points for the mean and both ends of an interval of a contrast."""
        steps = contrast.mean + contrast.sd * np.array([0.0, -width, width])
        before = posterior.expected(predictor)
        after = posterior.expected(predictor[:, None] + steps[None, :])
        points = self.weights @ (after - before[:, None])
        mean, low, high = (round(float(point), 9) for point in points)
        return mean, low, high
