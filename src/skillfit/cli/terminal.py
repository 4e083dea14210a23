"""What the terminal shows of a run: a live screen, plain lines, or a counter.

Each is a listener of events. The live screen and the plain lines read the same story of the run as
the report and the studio.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live

from skillfit.cli.screen import render, time_left
from skillfit.models.protocol import Usage
from skillfit.plain_text import visible
from skillfit.report.story import label_of
from skillfit.report.story_builder import StoryBuilder
from skillfit.run.events import (
    Discarded,
    EvaluationFinished,
    Event,
    GateDecided,
    PersonDecided,
    PreflightFinished,
    RolloutFinished,
    RunStarted,
    ShipTested,
    SlowUpdateFinished,
    StepFinished,
    Stored,
    Warned,
)
from skillfit.run.records import in_words

_HEARTBEAT = 30.0  # seconds without a line before the plain terminal says how far the run is
_REDRAW = 0.25  # seconds between two drawings of the live screen


class Terminal:
    """Base: shows nothing but what it is asked to say."""

    _display: AbstractContextManager[Any] = nullcontext()

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, stored: Stored) -> None:
        """Handle an event."""

    def tick(self, spent: Usage | None = None) -> None:
        """Periodic refresh."""

    def say(self, message: str) -> None:
        self._console.print(visible(message), highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.__exit__(None, None, None)


class LiveTerminal(Terminal):
    """One screen, updated in place."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._builder = StoryBuilder()
        self._begun = time.monotonic()
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
        return render(
            self._builder.story(),
            self._spent,
            time.monotonic() - self._begun,
            self._console.width,
            self._console.height,
            self._notice,
        )

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
    """Lines for pipes, logs and CI. What a resumed run replays is not printed again."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._since = time.time()
        self._last_line = time.monotonic()
        self._replayed = 0
        self._builder = StoryBuilder()

    def __call__(self, stored: Stored) -> None:
        self._builder(stored)
        if stored.at < self._since and not isinstance(stored.event, RunStarted):
            self._replayed += 1
            return
        if self._replayed:
            self.say(f"Resuming where the run stopped ({self._replayed:,} recorded events).")
            self._replayed = 0
        for line in event_lines(stored.event):
            self.say(line)

    def say(self, message: str) -> None:
        self._last_line = time.monotonic()
        super().say(message)

    def tick(self, spent: Usage | None = None) -> None:
        """A line now and then while nothing else happens, so that a log shows the run is alive."""
        if time.monotonic() - self._last_line < _HEARTBEAT:
            return
        story = self._builder.story()
        stage = story.running_stage
        if stage is None:
            return
        where = f"step {stage.step}, " if stage.step else ""
        name = in_words(stage.stage)
        done = f": {stage.done} of {stage.total} rollouts" if stage.total else ""
        left = time_left(story)
        self.say(f"... {where}{name}{done}{f', {left}' if left else ''}")


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


def event_lines(event: Event) -> list[str]:
    """What the plain terminal prints for an event; most events print nothing."""
    if isinstance(event, RunStarted):
        return [_started(event)]
    if isinstance(event, PreflightFinished):
        return [
            f"check {check.name}: {check.message}"
            for check in event.checks
            if check.verdict != "go"
        ]
    if isinstance(event, EvaluationFinished):
        if event.name == "baseline" or event.split == "test":
            soft = f" (soft {event.soft:.3f})" if abs(event.soft - event.hard) > 1e-9 else ""
            name = event.name.replace("_", " ")
            return [f"{name}: {event.hard:.3f}{soft} on {event.scored} {event.split} items"]
        return []
    if isinstance(event, GateDecided):
        return [_decided(event)]
    if isinstance(event, StepFinished):
        skipped = event.action.startswith("skip")
        return [f"step {event.step}: {in_words(event.action)}"] if skipped else []
    if isinstance(event, SlowUpdateFinished):
        return [f"slow update after epoch {event.epoch}: {in_words(event.action)}"]
    if isinstance(event, ShipTested):
        return [_shipped(event)]
    if isinstance(event, PersonDecided):
        return [f"request {event.number}: {event.action} {event.target}".rstrip()]
    if isinstance(event, Discarded):
        return [f"discarded at {event.stage}: {event.reason}"]
    return [f"warning: {event.message}"] if isinstance(event, Warned) else []


def _started(event: RunStarted) -> str:
    splits = ", ".join(f"{count} {name}" for name, count in event.splits.items())
    agent = event.model_of("agent") or "your agent"
    practice = " (practice models, no language model)" if agent.startswith("practice/") else ""
    what = f"Training {event.skill_name} for {agent}{practice}"
    return f"{what}: {splits} items, {event.total_steps} steps."


def _decided(event: GateDecided) -> str:
    """One line per step: with a pool what changed in it, else the comparison."""
    name = label_of(event.name)
    if event.effects or (event.score is not None and event.score.estimated):
        counts = [
            f"{sum(effect.status == status for effect in event.effects)} {status}"
            for status in ("promoted", "pending", "dropped")
        ]
        score = f"score about {event.score.mean:.3f}" if event.score else ""
        return f"{name}: {score}; {event.reason} (edits: {', '.join(counts)})"
    found, (low, high) = event.evidence, event.evidence.interval
    difference = f"{found.difference:+.3f} ({low:+.2f} … {high:+.2f})"
    counts_text = f"{len(found.fixed)} fixed, {len(found.broken)} broken"
    if not found.fixed and not found.broken and (found.higher or found.lower):
        counts_text = f"{found.higher} items better, {found.lower} worse"
    decision = in_words(event.decision)
    return f"{name}: {decision}, {difference}, {counts_text}, {found.rollouts} rollouts"


def _shipped(event: ShipTested) -> str:
    if not event.repeats:
        return f"ship test: {event.verdict}: {event.reason}"
    low, high = event.interval
    line = f"ship test: {event.verdict}, {event.difference:+.3f} ({low:+.2f} … {high:+.2f})"
    if event.gap is not None:
        line += f"; {event.difference + event.gap:+.3f} under the training grader"
    return line
