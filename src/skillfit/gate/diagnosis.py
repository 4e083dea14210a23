"""What measured facts mean for the user: the checks before a run, and how a run ended.

A check turns facts into go, warn or stop, with the reason. `diagnose_run` explains the end of a run
and names a next step that works. Each cause states only what the evidence shows. Causes are tried
in the order in which a person should look: what broke, what could not be measured, what was
proposed, what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from skillfit.gate.samples import detectable_effect
from skillfit.gate.ship import MOST_REPEATS
from skillfit.intervals import Interval, interval, lift_of
from skillfit.plain_text import dollars, quantity, with_interval
from skillfit.run.records import (
    CheckName,
    CheckResult,
    CheckValue,
    EditEffect,
    Level,
    ShipVerdict,
    saving_sentence,
)

FEW_ROLLOUTS = 150  # of a run; fewer may miss what helps
SATURATED = 0.98


def overall(checks: Sequence[CheckResult]) -> Level:
    """Return the most severe verdict of the checks; go when there are none."""
    return max((check.verdict for check in checks), key=("go", "warn", "stop").index, default="go")


def gold_check(
    scores: Mapping[str, float | None],
    name: CheckName = "gold",
    grader: str = "The grader",
    failed: Mapping[str, str] | None = None,
) -> CheckResult:
    """Check that gold answers handed to the grader score 1. A score of None: the item has no gold
    answer to try. `failed`: why the grader itself failed on an item.
    """
    tried = {item: score for item, score in scores.items() if score is not None}
    wrong = sorted(item for item, score in tried.items() if score < 1)
    if not tried:
        return CheckResult(name, "warn", f"No gold answers to check {grader.lower()} with.")
    if failed:
        level: Level = "stop" if len(failed) == len(tried) else "warn"
        message = f"{grader} failed on {len(failed)} of {len(tried)} gold answers. "
        return CheckResult(
            name, level, message + next(iter(failed.values())), {"items": sorted(failed)[:10]}
        )
    if len(wrong) == len(tried):
        return CheckResult(
            name,
            "stop",
            f"{grader} rejects every gold answer: it or the answers are wrong.",
            {"items": wrong[:10]},
        )
    if wrong:
        named = f"{', '.join(wrong[:5])}{', …' if len(wrong) > 5 else ''}"
        return CheckResult(
            name,
            "warn",
            f"{grader} rejects {len(wrong)} of {len(tried)} gold answers: {named}.",
            {"items": wrong[:10]},
        )
    return CheckResult(name, "go", f"All {len(tried)} gold answers score 1.")


def blindness_check(
    full: float, empty: Sequence[float] = (), *, constant: float | None = None
) -> CheckResult:
    """Check that the grader tells answers apart.

    `empty` holds the paired item differences to an empty answer: full minus empty. Only a grader
    that gives an empty answer as much as a real one, or every answer the same score above 0, is
    blind. `constant` is the score that all probes got, if they all got one; all 0 is no sign of
    blindness.
    """
    lost = interval(empty)
    detail = {"empty answer": [round(lost.low, 4), round(lost.high, 4)]} if empty else {}
    if constant is not None and 0 < constant < 1:
        message = (
            f"The grader is blind: every rollout scores {constant:.2f}, whatever "
            "the skill and the answer."
        )
        return CheckResult("blind", "stop", message, detail)
    if empty and full > 0 and lost.mean <= 0:
        return CheckResult(
            "blind",
            "stop",
            f"The grader is blind: an empty answer scores as high as the agent's ({full:.2f}).",
            detail,
        )
    return CheckResult("blind", "go", "Worse answers score lower.", detail)


def lift_check(gains: Sequence[float]) -> CheckResult:
    """Check that the skill helps. `gains`: score with the skill minus score without it, by item. A
    skill that makes no difference may lack what the tasks need.
    """
    gain = interval(gains)
    shown = f"{with_interval(gain.mean, gain.low, gain.high)} over no skill"
    detail: dict[str, CheckValue] = {
        "gain": gain.mean,
        "interval": [round(gain.low, 4), round(gain.high, 4)],
    }
    message = f"The skill so far: {lift_of(gain)}, {shown} on {quantity(len(gains), 'item')}."
    return CheckResult("lift", "go" if gain.mean > 0 else "warn", message, detail)


def headroom_check(baseline: float) -> CheckResult:
    if baseline >= SATURATED:
        return CheckResult(
            "headroom",
            "stop",
            f"Saturated: the skill scores {baseline:.2f} already.",
            {"headroom": 1 - baseline},
        )
    verdict: Level = "warn" if baseline > 0.9 else "go"
    return CheckResult(
        "headroom",
        verdict,
        f"Baseline {baseline:.2f}: {1 - baseline:.2f} to gain at the most.",
        {"headroom": 1 - baseline},
    )


def room_to_lose_check(baseline: float, margin: float) -> CheckResult:
    """Check that a cheaper skill has a score to keep."""
    level: Level = "stop" if baseline <= margin else "go"
    message = f"Baseline {baseline:.2f}; a cheaper skill may lose less than {margin:g}."
    if level == "stop":
        message = (
            f"Baseline {baseline:.2f}: with objective: cheaper it must be above the margin of "
            f"{margin:g}, or there is no score to keep."
        )
    return CheckResult("headroom", level, message, {"headroom": 1 - baseline})


def power_check(
    items: int, noise: float | None, baseline: float, repeats: int = MOST_REPEATS
) -> CheckResult:
    """Estimate the smallest gain that the ship test can show with this selection split. `noise` is
    the within-item variance from repeats; None: it was not measured.
    """
    if items < 5:
        message = (
            f"{quantity(items, 'selection item')} can't prove an improvement at 5 %: results "
            "will be unverified suggestions."
        )
        return CheckResult("power", "warn", message, {"items": items})
    rollout_noise = baseline * (1 - baseline) / 2 if noise is None else noise
    effect = detectable_effect(items, rollout_noise, repeats)
    detail: dict[str, CheckValue] = {
        "items": items,
        "noise": rollout_noise,
        "noise_measured": noise is not None,
        "detectable": effect,
    }
    assumed = "assumed " if noise is None else ""
    message = (
        f"{items} items, {assumed}rollout noise {rollout_noise**0.5:.2f}: gains of about "
        f"{effect:.2f} or more can be shown."
    )
    return CheckResult(
        "power", "warn" if effect > min(0.15, 1 - baseline) else "go", message, detail
    )


def coverage_check(scored: int, planned: int, floor: float, first_failure: str) -> CheckResult:
    share = scored / planned if planned else 0.0
    if share < floor:
        return CheckResult(
            "coverage",
            "stop",
            f"Only {scored} of {planned} rollouts were scored. First failure: {first_failure}",
        )
    return CheckResult(
        "coverage",
        "go" if scored == planned else "warn",
        f"{scored} of {planned} rollouts were scored.",
    )


def skill_use_check(reads: Sequence[bool]) -> list[CheckResult]:
    """Check that the agent loaded the skill; return no result where that cannot be told."""
    if not reads:
        return []
    loaded, count = sum(reads), len(reads)
    if loaded == count:
        message = f"The agent loaded the skill in all {count} rollouts."
        return [CheckResult("skill use", "go", message)]
    found = f"in {loaded} of {count} rollouts" if loaded else f"in none of {count} rollouts"
    message = (
        f"The agent loaded the skill {found}: edits of its text cannot act where it is not read. "
        "Improve its description, or name the skill in the task."
    )
    return [CheckResult("skill use", "warn", message)]


def cost_check(typical: float, high: float, cap: float | None) -> CheckResult:
    """Compare the estimated dollars of the whole plan with the cap."""
    detail = {"typical": typical, "high": high, "cap": cap}
    about = f"The plan costs about {dollars(typical)} ({dollars(high)} at the most)"
    if cap is not None and typical <= cap < high:
        about = f"The plan costs about {dollars(typical)}; budget.usd stops it at {dollars(cap)}"
    if cap is not None and typical > cap:
        message = f"{about}; the cap of {dollars(cap)} ends it early."
        return CheckResult("cost", "warn", message, detail)
    return CheckResult("cost", "go", f"{about}.", detail)


_FEW_ITEMS = 12  # selection items; fewer can hardly prove anything
_WORTH_HAVING = 0.03  # an edit whose effect is surely smaller is useless
_TOO_NOISY = 0.2  # the scores are too noisy when only gains above this can be shown


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a finished run that the diagnosis uses."""

    run: str  # its directory, for commands
    ship: ShipVerdict | None  # without a ship test: "improved" by the gate's scores, or None
    baseline: float
    coverage: float  # share of all rollouts that was scored
    coverage_floor: float
    selection_items: int
    detectable: float  # smallest gain that the ship test could show
    steps: int = 0
    edits_wanted: bool = True  # the learning rate is above 0
    proposed: int = 0  # proposals left after merging and the leak check
    selected: int = 0  # proposals within the edit budget
    unread_rates: int = 0  # steps without edits because the reply with the rate was not usable
    refused: int = 0  # texts that the leak check refused: proposals, notes, lessons, rewrites
    usable: int = 0  # edits that could be applied
    accepted: int = 0  # steps that changed the incumbent
    rejected: int = 0  # steps that judged a candidate and kept the incumbent
    uncovered: int = 0  # those of them with too few scored rollouts for a verdict
    ship_coverage: float = 1.0  # share of the rollouts of the ship test that was scored
    effects: Sequence[EditEffect] = ()  # of all edits that were measured
    difference: float = 0.0  # final minus initial skill
    proposer: Literal["model", "examples", "custom"] = "model"  # who wrote the edits
    optimizer_failures: int = 0
    budget_reached: bool = False
    measured: bool = True  # the baseline was measured
    changed: bool = False  # training found another skill
    verified: bool = True  # by a ship test
    blind_grader: str = ""  # what the check before the run said of a blind grader
    # The setting of the grader that rejects every gold answer
    gold_rejected_by: Literal["", "env.grader", "evaluation.ship_grader"] = ""
    constant: float | None = None  # the one score of all rollouts, under several skills
    fit_only: bool = False
    gap: float | None = None  # second grader: gain under the training grader minus this one
    margin: float | None = None  # with `objective: cheaper`: a loss below it counts as not worse
    saving: Interval | None = None  # share of a rollout's tokens, by the ship test
    ship_reason: str = ""
    rollouts: int = 0  # that were scored


Cause = Literal[
    "improved",
    "infrastructure",
    "wrong grader",
    "blind grader",
    "saturated",
    "nothing proposed",
    "leaked answers",
    "no edits selected",
    "no usable edits",
    "out of reach",
    "graders disagree",
    "fit only",
    "budget",
    "budget too small",
    "useless edits",
    "too little evidence",
    "too few items",
    "noisy agent",
    "no power",
    "did not hold",
    "not cheaper",
]
BUDGET_CAUSES: tuple[Cause, ...] = ("budget", "budget too small")  # a cap ended the run


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a run ended as it did, and what the user can do next."""

    cause: Cause
    message: str
    next_step: str = ""

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".strip()


def diagnose_run(facts: Facts) -> Diagnosis:
    for cause in _CAUSES:
        found = cause(facts)
        if found is not None:
            return found
    return _nothing_held(facts)


def _not_cheaper(f: Facts) -> Diagnosis | None:
    if f.saving is None:
        return None
    message = f"The ship test found: {f.ship_reason}."
    step = "A larger budget.rollouts or evaluation.margin makes the comparison easier to decide."
    return Diagnosis("not cheaper", message, step)


def _improved(f: Facts) -> Diagnosis | None:
    if f.ship != "improved":
        return None
    if f.saving is not None and f.margin is not None:
        return Diagnosis("improved", saving_sentence(f.saving, f.margin))
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
    return Diagnosis("infrastructure", message, _fix_failures(f))


def _fix_failures(f: Facts) -> str:
    return f"Fix the failures listed by `skillfit show {f.run}`, then run the same command again."


def _candidates_failed(f: Facts) -> Diagnosis | None:
    if f.accepted or f.changed or 2 * f.uncovered <= f.rejected:
        return None
    steps = quantity(f.rejected, "step")
    message = (
        f"In {f.uncovered} of {steps} with a candidate, fewer than {f.coverage_floor:.0%} of the "
        "rollouts could be scored, so nothing is known about it."
    )
    return Diagnosis("infrastructure", message, _fix_failures(f))


def _comparison_failed(f: Facts) -> Diagnosis | None:
    if f.ship_coverage >= f.coverage_floor:
        return None
    message = (
        f"Only {f.ship_coverage:.0%} of the rollouts of the ship test could be scored, so nothing "
        "is known about the skill that was found."
    )
    return Diagnosis("infrastructure", message, _fix_failures(f))


def _budget_before_baseline(f: Facts) -> Diagnosis | None:
    if f.measured or not f.budget_reached:
        return None
    message = "The budget ended the run before the initial skill was measured."
    return Diagnosis("budget too small", message, "Raise the cap and run the same command again.")


def _gold_rejected(f: Facts) -> Diagnosis | None:
    if not f.gold_rejected_by:
        return None
    message = "The grader rejects every gold answer, so no skill could have scored."
    if f.gold_rejected_by == "evaluation.ship_grader":
        message = "The ship grader rejects every gold answer, so it could not confirm any skill."
    step = f"Fix {f.gold_rejected_by} or the answers, then `skillfit check`."
    return Diagnosis("wrong grader", message, step)


def _blind_grader(f: Facts) -> Diagnosis | None:
    if f.constant is not None and 0 < f.constant < 1:
        message = (
            "The grader does not tell answers apart: "
            f"every rollout scored {f.constant:.2f}, under every skill."
        )
    elif f.blind_grader:
        message = f.blind_grader
    else:
        return None
    return Diagnosis("blind grader", message, "Choose another env.grader, then `skillfit check`.")


def _saturated(f: Facts) -> Diagnosis | None:
    if f.baseline < SATURATED or f.margin is not None:
        return None
    message = f"The initial skill scores {f.baseline:.2f} already: there is nothing to gain here."
    return Diagnosis("saturated", message, "Use harder items.")


def _optimizer_unreachable(f: Facts) -> Diagnosis | None:
    if f.proposed or not f.optimizer_failures:
        return None
    message = f"{quantity(f.optimizer_failures, 'optimizer call')} brought no usable reply."
    step = f"See the errors with `skillfit show {f.run}`, or name another model.optimizer."
    return Diagnosis("infrastructure", message, step)


def _budget_before_steps(f: Facts) -> Diagnosis | None:
    if not f.budget_reached or f.steps:
        return None
    message = "The budget ended the run before the first step was done."
    return Diagnosis("budget too small", message, "Raise the cap and run the same command again.")


def _nothing_proposed(f: Facts) -> Diagnosis | None:
    if f.proposed or f.refused or f.budget_reached:
        return None
    if not f.edits_wanted:
        message = "optimizer.learning_rate is 0, so the optimizer was not asked for edits."
        return Diagnosis("nothing proposed", message, "Set it to the number of edits per step.")
    steps = quantity(f.steps, "step")
    who = "Your proposer" if f.proposer == "custom" else "The optimizer"
    message = f"{who} proposed no edit in {steps}."
    if f.proposer == "examples":
        message = f"No training item was solved in {steps}, so there were no examples."
    return Diagnosis("nothing proposed", message, _better_edits(f))


def _better_edits(f: Facts) -> str:
    if f.proposer == "model":
        return "Try a stronger model.optimizer."
    if f.proposer == "examples":
        return "Set model.optimizer and optimizer.proposer=both, so that a model writes edits too."
    return "Improve the edits of your proposer."


def _more_items_or_better_edits(f: Facts) -> str:
    """Advise more selection items where there are few, else better edits: with few items nobody can
    tell what an edit does, however good it is.
    """
    if f.selection_items >= _FEW_ITEMS:
        return _better_edits(f)
    items = quantity(f.selection_items, "selection item")
    return f"Add items: {items} can show gains from {f.detectable:.2f} on only."


def _all_leaked(f: Facts) -> Diagnosis | None:
    if not f.refused or f.usable:
        return None
    refused = quantity(f.refused, "text")
    message = f"The leak check refused {refused} with answers, item text or rules of the grader."
    step = (
        f"See which words leaked with `skillfit show {f.run}`, and check that selection and test "
        "items do not repeat training items."
    )
    return Diagnosis("leaked answers", message, step)


def _none_selected(f: Facts) -> Diagnosis | None:
    if f.selected or not f.proposed:
        return None
    proposals = quantity(f.proposed, "proposal")
    if not f.edits_wanted:
        message = f"optimizer.learning_rate is 0, so none of {proposals} entered the skill."
        step = "Set it to the number of edits per step."
    elif f.unread_rates:
        steps = quantity(f.unread_rates, "step")
        message = (
            f"In {steps} the optimizer's reply with the learning rate was not usable, so none of "
            f"{proposals} entered the skill."
        )
        step = (
            f"See the replies with `skillfit show {f.run}`, set optimizer.lr_control_mode=fixed, "
            "or name another model.optimizer."
        )
    else:
        message = f"The optimizer chose to apply none of its {proposals}: a learning rate of 0."
        step = "Set optimizer.lr_control_mode=fixed, or try a stronger model.optimizer."
    return Diagnosis("no edits selected", message, step)


def _not_applicable(f: Facts) -> Diagnosis | None:
    if f.usable or not f.proposed:
        return None
    proposals = quantity(f.proposed, "proposal")
    message = (
        f"Of {proposals} left after merging and the leak check, none could be applied to the skill."
    )
    step = f"See why with `skillfit report {f.run}`. {_better_edits(f)}"
    return Diagnosis("no usable edits", message, step)


def _out_of_reach(f: Facts) -> Diagnosis | None:
    if f.constant != 0:
        return None
    message = "Every rollout scored 0, under every skill: the items are out of the agent's reach."
    step = "Try easier items, a stronger model.agent, or a grader that gives partial scores."
    if f.rollouts < FEW_ROLLOUTS:
        message = f"All {f.rollouts} rollouts scored 0, under every skill that was tried."
        step = f"So few may miss what helps: try more rollouts. Else: {step[0].lower()}{step[1:]}"
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
    message = f"The budget ended training after {quantity(f.steps, 'step')}."
    if f.changed and not f.ship:
        message += " What was found is not verified."
    return Diagnosis("budget", message, "Raise the cap and run the same command again: it resumes.")


def _only_pending(f: Facts) -> Diagnosis | None:
    """Diagnose a final skill that was composed of edits that were never promoted, and was not
    measurably better.
    """
    best = _best_effect(f)
    if best is None or f.accepted or not f.changed or not f.verified:
        return None
    if f.difference > f.detectable / 2 or (f.difference > 0 and f.selection_items < _FEW_ITEMS):
        return None  # more items would tell whether there is a gain
    measured = quantity(sum(effect.mean is not None for effect in f.effects), "edit")
    message = (
        f"No edit was promoted: of {measured} measured, the best is "
        f"{with_interval(best.mean or 0.0, best.low, best.high)}. The likeliest ones together "
        "changed the score by "
        f"{f.difference:+.3f} on fresh rollouts; {quantity(f.selection_items, 'item')} can show "
        f"gains from {f.detectable:.2f} on."
    )
    read = f"Read the edits with `skillfit report {f.run}`."
    if best.high <= _WORTH_HAVING or f.difference <= 0:
        return Diagnosis("useless edits", message, f"{read} {_more_items_or_better_edits(f)}")
    step = f"{read} If they look right, train longer (train.num_epochs) or add selection items."
    return Diagnosis("too little evidence", message, f"{step} If not: {_better_edits(f)}")


def _best_effect(f: Facts) -> EditEffect | None:
    measured = [effect for effect in f.effects if effect.mean is not None]
    return max(measured, key=lambda effect: effect.mean or 0.0) if measured else None


def _small_gain(f: Facts) -> Diagnosis | None:
    if f.ship != "inconclusive" or f.difference <= 0:
        return None
    shown = (
        f"The gain of {f.difference:+.3f} is not proven: {f.selection_items} items can show gains "
        f"from {f.detectable:.2f} on"
    )
    if f.selection_items < _FEW_ITEMS:
        message = f"{shown}."
        return Diagnosis("too few items", message, "Add items to the selection split.")
    if f.detectable > _TOO_NOISY:
        message = f"{shown}, with scores this noisy."
        step = "Lower the agent's temperature, or add items."
        return Diagnosis("noisy agent", message, step)
    message = f"{shown}."
    return Diagnosis("no power", message, "Add items, or train longer (train.num_epochs).")


def _useless_edits(f: Facts) -> Diagnosis | None:
    best = _best_effect(f)
    if best is None or f.accepted:
        return None
    measured = quantity(sum(effect.mean is not None for effect in f.effects), "edit")
    tried = f"{measured} measured, and none helped for sure"
    likely = f"the best is {with_interval(best.mean or 0.0, best.low, best.high)}"
    if best.high > f.detectable / 2 and best.high > _WORTH_HAVING:
        message = f"{tried} yet: {likely}."
        step = "Train longer (train.num_epochs), or add selection items."
        return Diagnosis("too little evidence", message, step)
    message = f"{tried}: {likely}."
    return Diagnosis("useless edits", message, _more_items_or_better_edits(f))


def _rejected(f: Facts) -> Diagnosis | None:
    if f.effects or f.accepted:
        return None
    steps = quantity(f.steps, "step")
    message = f"In {steps}, no candidate scored above the initial skill."
    step = f"{_more_items_or_better_edits(f)} Or train more epochs."
    return Diagnosis("useless edits", message, step)


def _nothing_held(f: Facts) -> Diagnosis:
    where = "on fresh rollouts" if f.verified else "on the selection split, without a ship test"
    message = (
        f"Accepted steps: {f.accepted} of {f.steps}. Nothing held up {where} ({f.difference:+.3f})."
    )
    step = f"See which edits looked good with `skillfit report {f.run}`; add selection items."
    return Diagnosis("did not hold", message, step)


_CAUSES: tuple[Callable[[Facts], Diagnosis | None], ...] = (
    _improved,
    _failed_rollouts,
    _candidates_failed,
    _comparison_failed,
    _budget_before_baseline,
    _gold_rejected,
    _blind_grader,
    _not_cheaper,
    _saturated,
    _optimizer_unreachable,
    _budget_before_steps,
    _nothing_proposed,
    _all_leaked,
    _none_selected,
    _not_applicable,
    _out_of_reach,
    _second_grader,
    _fit_only,
    _cut_short,
    _only_pending,
    _small_gain,
    _useless_edits,
    _rejected,
)
