"""The live terminal: one screen, updated in place. `Screen` is what the events add up to, `render`
draws it.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from skillfit.cli.runs import Point, plot
from skillfit.models.protocol import Usage
from skillfit.run.events import (
    Discarded,
    EvaluationFinished,
    Event,
    GateDecided,
    PreflightFinished,
    RolloutFinished,
    RunStarted,
    ShipTested,
    SlowUpdateFinished,
    StageFinished,
    StageStarted,
    StepFinished,
    Stored,
    Warned,
)
from skillfit.run.records import Evidence

COLOURS = {"accept": "green", "reject": "red", "inconclusive": "yellow"}
_SHOWN = 5  # verdicts and messages on the screen


@dataclass(slots=True)
class Bar:
    """One stage of the present step: how far it is, and how fast."""

    stage: str
    total: int
    begun: float
    done: int = 0
    failed: int = 0
    latest: float = 0.0
    seconds: float | None = None  # when it is over

    @property
    def rate(self) -> float:
        took = self.latest - self.begun
        return self.done / took if self.done and took > 0 else 0.0


@dataclass(slots=True)
class Screen:
    """Where a run is, from its events alone. `spent` and `notice` are the driver's."""

    name: str = ""
    agent: str = ""
    optimizer: str = ""
    caps: dict[str, float] = field(default_factory=dict)
    epochs: int = 0
    steps: int = 0
    epoch: int = 0
    step: int = 0
    bars: dict[str, Bar] = field(default_factory=dict)
    curve: list[Point] = field(default_factory=list)
    verdicts: list[GateDecided] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    spent: Usage = field(default_factory=Usage)
    notice: str = ""

    def __call__(self, stored: Stored) -> None:
        self._on(stored.event, stored.at)

    @singledispatchmethod
    def _on(self, event: Event, at: float) -> None:
        """Other events do not show."""

    @_on.register
    def _(self, event: RunStarted, at: float) -> None:
        self.epochs, self.steps = event.total_epochs, event.total_steps
        self.name, self.agent, self.optimizer = (
            event.skill_name,
            event.model_of("agent"),
            event.model_of("optimizer"),
        )
        self.caps = {name: cap for name, cap in event.config.get("budget", {}).items() if cap}
        if event.fit_only:
            self.messages.append(
                "Too few items for a selection split: whatever comes out is an unverified suggestion."
            )

    @_on.register
    def _(self, event: PreflightFinished, at: float) -> None:
        self.messages += [
            f"check {check.name}: {check.message}"
            for check in event.checks
            if check.verdict != "go"
        ]

    @_on.register
    def _(self, event: StageStarted, at: float) -> None:
        if (event.epoch, event.step) != (self.epoch, self.step):
            self.bars.clear()
        self.epoch, self.step = event.epoch, event.step
        self.bars[event.stage] = Bar(event.stage, event.total, at, latest=at)

    @_on.register
    def _(self, event: StageFinished, at: float) -> None:
        if event.stage in self.bars:
            self.bars[event.stage].seconds = event.seconds

    @_on.register
    def _(self, event: RolloutFinished, at: float) -> None:
        bar = self.bars.get(event.phase)
        if bar is not None:
            bar.done += 1
            bar.latest = max(at, bar.latest)
            bar.failed += event.status == "failed"
        if event.failure:
            kind, _, message = event.failure.partition(": ")
            self.failures[kind] += 1
            if self.failures[kind] == 1:
                self.messages.append(f"A rollout failed ({kind}): {message}")

    @_on.register
    def _(self, event: EvaluationFinished, at: float) -> None:
        if event.split == "selection":
            decided = next(
                (verdict.decision for verdict in self.verdicts if verdict.name == event.name),
                "accept",
            )
            self.curve.append(Point(event.hard, decided == "accept"))

    @_on.register
    def _(self, event: GateDecided, at: float) -> None:
        self.verdicts.append(event)

    @_on.register
    def _(self, event: Discarded, at: float) -> None:
        self.messages.append(f"Discarded at {event.stage}: {event.reason}")

    @_on.register
    def _(self, event: Warned, at: float) -> None:
        self.messages.append(event.message)


def render(screen: Screen, elapsed: float = 0.0, width: int = 100) -> RenderableType:
    parts: list[RenderableType] = [_header(screen, elapsed), _stages(screen)]
    if screen.curve:
        parts.append(Text("\n".join(plot(screen.curve, width=min(width, 100) - 12)), style="cyan"))
    if screen.verdicts:
        parts.append(_verdicts(screen.verdicts[-_SHOWN:]))
    parts += [
        Text(f"! {message}", style="yellow", overflow="ellipsis", no_wrap=True)
        for message in screen.messages[-_SHOWN:]
    ]
    if screen.notice:
        parts.append(Text(screen.notice, style="bold"))
    return Panel(Group(*parts), title="skillfit", title_align="left", border_style="dim")


def _header(screen: Screen, elapsed: float) -> Text:
    text = Text.assemble(
        (screen.name, "bold"),
        f"   {screen.agent or 'your agent'} ← {screen.optimizer or 'worked examples'}",
    )
    if screen.agent.startswith("practice/") or screen.optimizer.startswith("practice/"):
        text.append("   practice models, no language model", "italic yellow")
    where = (
        f"epoch {screen.epoch}/{screen.epochs}  step {screen.step}/{screen.steps}"
        if screen.epoch
        else "beginning or end of the run"
    )
    return text.append(f"\n{where}   {spend(screen.spent, screen.caps, elapsed)}\n", "dim")


def spend(spent: Usage, caps: dict[str, float], seconds: float) -> str:
    """What was used, against the caps that are set."""
    amounts = {
        "usd": spent.usd,
        "calls": spent.calls,
        "tokens": spent.tokens,
        "minutes": seconds / 60,
    }
    shown = []
    for name, amount in amounts.items():
        if amount is None:
            continue
        cap = caps.get(name)
        said = (
            f"${amount:.2f}"
            if name == "usd"
            else f"{amount:.1f} min"
            if name == "minutes"
            else f"{int(amount):,} {name}"
        )
        shown.append(f"{said} of {cap:g} ({amount / cap:.0%})" if cap else said)
    return "   ".join(shown)


def _stages(screen: Screen) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=12)
    table.add_column(width=30)
    table.add_column()
    for bar in list(screen.bars.values()):
        over = bar.seconds is not None
        total = bar.total or (bar.done if over else None)
        # A stage of optimizer calls alone has nothing to count while it runs.
        drawn = (
            ProgressBar(total=total, completed=total or 0 if over else bar.done, width=30)
            if total or not over
            else Text("")
        )
        count = (
            f"{bar.done}" + (f" of {bar.total}" if bar.total >= bar.done else "")
            if bar.done or bar.total
            else ""
        )
        failed = f", {bar.failed} failed" if bar.failed else ""
        pace = (
            f"{bar.seconds:.1f} s"
            if bar.seconds is not None
            else f"{bar.rate:.1f}/s"
            if bar.rate
            else ""
        )
        table.add_row(
            Text(("✓ " if over else "▸ ") + bar.stage, "green" if over else "bold"),
            drawn,
            f"{count}{failed}  {pace}".strip(),
        )
    return table


def _verdicts(verdicts: list[GateDecided]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for column in ("verdict", "", "difference (90 %)", "fixed", "broken", "rollouts"):
        table.add_column(column, no_wrap=True)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for verdict in verdicts:
        difference, interval, *counts = evidence(verdict.evidence)
        name = verdict.name.replace("slow_update_epoch_", "slow update ")
        style = COLOURS.get(verdict.decision, "")
        table.add_row(
            name,
            Text(verdict.decision, style),
            f"{difference} ({interval})",
            *counts,
            verdict.reason,
        )
    return table


def evidence(found: Evidence) -> tuple[str, str, str, str, str]:
    """Difference, interval, fixed, broken, rollouts: as words for a table or a line."""
    low, high = found.interval
    return (
        f"{found.difference:+.3f}",
        f"{low:+.2f} … {high:+.2f}",
        str(len(found.fixed)),
        str(len(found.broken)),
        str(found.rollouts),
    )


class Terminal:
    """A listener that tells a person how a run goes on: here, in no way but the lines it is asked
    to say.
    """

    _display: AbstractContextManager[Any] = nullcontext()  # what stands on the console meanwhile

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, stored: Stored) -> None:
        """Hear an event."""

    def tick(self, spent: Usage | None = None) -> None:
        """Some time has passed."""

    def say(self, message: str) -> None:
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.__exit__(None, None, None)


class LiveTerminal(Terminal):
    """Keeps the screen up to date; `tick` redraws (about ten times a second is enough)."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.screen = Screen()
        self._begun = time.monotonic()
        self._display = self._live = Live(
            console=console,
            auto_refresh=False,
            get_renderable=self._draw,
            vertical_overflow="ellipsis",
        )

    def __call__(self, stored: Stored) -> None:
        self.screen(stored)

    def _draw(self) -> RenderableType:
        return render(self.screen, time.monotonic() - self._begun, self._console.width)

    def tick(self, spent: Usage | None = None) -> None:
        self.screen.spent = spent or self.screen.spent
        self._live.refresh()

    def say(self, message: str) -> None:
        self.screen.notice = message
        self._live.refresh()


class PlainTerminal(Terminal):
    """The same as lines, for pipes, logs and CI. What a resumed run replays is not said again."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._since = time.time()
        self._replayed = 0
        self._screen = Screen()

    def __call__(self, stored: Stored) -> None:
        said = len(self._screen.messages)
        self._screen(stored)
        if stored.at < self._since and not isinstance(stored.event, RunStarted):
            self._replayed += 1
            return
        if self._replayed:
            self.say(f"Going on where the run stopped ({self._replayed:,} recorded events).")
            self._replayed = 0
        for message in [*self._screen.messages[said:], *_lines(stored.event, self._screen)]:
            self.say(message)


class CountingTerminal(Terminal):
    """A count of rollouts, for commands that only measure."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._done = 0
        self._display = self._status = console.status("0 rollouts")

    def __call__(self, stored: Stored) -> None:
        if isinstance(stored.event, Warned):
            self.say(f"warning: {stored.event.message}")
        self._done += isinstance(stored.event, RolloutFinished)
        self._status.update(f"{self._done} rollouts")


def _lines(event: Event, screen: Screen) -> list[str]:
    if isinstance(event, RunStarted):
        splits = ", ".join(f"{count} {name}" for name, count in event.splits.items())
        practice = (
            " (practice models, no language model)" if screen.agent.startswith("practice/") else ""
        )
        return [
            f"Training {screen.name} for {screen.agent or 'your agent'}{practice}: {splits} items, {screen.steps} steps."
        ]
    if isinstance(event, EvaluationFinished) and (
        event.name == "baseline" or event.split == "test"
    ):
        return [
            f"{event.name.replace('_', ' ')}: {event.hard:.3f} on {event.scored} {event.split} items"
        ]
    if isinstance(event, GateDecided):
        difference, interval, fixed, broken, rollouts = evidence(event.evidence)
        found = f"{difference} ({interval}), {fixed} fixed, {broken} broken, {rollouts} rollouts"
        return [f"{event.name}: {event.decision}, {found}: {event.reason}"]
    if isinstance(event, StepFinished) and event.action.startswith("skip"):
        return [f"step_{event.step:04d}: {event.action}"]
    if isinstance(event, SlowUpdateFinished):
        return [f"slow update after epoch {event.epoch}: {event.action}"]
    if isinstance(event, ShipTested):
        low, high = event.interval
        gap = event.gap
        beside = "" if gap is None else f"; {event.difference + gap:+.3f} by the grader trained on"
        return [
            f"ship test: {event.verdict}, {event.difference:+.3f} ({low:+.2f} … {high:+.2f}){beside}"
        ]
    return []
