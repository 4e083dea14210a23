"""Charts of the report and the studio, drawn as SVG.

- `score_chart`: skills the loop continued with, skills it rejected, and the comparisons at the end,
  each with its interval. `compare_chart` draws the curves of several runs, `sparkline` the small
  curve of a run list.
- `forest_plot`: one row per edit or line of a skill, with its effect and interval on a shared axis.
  It is a table with a small drawing in each row, so texts wrap and screen readers can read it.
  `effect_history` shows how one effect changed from step to step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, floor

from markupsafe import Markup

from skillfit.intervals import Interval
from skillfit.plain_text import last_part, percent, points, quantity, shorten, visible
from skillfit.record.record import IN_SKILL, EditRecord, GateSummary, Point, Record
from skillfit.run.records import EditEffect, KindEffect, step_number

_TOP, _BOTTOM, _LEFT, _RIGHT = 44, 52, 44, 46
_MIN_SPAN = 0.3  # a narrower axis would make noise look large
_GAP = 0.7  # of a column, before each comparison at the end
_LABEL_WIDTH = 38
_LETTER_WIDTH = 7.5  # of a label below an axis
_END_WIDTH = 52  # of a column of the comparisons at the end
_VALUE_WIDTH = 46  # of a score above a point
_DENSE = 8  # pixels per column below which intervals are drawn as thin lines
_BAR_WIDTH, _BAR_HEIGHT = 220, 22  # of the drawing in a row of the forest plot
_SCORES = 3  # skills of an evaluation whose scores are drawn
_ROW = 44  # pixels of a skill in `result_chart`
_LEAST_SPAN = 0.05  # points of the score that half of its axis covers at least
PANELS = {
    "selection": "selection split, during training",
    "ship": "fresh rollouts",
    "test": "test split",
}


StepRange = tuple[int, int]  # the first and the last step of a part of a curve


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
        tenths = range(round(self.low * 10), round(self.high * 10) + 1)
        return [tick / 10 for tick in tenths if tick % step == 0]


def compared_scores(record: Record) -> Mapping[str, Interval]:
    """Return the scores that tell the result, with their 90 % intervals: those of the final
    comparison, else the first and the last one on the selection split.
    """
    if record.measured is not None:
        scores = [one for one in record.measured.scores[:_SCORES] if one.has_score]
        return {one.name: Interval(one.hard, one.low, one.high) for one in scores}
    compared = [record.point("ship_initial"), record.point("ship_best")]
    if not all(compared):
        kept = [point for point in record.points if point.split == "selection" and point.kept]
        # As long as nothing was promoted, later points are the initial skill with more rollouts.
        measured = [*kept[:1], *kept[-1:]] if record.changed else kept[-1:]
        compared = [*dict.fromkeys(measured)]
    found = "found skill" if record.finish_reason else "latest skill"
    names = ("initial skill", "unproven skill" if record.unproven_skill else found)
    return {
        name: Interval(point.score, point.low, point.high)
        for name, point in zip(names, compared, strict=False)
        if point is not None
    }


def result_chart(record: Record) -> Markup:
    """Draw one line per skill with its score, and below them the difference of the final comparison
    on an axis of its own. Return empty markup when nothing was measured.
    """
    scores = compared_scores(record)
    if not scores:
        return Markup("")
    parts: list[Markup] = []
    words = []
    for row, (name, score) in enumerate(scores.items()):
        kind = "up" if 0 < row == len(scores) - 1 else "open"
        parts += _result_row(_ROW * (row + 0.5), name, score, score, percent(score.mean), kind)
        words.append(f"{name} {percent(score.mean)}")
    height = _ROW * (len(scores) + 0.1)
    ship = record.compared
    if ship is not None and ship.interval is not None:
        low, high = ship.interval
        kind = "up" if low > 0 else "down" if high < 0 else "open"
        shown = Interval(*((one + 1) / 2 for one in (ship.difference, low, high)))
        y = height + _ROW * 0.9
        parts.append(
            Markup('<line class="edge" x1="0" x2="340" y1="{0}" y2="{0}"/>').format(height)
        )
        parts.append(
            Markup('<line class="zero" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(
                _result_x(0.5), height + 8, y + 12
            )
        )
        gain = Interval(ship.difference, low, high)
        parts += _result_row(y, "difference", shown, gain, points(ship.difference), kind)
        words.append(f"difference {points(low)} to {points(high)} points")
        height = y + _ROW * 0.8
    return Markup(
        '<svg class="result" viewBox="0 0 340 {}" role="img" aria-label="{}">{}</svg>'
    ).format(round(height), "; ".join(words), Markup("\n").join(parts))


def _result_row(
    y: float, name: str, place: Interval, value: Interval, shown: str, kind: str
) -> Iterator[Markup]:
    """Draw a row. `place` is the interval as shares of the axis, `value` as numbers."""
    unit = points if place is not value else percent
    low, mean, high = (_result_x(one) for one in (place.low, place.mean, place.high))
    yield _text(0, y + 4, shorten(name, 18), "name")
    yield Markup('<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(
        _result_x(0), _result_x(1), y=y
    )
    yield Markup(
        '<g class="{}"><line class="span" x1="{}" x2="{}" y1="{y}" y2="{y}"/>'
        '<circle cx="{}" cy="{y}" r="6"/></g>'
    ).format(kind, low, high, mean, y=y)
    yield _text(340, y + 4, shown, "value end")
    yield _text(_result_x(0.5), y + 24, f"{unit(value.low)} to {unit(value.high)}", "tick middle")


def _result_x(share: float) -> float:
    return round(104 + max(0.0, min(1.0, share)) * 176, 1)


def score_chart(
    record: Record,
    width: int = 720,
    height: int = 320,
    splits: Sequence[str] = tuple(PANELS),
    step_url: str = "",
    steps: StepRange | None = None,
) -> Markup:
    """Draw the curve of these splits for about `width` pixels; return empty markup when nothing was
    measured on them. `step_url`: the address of a step with {} for its number, to which its point
    is a link. `steps`: the part of the curve that is drawn.
    """
    panels = []
    for split in splits:
        shown = _points_of(record, split)
        if split == "selection" and steps is not None:
            shown = [*_within(_by_step(shown), steps).values()] or shown
        if shown:
            panels.append((split, shown))
    if not panels:
        return Markup("")
    frame = _frame([point for _, shown in panels for point in shown], width, height)
    widths = _widths({split: len(shown) for split, shown in panels}, width - _LEFT - _RIGHT)
    parts, x = [*_score_axis(frame)], float(_LEFT)
    for split, shown in panels:
        step = widths[split]
        places = [round(x + step * (index + 0.5), 1) for index in range(len(shown))]
        parts += _panel(frame, split, shown, places, step, step_url)
        x += step * len(shown) + _GAP * max(widths.values())
    # The children of an image cannot be reached, so a curve with links is a group.
    return Markup('<svg viewBox="0 0 {} {}" role="{}" aria-label="{}">{}</svg>').format(
        width,
        height,
        "group" if step_url else "img",
        _description(panels),
        Markup("\n").join(parts),
    )


def _widths(counts: dict[str, int], room: float) -> dict[str, float]:
    """Return the width of a column in each panel. Comparisons at the end keep room for their
    labels, however many steps there are.
    """
    columns = sum(counts.values()) + _GAP * (len(counts) - 1)
    even = room / columns
    if even >= _END_WIDTH or len(counts) == 1 or "selection" not in counts:
        return dict.fromkeys(counts, even)
    ends = sum(count for split, count in counts.items() if split != "selection")
    left = room - _END_WIDTH * (ends + _GAP * (len(counts) - 1))
    steps = dict.fromkeys(counts, float(_END_WIDTH))
    return steps | {"selection": left / counts["selection"]}


def _points_of(record: Record, split: str) -> list[Point]:
    measured = [point for point in record.points if point.split == split]
    if record.unproven_skill:
        # The initial skill was handed back, so "best" is the initial skill again on the test
        # split, and the found skill on fresh rollouts.
        found = {"ship_best": "ship_found", "test_final": "test_found"}
        return [
            replace(point, name=found.get(point.name, point.name))
            for point in measured
            if point.name != "test_best"
        ]
    same = {point.score for point in measured if point.name == "test_best"}
    return [point for point in measured if not (point.name == "test_final" and point.score in same)]


def _frame(measured: Sequence[Point], width: int, height: int) -> _Frame:
    low = floor(min(point.low for point in measured) * 10) / 10
    high = ceil(max(point.high for point in measured) * 10) / 10
    high = min(1.0, max(high, low + _MIN_SPAN))
    return _Frame(width, height, min(low, round(high - _MIN_SPAN, 1)), high)


def _score_axis(frame: _Frame) -> Iterator[Markup]:
    for tick in frame.ticks:
        y = frame.y(tick)
        yield Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
            _LEFT, frame.width - _RIGHT, y, y
        )
        yield _text(_LEFT - 8, y + 4, percent(tick), "tick end")


def _panel(
    frame: _Frame,
    split: str,
    measured: Sequence[Point],
    places: Sequence[float],
    step: float,
    step_url: str,
) -> Iterator[Markup]:
    if places[0] > _LEFT + step:
        edge = round(places[0] - step * 0.5 - _END_WIDTH * _GAP / 2, 1)
        yield Markup('<line class="edge" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(
            edge, _TOP - 32, frame.height - _BOTTOM
        )
    yield _text(places[0] - step / 2 + 4, _TOP - 28, PANELS[split], "title")
    kept = [(x, frame.y(p.score)) for x, p in zip(places, measured, strict=True) if p.kept]
    for (x1, y1), (x2, y2) in pairwise(kept):
        line = f"M{x1} {y1}H{x2}V{y2}" if split == "selection" else f"M{x1} {y1}L{x2} {y2}"
        yield Markup('<path class="carried" d="{}"/>').format(line)
    longest = max(len(line) for point in measured for line in _label_lines(point))
    widest = max(_LABEL_WIDTH, longest * _LETTER_WIDTH)
    last, every = len(measured) - 1, max(1, ceil(widest / step))
    radius = 5.0 if step > 12 else 2.5 if step > _DENSE else 1.6
    for index, (x, point) in enumerate(zip(places, measured, strict=True)):
        mark, number = _mark(frame, x, point, radius), step_number(point.name)
        if number is not None and step_url:
            address = step_url.format(number)
            mark = Markup('<a href="{}" aria-label="{}">{}</a>').format(address, point.label, mark)
        yield mark
        if index == 0 or ((last - index) % every == 0 and index >= every):
            yield _label(frame, x, point, value=split != "selection" or index in (0, last))


def _mark(frame: _Frame, x: float, point: Point, radius: float) -> Markup:
    y, low, high = frame.y(point.score), frame.y(point.low), frame.y(point.high)
    bounds = f"{percent(point.low)} to {percent(point.high)}"
    description = f"{point.label}: {percent(point.score)} ({bounds})"
    if point.items:
        description += f" on {quantity(point.items, 'item')}"
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
    return Markup('<g class="{}"{}><title>{}</title>{}</g>').format(
        kind, _step_mark(step_number(point.name)), description, Markup(line + shape)
    )


def _step_mark(number: float | None) -> Markup:
    """Tell the script of the studio which step a mark is."""
    return Markup("") if number is None else Markup(' data-step="{:.0f}"').format(number)


def _label_lines(point: Point) -> list[str]:
    return point.label.replace("slow update", "slow").split()


def _label(frame: _Frame, x: float, point: Point, *, value: bool) -> Markup:
    parts = [
        _text(x, frame.height - _BOTTOM + 18 + 14 * row, line, "tick middle")
        for row, line in enumerate(_label_lines(point))
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
    """Describe the curve in words, for people who cannot see it. Of long curves only the ends are
    named.
    """
    parts = []
    for split, measured in panels:
        shown = measured if len(measured) <= 12 else [*measured[:2], *measured[-2:]]
        scores = ", ".join(f"{point.label} {percent(point.score)}" for point in shown)
        parts.append(f"{PANELS[split]}: {scores}")
    return "Scores. " + "; ".join(parts)


def sparkline(scores: Sequence[float], width: int = 96, height: int = 24) -> Markup:
    """Draw a curve without axes, for a row of a table; return empty markup for fewer than two
    scores.
    """
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


@dataclass(frozen=True, slots=True)
class _RunCurve:
    """The points of one compared run that the loop continued with, by their place in steps."""

    number: int  # of its colour
    name: str
    kept: dict[float, Point]

    @property
    def last(self) -> Point:
        return self.kept[max(self.kept)]


def compare_chart(
    runs: Mapping[str, Record],
    width: int = 860,
    height: int = 320,
    *,
    names: bool = True,
    steps: StepRange | None = None,
) -> Markup:
    """Draw the score curves of several runs, by name, over their steps. Each has its name at the
    end of its line where there is room for `names`. Steps that were rejected have no point.
    """
    measured = [_by_step(_points_of(record, "selection")) for record in runs.values()]
    if steps is not None:
        measured = [_within(points, steps) for points in measured]
    curves = []
    for number, name in enumerate(runs):
        kept = {at: point for at, point in measured[number].items() if point.kept}
        if kept:
            curves.append(_RunCurve(number, name, kept))
    if not curves:
        return Markup("")
    frame = _frame([point for curve in curves for point in curve.kept.values()], width, height)
    right = width - (150 if names else _RIGHT)
    start = floor(min(min(curve.kept) for curve in curves)) if steps is not None else 0
    end = max(start + 1.0, *(max(curve.kept) for curve in curves))
    step = (right - _LEFT - 10) / (end - start)
    parts = list(_score_axis(frame))
    every = max(1, ceil(_LABEL_WIDTH * 1.5 / step))
    for at in range(start, floor(end) + 1, every):
        place = max(_LEFT + 10 + step * (at - start), _LEFT + _VALUE_WIDTH / 2)
        label = f"step {at}" if at else "initial"
        parts.append(_text(place, frame.height - _BOTTOM + 18, label, "tick middle"))
    for curve in curves:
        parts += _run_curve(frame, curve, start, step)
    if names:
        parts += _run_names(frame, curves, right + 10)
    words = "; ".join(f"{curve.name}: {percent(curve.last.score)}" for curve in curves)
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        width, height, f"Score curves. {words}", Markup("\n").join(parts)
    )


def _by_step(measured: Sequence[Point]) -> dict[float, Point]:
    """Map each step to the point that was measured after it. Points between two steps, and after
    the last one, have a place of their own.
    """
    found: dict[float, Point] = {}
    for point in measured:
        number, last = step_number(point.name), max(found, default=-0.5)
        found[last + 0.5 if number is None else max(float(number), last + 0.01)] = point
    return found


def _within(measured: Mapping[float, Point], steps: StepRange) -> dict[float, Point]:
    first, last = steps
    return {at: point for at, point in measured.items() if first <= at <= last}


def _run_curve(frame: _Frame, curve: _RunCurve, start: int, step: float) -> Iterator[Markup]:
    places = [
        (round(_LEFT + 10 + step * (at - start), 1), at, point) for at, point in curve.kept.items()
    ]
    line = "L".join(f"{x} {frame.y(point.score)}" for x, _, point in places)
    yield Markup('<path class="curve c{}" d="M{}"/>').format(curve.number, line)
    for x, at, point in places:
        text = f"{curve.name}, {point.label}: {percent(point.score)}"
        yield Markup(
            '<circle class="c{}" cx="{}" cy="{}" r="3"{}><title>{}</title></circle>'
        ).format(curve.number, x, frame.y(point.score), _step_mark(at), text)


def _run_names(frame: _Frame, curves: Sequence[_RunCurve], x: float) -> Iterator[Markup]:
    """Write the names beside the ends of the curves, moved down where they would overlap."""
    below = -100.0
    for curve in sorted(curves, key=lambda curve: (frame.y(curve.last.score), curve.number)):
        below = max(frame.y(curve.last.score), below + 15)
        yield _text(x, below + 4, last_part(curve.name, 20), f"name c{curve.number}")


@dataclass(frozen=True, slots=True)
class ForestRow:
    """One row: `effect` is a difference of scores, None when it was not measured."""

    label: str
    effect: Interval | None
    status: str = ""  # the standing of an edit; for other tables any short word
    note: str = ""
    href: str = ""
    id: str = ""
    rollouts: int | None = None


def edit_row(edit: EditRecord, href: str = "") -> ForestRow:
    """Return the row of an edit as it is known now."""
    notes = [edit.evidence, *map(kind_points, edit.kinds)]
    if edit.decided_in_step and edit.status != "pending":
        notes.append(f"{edit.status} after step {edit.decided_in_step}")
    if edit.note:
        notes.append(edit.note)
    return effect_row(edit, edit.standing, href=href, note="; ".join(notes))


def kind_points(kind: KindEffect) -> str:
    """Format an effect as `+41.0 on money, 18 of 60 items`, in points as all effects of a page."""
    return f"{points(kind.mean)} on {kind.kind}, {kind.items} of {kind.of} items"


def effect_row(edit: EditEffect, status: str, *, href: str = "", note: str = "") -> ForestRow:
    return ForestRow(
        label=edit.text,
        effect=edit.effect,
        status=status,
        note=note,
        href=href,
        id=edit.id,
        rollouts=edit.rollouts,
    )


def candidates_plot(gates: Sequence[GateSummary]) -> Markup:
    """Draw a row for each candidate that was compared as a whole with the skill before it."""
    rows = [
        ForestRow(
            label=gate.label,
            effect=Interval(gate.evidence.difference, *gate.evidence.interval),
            status=gate.decision,
            note=gate.reason,
            rollouts=gate.evidence.rollouts,
        )
        for gate in gates
        if gate.measured
    ]
    return forest_plot(rows, heading="Candidate")


def forest_plot(rows: Sequence[ForestRow], *, heading: str = "Edit", longest: int = 180) -> Markup:
    """Render a table of the rows in the given order. The axis is symmetric around 0."""
    if not rows:
        return Markup("")
    span = axis_span([row.effect for row in rows])
    body = Markup("").join(_forest_row(row, span, longest) for row in rows)
    head = Markup(
        "<thead><tr><th>{}</th><th>Status</th><th>{}</th>"
        '<th class="n">Effect</th><th class="n">Rollouts</th></tr></thead>'
    ).format(heading, _effect_axis(span))
    return Markup('<table class="forest cards">{}<tbody>{}</tbody></table>').format(head, body)


def axis_span(measured: Iterable[Interval | None]) -> float:
    """Return the largest distance from 0 that the axis shows. One very wide interval does not
    squeeze the others: bounds beyond three times the largest mean are cut.
    """
    effects = [effect for effect in measured if effect is not None]
    widest = max((max(abs(one.low), abs(one.high)) for one in effects), default=0.0)
    largest = max((abs(one.mean) for one in effects), default=0.0)
    return max(_LEAST_SPAN, min(widest, 3 * largest if largest else widest))


def _forest_row(row: ForestRow, span: float, longest: int) -> Markup:
    text = shorten(visible(row.label), longest)
    label = Markup('<a href="{}">{}</a>').format(row.href, text) if row.href else text
    note = Markup("<small>{}</small>").format(visible(row.note)) if row.note else Markup("")
    badge = _badge(row.status)
    if row.effect is None:
        effect, bounds = Markup("not measured"), ""
    else:
        effect = Markup("<b>{}</b>").format(points(row.effect.mean))
        bounds = f"{points(row.effect.low)} to {points(row.effect.high)}"
    return Markup(
        '<tr class="{}"{}><td class="what" data-th="">{}{}</td><td data-th="status">{}</td>'
        '<td class="bar" data-th="">{}</td><td class="n" data-th="effect">{}'
        '<small>{}</small></td><td class="n" data-th="rollouts">{}</td></tr>'
    ).format(
        row.status,
        Markup(' data-edit="{}"').format(row.id) if row.id else "",
        label,
        note,
        badge,
        effect_bar(row.effect, span),
        effect,
        bounds,
        "" if row.rollouts is None else f"{row.rollouts:,}",
    )


def _badge(status: str) -> Markup:
    kinds = {
        "promoted": "good",
        IN_SKILL: "good",
        "keep": "good",
        "dropped": "bad",
        "cut": "bad",
    }
    if not status:
        return Markup("")
    return Markup('<span class="badge {}">{}</span>').format(kinds.get(status, ""), status)


def effect_bar(effect: Interval | None, span: float) -> Markup:
    """Draw the interval as a line with its mean as a dot; 0 is in the middle."""
    middle = _BAR_WIDTH / 2
    if effect is None:
        inner = Markup("")
    else:
        low, mean, high = (_bar_x(one, span) for one in (effect.low, effect.mean, effect.high))
        sign = "up" if effect.low > 0 else "down" if effect.high < 0 else "open"
        inner = Markup(
            '<g class="{}"><line class="span" x1="{:.1f}" x2="{:.1f}" y1="11" y2="11"/>'
            '<circle cx="{:.1f}" cy="11" r="4.5"/>{}</g>'
        ).format(sign, low, high, mean, _arrows(effect, span))
    return Markup(
        '<svg class="effect" viewBox="0 0 {} {}" aria-hidden="true">'
        '<line class="zero" x1="{}" x2="{}" y1="0" y2="{}"/>{}</svg>'
    ).format(_BAR_WIDTH, _BAR_HEIGHT, middle, middle, _BAR_HEIGHT, inner)


def _arrows(effect: Interval, span: float) -> Markup:
    """Draw an arrow at each end where the interval goes on beyond the axis."""
    left = Markup('<path d="M7 5L1 11L7 17Z"/>') if effect.low < -span else Markup("")
    x = _BAR_WIDTH
    right = Markup(f'<path d="M{x - 7} 5L{x - 1} 11L{x - 7} 17Z"/>') if effect.high > span else ""
    return left + right


def _effect_axis(span: float) -> Markup:
    return Markup(
        '<svg class="effect" viewBox="0 0 {} {}" role="img" aria-label="{}">'
        '<text x="4" y="15">{}</text><text class="middle" x="{}" y="15">0</text>'
        '<text class="end" x="{}" y="15">{}</text></svg>'
    ).format(
        _BAR_WIDTH,
        _BAR_HEIGHT,
        f"axis from {points(-span)} to {points(span)} points",
        points(-span),
        _BAR_WIDTH / 2,
        _BAR_WIDTH - 4,
        points(span),
    )


def _bar_x(value: float, span: float) -> float:
    share = max(-1.0, min(1.0, value / span))
    return _BAR_WIDTH / 2 + share * (_BAR_WIDTH / 2 - 6)


def effect_history(
    history: Mapping[int, EditEffect], width: int = 320, height: int = 120
) -> Markup:
    """Draw how the estimate of one edit moved from step to step: mean and interval."""
    known = [(step, edit, edit.effect) for step, edit in history.items() if edit.effect]
    if not known:
        return Markup("")
    span = max(_LEAST_SPAN, *(max(abs(effect.low), abs(effect.high)) for *_, effect in known))
    first, last = known[0][0], known[-1][0]
    inner_width, middle = width - 60, height / 2

    def x(step: int) -> float:
        return 44 + (step - first) / max(1, last - first) * inner_width

    def y(value: float) -> float:
        return middle - value / span * (height / 2 - 14)

    upper = " ".join(f"{x(step):.1f},{y(effect.high):.1f}" for step, _, effect in known)
    lower = " ".join(f"{x(step):.1f},{y(effect.low):.1f}" for step, _, effect in reversed(known))
    line = " ".join(f"{x(step):.1f},{y(effect.mean):.1f}" for step, _, effect in known)
    dots = Markup("").join(
        Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3"><title>{}</title></circle>').format(
            x(step),
            y(effect.mean),
            f"step {step}: {points(effect.mean)}, {edit.rollouts} rollouts, {edit.status}",
        )
        for step, edit, effect in known
    )
    return Markup(
        '<svg class="history" viewBox="0 0 {w} {h}" role="img" aria-label="{words}">'
        '<line class="zero" x1="44" x2="{right}" y1="{mid}" y2="{mid}"/>'
        '<polygon points="{upper} {lower}"/><polyline points="{line}"/>{dots}'
        '<text class="end" x="38" y="{top_y}">{top}</text>'
        '<text class="end" x="38" y="{mid_y}">0</text>'
        '<text class="end" x="38" y="{low_y}">{bottom}</text>'
        '<text x="44" y="{h}">step {first}</text>'
        '<text class="end" x="{right}" y="{h}">step {last}</text></svg>'
    ).format(
        w=width,
        h=height + 4,
        words=f"effect from step {first} to step {last}: now {points(known[-1][2].mean)}",
        right=44 + inner_width,
        mid=middle,
        upper=upper,
        lower=lower,
        line=line,
        dots=dots,
        top_y=18,
        top=points(span),
        mid_y=middle + 4,
        low_y=height - 8,
        bottom=points(-span),
        first=first,
        last=last,
    )
