"""Time as something handed in, so that waiting can be tested without waiting.

A time limit for work that counts the work alone: waiting for a slot, or for a provider to recover,
is nobody's slowness.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds, never going back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class WallClock:
    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Limit:
    def __init__(self, timeout: asyncio.Timeout) -> None:
        self.timeout = timeout
        self.waiting = 0
        self.left = 0.0
        self.over = False

    def pause(self) -> None:
        when = self.timeout.when()
        if not self.waiting and when is not None and not self._ended:
            self.left = when - asyncio.get_running_loop().time()
            self.timeout.reschedule(None)
        self.waiting += 1

    def go_on(self) -> None:
        self.waiting -= 1
        if not self.waiting and self.timeout.when() is None and not self._ended:
            self.timeout.reschedule(asyncio.get_running_loop().time() + self.left)

    @property
    def _ended(self) -> bool:
        return self.over or self.timeout.expired()


_current: ContextVar[_Limit | None] = ContextVar("_current", default=None)


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
    """As `asyncio.timeout`, with the clock stopped during every `not_counted` inside it."""
    async with asyncio.timeout(seconds) as timeout:
        limit = _Limit(timeout)
        token = _current.set(limit if seconds is not None else None)
        try:
            yield timeout
        finally:
            # a call shared with others may outlive this limit, and must not touch it any more
            limit.over = True
            _current.reset(token)


@contextmanager
def not_counted() -> Iterator[None]:
    limit = _current.get()
    if limit is None:
        yield
        return
    limit.pause()
    try:
        yield
    finally:
        limit.go_on()
