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

from skillfit.cli.screen import render
from skillfit.models.protocol import Usage
from skillfit.plain_text import visible
from skillfit.report.progress import ProgressLines
from skillfit.report.story_builder import StoryBuilder
from skillfit.run.events import RolloutFinished, Stored, Warned

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
    """Lines for pipes, logs and CI."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._lines = ProgressLines(super().say)

    def __call__(self, stored: Stored) -> None:
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
        self._display = self._status = console.status("0 rollouts")

    def __call__(self, stored: Stored) -> None:
        if isinstance(stored.event, Warned):
            self.say(f"warning: {stored.event.message}")
        self._done += isinstance(stored.event, RolloutFinished)
        self._status.update(f"{self._done} rollouts")
