"""Is this worth optimising? Each check turns measured facts into go, warn or stop, with the reason
a person needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from skillfit.gate.statistics import detectable_effect, interval
from skillfit.run.records import CheckResult

Level = Literal["go", "warn", "stop"]
SATURATED = 0.98
SAYS_ENOUGH = 300  # tokens: half of a shorter skill may be missed by nobody


def overall(checks: Sequence[CheckResult]) -> Level:
    """The worst of them."""
    return max((check.verdict for check in checks), key=("go", "warn", "stop").index, default="go")


def gold_check(
    scores: Mapping[str, float | None], name: str = "gold", grader: str = "The grader"
) -> CheckResult:
    """Gold answers handed to the grader must score 1. None: that item has no gold answer to try."""
    tried = {item: score for item, score in scores.items() if score is not None}
    wrong = sorted(item for item, score in tried.items() if score < 1)
    if not tried:
        return CheckResult(name, "warn", f"No gold answers to check {grader.lower()} with.")
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
    full: float,
    gutted: Mapping[str, Sequence[float]],
    *,
    constant: float | None = None,
) -> CheckResult:
    """Does the grader tell answers apart?

    `gutted` maps a crippled variant (empty answer, half the skill gone) to its paired item
    differences: full minus variant. Only a grader that gives an empty answer as much as a real
    one, or every answer the same score above 0, is blind. A skill that makes no difference is a
    warning: it may lack what the tasks need. `constant` is the score that all probes got, if they
    all got one; all 0 is no sign of blindness either.
    """
    lost = {name: interval(differences) for name, differences in gutted.items()}
    detail = {name: [round(loss.low, 4), round(loss.high, 4)] for name, loss in lost.items()}
    if constant is not None and 0 < constant < 1:
        message = (
            f"The grader is blind: every rollout scores {constant:.2f}, whatever "
            "the skill and the answer."
        )
        return CheckResult("blind", "stop", message, detail)
    empty = lost.get("empty answer")
    if empty is not None and full > 0 and empty.mean <= 0:
        return CheckResult(
            "blind",
            "stop",
            f"The grader is blind: an empty answer scores as high as the agent's ({full:.2f}).",
            detail,
        )
    same = [name for name, loss in lost.items() if name != "empty answer" and loss.mean <= 0]
    if same:
        return CheckResult(
            "blind",
            "warn",
            f"The skill makes no measurable difference yet: with {same[0]} the score is no lower.",
            detail,
        )
    return CheckResult("blind", "go", "Worse answers score lower.", detail)


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


def power_check(items: int, noise: float | None, baseline: float, repeats: int = 4) -> CheckResult:
    """What the ship test can see with this selection split. `noise` is the within-item variance
    from repeats.
    """
    if items < 5:
        message = (
            f"{items} selection items can't prove an improvement at 5 %: results "
            "will be unverified suggestions."
        )
        return CheckResult("power", "warn", message, {"items": items})
    rollout_noise = baseline * (1 - baseline) / 2 if noise is None else noise
    effect = detectable_effect(items, rollout_noise, repeats)
    detail = {"items": items, "noise": rollout_noise, "detectable": effect}
    message = (
        f"{items} items, rollout noise {rollout_noise**0.5:.2f}: gains from about "
        f"{effect:.2f} on can be shown."
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


def cost_check(typical: float, high: float, cap: float | None) -> CheckResult:
    """Estimated dollars of the whole plan against the cap."""
    detail = {"typical": typical, "high": high, "cap": cap}
    about = f"The plan costs about ${typical:.2f} (${high:.2f} at the most)"
    if cap is not None and typical > cap:
        message = f"{about}; the cap of ${cap:.2f} ends it early."
        return CheckResult("cost", "warn", message, detail)
    return CheckResult("cost", "go", f"{about}.", detail)
