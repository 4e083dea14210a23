"""Time as an object that is passed in, so that tests of waiting do not have to wait; and a timeout
that can be paused.

A rollout's time limit counts its work only. While it waits for a slot at the endpoint, or for a
provider to recover, its timeout is paused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class WallClock:
    """Real time."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _PausableTimeout:
    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._pauses = 0
        self._seconds_left = 0.0
        self.closed = False

    def pause(self) -> None:
        when = self._timeout.when()
        if not self._pauses and when is not None and not self._ended:
            self._seconds_left = when - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1
        if not self._pauses and self._timeout.when() is None and not self._ended:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds_left)

    @property
    def _ended(self) -> bool:
        return self.closed or self._timeout.expired()


_current: ContextVar[_PausableTimeout | None] = ContextVar("_current", default=None)


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
    """As `asyncio.timeout`, but time inside `paused()` does not count."""
    async with asyncio.timeout(seconds) as timeout:
        limit = _PausableTimeout(timeout)
        token = _current.set(limit if seconds is not None else None)
        try:
            yield timeout
        finally:
            # A call that is shared with others may run on after this block. It must not change the
            # timeout then.
            limit.closed = True
            _current.reset(token)


@contextmanager
def paused() -> Iterator[None]:
    """Pause the `time_limit` around this block, if there is one."""
    limit = _current.get()
    if limit is None:
        yield
        return
    limit.pause()
    try:
        yield
    finally:
        limit.resume()
