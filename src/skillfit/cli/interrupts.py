"""Do some work under a terminal: show its progress, and stop it at Ctrl-C or at a time limit."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from skillfit.cli.terminal import Terminal
    from skillfit.run.control import Control

T = TypeVar("T")
_REFRESH_SECONDS = 0.1  # between two refreshes of the terminal
_BLOCKED_SECONDS = 1.0  # a request to stop that the loop has not read until then
_PATIENCE = 5.0  # seconds that code may block the loop after a request to stop, or its time limit


def run_in_terminal(
    terminal: Terminal,
    begin: Callable[[Control], Coroutine[Any, Any, T]],
    *,
    resume: Path | None = None,
    seconds: float | None = None,
) -> T:
    """Do some work while a terminal shows its progress.

    The first Ctrl-C lets work in flight finish and saves it; the second one stops at once.
    `resume`: the run that can be resumed with `skillfit resume` then. `seconds`: what is left of
    budget.minutes.
    """
    import asyncio

    from skillfit.models.protocol import AnswerPending
    from skillfit.run.control import Control, Interrupted

    control = Control()
    try:
        with terminal:
            return asyncio.run(_run_until_done(begin(control), terminal, control, seconds))
    except Interrupted:
        raise Interrupted(resume) from None
    except AnswerPending:
        if control.stopping:  # a prompt that was written last does not keep the run waiting
            raise Interrupted(resume) from None
        raise


class _LoopWatch:
    """Ends code of the user that blocks the event loop after a request to stop, or after the time
    limit of the run: the loop reads both, and cannot. A thread sends the signal of a second Ctrl-C.
    """

    def __init__(self, terminal: Terminal, seconds: float | None) -> None:
        import threading

        self._terminal = terminal
        self._due = None if seconds is None else time.monotonic() + seconds
        self._ticked = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if hasattr(signal, "pthread_kill"):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def tick(self) -> None:
        """Note that the loop runs."""
        self._ticked = time.monotonic()

    def expect_stop(self) -> None:
        """Note that a stop was asked for."""
        now = time.monotonic()
        self._due = now if self._due is None else min(self._due, now)

    def _watch(self) -> None:
        import threading

        said, main = False, threading.main_thread().ident
        while not self._over.wait(_BLOCKED_SECONDS):
            now = time.monotonic()
            is_due = self._due is not None and now - self._due > _PATIENCE
            if not is_due or now - self._ticked < _PATIENCE or main is None:
                continue
            if not said:
                self._terminal.say("Stopping: code of yours, such as a proposer, does not return.")
                said = True
            signal.pthread_kill(main, signal.SIGTERM)


async def _run_until_done(
    work: Coroutine[Any, Any, T], terminal: Terminal, control: Control, seconds: float | None
) -> T:
    """Wait for the work, refresh the terminal meanwhile, and handle signals."""
    import asyncio

    from skillfit.run.control import Interrupted

    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    interrupts = 0

    def interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            terminal.say("Stopping: saving work in flight. Ctrl-C again stops at once.")
            control.stop()
        else:
            task.cancel()

    first = 0.0

    def receive() -> None:
        nonlocal first
        loop.call_soon_threadsafe(interrupt)
        watch.expect_stop()
        now = time.monotonic()
        if first and not interrupts and now - first > _BLOCKED_SECONDS:
            raise Interrupted  # in code of the user, which blocks the loop
        first = first or now

    watch = _LoopWatch(terminal, seconds)
    with _on_signals(receive), watch:
        while not task.done():
            await asyncio.wait({task}, timeout=_REFRESH_SECONDS)
            watch.tick()
            terminal.tick(control.usage)
        terminal.tick(control.usage)
    if task.cancelled():
        raise Interrupted
    return task.result()


@contextmanager
def _on_signals(handler: Callable[[], Any]) -> Iterator[None]:
    """Handle Ctrl-C, termination and a closed terminal in the same way. SIGINT is handled also
    where it was ignored, as in background jobs of scripts: `steer stop` sends it.
    """
    signals = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:  # nohup ignores it
        signals.append(hangup)
    received = False

    def receive(number: int, _: object) -> None:
        nonlocal received
        received = True
        if number == hangup:
            _leave_closed_terminal()
        handler()

    before = [signal.signal(number, receive) for number in signals]
    try:
        yield
    finally:
        for number, old in zip(signals, before, strict=True):
            # Already shutting down: ignore further signals so that cleanup can finish.
            signal.signal(number, signal.SIG_IGN if received else old)


def _leave_closed_terminal() -> None:
    """Discard the output: writing to a terminal that was closed would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        # A closed terminal does not count as a terminal any more, but is still a device.
        if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
