"""The story as a page and as a comment for a pull request."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from skillfit.config import Config
from skillfit.errors import InputError
from skillfit.models.spec import ModelSpec
from skillfit.report.chart import chart
from skillfit.report.story import RunStory, Side
from skillfit.report.tell import read_story
from skillfit.report.trajectories import Trajectory, read_trajectories
from skillfit.report.verdict import percent, points
from skillfit.run.directory import RunDirectory
from skillfit.skill import diff
from skillfit.skill.memory import code_fence
from skillfit.skill.package import write_whole

_ROLES = ("agent", "optimizer", "judge")
_ITEMS = 600  # listed on the page
_NOTICES = 60
_UNPRICED = "no price known"
_ORDER = ("broken", "fixed", "neither", "both")


def write_report(run_dir: Path, out: Path | None = None, *, format: str = "html") -> Path:
    """The report of the run in `run_dir`, finished or not; `out` is the file, by default report.html (report.md) in the run."""
    if format not in ("html", "md"):
        raise InputError(f"There is no report format {format!r}.", hint="It is html or md.")
    story = read_story(run_dir)
    path = out or Path(run_dir) / f"report.{format}"
    text = page(story, with_trajectories=True) if format == "html" else markdown(story)
    write_whole(path, text.encode())
    return path


def page(story: RunStory, *, with_trajectories: bool = False) -> str:
    """The self-contained HTML page."""
    title = f"{story.skill_name}: skillfit report"
    given = {"script": asset("script.js"), "style": asset("style.css"), "connect": "'none'", "title": title}
    return environment().get_template("report.html.j2").render(**view(story, with_trajectories=with_trajectories), **given)


def view(story: RunStory, *, with_trajectories: bool = False) -> dict[str, Any]:
    """What story.html.j2 needs."""
    items = sorted(story.items, key=lambda item: (_ORDER.index(item.change), item.split, item.id))[:_ITEMS]
    trajectories: dict[str, Trajectory] = {}
    if with_trajectories:
        with closing(RunDirectory.read(story.path)) as run:
            trajectories = read_trajectories(run.journal, items)
    return {
        "story": story,
        "facts": _facts(story),
        "chart": chart(story),
        "small_charts": [chart(story, 340, 260, ["selection"]), chart(story, 340, 260, ["ship", "test"])],
        "notes": {line.strip(): edit for edit in story.edits if edit.kept for line in edit.content.splitlines() if line.strip()},
        "items": items,
        "items_cut": len(story.items) - len(items),
        "notices": story.notices[:_NOTICES],
        "notices_cut": max(0, len(story.notices) - _NOTICES),
        "settings": _settings(story.config),
        "repeat": _repeat(story),
        "trajectories": trajectories,
    }


def markdown(story: RunStory) -> str:
    text = diff(story.initial_skill, story.best_skill)
    used = f"{story.total.calls:,} calls, {story.total.tokens:,} tokens, {_dollars(story.total.usd) or _UNPRICED}"
    given = {"rows": _rows(story), "fence": code_fence(text), "diff": text, "cost": used, "notices": story.notices[:_NOTICES]}
    plain = environment().overlay(autoescape=False)
    return plain.get_template("report.md.j2").render(story=story, **given)


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("skillfit.report", "assets"),
        autoescape=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters.update(
        digest=lambda text: "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(),
        words=lambda text: re.sub(r"_0*", " ", text),
        short=lambda text, limit: text if len(text) <= limit else text[: limit - 1].rstrip() + "…",
        line=lambda text: " ".join(text.split()),
        points=points,
        scores=_scores,
        dollars=_dollars,
    )
    return made


@cache
def asset(name: str) -> Markup:
    """A file of ours, trusted as it is."""
    return Markup((Path(__file__).parent / "assets" / name).read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str
    note: str = ""


def _facts(story: RunStory) -> list[Fact]:
    facts = [_compared(row) if story.changed else Fact(row.name, row.before, f"{row.items} items") for row in _rows(story)]
    minutes = story.seconds / 60
    took = f"{minutes:.0f} min" if minutes >= 10 else f"{minutes:.1f} min" if minutes >= 1 else f"{story.seconds:.0f} s"
    return [
        *facts,
        Fact("Skill", f"{story.tokens[1]} tokens", f"{story.tokens[0]} at the start"),
        Fact("Cost", _dollars(story.total.usd) or _UNPRICED, f"{story.total.calls:,} calls, {story.total.tokens:,} tokens"),
        Fact("Time", took),
    ]


def _compared(row: Row) -> Fact:
    return Fact(row.name, f"{row.before} → {row.after}", f"{row.difference}, {row.items} items")


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    items: int
    before: str
    after: str
    difference: str


def _rows(story: RunStory) -> list[Row]:
    """Initial against best: on fresh rollouts and on the test split, or on the selection split where the run ended before that."""
    pairs = [("Fresh rollouts", "ship_initial", "ship_best"), ("Test split", "test_baseline", "test_best")]
    found = [(name, story.point(before), story.point(after)) for name, before, after in pairs]
    rows = [_row(name, after.items, before.score, after.score) for name, before, after in found if before and after]
    first, scores = story.point("baseline"), story.selected()
    return rows or ([_row("Selection split", first.items, *scores)] if first and scores else [])


def _row(name: str, items: int, before: float, after: float) -> Row:
    return Row(name, items, percent(before), percent(after), f"{points(after - before)} points")


def _scores(side: Side) -> str:
    if not side.scores:
        return "failed" if side.failures else "–"
    if set(side.scores) <= {0.0, 1.0}:
        return f"{sum(side.scores):.0f}/{len(side.scores)}"
    return percent(side.mean or 0.0)


def _dollars(usd: float | None) -> str:
    return "" if usd is None else f"${usd:.2f}" if usd >= 1 or usd == 0 else f"${usd:.4f}"


@dataclass(frozen=True, slots=True)
class Settings:
    changed: list[tuple[str, str]]
    default: list[tuple[str, str]]


def _settings(config: Mapping[str, Any]) -> Settings:
    usual = dict(_flat(Config().model_dump(mode="json")))
    usual |= {f"model.{role}.{key}": value for role in _ROLES for key, value in _flat(ModelSpec(id="").model_dump(mode="json"))}
    pairs = _flat(config)
    home = str(Path.home())
    shown = [(key, value.replace(home, "~").strip('"')) for key, value in pairs]
    same = {key for key, value in pairs if usual.get(key) == value}
    return Settings([pair for pair in shown if pair[0] not in same], [pair for pair in shown if pair[0] in same])


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            rows += _flat(item, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, json.dumps(item, ensure_ascii=False)))
    return rows


def _repeat(story: RunStory) -> str:
    run = story.path.replace(str(Path.home()), "~")
    lines = [f"skillfit train {run}/config.json --run {run}-again"]
    if story.state != "finished":
        lines.insert(0, f"skillfit resume {run}      # goes on where it stopped, pays for nothing twice")
    elif story.changed:
        lines.insert(0, f"skillfit apply {run}      # put the best skill into its folder")
    return "\n".join(lines)
