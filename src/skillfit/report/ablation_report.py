"""The report of `skillfit ablate`: every part of a skill with its worth, as one HTML file."""

from __future__ import annotations

from pathlib import Path

from skillfit.report.forest import ForestRow, forest_plot
from skillfit.report.templates import asset, report_environment
from skillfit.report.verdict_text import points
from skillfit.run.events import AblationFinished
from skillfit.run.records import UnitWorth
from skillfit.skill.document import write_whole


def write_ablation_report(event: AblationFinished, skill_name: str, out: Path) -> Path:
    rows = [_row(unit) for unit in sorted(event.units, key=lambda unit: (-unit.mean, unit.start))]
    page = report_environment().get_template("ablation.html.j2")
    text = page.render(
        title=f"{skill_name}: what each line is worth",
        skill_name=skill_name,
        event=event,
        saved=event.tokens_before - event.tokens_after,
        cut=[unit for unit in event.units if unit.decision == "cut"],
        forest=forest_plot(rows, heading="Part of the skill", longest=240),
        comparison=_comparison(event),
        style=asset("base.css") + asset("report.css"),
    )
    write_whole(out, text.encode())
    return out


def _row(unit: UnitWorth) -> ForestRow:
    return ForestRow(
        label=unit.text,
        mean=unit.mean if unit.rollouts else None,
        low=unit.low,
        high=unit.high,
        status=unit.decision,
        note=f"{unit.tokens} tokens",
        id=unit.id,
        rollouts=unit.rollouts,
    )


def _comparison(event: AblationFinished) -> str:
    """The check before a cut, in one sentence."""
    if event.comparison is None:
        return ""
    low, high = event.comparison.interval
    found = f"{points(event.comparison.difference)} points ({points(low)} to {points(high)})"
    if event.holds:
        return f"On fresh rollouts the shorter skill is as good: {found}."
    return f"On fresh rollouts the shorter skill is worse ({found}), so nothing was cut."
