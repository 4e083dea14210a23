"""The results of a comparison: a table, a figure, and a JSON file that other people's results can
be put beside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypedDict

from markupsafe import Markup

from skillfit import __version__
from skillfit.config import Config
from skillfit.plain_text import dollars, duration, quantity, score_with_interval, with_interval
from skillfit.plugins.compare.comparison import Comparison, Cost, WayRow

FORMAT = 1
COLUMNS = (
    "way",
    "rollouts",
    "test score (90 %)",
    "gain (90 %)",
    "improved",
    "cost",
    "time",
    "optimizer calls",
    "tokens",
    "skill tokens",
)
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _RIGHT = 720, 360, 48, 24, 44, 170
_COLOURS = ("#0b7285", "#d9480f", "#5f3dc4", "#2b8a3e", "#c2255c", "#1864ab", "#846358")


class WayRowJson(TypedDict):
    way: str
    meaning: str
    budget: int  # rollouts that the way might use; 0: it needs none
    score: float
    interval: tuple[float, float]
    gain: float | None
    gain_interval: tuple[float, float] | None
    seeds: list[float]  # the test score of each seed
    improved: int | None
    cost: Cost  # of an attempt, on average
    skill_tokens: int
    skills: list[str]


class ComparisonJson(TypedDict):
    format: int
    version: str
    date: str
    agent: str
    optimizer: str
    task: str
    test_items: int
    repeats: int
    test_cost: Cost
    rows: list[WayRowJson]
    left_out: list[str]
    failed: list[str]


def as_json(comparison: Comparison, config: Config) -> ComparisonJson:
    models = config.model
    return ComparisonJson(
        format=FORMAT,
        version=__version__,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        agent=models.agent.id if models.agent else "",
        optimizer=models.optimizer.id if models.optimizer else "",
        task=config.env.tasks.rsplit("/", 1)[-1],
        test_items=comparison.items,
        repeats=comparison.repeats,
        test_cost=comparison.test_cost,
        rows=[_row_json(row) for row in comparison.rows],
        left_out=list(comparison.left_out),
        failed=list(comparison.failed),
    )


def _row_json(row: WayRow) -> WayRowJson:
    gain = row.gain
    return WayRowJson(
        way=row.way.name,
        meaning=row.way.meaning,
        budget=row.rollouts,
        score=row.score.mean,
        interval=(row.score.low, row.score.high),
        gain=gain.mean if gain else None,
        gain_interval=(gain.low, gain.high) if gain else None,
        seeds=list(row.scores),
        improved=row.improved,
        cost=row.cost,
        skill_tokens=row.skill_tokens,
        skills=[one.skill.text for one in row.attempts],
    )


def cells(row: WayRow) -> tuple[str, ...]:
    """Return a row of the table."""
    score, gain, cost = row.score, row.gain, row.cost
    improved = "" if row.improved is None else f"{row.improved} of {len(row.attempts)}"
    used = row.way.trains
    return (
        row.way.name,
        f"{cost.rollouts:,}/{row.rollouts:,}" if used else "0",
        score_with_interval(score.mean, score.low, score.high),
        with_interval(gain.mean, gain.low, gain.high) if gain else "",
        improved,
        dollars(cost.usd) if used else "",
        duration(60 * cost.minutes) if used else "",
        f"{cost.optimizer_calls:,}" if used else "",
        f"{cost.tokens:,}" if used else "",
        f"{row.skill_tokens:,}",
    )


def notes(comparison: Comparison) -> str:
    """Explain how the numbers of the table were measured, and list what was left out or failed."""
    seeds = max(len(row.attempts) for row in comparison.rows)
    cost = comparison.test_cost
    lines = [
        f"Test score: {quantity(comparison.items, 'test item')}, "
        f"{quantity(comparison.repeats, 'rollout')} per item and skill "
        f"({quantity(cost.rollouts, 'rollout')} in all, which count for none of the ways).",
        f"Mean of {quantity(seeds, 'seed')}. Gain: over the initial skill, paired by item.",
        *(f"Left out: {reason}" for reason in comparison.left_out),
        *(f"Failed: {reason}" for reason in comparison.failed),
    ]
    return "\n".join(lines)


def markdown(comparison: Comparison) -> str:
    """Return the table as markdown."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(cells(row) for row in comparison.rows)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    meanings = "\n".join(f"- **{name}**: {text}" for name, text in _meanings(comparison).items())
    return f"{table}\n\n{notes(comparison)}\n\n{meanings}\n"


def _meanings(comparison: Comparison) -> dict[str, str]:
    return {row.way.name: row.way.meaning for row in comparison.rows}


def figure(comparison: Comparison) -> str:
    """Draw the test score of every way by its number of rollouts, as SVG."""
    curves: defaultdict[str, list[WayRow]] = defaultdict(list)
    for row in comparison.rows:
        curves[row.way.name].append(row)
    most = max((row.rollouts for row in comparison.rows), default=0) or 1
    parts = [*_axes(most, sorted({row.rollouts for row in comparison.rows}))]
    for number, (name, rows) in enumerate(curves.items()):
        parts += _curve(name, rows, most, _COLOURS[number % len(_COLOURS)])
    parts += _names(curves)
    words = "; ".join(f"{name}: {rows[-1].score.mean:.2f}" for name, rows in curves.items())
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" aria-label="{}" '
        'font-family="system-ui, sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="#fff"/>{}</svg>\n'
    ).format(_WIDTH, _HEIGHT, f"Test score by rollouts. {words}", Markup("\n").join(parts))


def _x(rollouts: int, most: int) -> float:
    return round(_LEFT + rollouts / most * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(score: float) -> float:
    return round(_TOP + (1 - score) * (_HEIGHT - _TOP - _BOTTOM), 1)


def _axes(most: int, budgets: Sequence[int]) -> Iterator[Markup]:
    for tick in range(0, 11, 2):
        y = _y(tick / 10)
        yield Markup('<path d="M{} {}H{}" stroke="#ddd"/>').format(_LEFT, y, _WIDTH - _RIGHT)
        yield _text(_LEFT - 8, y + 4, f"{tick / 10:.1f}", "end")
    for budget in budgets:
        yield _text(_x(budget, most), _HEIGHT - _BOTTOM + 18, f"{budget:,}", "middle")
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "rollouts", "middle")


def _curve(name: str, rows: Sequence[WayRow], most: int, colour: str) -> Iterator[Markup]:
    """Draw scores with their intervals; a dashed level for ways without rollouts."""
    if not rows[0].way.trains:
        yield Markup('<path d="M{} {}H{}" stroke="{}" stroke-dasharray="4 4"/>').format(
            _LEFT, _y(rows[0].score.mean), _WIDTH - _RIGHT, colour
        )
        return
    places = [(_x(row.rollouts, most), row.score) for row in rows]
    line = "L".join(f"{x} {_y(score.mean)}" for x, score in places)
    yield Markup('<path d="M{}" fill="none" stroke="{}" stroke-width="2"/>').format(line, colour)
    for x, score in places:
        yield Markup('<path d="M{x} {low}V{high}" stroke="{colour}"/>').format(
            x=x, low=_y(score.low), high=_y(score.high), colour=colour
        )
        yield Markup('<circle cx="{}" cy="{}" r="3.5" fill="{}"><title>{}</title></circle>').format(
            x,
            _y(score.mean),
            colour,
            f"{name}: {score_with_interval(score.mean, score.low, score.high)}",
        )


def _names(curves: Mapping[str, Sequence[WayRow]]) -> Iterator[Markup]:
    """Write names beside the ends of the lines, moved down where they would overlap."""
    below = -100.0
    ends = [
        (_y(rows[-1].score.mean), number, name)
        for number, (name, rows) in enumerate(curves.items())
    ]
    for y, number, name in sorted(ends):
        below = max(y, below + 15)
        colour = _COLOURS[number % len(_COLOURS)]
        yield Markup('<text x="{}" y="{}" fill="{}">{}</text>').format(
            _WIDTH - _RIGHT + 10, below + 4, colour, name
        )


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}" fill="#555">{}</text>').format(
        x, y, anchor, text
    )
