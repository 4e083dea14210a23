"""Two skills' samples side by side: what a verdict rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from skillfit.gate.samples import Drawer, Samples
from skillfit.gate.statistics import interval, mean, probability_positive, variance
from skillfit.gate.verdict import Action, Candidate, Decision, Evidence, Standing, Verdict
from skillfit.skill import Skill

PRIOR_VARIANCE = (
    0.06**2
)  # of a candidate's true mean difference: most patches move a score by a few points
EXTRA_VARIANCE = 0.03  # added to the observed one: a handful of equal differences is not certainty


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed about a candidate's true mean difference to the incumbent, from a sceptical
    normal prior around 0.
    """

    mean: float = 0.0
    variance: float = PRIOR_VARIANCE
    items: int = 0

    @property
    def probability(self) -> float:
        """That it is above 0."""
        return self.above(0.0)

    def above(self, bound: float) -> float:
        return probability_positive(self.mean - bound, self.variance)


def believe(differences: Iterable[float], prior_variance: float = PRIOR_VARIANCE) -> Belief:
    values = list(differences)
    if not values:
        return Belief()
    noise = (variance(values) + EXTRA_VARIANCE) / len(values)
    shrink = prior_variance / (prior_variance + noise)
    # Rounded far below anything that matters, so that sums in another order can't turn a tie into a
    # win.
    middle = round(shrink * mean(values), 12)
    return Belief(middle, shrink * noise, len(values))


@dataclass(slots=True)
class Runner:
    """A candidate on its way through a judgement."""

    candidate: Candidate
    samples: Samples
    prior_variance: float = PRIOR_VARIANCE
    belief: Belief = field(default_factory=Belief)
    fate: str = "not measured"

    def look(self, incumbent: Samples) -> Belief:
        differences = self.samples.against(incumbent)
        self.belief = believe(differences.values(), self.prior_variance)
        return self.belief

    def standing(self, incumbent: Samples) -> Standing:
        return Standing(
            label=self.candidate.label,
            skill_hash=self.candidate.skill.hash,
            items=self.belief.items,
            rollouts=self.samples.planned,
            score=self.samples.score,
            difference=mean(list(self.samples.against(incumbent).values())),
            probability=self.belief.probability,
            fate=self.fate,
        )


class Spending:
    """Rollouts of one judgement, as a part of all that the drawer made."""

    def __init__(self, drawer: Drawer) -> None:
        self._drawer, self._spent, self._scored = drawer, drawer.spent, drawer.scored

    @property
    def rollouts(self) -> int:
        return self._drawer.spent - self._spent

    @property
    def coverage(self) -> float:
        return (self._drawer.scored - self._scored) / self.rollouts if self.rollouts else 1.0


def compare(candidate: Samples, incumbent: Samples, *, rollouts: int, coverage: float) -> Evidence:
    differences = candidate.against(incumbent)
    solved = {
        item: (candidate.means[item] >= 0.5, incumbent.means[item] >= 0.5) for item in differences
    }
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


def conclude(
    incumbent: Skill,
    record: Samples,
    runners: Sequence[Runner],
    spending: Spending,
    decision: Decision,
    reason: str,
    *,
    action: Action | None = None,
    winner: Runner | None = None,
    fresh: Samples | None = None,
) -> Verdict:
    """The verdict about `winner`, or about the most promising runner when none was accepted.
    `fresh` is the winner's new record.
    """
    shown = winner or max(
        (runner for runner in runners if runner.belief.items),
        key=lambda r: r.belief.mean,
        default=None,
    )
    chosen = winner.candidate if winner and decision == "accept" else None
    evidence = Evidence(rollouts=spending.rollouts, coverage=spending.coverage)
    if shown:
        evidence = compare(
            shown.samples, record, rollouts=spending.rollouts, coverage=spending.coverage
        )
    measured = fresh or (shown.samples if shown else None)
    return Verdict(
        decision=decision,
        action=action or decision,
        winner=chosen.skill if chosen else incumbent,
        chosen=chosen,
        reason=reason,
        evidence=evidence,
        standings=tuple(runner.standing(record) for runner in runners),
        incumbent_score=record.score,
        candidate_score=measured.score if measured else None,
        tally=measured.tally() if measured else None,
        shown=shown.candidate if shown else None,
    )
