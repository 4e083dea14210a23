"""The score curve as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_HEIGHT = 6


@dataclass(frozen=True, slots=True)
class PlotPoint:
    score: float
    accepted: bool


def plot(points: Sequence[PlotPoint], width: int = 60, height: int = _HEIGHT) -> list[str]:
    """Lines of a small chart: ● carried on, × not accepted, ─ the skill carried on meanwhile. Many
    points: the latest.
    """
    points = points[-max(1, width // 2) :]
    low, high = min(point.score for point in points), max(point.score for point in points)
    if high - low < 0.1:
        middle = (low + high) / 2
        low, high = max(0.0, middle - 0.05), min(1.0, middle + 0.05)
    column = max(2, min(8, width // max(1, len(points))))

    def row(score: float) -> int:
        return round((high - score) / (high - low) * (height - 1))

    grid = [[" "] * (column * len(points)) for _ in range(height)]
    carried = row(points[0].score)
    for at, point in enumerate(points):
        here = row(point.score)
        carried = here if point.accepted else carried
        for filler in range(column):
            grid[carried][at * column + filler] = "─"
        grid[here][at * column] = "●" if point.accepted else "×"
    labels = {0: f"{high:.2f}", height - 1: f"{low:.2f}"}
    return [f"{labels.get(at, ''):>5} ┤{''.join(line).rstrip()}" for at, line in enumerate(grid)]
