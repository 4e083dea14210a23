"""The score curve as SVG: skills the loop continued with, skills it rejected, and the comparisons
at the end, each with its interval. Also the small curve of a run list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor

from markupsafe import Markup

from skillfit.plain_text import percent
from skillfit.report.story import Point, RunStory

_TOP, _BOTTOM, _LEFT, _RIGHT = 44, 52, 44, 46
_MIN_SPAN = 0.3  # a narrower axis would make noise look large
_GAP = 0.7  # of a column, before each comparison at the end
_LABEL_WIDTH = 38
_END_WIDTH = 52  # of a column of the comparisons at the end
_VALUE_WIDTH = 46  # of a score above a point
_DENSE = 8  # pixels per column below which intervals are drawn as thin lines
PANELS = {
    "selection": "selection split, during training",
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
        step = 1 if self.high - self.low <= 0.5 else 2
        return [tick / 10 for tick in range(round(self.low * 10), round(self.high * 10) + 1, step)]


def score_chart(
    story: RunStory, width: int = 720, height: int = 320, splits: Sequence[str] = tuple(PANELS)
) -> Markup:
    """The curve of these splits, drawn for about `width` pixels; empty when nothing was measured on
    them.
    """
    panels = [(split, shown) for split in splits if (shown := _points_of(story, split))]
    if not panels:
        return Markup("")
    frame = _frame([point for _, shown in panels for point in shown], width, height)
    steps = _steps({split: len(shown) for split, shown in panels}, width - _LEFT - _RIGHT)
    parts, x = [*_axis(frame)], float(_LEFT)
    for split, shown in panels:
        step = steps[split]
        places = [round(x + step * (index + 0.5), 1) for index in range(len(shown))]
        parts += _panel(frame, split, shown, places, step)
        x += step * len(shown) + _GAP * max(steps.values())
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        width, height, _description(panels), Markup("\n").join(parts)
    )


def _steps(counts: dict[str, int], room: float) -> dict[str, float]:
    """The width of a column in each panel. Comparisons at the end keep room for their labels,
    however many steps there are.
    """
    columns = sum(counts.values()) + _GAP * (len(counts) - 1)
    even = room / columns
    if even >= _END_WIDTH or len(counts) == 1 or "selection" not in counts:
        return dict.fromkeys(counts, even)
    ends = sum(count for split, count in counts.items() if split != "selection")
    left = room - _END_WIDTH * (ends + _GAP * (len(counts) - 1))
    steps = dict.fromkeys(counts, float(_END_WIDTH))
    return steps | {"selection": left / counts["selection"]}


def _points_of(story: RunStory, split: str) -> list[Point]:
    points = [point for point in story.points if point.split == split]
    same = {point.score for point in points if point.name == "test_best"}
    return [point for point in points if not (point.name == "test_final" and point.score in same)]


def _frame(points: Sequence[Point], width: int, height: int) -> _Frame:
    low = floor(min(point.low for point in points) * 10) / 10
    high = ceil(max(point.high for point in points) * 10) / 10
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
        edge = round(places[0] - step * 0.5 - _END_WIDTH * _GAP / 2, 1)
        yield Markup('<line class="edge" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(
            edge, _TOP - 32, frame.height - _BOTTOM
        )
    yield _text(places[0] - step / 2 + 4, _TOP - 28, PANELS[split], "title")
    kept = [(x, frame.y(p.score)) for x, p in zip(places, points, strict=True) if p.kept]
    for (x1, y1), (x2, y2) in pairwise(kept):
        line = f"M{x1} {y1}H{x2}V{y2}" if split == "selection" else f"M{x1} {y1}L{x2} {y2}"
        yield Markup('<path class="carried" d="{}"/>').format(line)
    last, every = len(points) - 1, max(1, ceil(_LABEL_WIDTH / step))
    radius = 5.0 if step > 12 else 2.5 if step > _DENSE else 1.6
    for index, (x, point) in enumerate(zip(places, points, strict=True)):
        yield _mark(frame, x, point, radius)
        if index == 0 or ((last - index) % every == 0 and index >= every):
            yield _label(frame, x, point, value=split != "selection" or index in (0, last))


def _mark(frame: _Frame, x: float, point: Point, radius: float) -> Markup:
    y, low, high = frame.y(point.score), frame.y(point.low), frame.y(point.high)
    bounds = f"{percent(point.low)} to {percent(point.high)}"
    description = f"{point.label}: {percent(point.score)} ({bounds})"
    if point.items:
        description += f" on {point.items} items"
    if point.estimated:
        description += ", estimated from all rollouts"
    if point.kept:
        kind = "point estimated" if point.estimated and radius > 2 else "point"
        shape = f'<circle cx="{x}" cy="{y}" r="{radius}"/>'
    else:
        left, right, top, bottom = x - radius, x + radius, y - radius, y + radius
        kind, description = "point turned", f"{description}, {point.decision}"
        shape = f'<path d="M{left} {top}L{right} {bottom}M{left} {bottom}L{right} {top}"/>'
    weight = "range" if radius > 2 else "range dense"
    line = f'<line class="{weight}" x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>'
    return Markup('<g class="{}"><title>{}</title>{}</g>').format(
        kind, description, Markup(line + shape)
    )


def _label(frame: _Frame, x: float, point: Point, *, value: bool) -> Markup:
    lines = point.label.replace("slow update", "slow").split()
    parts = [
        _text(x, frame.height - _BOTTOM + 18 + 14 * row, line, "tick middle")
        for row, line in enumerate(lines)
    ]
    if value:
        above = max(_TOP - 6, frame.y(point.high) - 8)
        # Not over the numbers of the axis, where the columns are narrow.
        inside = max(x, _LEFT + _VALUE_WIDTH / 2)
        parts.append(_text(inside, above, percent(point.score), "value middle"))
    return Markup("").join(parts)


def _text(x: float, y: float, text: str, kind: str) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}">{}</text>').format(
        kind, round(x, 1), round(y, 1), text
    )


def _description(panels: Sequence[tuple[str, Sequence[Point]]]) -> str:
    """The curve in words, for people who cannot see it. Long curves name their ends only."""
    parts = []
    for split, points in panels:
        shown = points if len(points) <= 12 else [*points[:2], *points[-2:]]
        scores = ", ".join(f"{point.label} {percent(point.score)}" for point in shown)
        parts.append(f"{PANELS[split]}: {scores}")
    return "Scores. " + "; ".join(parts)


def sparkline(scores: Sequence[float], width: int = 96, height: int = 24) -> Markup:
    """A curve without axes, for a row of a table; empty for fewer than two scores."""
    if len(scores) < 2:
        return Markup("")
    low, high = min(scores), max(scores)
    if high - low < 0.1:
        low, high = (low + high) / 2 - 0.05, (low + high) / 2 + 0.05
    xs = [3 + at * (width - 6) / (len(scores) - 1) for at in range(len(scores))]
    ys = [height - 3 - (score - low) / (high - low) * (height - 6) for score in scores]
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))
    description = f"from {percent(scores[0])} to {percent(scores[-1])}"
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}">'
        '<path d="M{}"/><circle cx="{:.1f}" cy="{:.1f}" r="2.5"/></svg>'
    ).format(width, height, description, line, xs[-1], ys[-1])


def compare_chart(
    runs: Sequence[tuple[str, RunStory]], width: int = 860, height: int = 320, *, names: bool = True
) -> Markup:
    """The score curves of several runs on one axis, each with its name at the end of its line where
    there is room for `names`. Steps that were rejected leave a gap.
    """
    measured = [_points_of(story, "selection") for _, story in runs]
    curves = []
    for number, (name, _) in enumerate(runs):
        kept = {at: point for at, point in enumerate(measured[number]) if point.kept}
        if kept:
            curves.append((number, name, kept))
    if not curves:
        return Markup("")
    frame = _frame([point for _, _, kept in curves for point in kept.values()], width, height)
    longest = max(measured, key=len)
    right = width - (150 if names else _RIGHT)
    step = (right - _LEFT - 10) / max(1, len(longest) - 1)
    parts = list(_axis(frame))
    for at in sorted({0, len(longest) - 1}):
        place = max(_LEFT + 10 + step * at, _LEFT + _VALUE_WIDTH / 2)
        label = longest[at].label
        parts.append(_text(place, frame.height - _BOTTOM + 18, label, "tick middle"))
    labels: list[tuple[float, int, str]] = []
    for number, name, kept in curves:
        points = list(kept.values())
        places = [round(_LEFT + 10 + step * at, 1) for at in kept]
        line = "L".join(f"{x} {frame.y(p.score)}" for x, p in zip(places, points, strict=True))
        parts.append(Markup('<path class="curve c{}" d="M{}"/>').format(number, line))
        for x, point in zip(places, points, strict=True):
            parts.append(
                Markup(
                    '<circle class="c{}" cx="{}" cy="{}" r="3"><title>{}</title></circle>'
                ).format(
                    number,
                    x,
                    frame.y(point.score),
                    f"{name}, {point.label}: {percent(point.score)}",
                )
            )
        labels.append((frame.y(points[-1].score), number, name))
    below = -100.0
    for y, number, name in sorted(labels) if names else ():
        below = max(y, below + 15)  # names never overlap
        short = name if len(name) <= 20 else "…" + name[-19:]
        parts.append(_text(right + 10, below + 4, short, f"name c{number}"))
    words = "; ".join(
        f"{name}: {percent(list(kept.values())[-1].score)}" for _, name, kept in curves
    )
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        width, height, f"Score curves. {words}", Markup("\n").join(parts)
    )
