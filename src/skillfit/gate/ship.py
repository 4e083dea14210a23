"""The ship test decides at the end of a run whether the skill got better. Finalists and the initial
skill are compared on fresh rollouts of selection and test items together.

The gate is lenient while training explores; this test is strict. Its rollouts come in batches, and
it stops as soon as it is decided. The test is an exact sign-flip test on the differences of items:
if a skill is no better than the initial one, every difference could as well have the other sign, so
the sum that was seen is compared with the sums under many random signs. Each look at the data may
spend a part of the level, as in group-sequential trials, so a skill that is no better is called
improved in at most 5 % of runs, whatever the noise, the number of items or the saturation. With
several finalists each gets an equal share of the level.

With `evaluation.objective: cheaper` two tests must succeed: the sign-flip test on the tokens that
are saved, and a bet against a loss of score (`loss_p_value`). Each has the whole level, since a
skill that fails either claim passes its test in at most 5 % of runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from random import Random
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from skillfit.config.schema import EvaluationSection
from skillfit.gate.samples import (
    ALPHA,
    TOLERANCE,
    GateSettings,
    Measure,
    Sampler,
    Samples,
    pair_differences,
    paired_evidence,
    savings,
)
from skillfit.intervals import Interval, interval, mean
from skillfit.plain_text import p_value
from skillfit.rollout.outcome import Arm, gather
from skillfit.run.budget import BudgetReached
from skillfit.run.events import ShipTested
from skillfit.run.records import TypeSummary
from skillfit.skill import Skill
from skillfit.tasks.item import Item

MOST_REPEATS = 4  # of an item under one skill
MOST_LOOKS = 5
FIRST_LOOK = 8  # pairs; fewer could hardly decide anything
_SIGNS = 20_000  # random sign assignments that a sum is compared with
_SPENDING = 1.5  # the level spent grows with this power of the share of pairs
_STAKES = (0.3, 0.6, 0.95)  # of the largest bet that cannot lose everything


def entrants(initial: Skill, finalists: Sequence[Skill]) -> list[Skill]:
    """Return the finalists that differ from the initial skill and from one another."""
    return list({skill.hash: skill for skill in finalists if skill.hash != initial.hash}.values())


def looks(pairs: int) -> list[int]:
    """Return the numbers of pairs after which the test is looked at; the last one is all pairs."""
    count = max(1, min(MOST_LOOKS, pairs // FIRST_LOOK))
    return [round(pairs * (number + 1) / count) for number in range(count)]


def chance_to_show(pairs: int, before: float, after: float) -> float:
    """Return the probability that a test of this many pairs shows the difference of two scores.
    Normal approximation, for scores of 0 and 1.
    """
    spread = before * (1 - before) + after * (1 - after)
    needed = max(0.0, after - before) * math.sqrt(pairs / max(spread, 1e-9))
    return NormalDist().cdf(needed - NormalDist().inv_cdf(1 - ALPHA)) if pairs else 0.0


def loss_p_value(differences: Sequence[float], margin: float) -> float:
    """Return how likely such differences of score are at most, if the mean loss is the margin or
    more. Each lies between -1 and 1.

    A bettor who stakes on every difference plus the margin gains nothing on average then, so a
    wealth of w is reached with a probability of at most 1 / w, however often it is looked at.
    """
    stakes = [share / (1 - margin) for share in _STAKES]
    logs = [
        math.fsum(math.log1p(stake * (one + margin)) for one in differences) for stake in stakes
    ]
    highest = max(logs)
    if highest <= 0:
        return 1.0
    wealth = math.fsum(math.exp(log - highest) for log in logs) / len(logs)
    return min(1.0, math.exp(-highest) / wealth)


async def ship_test(
    measure: Measure,
    items: Sequence[Item],
    initial: Skill,
    finalists: Sequence[Skill],
    settings: GateSettings,
    *,
    pairs: int,
    fit_only: bool = False,
) -> ShipTested:
    """Compare the finalists with the initial skill on fresh rollouts.

    `items` are used in their order, from the beginning again after the last one. `pairs`: rollouts
    of each skill, at the most. `measure` may grade with a second grader. With `fit_only` the items
    were trained on, so the verdict is never "improved".
    """
    compared = entrants(initial, finalists)
    if not compared or not items or not pairs:
        reason = "no candidate was accepted" if not compared else "nothing to compare them on"
        return ShipTested(verdict="no improvement", reason=reason, skill_hash=initial.hash)
    comparison = _Comparison(measure, initial, compared, settings, pairs)
    order, done = list(islice(cycle(items), pairs)), 0
    for until in looks(pairs):
        try:
            await comparison.roll_out(order[done:until])
        except BudgetReached:
            if not done:
                raise
            break  # what was seen so far counts
        done = until
        if comparison.look(done) or (not fit_only and comparison.is_hopeless):
            break
    result = _decide(
        comparison.result(done),
        settings,
        fit_only,
        shown=comparison.found is not None,
        initial_score=comparison.old.score,
    )
    return _by_model(comparison, result, items) if settings.config.model.agents else result


@dataclass(slots=True)
class _Comparison:
    """The rollouts of initial skill and finalists so far, and what they show."""

    measure: Measure
    initial: Skill
    finalists: Sequence[Skill]
    settings: GateSettings
    pairs: int
    found: int | None = None  # the finalist that shows the objective, once that is decided
    sampler: Sampler = field(init=False)
    old: Samples = field(init=False)
    new: list[Samples] = field(init=False)
    tests: list[SequentialTest] = field(init=False)
    # With `objective: cheaper`: finalists that saved tokens, and that lost no score, at some look.
    saving: set[int] = field(default_factory=set)
    keeping: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.measure, "ship", self.settings)
        self.old = Samples(self.settings)
        self.new = [Samples(self.settings) for _ in self.finalists]
        seed = self.settings.config.train.seed
        self.tests = [
            SequentialTest(self._level, f"{seed}/ship/{at}") for at in range(len(self.new))
        ]

    @property
    def _level(self) -> float:
        return ALPHA / len(self.finalists)

    @property
    def _evaluation(self) -> EvaluationSection:
        return self.settings.config.evaluation

    @property
    def _wants_cheaper(self) -> bool:
        return self._evaluation.objective == "cheaper"

    async def roll_out(self, items: Sequence[Item]) -> None:
        """Roll out each of these items once more under every skill."""
        skills = zip((self.initial, *self.finalists), (self.old, *self.new), strict=True)
        arms = [(samples, Arm(skill)) for skill, samples in skills]
        started = [self.sampler.start([(arm, item) for item in items]) for _, arm in arms]
        for (samples, _), outcomes in zip(arms, await gather(started), strict=True):
            samples.add(outcomes)

    def look(self, done: int) -> bool:
        """Look at the differences so far. Return whether a finalist shows the objective."""
        for at, samples in enumerate(self.new):
            shown = self._shows(at, done / self.pairs)
            if shown and self.found is None and self._covered(samples):
                self.found = at
        return self.found is not None

    def _shows(self, at: int, share: float) -> bool:
        if not self._wants_cheaper:
            return self.tests[at].look(self.new[at].against(self.old), share)
        if self.tests[at].look(self._savings(at), share):
            self.saving.add(at)
        if self._loss_p_value(at) <= self._level:
            self.keeping.add(at)
        return at in self.saving & self.keeping

    def _savings(self, at: int) -> dict[str, float]:
        return savings(self.new[at].tokens, self.old.tokens)

    def _loss_p_value(self, at: int) -> float:
        differences = pair_differences(self.new[at].by_item, self.old.by_item)
        return loss_p_value(differences, self._evaluation.margin)

    def _covered(self, samples: Samples) -> bool:
        return min(samples.coverage, self.old.coverage) >= self._evaluation.coverage_floor

    @property
    def is_hopeless(self) -> bool:
        """Whether no finalist can be expected to win any more."""
        return all(self._cannot_win(at) for at in range(len(self.new)))

    def _cannot_win(self, at: int) -> bool:
        if not self._wants_cheaper:
            return self._interval(at).high <= TOLERANCE
        saved = interval(list(self._savings(at).values()))
        return saved.high <= TOLERANCE or self._interval(at).high <= -self._evaluation.margin

    def _interval(self, at: int) -> Interval:
        """Return the interval of the gain at the level that the last look had: as wide as the looks
        require. With `objective: cheaper` the test is not about the gain.
        """
        differences = list(self.new[at].against(self.old).values())
        if self._wants_cheaper:
            return interval(differences)
        return interval(differences, 1 - 2 * max(self.tests[at].nominal, 1e-6))

    def _p_value(self, at: int) -> float:
        tests = [self.tests[at].p_value]
        if self._wants_cheaper:
            tests.append(self._loss_p_value(at))
        return min(1.0, max(tests) * len(self.tests))

    def result(self, done: int) -> ShipTested:
        """Return the result about the finalist that shows the objective, or about the likeliest."""
        differences = [list(samples.against(self.old).values()) for samples in self.new]
        p_values = [self._p_value(at) for at in range(len(self.new))]
        order = sorted(range(len(self.new)), key=lambda at: (p_values[at], -sum(differences[at])))
        at = self.found if self.found is not None else order[0]
        bounds = self._interval(at)
        evidence = paired_evidence(
            self.new[at],
            self.old,
            rollouts=self.sampler.rollouts,
            coverage=self.sampler.scored / max(1, self.sampler.rollouts),
        )
        return ShipTested(
            verdict="inconclusive",
            skill_hash=self.finalists[at].hash,
            difference=evidence.difference,
            interval=(bounds.low, bounds.high),
            p_value=p_values[at],
            pairs=done,
            evidence=replace(evidence, interval=(bounds.low, bounds.high)),
            saving=interval(list(self._savings(at).values())) if self._wants_cheaper else None,
        )


class SequentialTest:
    """A one-sided sign-flip test of a mean difference that may be looked at several times.

    A random assignment of signs gives a path: its sum at each look. The observed signs and the
    random ones are equally likely if there is no difference. So the test follows all paths, and at
    each look those with the largest sums leave, as many as the level that may be spent by then. The
    observed path leaves by chance with at most that probability.
    """

    def __init__(self, level: float, seed: str) -> None:
        self._level = level
        self._random = Random(seed)
        self._signs: dict[str, NDArray[np.int8]] = {}
        self._left = np.zeros(_SIGNS, dtype=bool)  # paths that crossed at an earlier look
        self.p_value = 1.0
        self.nominal = level  # of the last look alone

    def look(self, differences: dict[str, float], share: float) -> bool:
        """Return whether the difference is above 0. `differences`: by item, over all rollouts so
        far. `share`: how much of the data is there.
        """
        sums = np.zeros(_SIGNS)
        for item, difference in differences.items():
            sums += self._signs_of(item) * difference
        observed = sum(differences.values())
        gone = int(self._left.sum())
        quota = int(self._level * min(1.0, share) ** _SPENDING * (_SIGNS + 1))
        above = ~self._left & (sums >= observed - TOLERANCE)
        self.p_value = min(self.p_value, (gone + int(above.sum()) + 1) / (_SIGNS + 1))
        crossed = observed > TOLERANCE and gone + int(above.sum()) + 1 <= quota
        self._let_go(sums, max(0, quota - gone))
        return crossed

    def _let_go(self, sums: NDArray[np.float64], count: int) -> None:
        """Let the paths with the largest sums leave, at most `count`; of equal sums all or none."""
        here = np.flatnonzero(~self._left)
        if not count or not len(here):
            self.nominal = 1 / (_SIGNS + 1)
            return
        ordered = np.sort(sums[here])[::-1]
        bound = ordered[count - 1] if count < len(ordered) else ordered[-1]
        if count < len(ordered) and ordered[count] >= bound - TOLERANCE:
            leaving = here[sums[here] > bound + TOLERANCE]
        else:
            leaving = here[sums[here] >= bound - TOLERANCE]
        self._left[leaving] = True
        lowest = sums[leaving].min() if len(leaving) else ordered[0] + 1.0
        self.nominal = (int((sums >= lowest - TOLERANCE).sum()) + 1) / (_SIGNS + 1)

    def _signs_of(self, item: str) -> NDArray[np.int8]:
        """Return the sign of an item on every path; the same at each look."""
        if item not in self._signs:
            bits = self._random.getrandbits(_SIGNS).to_bytes(_SIGNS // 8, "little")
            flips = np.unpackbits(np.frombuffer(bits, dtype=np.uint8))
            self._signs[item] = (flips.astype(np.int8) * 2 - 1).astype(np.int8)
        return self._signs[item]


def _decide(
    result: ShipTested,
    settings: GateSettings,
    fit_only: bool,
    shown: bool,
    initial_score: float,
) -> ShipTested:
    """Decide the verdict. `shown`: the tests of the objective succeeded."""
    if result.evidence.coverage < settings.config.evaluation.coverage_floor:
        return replace(
            result, reason=f"only {result.evidence.coverage:.0%} of the rollouts were scored"
        )
    if fit_only:
        return replace(result, reason="unverified suggestion: measured on items it was trained on")
    if result.saving is not None:
        if initial_score <= settings.config.evaluation.margin:
            reason = f"the initial skill scores {initial_score:.2f}, so it has no score to keep"
            return replace(result, reason=reason)
        return _decide_cheaper(result, result.saving, settings.config.evaluation.margin, shown)
    if shown:
        return replace(
            result,
            verdict="improved",
            reason=f"better on fresh rollouts ({p_value(result.p_value)})",
        )
    if result.difference <= TOLERANCE:
        return replace(
            result, verdict="no improvement", reason="not above the initial skill on fresh rollouts"
        )
    return replace(
        result,
        reason=f"above the initial skill, but chance could explain it ({p_value(result.p_value)})",
    )


def _decide_cheaper(result: ShipTested, saving: Interval, margin: float, shown: bool) -> ShipTested:
    chance = p_value(result.p_value)
    if shown:
        reason = f"cheaper, and a loss of {margin:g} or more is excluded ({chance})"
        return replace(result, verdict="improved", reason=reason)
    if saving.mean <= TOLERANCE:
        reason = "it does not save tokens on fresh rollouts"
        return replace(result, verdict="no improvement", reason=reason)
    if result.difference <= -margin:
        reason = f"cheaper, but the score is lower by {margin:g} or more on fresh rollouts"
        return replace(result, verdict="no improvement", reason=reason)
    if saving.low <= 0:
        return replace(result, reason=f"it saves tokens, but chance could explain it ({chance})")
    return replace(
        result, reason=f"cheaper, but a loss of {margin:g} or more is not excluded ({chance})"
    )


def _by_model(comparison: _Comparison, result: ShipTested, items: Sequence[Item]) -> ShipTested:
    """Add the scores with each model. Not improved where a model loses by the margin or more, or
    loses at all for sure.
    """
    finalists = [skill.hash for skill in comparison.finalists]
    new, old = comparison.new[finalists.index(result.skill_hash)], comparison.old
    found = []
    for model in sorted({item.model for item in items}):
        ids = [one.id for one in items if one.model == model]
        shared = [one for one in ids if one in new.means and one in old.means]
        if not shared:
            continue
        before = mean([old.means[one] for one in shared])
        after = mean([new.means[one] for one in shared])
        found.append(TypeSummary(model, len(shared), before, after))
        change = interval([new.means[one] - old.means[one] for one in shared])
        margin = comparison.settings.config.evaluation.margin
        if result.verdict == "improved" and (change.mean <= -margin or change.high < 0):
            reason = f"better over all models, but {change.mean:+.2f} with {model}"
            result = replace(result, verdict="inconclusive", reason=reason)
    return replace(result, models=tuple(found))
