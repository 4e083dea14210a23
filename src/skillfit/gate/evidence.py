"""Two skills' samples side by side: the evidence of a verdict."""

from __future__ import annotations

from skillfit.gate.samples import Samples
from skillfit.gate.statistics import interval, item_differences, mean, probability_positive, variance
from skillfit.gate.verdict import Evidence, GateSettings

PRIOR_VARIANCE = 0.06**2  # of an edit's true mean difference: most edits move a score by a few points
EXTRA_VARIANCE = 0.03  # added to the observed one: a handful of equal differences is not certainty


def compare(candidate: Samples, incumbent: Samples, settings: GateSettings, *, rollouts: int) -> Evidence:
    new, old = candidate.values(settings), incumbent.values(settings)
    differences = item_differences(new, old)
    solved = {item: (mean(new[item]) >= 0.5, mean(old[item]) >= 0.5) for item in differences}
    values = list(differences.values())
    estimate = interval(values)
    planned = candidate.planned + incumbent.planned
    return Evidence(
        fixed=tuple(item for item, pair in solved.items() if pair == (True, False)),
        broken=tuple(item for item, pair in solved.items() if pair == (False, True)),
        both=tuple(item for item, pair in solved.items() if pair == (True, True)),
        neither=tuple(item for item, pair in solved.items() if pair == (False, False)),
        difference=estimate.mean,
        interval=(estimate.low, estimate.high),
        probability=probability_better(values),
        rollouts=rollouts,
        coverage=(candidate.scored + incumbent.scored) / planned if planned else 0.0,
    )


def probability_better(differences: list[float]) -> float:
    """Chance that the true mean difference is above 0, from a sceptical normal prior around 0."""
    if not differences:
        return 0.5
    noise = (variance(differences) + EXTRA_VARIANCE) / len(differences)
    shrink = PRIOR_VARIANCE / (PRIOR_VARIANCE + noise)
    return probability_positive(shrink * mean(differences), shrink * noise)
