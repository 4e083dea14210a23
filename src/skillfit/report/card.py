"""The card of a run: one picture with its result, to show in a README, a chat or a pull request.

It is an SVG of 1200 × 630 that needs nothing else. It names no path and shows no text of items.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from markupsafe import Markup

from skillfit.atomic_write import write_whole
from skillfit.intervals import Interval
from skillfit.plain_text import percent, shorten, visible
from skillfit.record.fold import read_record
from skillfit.record.record import Record
from skillfit.record.text import facts
from skillfit.report.charts import compared_scores

_WIDTH, _HEIGHT, _LEFT = 1200, 630, 72
_INK, _SOFT, _FAINT, _ACCENT = "#1c2226", "#57626a", "#e2e5e2", "#0a5fa0"
_SERIF = "Palatino Linotype, Palatino, Georgia, serif"
_SANS = "system-ui, Segoe UI, Roboto, Helvetica Neue, Liberation Sans, Arial, sans-serif"
_HEADLINE = 52  # characters of a line
_HEADLINE_ROWS = 3
_BAR_LEFT, _BAR_RIGHT, _BAR_TOP, _BAR_STEP = 330, 1010, 340, 56
_FACTS = 4


def write_card(run_dir: Path, out: Path | None = None) -> Path:
    """Write the card of the run in `run_dir`, by default to card.svg in the run."""
    path = out or Path(run_dir) / "card.svg"
    write_whole(path, share_card(read_record(run_dir)).encode())
    return path


def card_url(card: str) -> str:
    """Return the card as an address that loads nothing."""
    return f"data:image/svg+xml;base64,{base64.b64encode(card.encode()).decode()}"


def share_card(record: Record) -> str:
    parts = [
        Markup('<rect width="{}" height="{}" fill="#fbfbf9"/>').format(_WIDTH, _HEIGHT),
        Markup('<rect width="{}" height="10" fill="{}"/>').format(_WIDTH, _ACCENT),
        *_head(record),
        *_scores(compared_scores(record)),
        *_facts(record),
    ]
    title = f"{record.skill_name}: {record.verdict}"
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}"'
        ' role="img" aria-label="{title}" font-family="{sans}">\n{parts}\n</svg>\n'
    ).format(w=_WIDTH, h=_HEIGHT, title=visible(title), sans=_SANS, parts=Markup("\n").join(parts))


def _head(record: Record) -> Iterator[Markup]:
    models = record.agent or "your own agent"
    if record.practice:
        models = f"{record.practice}, no language model"
    name = shorten(record.skill_name or "a blank skill", 40)
    yield _text(_LEFT, 78, f"{name} for {shorten(models, 60)}", 26, _SOFT)
    lines = textwrap.wrap(visible(record.verdict), _HEADLINE)
    if len(lines) > _HEADLINE_ROWS:
        lines = [*lines[: _HEADLINE_ROWS - 1], shorten(" ".join(lines[2:]), _HEADLINE)]
    for row, line in enumerate(lines):
        yield _text(_LEFT, 146 + 54 * row, line, 42, _INK, family=_SERIF)


def _scores(bars: Mapping[str, Interval]) -> Iterator[Markup]:
    """Draw one line per skill from 0 to 100 %, with the interval around the score."""
    for row, (name, score) in enumerate(bars.items()):
        y = _BAR_TOP + _BAR_STEP * row
        color = _ACCENT if 0 < row == len(bars) - 1 else _SOFT
        yield _text(_BAR_LEFT - 24, y + 9, shorten(name, 22), 24, _SOFT, anchor="end")
        yield _line(_place(0), _place(1), y, _FAINT, 3)
        yield _line(_place(score.low), _place(score.high), y, color, 10, opacity=0.35)
        yield Markup('<circle cx="{}" cy="{}" r="11" fill="{}"/>').format(
            _place(score.mean), y, color
        )
        yield _text(_BAR_RIGHT + 24, y + 10, percent(score.mean), 30, _INK)


def _facts(record: Record) -> Iterator[Markup]:
    shown = facts(record)[-_FACTS:]
    width = (_WIDTH - 2 * _LEFT) / _FACTS
    for column, fact in enumerate(shown):
        x = round(_LEFT + width * column)
        yield _text(x, 530, fact.name, 20, _SOFT)
        yield _text(x, 560, shorten(fact.value, 24), 25, _INK)
        yield _text(x, 586, shorten(fact.note, 32), 18, _SOFT)
    yield _text(_WIDTH - _LEFT, 78, "skillfit", 28, _ACCENT, family=_SERIF, anchor="end")


def _place(score: float) -> float:
    share = max(0.0, min(1.0, score))
    return round(_BAR_LEFT + share * (_BAR_RIGHT - _BAR_LEFT), 1)


def _line(x1: float, x2: float, y: float, color: str, width: int, opacity: float = 1) -> Markup:
    return Markup(
        '<line x1="{}" x2="{}" y1="{y}" y2="{y}" stroke="{}" stroke-width="{}" opacity="{}"'
        ' stroke-linecap="round"/>'
    ).format(x1, x2, color, width, opacity, y=y)


def _text(
    x: float, y: float, text: str, size: int, color: str, *, family: str = "", anchor: str = "start"
) -> Markup:
    font = Markup(' font-family="{}"').format(family) if family else Markup("")
    return Markup(
        '<text x="{}" y="{}" font-size="{}" fill="{}" text-anchor="{}"{}>{}</text>'
    ).format(x, y, size, color, anchor, font, visible(text))
