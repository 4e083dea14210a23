"""The reports of runs: one HTML file that loads nothing from elsewhere, or markdown for a pull
request. `skillfit ablate` has a report of its own.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from markupsafe import Markup

from skillfit.amounts import dollars
from skillfit.atomic_write import write_whole
from skillfit.config import Config
from skillfit.errors import InputError
from skillfit.models.protocol import ROLES, ModelSpec
from skillfit.report.charts import ForestRow, edit_row, forest_plot, score_chart
from skillfit.report.read_story import open_run, read_story
from skillfit.report.skill_margin import skill_lines, unit_lines
from skillfit.report.story import EditSummary, RunStory
from skillfit.report.story_evidence import by_effect
from skillfit.report.story_items import (
    ItemSummary,
    Trajectory,
    count_changes,
    read_items,
    read_trajectories,
    types_of,
    worst_first,
)
from skillfit.report.templates import asset, report_environment
from skillfit.report.verdict_text import (
    UNPRICED,
    ablation_sentence,
    comparisons,
    facts,
    next_commands,
)
from skillfit.run.events import AblationFinished
from skillfit.run.records import RecordedConfig, UnitWorth
from skillfit.skill import diff
from skillfit.skill.regions import code_fence

_ITEMS = 600  # listed in the file
_PAGE = 25  # items or rows shown at once
_EDITS = 60  # rows of the forest plot
_MARKDOWN_EDITS = 20
_MARKDOWN_NOTICES = 30
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
) -> dict[str, object]:
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
        "edits_measured": any(edit.measured for edit in edits),
        "lines": skill_lines(story.found_skill, story.edits),
        "types": types_of(items) or story.types,
        "changes": count_changes(items),
        "compared": any(item.difference is not None for item in items),
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
    """The rows of the plot: when there are too many, those in the skill and those furthest from 0,
    in the given order.
    """
    if len(edits) <= _EDITS:
        return edits
    strongest = sorted(edits, key=lambda edit: (not edit.in_best, -abs(edit.mean or 0.0)))[:_EDITS]
    kept = {edit.id for edit in strongest}
    return [edit for edit in edits if edit.id in kept]


def _pages(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[at : at + _PAGE] for at in range(0, len(rows), _PAGE)]


def without_paths(text: str, story: RunStory) -> str:
    """The page without the folders of this machine: only file names are left."""
    env, models = story.config.settings.env, story.config.settings.model.by_role()
    named = [story.data.skill, story.data.tasks, env.folder, env.corpus]
    # local/PATH.gguf names a file of this machine
    named += [spec.id.partition("/")[2] for spec in models.values()]
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
        edits=[edit for edit in by_effect(story.edits) if edit.measured][:_MARKDOWN_EDITS],
        notices=story.notices[:_MARKDOWN_NOTICES],
    )


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
    return forest_plot(
        [_unit_row(unit) for unit in units], heading="Part of the skill", longest=240
    )


def _unit_row(unit: UnitWorth) -> ForestRow:
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


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run: those that differ from the defaults, and the others."""

    changed: tuple[Setting, ...]
    default: tuple[Setting, ...]


def settings_of_config(config: RecordedConfig) -> Settings:
    usual = {
        setting.key: setting.value for setting in flat_settings(Config().model_dump(mode="json"))
    }
    for role in ROLES:
        for setting in flat_settings(ModelSpec(id="").model_dump(mode="json"), f"model.{role}."):
            usual.setdefault(setting.key, setting.value)
    pairs = flat_settings(config.root)
    home = str(Path.home())
    shown = [Setting(pair.key, pair.value.replace(home, "~").strip('"')) for pair in pairs]
    same = [usual.get(pair.key) == pair.value for pair in pairs]
    return Settings(
        changed=tuple(one for one, usual in zip(shown, same, strict=True) if not usual),
        default=tuple(one for one, usual in zip(shown, same, strict=True) if usual),
    )


def flat_settings(value: Mapping[str, Any], prefix: str = "") -> list[Setting]:
    """Dotted keys with their values as JSON."""
    rows: list[Setting] = []
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            rows += flat_settings(item, f"{prefix}{name}.")
        else:
            rows.append(Setting(prefix + name, json.dumps(item, ensure_ascii=False, default=str)))
    return rows
