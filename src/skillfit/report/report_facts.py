"""The numbers at the head of a report or page, and the commands that make sense next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from skillfit.report.story import RunStory
from skillfit.report.verdict_text import dollars, duration, percent, points

UNPRICED = "no price known"


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str
    note: str = ""


def facts(story: RunStory) -> list[Fact]:
    """The numbers at the head of a page."""
    found = []
    for row in comparisons(story):
        if story.changed:
            change = f"{row.difference}, {row.items} items"
            found.append(Fact(row.name, f"{row.before} → {row.after}", change))
        else:
            found.append(Fact(row.name, row.before, f"{row.items} items"))
    tried = len(story.edits)
    if tried:
        kept = len({edit.text for edit in story.edits if edit.in_best})
        promoted = len(story.edits_with("promoted"))
        found.append(Fact("Edits", f"{kept} in the skill", f"{tried} tried, {promoted} promoted"))
    found.append(Fact("Skill", f"{story.tokens[1]} tokens", f"{story.tokens[0]} at the start"))
    used = f"{story.total.calls:,} calls, {story.total.tokens:,} tokens"
    found.append(Fact("Cost", dollars(story.total.usd) or UNPRICED, used))
    found.append(Fact("Time", duration(story.seconds), f"{story.rollouts:,} rollouts"))
    return found


@dataclass(frozen=True, slots=True)
class ScoreComparison:
    """The initial and the found skill on the same items."""

    name: str
    items: int
    before: str
    after: str
    difference: str


def comparisons(story: RunStory) -> list[ScoreComparison]:
    """On fresh rollouts and on the test split, or on the selection split where the run ended before
    those.
    """
    found = []
    for name, first, last in (
        ("Fresh rollouts", "ship_initial", "ship_best"),
        ("Test split", "test_baseline", "test_best"),
    ):
        before, after = story.point(first), story.point(last)
        if before and after:
            found.append(_comparison(name, after.items, before.score, after.score))
    first_point, scores = story.point("baseline"), story.selected()
    if not found and first_point and scores:
        return [_comparison("Selection split", first_point.items, scores.initial, scores.best)]
    return found


def _comparison(name: str, items: int, before: float, after: float) -> ScoreComparison:
    change = f"{points(after - before)} points"
    return ScoreComparison(name, items, percent(before), percent(after), change)


def next_commands(story: RunStory) -> list[str]:
    """Commands that make sense now, with what they do."""
    run = story.path.replace(str(Path.home()), "~")
    lines = []
    if story.state == "stopped":
        lines.append(f"skillfit resume {run}   # nothing that was paid for is paid again")
    elif story.state == "waiting":
        lines.append(f"skillfit resume {run}   # after the prompts in {run}/handoff are answered")
    elif story.finish_reason == "improved":
        lines.append(f"skillfit apply {run}   # put the skill into its folder")
    elif story.failed:
        lines.append(f"skillfit resume {run}   # when the cause of the failures is fixed")
    elif story.finish_reason == "budget":
        lines.append(f"skillfit resume {run} budget.usd=10   # with a higher budget")
    lines.append(f"skillfit train {run}/config.json --run {run}-again   # repeat the run")
    return lines
