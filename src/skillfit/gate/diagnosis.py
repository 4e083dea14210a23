"""Explain how a run ended, from what it measured, and name a next step that works.

Each cause states only what the evidence shows. Causes are tried in the order in which a person
should look: what broke, what could not be measured, what was proposed, what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skillfit.gate.checks import SATURATED
from skillfit.run.records import EditEffect

_FEW_ITEMS = 12  # selection items; fewer can hardly prove anything
_LOUD = 0.2  # gains below this cannot be shown: the scores are too noisy


@dataclass(frozen=True, slots=True)
class Facts:
    """What a finished run knows about itself."""

    run: str  # its directory, for commands
    ship: str  # improved, inconclusive, no improvement; empty without a ship test
    baseline: float
    coverage: float  # share of all rollouts that was scored
    coverage_floor: float
    selection_items: int
    detectable: float  # smallest gain that the ship test could show
    steps: int = 0
    proposed: int = 0  # edits the optimizer sent
    blocked: int = 0  # of these, kept out by the leak check
    usable: int = 0  # that could be applied
    accepted: int = 0  # steps that changed the incumbent
    effects: Sequence[EditEffect] = ()  # of all edits that were measured
    difference: float = 0.0  # final minus initial skill
    optimizer_failures: int = 0
    budget_reached: bool = False
    measured: bool = True  # the baseline was measured
    changed: bool = False  # training found another skill
    verified: bool = True  # by a ship test
    grader_blind: bool = False  # an empty answer scores as high as the agent's
    gold_rejected: bool = False  # the grader rejects every gold answer
    constant: float | None = None  # the one score of all rollouts, under several skills
    fit_only: bool = False
    gap: float | None = None  # second grader: gain under the training grader minus this one


@dataclass(frozen=True, slots=True)
class Diagnosis:
    cause: str
    message: str
    next_step: str = ""

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".strip()


def diagnose(facts: Facts) -> Diagnosis:
    for cause in _CAUSES:
        found = cause(facts)
        if found is not None:
            return found
    return _nothing_held(facts)


def _improved(f: Facts) -> Diagnosis | None:
    if f.ship != "improved":
        return None
    if f.verified:
        return Diagnosis(
            "improved", f"The skill is better by {f.difference:+.3f} on fresh rollouts."
        )
    message = (
        f"The skill is better by {f.difference:+.3f} on the selection split; "
        "there was no check on fresh rollouts."
    )
    return Diagnosis("improved", message)


def _failed_rollouts(f: Facts) -> Diagnosis | None:
    if f.coverage >= f.coverage_floor:
        return None
    message = f"Only {f.coverage:.0%} of the rollouts could be scored."
    step = f"Fix the failures listed by `skillfit show {f.run}`, then run the same command again."
    return Diagnosis("infrastructure", message, step)


def _budget_before_baseline(f: Facts) -> Diagnosis | None:
    if f.measured or not f.budget_reached:
        return None
    message = "The budget ended the run before the initial skill was measured."
    return Diagnosis("budget too small", message, "Raise the cap and run the same command again.")


def _gold_rejected(f: Facts) -> Diagnosis | None:
    if not f.gold_rejected:
        return None
    message = "The grader rejects every gold answer, so no skill could have scored."
    return Diagnosis(
        "wrong grader", message, "Fix env.grader or the answers, then `skillfit check`."
    )


def _blind_grader(f: Facts) -> Diagnosis | None:
    constant = f.constant is not None and 0 < f.constant < 1
    if not f.grader_blind and not constant:
        return None
    seen = (
        f"every rollout scored {f.constant:.2f}, under every skill"
        if constant
        else "an empty answer scores as high as the agent's"
    )
    message = f"The grader does not tell answers apart: {seen}."
    return Diagnosis("blind grader", message, "Choose another env.grader, then `skillfit check`.")


def _saturated(f: Facts) -> Diagnosis | None:
    if f.baseline < SATURATED:
        return None
    message = f"The initial skill scores {f.baseline:.2f} already: there is nothing to gain here."
    return Diagnosis("saturated", message, "Use harder items.")


def _optimizer_unreachable(f: Facts) -> Diagnosis | None:
    if f.proposed or not f.optimizer_failures:
        return None
    message = f"{f.optimizer_failures} optimizer calls brought no usable reply."
    step = f"See the errors with `skillfit show {f.run}`, or name another model.optimizer."
    return Diagnosis("infrastructure", message, step)


def _budget_before_steps(f: Facts) -> Diagnosis | None:
    if not f.budget_reached or f.steps:
        return None
    message = "The budget ended the run before the first step was done."
    return Diagnosis("budget too small", message, "Raise the cap and run the same command again.")


def _nothing_proposed(f: Facts) -> Diagnosis | None:
    if f.proposed or f.blocked or f.budget_reached:
        return None
    message = f"The optimizer proposed no edit in {f.steps} steps."
    return Diagnosis("nothing proposed", message, "Try a stronger model.optimizer.")


def _all_leaked(f: Facts) -> Diagnosis | None:
    if not f.blocked or f.usable:
        return None
    message = f"The leak check blocked {f.blocked} edits that carried hidden answers or item text."
    step = "Check that selection and test items do not repeat training items."
    return Diagnosis("leaked answers", message, step)


def _not_applicable(f: Facts) -> Diagnosis | None:
    if f.usable or not f.proposed:
        return None
    message = f"None of {f.proposed} proposed edits could be applied to the skill."
    step = f"See why with `skillfit report {f.run}`, or try a stronger model.optimizer."
    return Diagnosis("no usable edits", message, step)


def _out_of_reach(f: Facts) -> Diagnosis | None:
    if f.constant != 0:
        return None
    message = "Every rollout scored 0, under every skill: the items are out of the agent's reach."
    step = "Try easier items, a stronger model.agent, or a grader that gives partial scores."
    return Diagnosis("out of reach", message, step)


def _second_grader(f: Facts) -> Diagnosis | None:
    if f.gap is None or f.gap < 0.05 or f.ship == "inconclusive":
        return None
    gain = f.difference + f.gap
    message = (
        f"The gain of {gain:+.3f} under the training grader is {f.difference:+.3f} under the ship "
        "grader: training fitted the grader."
    )
    return Diagnosis(
        "graders disagree", message, "Train on the ship grader, or on both with `all`."
    )


def _fit_only(f: Facts) -> Diagnosis | None:
    if not f.fit_only:
        return None
    message = (
        "There are too few items for a selection split: the result is an unverified suggestion."
    )
    return Diagnosis("fit only", message, "Add items until at least 12 are left for selection.")


def _cut_short(f: Facts) -> Diagnosis | None:
    if not f.budget_reached:
        return None
    message = f"The budget ended training after {f.steps} steps."
    if f.changed and not f.ship:
        message += " What was found is not verified."
    return Diagnosis("budget", message, "Raise the cap and run the same command again: it resumes.")


def _small_gain(f: Facts) -> Diagnosis | None:
    if f.ship != "inconclusive" or f.difference <= 0:
        return None
    shown = f"The gain of {f.difference:+.3f} is below what {f.selection_items} items can show"
    if f.selection_items < _FEW_ITEMS:
        message = f"{shown} ({f.detectable:.2f})."
        return Diagnosis("too few items", message, "Please add items to the selection split.")
    if f.detectable > _LOUD:
        message = f"{shown} with scores this noisy ({f.detectable:.2f})."
        step = "Lower the agent's temperature, or add items."
        return Diagnosis("noisy agent", message, step)
    message = f"{shown} for sure ({f.detectable:.2f})."
    return Diagnosis("no power", message, "Please add items, or train longer (train.num_epochs).")


def _useless_edits(f: Facts) -> Diagnosis | None:
    measured = [effect for effect in f.effects if effect.mean is not None]
    if not measured or f.accepted:
        return None
    best = max(measured, key=lambda effect: effect.mean or 0.0)
    tried = f"{len(measured)} edits were measured and none helped for sure"
    likely = f"the best is {best.mean:+.3f} ({best.low:+.3f} … {best.high:+.3f})"
    if best.high > f.detectable / 2 and best.high > 0.03:
        message = f"{tried} yet: {likely}."
        step = "Train longer (train.num_epochs), or add selection items."
        return Diagnosis("too little evidence", message, step)
    message = f"{tried}: {likely}."
    return Diagnosis("useless edits", message, "Try a stronger model.optimizer.")


def _rejected(f: Facts) -> Diagnosis | None:
    if f.effects or f.accepted:
        return None
    message = f"None of {f.steps} steps brought a candidate that scored above the initial skill."
    return Diagnosis("useless edits", message, "Try a stronger model.optimizer, or more epochs.")


def _nothing_held(f: Facts) -> Diagnosis:
    message = (
        f"{f.accepted} of {f.steps} steps were accepted, and nothing held up on fresh rollouts"
    )
    message += f" ({f.difference:+.3f})."
    step = f"See which edits looked good with `skillfit report {f.run}`; add selection items."
    return Diagnosis("did not hold", message, step)


_CAUSES: tuple[Callable[[Facts], Diagnosis | None], ...] = (
    _improved,
    _failed_rollouts,
    _budget_before_baseline,
    _gold_rejected,
    _blind_grader,
    _saturated,
    _optimizer_unreachable,
    _budget_before_steps,
    _nothing_proposed,
    _all_leaked,
    _not_applicable,
    _out_of_reach,
    _second_grader,
    _fit_only,
    _cut_short,
    _small_gain,
    _useless_edits,
    _rejected,
)
