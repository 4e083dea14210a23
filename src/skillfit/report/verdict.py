"""The verdict of a run in one sentence, honest about what was not measured."""

from __future__ import annotations

from skillfit.report.story import RunStory
from skillfit.run.events import ShipTested

_GOING_ON = {
    "running": "Still running, {where}",
    "waiting": "Waiting for answers to handoff prompts, {where}",
    "stopped": "Stopped {where}, and can go on from there",
}
_NOT_VERIFIED = {
    "improved": "The skill scores higher on the selection split, with no check on fresh rollouts",
    "unverified": "A suggestion, not verified: too few items for a selection split of their own",
    "budget": "The budget was reached before the end, so nothing is verified",
    "infrastructure": "The machinery failed before the end, so nothing can be said about the skill",
}


def percent(score: float) -> str:
    return f"{score * 100:.1f}".removesuffix(".0") + "\u00a0%"


def points(difference: float) -> str:
    """A difference of scores, in percentage points, with a real minus sign."""
    return f"{difference * 100:+.1f}".replace("-", "−")


def sentence(story: RunStory) -> str:
    if story.state == "finished":
        return _ending(story) + _gap(story)
    done = sum(decided.name.startswith("step_") for decided in story.decided)
    where = f"after {done} of {story.total_steps} steps" if done else "before the first step was done"
    return _GOING_ON[story.state].format(where=where) + _so_far(story)


def _ending(story: RunStory) -> str:
    reason, ship, before, after = story.finish_reason, story.ship, story.point("ship_initial"), story.point("ship_best")
    if reason == "no_improvement" and not story.changed:
        return "No improvement: no candidate beat the initial skill, which stays as it is."
    if reason == "no_improvement" and ship is None:
        return "No improvement: no skill scored above the initial one on the selection split."
    if reason == "no_improvement" and ship:
        return f"No improvement: {_difference(ship)} on fresh rollouts."
    if reason == "improved" and ship and before and after:
        return f"The skill is better: {percent(before.score)} → {percent(after.score)} on fresh rollouts, {_difference(ship)}."
    if reason == "inconclusive" and ship:
        return f"It can't be told whether the skill is better: {_difference(ship)}, {ship.evidence.get('reason', '')}."
    if reason == "budget" and ship:
        return f"The budget was reached after the ship test: {ship.verdict}, {_difference(ship)} on fresh rollouts."
    if reason in _NOT_VERIFIED:
        return _NOT_VERIFIED[reason] + _so_far(story, note="")
    return f"Ended ({reason.replace('_', ' ')}){_so_far(story)}"


def _gap(story: RunStory) -> str:
    """With a second grader: the gain under the one that was trained on, minus the gain that the verdict is about."""
    gap = story.ship.evidence.get("gap") if story.ship else None
    if gap is None:
        return ""
    differs = f"differs by {points(gap)} points" if round(gap, 3) else "is the same"
    return f" That is by the second grader; by the one trained on, the gain {differs}."


def _difference(ship: ShipTested) -> str:
    low, high = ship.interval
    return f"{points(ship.difference)} points (90 % interval {points(low)} to {points(high)})"


def _so_far(story: RunStory, note: str = ", not verified") -> str:
    """The best score seen, as an end of the sentence."""
    scores = story.selected()
    if scores is None:
        return "; nothing is measured yet."
    first, best = map(percent, scores)
    if not story.changed or best == first:
        return f"; the initial skill stands at {first} on the selection split."
    return f"; best so far {best} against {first} of the initial skill on the selection split{note}."
