"""The live screen of a run: drawn from its story, made to fit 80 × 24."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from skillfit.models.protocol import Usage
from skillfit.plain_text import visible
from skillfit.report.story import EditSummary, GateSummary, RunStory
from skillfit.run.records import in_words

STYLES = {"promoted": "green", "dropped": "red", "pending": ""}
_ROLLOUTS = ("preflight", "baseline", "rollout", "gate", "compose", "final", "ship", "test")
_SMALL_PLOT = 5


def render(
    story: RunStory,
    spent: Usage,
    elapsed: float,
    width: int = 80,
    height: int = 24,
    notice: str = "",
) -> RenderableType:
    """The screen. What does not fit the height is left out from the bottom of each list."""
    parts: list[RenderableType] = [_header(story, spent, elapsed), _stages(story)]
    room = height - 10 - min(4, len(story.stages))
    points = [
        PlotPoint(point.score, point.kept) for point in story.points if point.split == "selection"
    ]
    if len(points) > 1 and room >= _SMALL_PLOT + 5:
        lines = plot(points, width=min(width, 100) - 14, height=_SMALL_PLOT)
        parts.append(Text("\n".join(lines), style="cyan"))
        room -= len(lines)
    if story.edits:
        parts.append(_edits(story.edits, max(2, min(8, room - 3))))
    elif story.gates:
        parts.append(_gates(story.gates[-max(2, min(5, room - 3)) :]))
    for shown in story.notices[-2:]:
        parts.append(_cut(f"! {visible(shown.text)}", "yellow"))
    if notice:
        parts.append(Text(notice, style="bold"))
    return Panel(Group(*parts), title="skillfit", title_align="left", border_style="dim")


def _cut(text: str, style: str = "") -> Text:
    return Text(text, style=style, overflow="ellipsis", no_wrap=True)


def _header(story: RunStory, spent: Usage, elapsed: float) -> Text:
    models = f"{story.agent or 'your agent'} ← {story.optimizer or 'no optimizer model'}"
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(visible(story.skill_name), "bold")
    text.append(f"  {visible(models)}")
    if story.practice:
        text.append("  (practice models)", "italic yellow")
    step = f"step {min(story.steps_done + 1, story.total_steps)} of {story.total_steps}"
    left = time_left(story)
    text.append(
        f"\n{step}{f'  {left}' if left else ''}  {spend(spent, story.caps, elapsed)}", "dim"
    )
    return text


def time_left(story: RunStory) -> str:
    """How long the training steps will take; after the last one, the stage that runs."""
    if story.seconds_left:
        return f"about {duration(story.seconds_left)} of training left"
    stage = story.running_stage
    if stage is None or not stage.seconds_left or story.steps_done < story.total_steps:
        return ""
    return f"about {duration(stage.seconds_left)} left of this stage"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3600:.1f} h"


def spend(spent: Usage, caps: Mapping[str, float], seconds: float) -> str:
    """What was used, against the caps that are set."""
    amounts: dict[str, float | None] = {
        "usd": spent.usd,
        "calls": spent.calls,
        "tokens": spent.tokens,
        "minutes": seconds / 60,
    }
    shown = []
    for name, amount in amounts.items():
        if amount is None:
            continue
        if name == "usd":
            said = f"${amount:.2f}"
        elif name == "minutes":
            said = f"{amount:.1f} min"
        else:
            said = f"{int(amount):,} {name if amount != 1 else name.removesuffix('s')}"
        cap = caps.get(name)
        shown.append(f"{said} of {cap:g} ({amount / cap:.0%})" if cap else said)
    return "  ".join(shown)


def _stages(story: RunStory) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=19, no_wrap=True)
    table.add_column(width=24)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for stage in story.stages[-4:]:
        share = stage.share
        bar: RenderableType = Text("")
        if share is not None and stage.total:
            bar = ProgressBar(total=1.0, completed=share, width=24)
        elif not stage.over and stage.stage not in _ROLLOUTS:
            bar = Text("asking the optimizer", style="dim")
        count = f"{stage.done} of {stage.total}" if stage.total >= stage.done > 0 else ""
        if stage.failed:
            count += f", {stage.failed} failed"
        pace = f"{stage.seconds:.1f} s" if stage.seconds is not None else ""
        if stage.seconds_left:
            pace = f"{duration(stage.seconds_left)} left"
        style = "green" if stage.over else "bold"
        name = in_words(stage.stage)
        table.add_row(
            Text(("✓ " if stage.over else "▸ ") + name, style), bar, f"{count}  {pace}".strip()
        )
    return table


def _edits(edits: Sequence[EditSummary], most: int) -> Table:
    """The pool: promoted edits first, then pending ones by their effect."""
    order = {"promoted": 0, "pending": 1, "dropped": 2}
    ranked = sorted(edits, key=lambda edit: (order[edit.status], -(edit.mean or 0.0)))
    counts = ", ".join(
        f"{sum(edit.status == status for edit in edits)} {status}" for status in order
    )
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=True)
    table.add_column("effect (80 %)", no_wrap=True, width=22)
    table.add_column(f"edits: {counts}", no_wrap=True, overflow="ellipsis", ratio=1)
    for edit in ranked[:most]:
        effect = "not measured yet"
        if edit.mean is not None:
            effect = f"{edit.mean:+.2f} ({edit.low:+.2f}…{edit.high:+.2f})"
        table.add_row(Text(effect, STYLES[edit.status]), visible(" ".join(edit.text.split())))
    return table


def _gates(gates: Sequence[GateSummary]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=True)
    table.add_column("step", no_wrap=True)
    table.add_column("difference (90 %)", no_wrap=True)
    table.add_column("decision", no_wrap=True, overflow="ellipsis", ratio=1)
    for gate in gates:
        low, high = gate.interval
        found = ""
        if gate.probability is not None:
            found = f"{gate.difference:+.3f} ({low:+.2f} … {high:+.2f})"
        decision = in_words(gate.action)
        reason = f": {gate.reason}" if gate.reason else ""
        table.add_row(gate.label, found, f"{decision}{reason}")
    return table


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
