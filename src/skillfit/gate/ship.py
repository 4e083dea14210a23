"""The ship test decides at the end of a run whether the skill got better. Finalists and the initial
skill are compared on fresh rollouts.

The gate is lenient while training explores; this test is strict. The sign-flip test on item means
is exact: a skill that is no better is called improved in at most 5 % of runs, whatever the noise,
the number of items or the saturation. With several finalists the p-values are corrected (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skillfit.gate.samples import (
    ALPHA,
    TOLERANCE,
    GateSettings,
    Measure,
    Sampler,
    interval,
    paired_evidence,
    repeats_for,
    sign_flip_p,
)
from skillfit.rollout.outcome import gather
from skillfit.run.records import Evidence, ShipVerdict
from skillfit.skill import Skill
from skillfit.tasks.item import Item

WANTED_EFFECT = 0.05  # the gain that the number of repeats is chosen to detect
MOST_REPEATS = 4  # of an item under one skill
ASSUMED_NOISE = 0.12  # within-item variance when no item was ever repeated


@dataclass(frozen=True, slots=True)
class ShipResult:
    """Whether a finalist is better than the initial skill on fresh rollouts."""

    verdict: ShipVerdict
    reason: str
    skill: Skill  # the finalist the verdict is about; the initial skill when there was none
    difference: float
    interval: tuple[float, float]
    p_value: float  # one-sided, corrected for the number of finalists
    repeats: int
    evidence: Evidence
    # With a second grader: gain under the training grader minus gain here, on the same rollouts.
    gap: float | None = None


def planned_rollouts(
    items: Sequence[Item],
    initial: Skill,
    finalists: Sequence[Skill],
    *,
    noise: float | None = None,
    most_repeats: int = MOST_REPEATS,
) -> int:
    """How many rollouts `ship_test` makes."""
    entrants = _entrants(initial, finalists)
    skills = 1 + len(entrants) if entrants else 0
    return skills * len(items) * _repeats(items, noise, most_repeats)


def _entrants(initial: Skill, finalists: Sequence[Skill]) -> list[Skill]:
    """The finalists that differ from the initial skill and from one another."""
    return list({skill.hash: skill for skill in finalists if skill.hash != initial.hash}.values())


def _repeats(items: Sequence[Item], noise: float | None, most: int) -> int:
    variance = ASSUMED_NOISE if noise is None else noise
    return repeats_for(len(items), variance, WANTED_EFFECT, most)


async def ship_test(
    measure: Measure,
    items: Sequence[Item],
    initial: Skill,
    finalists: Sequence[Skill],
    settings: GateSettings,
    *,
    noise: float | None = None,
    most_repeats: int = MOST_REPEATS,
    fit_only: bool = False,
) -> ShipResult:
    """Compare the finalists with the initial skill on fresh rollouts.

    `measure` may grade with a second grader. `noise` is the within-item variance that the run
    measured. With `fit_only` the items were trained on, so the verdict is never "improved".
    """
    entrants = _entrants(initial, finalists)
    repeats = _repeats(items, noise, most_repeats)
    if not entrants:
        return ShipResult(
            "no improvement",
            "no candidate was accepted",
            initial,
            0.0,
            (0.0, 0.0),
            1.0,
            0,
            Evidence(),
        )
    sampler = Sampler(measure, "ship", settings)
    old, *new = await gather(
        sampler.samples(skill, items, repeats) for skill in (initial, *entrants)
    )
    tested = [list(samples.against(old).values()) for samples in new]
    corrected = holm([sign_flip_p(differences) for differences in tested])
    chosen = min(range(len(entrants)), key=lambda index: (corrected[index], -sum(tested[index])))
    evidence = paired_evidence(
        new[chosen],
        old,
        rollouts=sampler.rollouts,
        coverage=sampler.scored / max(1, sampler.rollouts),
    )
    bounds = interval(tested[chosen], 1 - 2 * ALPHA / len(entrants))
    result = ShipResult(
        verdict="inconclusive",
        reason="",
        skill=entrants[chosen],
        difference=evidence.difference,
        interval=(bounds.low, bounds.high),
        p_value=corrected[chosen],
        repeats=repeats,
        evidence=replace(evidence, interval=(bounds.low, bounds.high)),
    )
    return _decide(result, settings, fit_only)


def holm(p_values: Sequence[float]) -> list[float]:
    """Step-down corrected p-values, in the order given."""
    corrected, highest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = highest
    return corrected


def _decide(result: ShipResult, settings: GateSettings, fit_only: bool) -> ShipResult:
    if result.evidence.coverage < settings.config.evaluation.coverage_floor:
        return replace(
            result, reason=f"only {result.evidence.coverage:.0%} of the rollouts were scored"
        )
    if fit_only:
        return replace(result, reason="unverified suggestion: measured on items it was trained on")
    if result.p_value <= ALPHA and result.difference > TOLERANCE:
        return replace(
            result,
            verdict="improved",
            reason=f"better on fresh rollouts (p = {result.p_value:.3f})",
        )
    if result.difference <= TOLERANCE:
        return replace(
            result, verdict="no improvement", reason="not above the initial skill on fresh rollouts"
        )
    return replace(
        result,
        reason=f"above the initial skill, but chance could explain it (p = {result.p_value:.2f})",
    )
