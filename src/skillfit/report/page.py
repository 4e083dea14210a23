"""The score curve as SVG: what was carried on, what was turned down, and the checks at the end,
each with its interval.

Trajectories for a page: read from the journal, cut so that the file stays small, and what was cut
is said.

The story as a page and as a comment for a pull request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import ceil, floor
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from skillfit.config import Config
from skillfit.errors import InputError
from skillfit.models.spec import ModelSpec
from skillfit.report.story import ItemTold, Point, RunStory, Side, percent, points, read_story
from skillfit.rollout.outcome import Outcome
from skillfit.run.directory import RunDirectory
from skillfit.run.journal import Journal
from skillfit.skill import diff
from skillfit.skill.document import write_whole
from skillfit.skill.owned_regions import code_fence

_TOP, _BOTTOM, _LEFT, _RIGHT = 30, 52, 44, 46
_MIN_SPAN = 0.3  # a narrower axis would make noise look like news
_GAP = 0.7  # of a column, before each check at the end
_PANELS = {
    "selection": "selection split, while training",
    "ship": "fresh rollouts",
    "test": "test split",
}


@dataclass(frozen=True, slots=True)
class _Frame:
    width: int
    height: int
    low: float
    high: float

    def y(self, score: float) -> float:
        share = (score - self.low) / (self.high - self.low)
        return round(self.height - _BOTTOM - share * (self.height - _TOP - _BOTTOM), 1)

    @property
    def ticks(self) -> list[float]:
        step = 0.1 if self.high - self.low <= 0.5 else 0.2
        return [
            tick / 10
            for tick in range(round(self.low * 10), round(self.high * 10) + 1, round(step * 10))
        ]


def chart(
    story: RunStory, width: int = 720, height: int = 320, splits: Sequence[str] = tuple(_PANELS)
) -> Markup:
    """The curve of these splits, drawn for about `width` pixels; empty when nothing was measured on
    them.
    """
    panels = [(split, points) for split in splits if (points := _shown(story, split))]
    if not panels:
        return Markup("")
    frame = _frame(story.points, width, height)
    columns = sum(len(points) for _, points in panels) + _GAP * (len(panels) - 1)
    step = (width - _LEFT - _RIGHT) / columns
    parts, at = [*_axis(frame)], _LEFT + step / 2
    for split, points in panels:
        places = [round(at + step * index, 1) for index in range(len(points))]
        parts += _panel(frame, split, points, places, step)
        at = places[-1] + step * (1 + _GAP)
    body = Markup("\n").join(parts)
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        width, height, _words(panels), body
    )


def _shown(story: RunStory, split: str) -> list[Point]:
    points = [point for point in story.points if point.split == split]
    same = {point.score for point in points if point.name == "test_best"}
    return [point for point in points if not (point.name == "test_final" and point.score in same)]


def _frame(points: Sequence[Point], width: int, height: int) -> _Frame:
    low, high = (
        floor(min(p.low for p in points) * 10) / 10,
        ceil(max(p.high for p in points) * 10) / 10,
    )
    high = min(1.0, max(high, low + _MIN_SPAN))
    return _Frame(width, height, min(low, round(high - _MIN_SPAN, 1)), high)


def _axis(frame: _Frame) -> Iterator[Markup]:
    for tick in frame.ticks:
        y = frame.y(tick)
        yield Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
            _LEFT, frame.width - _RIGHT, y, y
        )
        yield _text(_LEFT - 8, y + 4, percent(tick), "tick end")


def _panel(
    frame: _Frame, split: str, points: Sequence[Point], places: Sequence[float], step: float
) -> Iterator[Markup]:
    if places[0] > _LEFT + step:
        edge = places[0] - step * (0.5 + _GAP / 2)
        yield Markup('<line class="edge" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(
            edge, _TOP - 18, frame.height - _BOTTOM
        )
    yield _text(places[0] - step / 2 + 4, _TOP - 14, _PANELS[split], "title")
    carried = [
        (x, frame.y(p.score)) for x, p in zip(places, points, strict=True) if p.decision == "accept"
    ]
    for (x1, y1), (x2, y2) in pairwise(carried):
        corner = f"M{x1} {y1}H{x2}V{y2}" if split == "selection" else f"M{x1} {y1}L{x2} {y2}"
        yield Markup('<path class="carried" d="{}"/>').format(corner)
    last, every = len(points) - 1, max(1, ceil(38 / step))  # labels stand this far apart
    for index, (x, point) in enumerate(zip(places, points, strict=True)):
        yield _mark(frame, x, point)
        if index == 0 or ((last - index) % every == 0 and index >= every):
            yield _label(frame, x, point, value=split != "selection" or index in (0, last))


def _mark(frame: _Frame, x: float, point: Point) -> Markup:
    y, low, high = frame.y(point.score), frame.y(point.low), frame.y(point.high)
    told = f"{point.label}: {percent(point.score)} ({percent(point.low)} to {percent(point.high)}) on {point.items} items"
    shape, kind = f'<circle cx="{x}" cy="{y}" r="5"/>', "point"
    if point.decision != "accept":
        left, right, top, bottom = x - 5, x + 5, y - 5, y + 5
        shape, kind = (
            f'<path d="M{left} {top}L{right} {bottom}M{left} {bottom}L{right} {top}"/>',
            "point turned",
        )
        told = f"{told}, {point.decision}"
    line = f'<line class="range" x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>'
    return Markup('<g class="{}"><title>{}</title>{}</g>').format(kind, told, Markup(line + shape))


def _label(frame: _Frame, x: float, point: Point, *, value: bool) -> Markup:
    lines = point.label.replace("slow update", "slow").split()
    below = [
        _text(x, frame.height - _BOTTOM + 18 + 14 * row, line, "tick middle")
        for row, line in enumerate(lines)
    ]
    return Markup("").join(
        [*below, _text(x + 9, frame.y(point.score) - 8, percent(point.score), "value")]
        if value
        else below
    )


def _text(x: float, y: float, text: str, kind: str) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}">{}</text>').format(
        kind, round(x, 1), round(y, 1), text
    )


def _words(panels: Sequence[tuple[str, Sequence[Point]]]) -> str:
    """The curve for those who cannot see it."""
    told = [
        f"{_PANELS[split]}: " + ", ".join(f"{p.label} {percent(p.score)}" for p in points)
        for split, points in panels
    ]
    return "Scores. " + "; ".join(told)


_TEXT = 2_000  # characters of one turn
_TURNS = 24  # of one trajectory: the first and the last ones
_FILE = 1_500_000  # characters of all of them together


@dataclass(frozen=True, slots=True)
class Turn:
    who: str
    text: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    steps: tuple[Turn, ...]
    feedback: str = ""
    failure: str = ""
    cut: int = 0  # characters left out


def read_trajectories(journal: Journal, items: Iterable[ItemTold]) -> dict[str, Trajectory]:
    """By rollout key, in the items' order until the file's room is used up."""
    found: dict[str, Trajectory] = {}
    room = _FILE
    for key in (side.rollout for item in items for side in (item.before, item.after)):
        outcome = journal.get(key, Outcome) if key and key not in found else None
        if outcome is None:
            continue
        trajectory = shorten(outcome)
        room -= sum(len(turn.text) for turn in trajectory.steps)
        if room < 0:
            break
        found[key] = trajectory
    return found


def shorten(outcome: Outcome) -> Trajectory:
    attempt, score = outcome.attempt, outcome.score
    turns = (
        [Turn(_who(step.kind, step.role, step.name), step.text) for step in attempt.steps]
        if attempt
        else []
    )
    if (
        attempt
        and attempt.answer
        and (not turns or turns[-1].text.strip() != attempt.answer.strip())
    ):
        turns.append(Turn("answer", attempt.answer))
    kept = turns if len(turns) <= _TURNS else [*turns[: _TURNS // 2], *turns[-_TURNS // 2 :]]
    shown = tuple(Turn(turn.who, _cut(turn.text)) for turn in kept)
    feedback = "\n".join(filter(None, [score.feedback, *score.evidence])) if score else ""
    return Trajectory(
        steps=shown,
        feedback=_cut(feedback),
        failure=f"{outcome.failure.kind}: {_cut(outcome.failure.message)}"
        if outcome.failure
        else "",
        cut=sum(len(turn.text) for turn in turns)
        - sum(min(len(turn.text), _TEXT) for turn in kept),
    )


def _who(kind: str, role: str, name: str) -> str:
    return {"message": role, "tool_call": f"calls {name}", "tool_result": f"{name} gave"}.get(
        kind, kind
    )


def _cut(text: str) -> str:
    """The beginning and the end: what was asked for, and what came of it."""
    return text if len(text) <= _TEXT else f"{text[: _TEXT * 2 // 3]}\n…\n{text[-_TEXT // 3 :]}"


_ROLES = ("agent", "optimizer", "judge")
_ITEMS = 600  # listed on the page
_NOTICES = 60
_UNPRICED = "no price known"
_ORDER = ("broken", "fixed", "neither", "both")


def write_report(run_dir: Path, out: Path | None = None, *, format: str = "html") -> Path:
    """The report of the run in `run_dir`, finished or not; `out` is the file, by default
    report.html (report.md) in the run.
    """
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
    given = {
        "script": asset("script.js"),
        "style": asset("style.css"),
        "connect": "'none'",
        "title": title,
    }
    return (
        environment()
        .get_template("report.html.j2")
        .render(**view(story, with_trajectories=with_trajectories), **given)
    )


def view(story: RunStory, *, with_trajectories: bool = False) -> dict[str, Any]:
    """What story.html.j2 needs."""
    items = sorted(story.items, key=lambda item: (_ORDER.index(item.change), item.split, item.id))[
        :_ITEMS
    ]
    trajectories: dict[str, Trajectory] = {}
    if with_trajectories:
        with closing(RunDirectory.read(story.path)) as run:
            trajectories = read_trajectories(run.journal, items)
    return {
        "story": story,
        "facts": _facts(story),
        "chart": chart(story),
        "small_charts": [
            chart(story, 340, 260, ["selection"]),
            chart(story, 340, 260, ["ship", "test"]),
        ],
        "notes": {
            line.strip(): edit
            for edit in story.edits
            if edit.kept
            for line in edit.content.splitlines()
            if line.strip()
        },
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
    given = {
        "rows": _rows(story),
        "fence": code_fence(text),
        "diff": text,
        "cost": used,
        "notices": story.notices[:_NOTICES],
    }
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
        digest=lambda text: (
            "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        ),
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
    facts = [
        _compared(row) if story.changed else Fact(row.name, row.before, f"{row.items} items")
        for row in _rows(story)
    ]
    minutes = story.seconds / 60
    took = (
        f"{minutes:.0f} min"
        if minutes >= 10
        else f"{minutes:.1f} min"
        if minutes >= 1
        else f"{story.seconds:.0f} s"
    )
    return [
        *facts,
        Fact("Skill", f"{story.tokens[1]} tokens", f"{story.tokens[0]} at the start"),
        Fact(
            "Cost",
            _dollars(story.total.usd) or _UNPRICED,
            f"{story.total.calls:,} calls, {story.total.tokens:,} tokens",
        ),
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
    """Initial against best: on fresh rollouts and on the test split, or on the selection split
    where the run ended before that.
    """
    pairs = [
        ("Fresh rollouts", "ship_initial", "ship_best"),
        ("Test split", "test_baseline", "test_best"),
    ]
    found = [(name, story.point(before), story.point(after)) for name, before, after in pairs]
    rows = [
        _row(name, after.items, before.score, after.score)
        for name, before, after in found
        if before and after
    ]
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
    usual |= {
        f"model.{role}.{key}": value
        for role in _ROLES
        for key, value in _flat(ModelSpec(id="").model_dump(mode="json"))
    }
    pairs = _flat(config)
    home = str(Path.home())
    shown = [(key, value.replace(home, "~").strip('"')) for key, value in pairs]
    same = {key for key, value in pairs if usual.get(key) == value}
    return Settings(
        [pair for pair in shown if pair[0] not in same], [pair for pair in shown if pair[0] in same]
    )


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
        lines.insert(
            0, f"skillfit resume {run}      # goes on where it stopped, pays for nothing twice"
        )
    elif story.changed:
        lines.insert(0, f"skillfit apply {run}      # put the best skill into its folder")
    return "\n".join(lines)
