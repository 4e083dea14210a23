"""What the terminal shows of a run: a live screen, plain lines, or a counter.

Each is a listener of events. The live screen, which fits 80 × 24, and the plain lines read the same
record of the run as the report and the studio.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from skillfit.models.protocol import Usage
from skillfit.plain_text import (
    duration,
    mean_score,
    quantity,
    visible,
    with_interval,
    work_name,
)
from skillfit.record.fold import Fold
from skillfit.record.record import IN_SKILL, GateSummary, Record
from skillfit.record.text import (
    HEARTBEAT,
    UNPRICED,
    ProgressLines,
    cap_uses,
    decision_name,
    time_left,
)
from skillfit.run.events import RolloutFinished, Stored, Warned

STYLES = {"promoted": "green", IN_SKILL: "green", "dropped": "red"}
_LIVE_PLOT_HEIGHT = 5
PLOT_TITLE = "selection score, from 0 to 1"


def render_screen(
    record: Record,
    spent: Usage,
    elapsed: float,
    width: int = 80,
    height: int = 24,
    notice: str = "",
) -> RenderableType:
    """Return the screen. What does not fit the height is left out from the bottom of each list."""
    parts: list[RenderableType] = [_header(record, spent, elapsed), _stages(record)]
    notices = _latest_notices(record)
    room = height - 11 - min(4, len(record.work)) - bool(notices)
    points = [
        PlotPoint(point.score, point.kept) for point in record.points if point.split == "selection"
    ]
    if len(points) > 1 and room >= _LIVE_PLOT_HEIGHT + 6:
        lines = [PLOT_TITLE, *plot(points, width=min(width, 100) - 14, height=_LIVE_PLOT_HEIGHT)]
        parts.append(Text("\n".join(lines), style="cyan"))
        room -= len(lines)
    if record.edits:
        parts.append(_edits(record, max(2, min(8, room - 3))))
    elif record.gates:
        parts.append(_gates(record.gates[-max(2, min(5, room - 3)) :]))
    parts += _notices(notices, width - 4)
    if notice:
        parts.append(Text(notice, style="bold"))
    return Panel(Group(*parts), title="skillfit", title_align="left", border_style="dim")


def _latest_notices(record: Record) -> list[str]:
    """Return the last two; what the leak check blocked takes the place of one."""
    texts = [shown.text for shown in record.notices[-2:]]
    blocked = [one for one in record.rejections if one.leak]
    if not blocked:
        return texts
    return [f"leak check blocked {len(blocked)}: {blocked[-1].blocked}", *texts[-1:]]


def _notices(texts: Sequence[str], width: int) -> list[Text]:
    """Return the last notice in at most two lines, the one before in one."""
    shown = [_cut(f"! {visible(text)}", "yellow") for text in texts[:-1]]
    for text in texts[-1:]:
        lines = textwrap.wrap(f"! {visible(text)}", width, max_lines=2, placeholder=" …")
        shown.append(Text("\n".join(lines), style="yellow"))
    return shown


def _cut(text: str, style: str = "") -> Text:
    return Text(text, style=style, overflow="ellipsis", no_wrap=True)


def _header(record: Record, spent: Usage, elapsed: float) -> Text:
    models = f"{record.agent or 'your agent'} ← {record.optimizer or 'no optimizer model'}"
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(visible(record.skill_name), "bold")
    text.append(f"  {visible(models)}")
    if record.practice:
        text.append(f"  ({record.practice})", "italic yellow")
    step = f"step {min(record.steps_done + 1, record.total_steps)} of {record.total_steps}"
    left = time_left(record)
    scores = record.selection_scores()
    if scores is not None:  # before the step: on a narrow screen the end of a line is cut
        initial, best = map(mean_score, scores)
        text.append(f"\nscore {initial}{f' → {best}' if best != initial else ''}  ", "bold")
    else:
        text.append("\n")
    text.append(f"{step}{f', {left}' if left else ''}", "dim")
    text.append(f"\n{usage_text(spent, record.caps, elapsed)}", "dim")
    return text


def usage_text(spent: Usage, caps: Mapping[str, float], seconds: float) -> str:
    """Say what was used, against the caps that are set."""
    shown = []
    for use in cap_uses(spent, seconds, caps):
        if use.text == UNPRICED:
            continue
        of_cap = f" of {use.cap_text} ({use.used / use.cap:.0%})" if use.cap else ""
        shown.append(f"{use.text}{of_cap}")
    return "  ".join(shown)


def _stages(record: Record) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=19, no_wrap=True)
    table.add_column(width=24)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for stage in record.work[-4:]:
        share, name = stage.share, work_name(stage.stage)
        bar: RenderableType = Text("")
        if share is not None and stage.total:
            bar = ProgressBar(total=1.0, completed=share, width=24)
        elif not stage.over and name == "writing edits":
            bar = Text("asking the optimizer", style="dim")
        count = f"{stage.done} of {stage.total}" if stage.total >= stage.done > 0 else ""
        if stage.failed:
            count += f", {stage.failed} failed"
        pace = duration(stage.seconds) if stage.seconds is not None else ""
        if stage.seconds_left:
            pace = f"{duration(stage.seconds_left)} left"
        style = "green" if stage.over else "bold"
        table.add_row(
            Text(("✓ " if stage.over else "▸ ") + name, style), bar, f"{count}  {pace}".strip()
        )
    return table


def _edits(record: Record, most: int) -> Table:
    """Show the pool: edits in the skill first, then pending ones by their effect."""
    ranked = sorted(
        record.edits, key=lambda edit: (not edit.in_best, edit.rank, -(edit.mean or 0.0))
    )
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=True)
    table.add_column("effect on score (80 %)", no_wrap=True, width=22)
    table.add_column(f"edits: {record.edit_counts}", no_wrap=True, overflow="ellipsis", ratio=1)
    for edit in ranked[:most]:
        effect = "not measured yet"
        if edit.mean is not None:
            effect = with_interval(edit.mean, edit.low, edit.high)
        style = STYLES.get(edit.standing, "")
        text = visible(" ".join(edit.described.split()))
        table.add_row(Text(effect, style), f"{edit.evidence}: {text}" if edit.effect else text)
    return table


def _gates(gates: Sequence[GateSummary]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=True)
    table.add_column("step", no_wrap=True)
    table.add_column("change in score (90 %)", no_wrap=True)
    table.add_column("decision", no_wrap=True, overflow="ellipsis", ratio=1)
    for gate in gates:
        evidence = gate.evidence
        found = ""
        if evidence.rollouts:
            found = with_interval(evidence.difference, *evidence.interval)
        reason = f": {gate.reason}" if gate.reason else ""
        table.add_row(decision_name(gate.name), found, f"{gate.decision}{reason}")
    return table


_PLOT_HEIGHT = 6


@dataclass(frozen=True, slots=True)
class PlotPoint:
    score: float
    accepted: bool


def plot(points: Sequence[PlotPoint], width: int = 60, height: int = _PLOT_HEIGHT) -> list[str]:
    """Draw lines of a small chart of the latest points: ● accepted, × not accepted, ─ the
    incumbent.
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


_REDRAW = 0.25  # seconds between two drawings of the live screen


class Terminal:
    """Base class: prints only what `say` is given."""

    _display: AbstractContextManager[Any] = nullcontext()

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, stored: Stored) -> None:
        """Handle an event."""

    def tick(self, spent: Usage | None = None) -> None:
        """Refresh the display; called periodically."""

    def say(self, message: str) -> None:
        self._console.print(visible(message), highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.__exit__(None, None, None)


class LiveTerminal(Terminal):
    """One screen, updated in place."""

    def __init__(self, console: Console, earlier_seconds: float = 0.0) -> None:
        """Set up the display. `earlier_seconds`: how long earlier starts of the run took."""
        super().__init__(console)
        self._builder = Fold()
        self._begun = time.monotonic() - earlier_seconds
        self._drawn = 0.0
        self._spent = Usage()
        self._notice = ""
        self._display = self._live = Live(
            console=console,
            auto_refresh=False,
            get_renderable=self._draw,
            vertical_overflow="ellipsis",
        )

    def __call__(self, stored: Stored) -> None:
        self._builder(stored)

    def _draw(self) -> RenderableType:
        screen = render_screen(
            self._builder.record(),
            self._spent,
            time.monotonic() - self._begun,
            self._console.width,
            self._console.height - 1,
            self._notice,
        )
        # The cursor waits on its own line. At the end of the frame, the ^C that a terminal
        # prints would start a new line, and the next drawing would leave a part of this one.
        return Group(screen, "")

    def tick(self, spent: Usage | None = None) -> None:
        self._spent = spent or self._spent
        now = time.monotonic()
        if now - self._drawn >= _REDRAW:
            self._drawn = now
            self._live.refresh()

    def say(self, message: str) -> None:
        self._notice = visible(message)
        self._live.refresh()


class PlainTerminal(Terminal):
    """Lines for pipes, logs and CI."""

    def __init__(self, console: Console, *, again: bool = False) -> None:
        """Set up the display. `again`: the same command has printed how the run began."""
        super().__init__(console)
        self._builder = Fold()
        self._lines = ProgressLines(super().say, self._builder.record, again=again)

    def __call__(self, stored: Stored) -> None:
        self._builder(stored)
        self._lines(stored)

    def say(self, message: str) -> None:
        self._lines.say(message)

    def tick(self, spent: Usage | None = None) -> None:
        self._lines.tick()


class CountingTerminal(Terminal):
    """A count of rollouts, for commands that only measure."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._done = 0
        self._begun = self._last_line = time.monotonic()
        self._display = self._status = console.status("0 rollouts")

    def __call__(self, stored: Stored) -> None:
        if isinstance(stored.event, Warned):
            self.say(f"warning: {stored.event.message}")
        self._done += isinstance(stored.event, RolloutFinished)

    def say(self, message: str) -> None:
        self._last_line = time.monotonic()
        super().say(message)

    def tick(self, spent: Usage | None = None) -> None:
        """Show that the command is alive: where lines cannot be updated, by one now and then."""
        now = time.monotonic()
        count = f"{quantity(self._done, 'rollout')}, {duration(now - self._begun)}"
        self._status.update(count)
        if not self._console.is_terminal and now - self._last_line >= HEARTBEAT:
            self.say(f"... {count}")
