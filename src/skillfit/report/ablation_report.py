"""The report of `skillfit ablate`: every part of a skill with its worth, as one HTML file."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from skillfit.report.forest import ForestRow, forest_plot
from skillfit.report.skill_margin import unit_lines
from skillfit.report.templates import asset, report_environment
from skillfit.report.verdict_text import ablation_sentence
from skillfit.run.events import AblationFinished
from skillfit.run.records import UnitWorth
from skillfit.skill.document import write_whole


def write_ablation_report(
    event: AblationFinished, skill_name: str, out: Path, skill: str = ""
) -> Path:
    """`skill`: the whole text, to show it with the worth of each part in the margin."""
    write_whole(out, ablation_report(event, skill_name, skill).encode())
    return out


def ablation_report(event: AblationFinished, skill_name: str, skill: str = "") -> str:
    return (
        report_environment()
        .get_template("ablation.html.j2")
        .render(
            title=f"{skill_name}: what each part is worth",
            skill_name=skill_name,
            event=event,
            verdict=ablation_sentence(event),
            forest=unit_forest(event),
            lines=unit_lines(skill, event.units) if skill else (),
            script=asset("report.js"),
            style=asset("base.css") + asset("report.css"),
        )
    )


def unit_forest(event: AblationFinished) -> Markup:
    """The parts from the most to the least valuable."""
    units = sorted(event.units, key=lambda unit: (-unit.mean, unit.start))
    return forest_plot([_row(unit) for unit in units], heading="Part of the skill", longest=240)


def _row(unit: UnitWorth) -> ForestRow:
    return ForestRow(
        label=unit.text,
        mean=unit.mean if unit.rollouts else None,
        low=unit.low,
        high=unit.high,
        status=unit.decision,
        note=f"{unit.id}, {unit.tokens} tokens",
        id=unit.id,
        rollouts=unit.rollouts,
    )
