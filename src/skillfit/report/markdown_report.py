"""The report as markdown, for a pull request."""

from __future__ import annotations

from skillfit.report.report_facts import UNPRICED, comparisons
from skillfit.report.story import RunStory
from skillfit.report.story_edits import by_effect
from skillfit.report.templates import report_environment
from skillfit.report.verdict_text import dollars
from skillfit.skill import diff
from skillfit.skill.regions import code_fence

_NOTICES = 30
_EDITS = 20


def markdown_report(story: RunStory) -> str:
    text = diff(story.initial_skill, story.found_skill)
    cost = dollars(story.total.usd) or UNPRICED
    used = f"{story.total.calls:,} calls, {story.total.tokens:,} tokens, {cost}"
    plain = report_environment().overlay(autoescape=False)
    return plain.get_template("report.md.j2").render(
        story=story,
        rows=comparisons(story),
        fence=code_fence(text),
        diff=text,
        cost=used,
        edits=[edit for edit in by_effect(story.edits) if edit.measured][:_EDITS],
        notices=story.notices[:_NOTICES],
    )
