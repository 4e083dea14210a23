"""Two skills' samples side by side: what a verdict rests on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from skillfit.gate.samples import Samples
from skillfit.gate.statistics import interval, item_differences, mean, probability_positive, variance
from skillfit.gate.verdict import Evidence, GateSettings

PRIOR_VARIANCE = 0.05**2  # of a candidate's true mean difference: most patches move a score by a few points
EXTRA_VARIANCE = 0.03  # added to the observed one: a handful of equal differences is not certainty


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed about a candidate's true mean difference to the incumbent, from a sceptical normal prior around 0."""

    mean: float = 0.0
    probability: float = 0.5  # that it is above 0
    items: int = 0


def belief(candidate: Samples, incumbent: Samples, settings: GateSettings, prior_variance: float = PRIOR_VARIANCE) -> Belief:
    return believe(item_differences(candidate.values(settings), incumbent.values(settings)).values(), prior_variance)


def believe(differences: Collection[float], prior_variance: float = PRIOR_VARIANCE) -> Belief:
    values = list(differences)
    if not values:
        return Belief()
    noise = (variance(values) + EXTRA_VARIANCE) / len(values)
    shrink = prior_variance / (prior_variance + noise)
    # Rounded far below anything that matters, so that sums in another order can't turn a tie into a win.
    middle = round(shrink * mean(values), 12)
    return Belief(middle, probability_positive(middle, shrink * noise), len(values))


def compare(candidate: Samples, incumbent: Samples, settings: GateSettings, *, rollouts: int, coverage: float) -> Evidence:
    new, old = candidate.values(settings), incumbent.values(settings)
    differences = item_differences(new, old)
    solved = {item: (mean(new[item]) >= 0.5, mean(old[item]) >= 0.5) for item in differences}
    estimate = interval(list(differences.values()))
    return Evidence(
        fixed=tuple(item for item, pair in solved.items() if pair == (True, False)),
        broken=tuple(item for item, pair in solved.items() if pair == (False, True)),
        both=tuple(item for item, pair in solved.items() if pair == (True, True)),
        neither=tuple(item for item, pair in solved.items() if pair == (False, False)),
        difference=estimate.mean,
        interval=(estimate.low, estimate.high),
        probability=believe(differences.values()).probability,
        rollouts=rollouts,
        coverage=coverage,
    )
