"""The score curve as SVG: what was carried on, what was turned down, and the checks at the end, each with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor

from markupsafe import Markup

from skillfit.report.story import Point, RunStory
from skillfit.report.verdict import percent

_TOP, _BOTTOM, _LEFT, _RIGHT = 30, 52, 44, 46
_MIN_SPAN = 0.3  # a narrower axis would make noise look like news
_GAP = 0.7  # of a column, before each check at the end
_PANELS = {"selection": "selection split, while training", "ship": "fresh rollouts", "test": "test split"}


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
        return [tick / 10 for tick in range(round(self.low * 10), round(self.high * 10) + 1, round(step * 10))]


def chart(story: RunStory, width: int = 720, height: int = 320, splits: Sequence[str] = tuple(_PANELS)) -> Markup:
    """The curve of these splits, drawn for about `width` pixels; empty when nothing was measured on them."""
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
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(width, height, _words(panels), body)


def _shown(story: RunStory, split: str) -> list[Point]:
    points = [point for point in story.points if point.split == split]
    same = {point.score for point in points if point.name == "test_best"}
    return [point for point in points if not (point.name == "test_final" and point.score in same)]


def _frame(points: Sequence[Point], width: int, height: int) -> _Frame:
    low, high = (floor(min(p.low for p in points) * 10) / 10, ceil(max(p.high for p in points) * 10) / 10)
    high = min(1.0, max(high, low + _MIN_SPAN))
    return _Frame(width, height, min(low, round(high - _MIN_SPAN, 1)), high)


def _axis(frame: _Frame) -> Iterator[Markup]:
    for tick in frame.ticks:
        y = frame.y(tick)
        yield Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(_LEFT, frame.width - _RIGHT, y, y)
        yield _text(_LEFT - 8, y + 4, percent(tick), "tick end")


def _panel(frame: _Frame, split: str, points: Sequence[Point], places: Sequence[float], step: float) -> Iterator[Markup]:
    if places[0] > _LEFT + step:
        edge = places[0] - step * (0.5 + _GAP / 2)
        yield Markup('<line class="edge" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(edge, _TOP - 18, frame.height - _BOTTOM)
    yield _text(places[0] - step / 2 + 4, _TOP - 14, _PANELS[split], "title")
    carried = [(x, frame.y(p.score)) for x, p in zip(places, points, strict=True) if p.decision == "accept"]
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
        shape, kind = f'<path d="M{left} {top}L{right} {bottom}M{left} {bottom}L{right} {top}"/>', "point turned"
        told = f"{told}, {point.decision}"
    line = f'<line class="range" x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>'
    return Markup('<g class="{}"><title>{}</title>{}</g>').format(kind, told, Markup(line + shape))


def _label(frame: _Frame, x: float, point: Point, *, value: bool) -> Markup:
    lines = point.label.replace("slow update", "slow").split()
    below = [_text(x, frame.height - _BOTTOM + 18 + 14 * row, line, "tick middle") for row, line in enumerate(lines)]
    return Markup("").join([*below, _text(x + 9, frame.y(point.score) - 8, percent(point.score), "value")] if value else below)


def _text(x: float, y: float, text: str, kind: str) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}">{}</text>').format(kind, round(x, 1), round(y, 1), text)


def _words(panels: Sequence[tuple[str, Sequence[Point]]]) -> str:
    """The curve for those who cannot see it."""
    told = [f"{_PANELS[split]}: " + ", ".join(f"{p.label} {percent(p.score)}" for p in points) for split, points in panels]
    return "Scores. " + "; ".join(told)
