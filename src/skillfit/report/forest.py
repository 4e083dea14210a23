"""The forest plot: one row per edit or line of a skill, with its effect and interval on a shared
axis. It is a table with a small drawing in each row, so texts wrap and screen readers can read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from skillfit.plain_text import points, shorten, visible
from skillfit.report.story import EditSummary, EffectPoint

_WIDTH, _HEIGHT = 220, 22
_LEAST_SPAN = 0.05  # points of the score that half of the axis covers at least


@dataclass(frozen=True, slots=True)
class ForestRow:
    """One row: `mean` is a difference of scores, None when it was not measured."""

    label: str
    mean: float | None
    low: float = 0.0
    high: float = 0.0
    status: str = ""  # pending, promoted, dropped; for other tables any short word
    note: str = ""
    href: str = ""
    id: str = ""
    rollouts: int | None = None


def edit_row(edit: EditSummary, href: str = "") -> ForestRow:
    notes = []
    if edit.decided and edit.status != "pending":
        notes.append(f"{edit.status} after step {edit.decided}")
    if edit.note:
        notes.append(edit.note)
    if edit.in_best and edit.status == "pending":
        notes.append("in the skill")
    return ForestRow(
        label=edit.text,
        mean=edit.mean,
        low=edit.low,
        high=edit.high,
        status=edit.status,
        note="; ".join(notes),
        href=href,
        id=edit.id,
        rollouts=edit.rollouts,
    )


def forest_plot(rows: Sequence[ForestRow], *, heading: str = "Edit", longest: int = 180) -> Markup:
    """A table of the rows in the given order. The axis is symmetric around 0."""
    if not rows:
        return Markup("")
    span = axis_span(rows)
    body = Markup("").join(_row(row, span, longest) for row in rows)
    head = Markup(
        "<thead><tr><th>{}</th><th>Status</th><th>{}</th>"
        '<th class="n">Effect</th><th class="n">Rollouts</th></tr></thead>'
    ).format(heading, _axis(span))
    return Markup('<table class="forest cards">{}<tbody>{}</tbody></table>').format(head, body)


def axis_span(rows: Sequence[ForestRow]) -> float:
    """The largest distance from 0 that the axis shows. One very wide interval does not squeeze the
    others: bounds beyond three times the largest mean are cut.
    """
    measured = [row for row in rows if row.mean is not None]
    widest = max((max(abs(row.low), abs(row.high)) for row in measured), default=0.0)
    largest = max((abs(row.mean or 0.0) for row in measured), default=0.0)
    return max(_LEAST_SPAN, min(widest, 3 * largest if largest else widest))


def _row(row: ForestRow, span: float, longest: int) -> Markup:
    text = shorten(visible(row.label), longest)
    label = Markup('<a href="{}">{}</a>').format(row.href, text) if row.href else text
    note = Markup("<small>{}</small>").format(visible(row.note)) if row.note else Markup("")
    badge = _badge(row.status)
    if row.mean is None:
        effect, bounds = Markup("not measured"), ""
    else:
        effect = Markup("<b>{}</b>").format(points(row.mean))
        bounds = f"{points(row.low)} to {points(row.high)}"
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
        effect_bar(row, span),
        effect,
        bounds,
        "" if row.rollouts is None else f"{row.rollouts:,}",
    )


def _badge(status: str) -> Markup:
    kinds = {"promoted": "good", "keep": "good", "dropped": "bad", "cut": "bad"}
    if not status:
        return Markup("")
    return Markup('<span class="badge {}">{}</span>').format(kinds.get(status, ""), status)


def effect_bar(row: ForestRow, span: float) -> Markup:
    """The interval as a line with its mean as a dot; 0 is in the middle."""
    middle = _WIDTH / 2
    if row.mean is None:
        inner = Markup("")
    else:
        low, mean, high = (_x(value, span) for value in (row.low, row.mean, row.high))
        sign = "up" if row.low > 0 else "down" if row.high < 0 else "open"
        inner = Markup(
            '<g class="{}"><line class="span" x1="{:.1f}" x2="{:.1f}" y1="11" y2="11"/>'
            '<circle cx="{:.1f}" cy="11" r="4.5"/></g>'
        ).format(sign, low, high, mean)
    return Markup(
        '<svg class="effect" viewBox="0 0 {} {}" aria-hidden="true">'
        '<line class="zero" x1="{}" x2="{}" y1="0" y2="{}"/>{}</svg>'
    ).format(_WIDTH, _HEIGHT, middle, middle, _HEIGHT, inner)


def _axis(span: float) -> Markup:
    return Markup(
        '<svg class="effect" viewBox="0 0 {} {}" role="img" aria-label="{}">'
        '<text x="4" y="15">{}</text><text class="middle" x="{}" y="15">0</text>'
        '<text class="end" x="{}" y="15">{}</text></svg>'
    ).format(
        _WIDTH,
        _HEIGHT,
        f"axis from {points(-span)} to {points(span)} points",
        points(-span),
        _WIDTH / 2,
        _WIDTH - 4,
        points(span),
    )


def _x(value: float, span: float) -> float:
    share = max(-1.0, min(1.0, value / span))
    return _WIDTH / 2 + share * (_WIDTH / 2 - 6)


def effect_history(history: Sequence[EffectPoint], width: int = 320, height: int = 120) -> Markup:
    """How the estimate of one edit moved from step to step: mean and interval."""
    known = [point for point in history if point.mean is not None]
    if not known:
        return Markup("")
    span = max(_LEAST_SPAN, *(max(abs(point.low), abs(point.high)) for point in known))
    first, last = known[0].step, known[-1].step
    inner_width, middle = width - 60, height / 2

    def x(step: int) -> float:
        return 44 + (step - first) / max(1, last - first) * inner_width

    def y(value: float) -> float:
        return middle - value / span * (height / 2 - 14)

    upper = " ".join(f"{x(point.step):.1f},{y(point.high):.1f}" for point in known)
    lower = " ".join(f"{x(point.step):.1f},{y(point.low):.1f}" for point in reversed(known))
    line = " ".join(f"{x(point.step):.1f},{y(point.mean or 0.0):.1f}" for point in known)
    dots = Markup("").join(
        Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3"><title>{}</title></circle>').format(
            x(point.step),
            y(point.mean or 0.0),
            f"step {point.step}: {points(point.mean or 0.0)}, {point.rollouts} rollouts,"
            f" {point.status}",
        )
        for point in known
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
        words=f"effect from step {first} to step {last}: now {points(known[-1].mean or 0.0)}",
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
