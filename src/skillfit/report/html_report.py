"""The report of a run: one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from skillfit.errors import InputError
from skillfit.report.ablation_report import ablation_report
from skillfit.report.forest import edit_row, forest_plot
from skillfit.report.markdown_report import markdown_report
from skillfit.report.read_story import open_run, read_story
from skillfit.report.report_facts import facts, next_commands
from skillfit.report.report_settings import settings_of_config
from skillfit.report.score_chart import score_chart
from skillfit.report.skill_margin import skill_lines
from skillfit.report.story import RunStory
from skillfit.report.story_edits import by_effect
from skillfit.report.story_items import (
    ItemSummary,
    count_changes,
    read_items,
    types_of,
    worst_first,
)
from skillfit.report.story_parts import EditSummary
from skillfit.report.templates import asset, report_environment
from skillfit.report.trajectory import Trajectory, read_trajectories
from skillfit.skill.document import write_whole

_ITEMS = 600  # listed in the file
_PAGE = 25  # items or rows shown at once
_EDITS = 60  # rows of the forest plot
Row = TypeVar("Row")


def write_report(
    run_dir: Path, out: Path | None = None, *, format: str = "html", share: bool = False
) -> Path:
    """The report of the run in `run_dir`, finished or not. `out` is the file, by default
    report.html or report.md in the run. `share` leaves out the paths of this machine.
    """
    if format not in ("html", "md"):
        raise InputError(f"Unknown report format {format!r}.", hint="Use html or md.")
    story = read_story(run_dir)
    text = markdown_report(story) if format == "md" else html_report(story)
    if share:
        text = without_paths(text, story)
    path = out or Path(run_dir) / f"report.{format}"
    write_whole(path, text.encode())
    return path


def html_report(story: RunStory) -> str:
    """The self-contained page, with the trajectories of the items it lists."""
    if story.ablation is not None:
        return ablation_report(story.ablation, story.skill_name, story.initial_skill)
    with open_run(Path(story.path)) as run:
        items = worst_first(read_items(run.events, story))
        listed = items[:_ITEMS]
        trajectories = read_trajectories(run.journal, listed)
    context = report_context(story, items, trajectories)
    context |= {"script": asset("report.js"), "style": asset("base.css") + asset("report.css")}
    return report_environment().get_template("report.html.j2").render(context)


def report_context(
    story: RunStory, items: Sequence[ItemSummary], trajectories: Mapping[str, Trajectory]
) -> dict[str, Any]:
    """What report.html.j2 needs."""
    edits = by_effect(story.edits)
    listed = items[:_ITEMS]
    return {
        "story": story,
        "title": f"{story.skill_name}: skillfit report",
        "facts": facts(story),
        "chart": score_chart(story),
        "small_charts": [
            score_chart(story, 340, 260, ["selection"]),
            score_chart(story, 340, 260, ["ship", "test"]),
        ],
        "forest": forest_plot([edit_row(edit) for edit in _main_edits(edits)]),
        "edits_cut": max(0, len(edits) - _EDITS),
        "lines": skill_lines(story.found_skill, story.edits),
        "types": types_of(items) or story.types,
        "changes": count_changes(items),
        "items": listed,
        "item_pages": _pages(listed),
        "items_cut": len(items) - len(listed),
        "gate_pages": _pages(story.gates),
        "rejections": story.rejections[:200],
        "rejections_cut": max(0, len(story.rejections) - 200),
        "settings": settings_of_config(story.config),
        "commands": next_commands(story),
        "trajectories": trajectories,
    }


def _main_edits(edits: Sequence[EditSummary]) -> Sequence[EditSummary]:
    """The rows of the plot: when there are too many, those furthest from 0, in the given order."""
    if len(edits) <= _EDITS:
        return edits
    strongest = sorted(edits, key=lambda edit: -abs(edit.mean or 0.0))[:_EDITS]
    kept = {edit.id for edit in strongest}
    return [edit for edit in edits if edit.id in kept]


def _pages(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[at : at + _PAGE] for at in range(0, len(rows), _PAGE)]


def without_paths(text: str, story: RunStory) -> str:
    """The page without the folders of this machine: only file names are left."""
    named = [story.data.skill, story.data.tasks, str(story.config.get("env", {}).get("folder", ""))]
    folders = {str(Path(story.path).parent), str(Path.home()), str(Path.cwd())}
    for path in named:
        if path.startswith("/"):
            folders.add(str(Path(path).parent))
    for folder in sorted(folders, key=len, reverse=True):
        if len(folder) < 2:
            continue
        for written in {folder, html.escape(folder), json.dumps(folder)[1:-1]}:
            text = text.replace(f"{written}/", "").replace(written, "…")
    return text.replace("~/", "")
