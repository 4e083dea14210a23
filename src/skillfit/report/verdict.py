"""The verdict of a run in one sentence, honest about what was not measured."""

from __future__ import annotations

from skillfit.report.story import Point, RunStory


def percent(score: float) -> str:
    return f"{score * 100:.1f}".removesuffix(".0") + "\u00a0%"


def points(difference: float) -> str:
    """A difference of scores, in percentage points, with a real minus sign."""
    return f"{difference * 100:+.1f}".replace("-", "−")


def sentence(story: RunStory) -> str:
    if story.state == "finished":
        return _ENDINGS.get(story.finish_reason, _no_claim)(story) + _gap(story)
    done = sum(decided.name.startswith("step_") for decided in story.decided)
    where = f"after {done} of {story.total_steps} steps" if done else "before the first step was done"
    if story.state == "running":
        return f"Still running, {where}{_so_far(story)}"
    if story.state == "waiting":
        return f"Waiting for answers to handoff prompts, {where}{_so_far(story)}"
    return f"Stopped {where}, and can go on from there{_so_far(story)}"


def _improved(story: RunStory) -> str:
    ship, before, after = story.ship, story.point("ship_initial"), story.point("ship_best")
    if ship is None or before is None or after is None:
        return f"The skill scores higher on the selection split, with no check on fresh rollouts{_so_far(story, note='')}"
    return f"The skill is better: {percent(before.score)} → {percent(after.score)} on fresh rollouts, {_difference(story)}."


def _inconclusive(story: RunStory) -> str:
    if story.ship is None:
        return _no_claim(story)
    return f"It can't be told whether the skill is better: {_difference(story)}, {story.ship.reason}."


def _no_improvement(story: RunStory) -> str:
    if not story.changed:
        return "No improvement: no candidate beat the initial skill, which stays as it is."
    if story.ship is None:
        return "No improvement: no skill scored above the initial one on the selection split."
    return f"No improvement: {_difference(story)} on fresh rollouts."


def _unverified(story: RunStory) -> str:
    return f"A suggestion, not verified: too few items for a selection split of their own{_so_far(story, note='')}"


def _budget(story: RunStory) -> str:
    return f"The budget was reached before the end, so nothing is verified{_so_far(story, note='')}"


def _infrastructure(story: RunStory) -> str:
    return f"The machinery failed before the end, so nothing can be said about the skill{_so_far(story, note='')}"


def _no_claim(story: RunStory) -> str:
    return f"Ended ({story.finish_reason.replace('_', ' ')}){_so_far(story)}"


_ENDINGS = {
    "improved": _improved,
    "inconclusive": _inconclusive,
    "no_improvement": _no_improvement,
    "unverified": _unverified,
    "budget": _budget,
    "infrastructure": _infrastructure,
}


def _gap(story: RunStory) -> str:
    if story.ship is None or story.ship.gap is None:
        return ""
    return f" That is by the second grader; by the one trained on, the gain differs by {points(story.ship.gap)} points."


def _difference(story: RunStory) -> str:
    if story.ship is None:
        return ""
    low, high = story.ship.interval
    return f"{points(story.ship.difference)} points (90 % interval {points(low)} to {points(high)})"


def _so_far(story: RunStory, note: str = ", not verified") -> str:
    """The best score seen, as an end of the sentence."""
    first = story.point("baseline")
    carried = [point for point in story.points if point.split == "selection" and point.decision == "accept"]
    if first is None:
        return "; nothing is measured yet."
    best: Point = max(carried, key=lambda point: point.score)
    if not story.changed or best.name == "baseline":
        return f"; the initial skill stands at {percent(first.score)} on the selection split."
    return f"; best so far {percent(best.score)} against {percent(first.score)} of the initial skill on the selection split{note}."
