"""The honest end: why nothing improved, in the order in which a person should look."""

from __future__ import annotations

from dataclasses import dataclass

from skillfit.gate.checks import SATURATED


@dataclass(frozen=True, slots=True)
class Facts:
    """What a finished run knows about itself."""

    ship: str  # improved, inconclusive, no improvement; empty when there was no ship test
    baseline: float
    coverage: float  # of all rollouts
    coverage_floor: float
    proposed: int  # edits the optimizer sent
    applied: int  # that passed the leak check and could be applied
    accepted: int  # candidates the gate accepted
    steps: int
    detectable: float  # smallest effect the ship test could show
    difference: float = 0.0
    optimizer_failures: int = 0
    budget_reached: bool = False
    changed: bool = False  # the best skill is not the initial one
    verified: bool = True  # by a ship test
    grader_blind: bool = False
    constant: float | None = (
        None  # what every rollout of the run scored, under several skills; None: they differ
    )
    fit_only: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    # improved, infrastructure, blind grader, saturated, no valid edits, budget, all equal, fit
    # only, no power, …
    cause: str
    message: str


def diagnose(facts: Facts) -> Diagnosis:
    for cause, applies, message in _causes(facts):
        if applies:
            return Diagnosis(cause, message)
    message = f"{facts.accepted} of {facts.steps} steps were accepted, and nothing held up on fresh rollouts."
    return Diagnosis("no headroom found", message)


def _causes(f: Facts) -> list[tuple[str, bool, str]]:
    return [
        (
            "improved",
            f.ship == "improved" and f.verified,
            f"The skill is better by {f.difference:+.3f} on fresh rollouts.",
        ),
        (
            "improved",
            f.ship == "improved",
            f"The skill is better by {f.difference:+.3f} on the selection split; there was no check on fresh rollouts.",
        ),
        (
            "infrastructure",
            f.coverage < f.coverage_floor,
            f"Only {f.coverage:.0%} of the rollouts could be scored: fix the failures before reading anything into scores.",
        ),
        (
            "blind grader",
            f.grader_blind or 0 < (f.constant or 0) < 1,
            "The grader does not see what the skill does: no edit could have changed the score.",
        ),
        ("budget", f.budget_reached and not f.ship, _cut_short(f)),
        (
            "saturated",
            f.baseline >= SATURATED,
            f"The initial skill scores {f.baseline:.2f} already: use harder items.",
        ),
        (
            "infrastructure",
            f.proposed == 0 and f.optimizer_failures > 0,
            f"{f.optimizer_failures} optimizer calls failed and none brought an edit.",
        ),
        (
            "no valid edits",
            f.applied == 0,
            f"None of {f.proposed} proposed edits could be applied: see the discarded ones.",
        ),
        ("budget", f.budget_reached and f.accepted == 0, _cut_short(f)),
        (
            "all equal",
            f.constant == 0,
            "Every rollout scored 0.00, whatever the skill: the items are out of the agent's reach, or the grader is blind.",
        ),
        (
            "fit only",
            f.fit_only,
            "Too few items for a selection split: the result is an unverified suggestion.",
        ),
        (
            "no power",
            f.accepted > 0
            and f.detectable > max(f.difference, 0.02)
            and f.ship != "no improvement",
            f"The difference of {f.difference:+.3f} is below what these items can show ({f.detectable:.2f}): add items.",
        ),
        ("budget", f.budget_reached, "The budget ended the run before the plan was done."),
    ]


def _cut_short(f: Facts) -> str:
    if f.changed and not f.ship:
        return f"The budget ended the run after {f.steps} steps and before the ship test: the best skill so far is not verified."
    left = "the initial skill still the best" if f.accepted else "nothing accepted"
    return f"The budget ended the run after {f.steps} steps with {left}."
