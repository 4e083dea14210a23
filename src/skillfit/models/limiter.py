"""How many requests may be in flight at one endpoint, learnt from how it answers.

The rules:
- start small; every success that came while all slots were taken adds one slot (doubling per round)
  until rate limits get frequent, and from then on one slot per round; never above the ceiling;
- a rate limit takes away the share of slots that rate limits have among the latest answers (that
  much was too much), a tenth at the least and half at the most, once per episode: requests sent
  before the cut, or within the cooldown after it, do not cut again;
- a slot that met a rate limit without Retry-After rests for a second: refusals are quick, and would
  use up everybody's tries;
- Retry-After pauses the whole endpoint, for everybody who shares it;
- a failure that says nothing about our rate (5xx, network) does not shrink, but cancels the growth
  of one success to come: an endpoint that fails now and then still grows, one that fails every
  other time does not;
- first come, first served.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from skillfit.models.protocol import ModelError, NetworkFailed, Overloaded, RateLimited, TimedOut
from skillfit.models.timing import Clock, WallClock, not_counted

START = 8
LATEST = 20  # answers that say how frequent rate limits are
FREQUENT = 0.25  # share of them that ends the doubling
COOLDOWN = 2.0  # seconds after a cut in which further rate limits belong to the same episode
REST = 1.0  # seconds a slot stays closed after a rate limit
LONGEST_PAUSE = 600.0  # a provider that asks for more is told to the person instead of waited for


class Limiter:
    """Slots of one endpoint. `async with limiter.slot():` around each attempt; a `ModelError`
    leaving the block teaches it.
    """

    def __init__(self, ceiling: int, clock: Clock | None = None, start: int = START) -> None:
        self.ceiling = ceiling
        self.limit = float(min(start, ceiling))
        self.in_flight = 0
        self._clock = clock or WallClock()
        self._queue: deque[asyncio.Event] = deque()
        self._resting: set[asyncio.Task[None]] = set()
        self.failed_in_a_row = 0  # whoever called: tells an outage from one call's bad luck
        self._limited: deque[bool] = deque(maxlen=LATEST)
        self._slow_start = True
        self._owed = 0.0  # successes that will not grow the limit
        self._paused_until = self._last_cut = float("-inf")

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        if self._queue or not self._free() or self._pause() > 0:
            with not_counted():
                await self._wait()
        self.in_flight += 1
        sent_at = self._clock.now()
        full = not self._free()
        try:
            yield
        except ModelError as error:
            self._failed(error, sent_at)
            if isinstance(error, RateLimited) and error.retry_after is None:
                self._resting.add(asyncio.ensure_future(self._rest()))
            raise
        else:
            self._succeeded(full)
        finally:
            self.in_flight -= 1
            self._wake()

    async def _wait(self) -> None:
        """Until it is this caller's turn: nobody before it, a slot free, the endpoint not paused."""
        ticket = asyncio.Event()
        self._queue.append(ticket)
        try:
            while True:
                if self._queue[0] is not ticket or not self._free():
                    await ticket.wait()
                    ticket.clear()
                elif (pause := self._pause()) > 0:
                    await self._clock.sleep(pause)
                else:
                    return
        finally:
            self._queue.remove(ticket)
            self._wake()

    def _free(self) -> bool:
        return self.in_flight + len(self._resting) < int(self.limit)

    def _pause(self) -> float:
        return self._paused_until - self._clock.now()

    async def _rest(self) -> None:
        try:
            await self._clock.sleep(REST)
        finally:
            if resting := asyncio.current_task():
                self._resting.discard(resting)
            self._wake()

    def _wake(self) -> None:
        if self._queue:
            self._queue[0].set()

    def _succeeded(self, full: bool) -> None:
        self.failed_in_a_row = 0
        self._limited.append(False)
        if self._owed:
            self._owed = max(0.0, self._owed - 1)
        elif full:
            self.limit = min(
                self.ceiling, self.limit + (1.0 if self._slow_start else 1.0 / self.limit)
            )

    def _failed(self, error: ModelError, sent_at: float) -> None:
        now = self._clock.now()
        self.failed_in_a_row += 1
        self._limited.append(isinstance(error, RateLimited))
        if error.retry_after is not None and error.retry_after <= LONGEST_PAUSE:
            self._paused_until = max(self._paused_until, now + error.retry_after)
        if isinstance(error, (Overloaded, TimedOut, NetworkFailed)):
            self._owed = min(
                self.limit, self._owed + 1
            )  # no more than a round's worth: an outage is over when it is over
        if (
            isinstance(error, RateLimited)
            and sent_at > self._last_cut
            and now >= self._last_cut + COOLDOWN
        ):
            share = sum(self._limited) / len(self._limited)
            self.limit = max(1.0, self.limit * (1 - min(0.5, max(0.1, share))))
            self._slow_start = self._slow_start and share < FREQUENT
            self._last_cut = now


class Limiters:
    """One limiter per endpoint, shared by every role and model that calls it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or WallClock()
        self._by_endpoint: dict[str, Limiter] = {}

    def of(self, endpoint: str, ceiling: int, start: int = START) -> Limiter:
        return self._by_endpoint.setdefault(endpoint, Limiter(ceiling, self.clock, start))


def endpoint_of(base_url: str, key: str = "") -> str:
    """Who shares a limit: the same server under the same key."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    who = hashlib.sha256(key.encode()).hexdigest()[:8] if key else "no-key"
    return f"{parts.scheme}://{parts.hostname}:{port}#{who}"
