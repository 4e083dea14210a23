"""How many requests may be in flight at one endpoint, learnt from how it answers.

The rules:
- Start with a few slots. Every success while all slots are taken adds one slot (so they double per
  round), until rate limits become frequent; from then on one slot is added per round. The number
  never passes the ceiling.
- A rate limit takes away the share of slots that rate limits have among the latest answers: at
  least a tenth, at most half. Rate limits of requests that were sent before the last cut, or that
  come soon after it, do not cut again.
- When most answers are rate limits without Retry-After, a slot that gets one is blocked for a
  second. Such answers come quickly, and calls would use up their retries.
- Retry-After pauses the endpoint for everyone who shares it.
- Other failures (5xx, network) take no slot away. Each one cancels the growth of one later success:
  an endpoint that fails now and then still grows, one that fails every other time does not.
- Requests are served in the order in which they came.

A rollout's time limit counts its work only. While it waits for a slot at the endpoint, or for a
provider to recover, its timeout is paused. Time is an object that is passed in (`Clock`), so that
tests of waiting do not have to wait.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol
from urllib.parse import urlsplit

from skillfit.models.failures import LONGEST_PAUSE, policy_of
from skillfit.models.protocol import ModelError


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> float:
        """Return the seconds since some moment. The value never goes back."""
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
    """Limit the block as `asyncio.timeout` does, but do not count time inside `paused()`."""
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


Waiting = Callable[[], AbstractAsyncContextManager[None]]
"""Makes the context in which a caller waits. The context may end the wait by raising."""

START = 8  # slots
LATEST = 40  # answers that are remembered
FREQUENT = 0.25  # share of rate limits among them that ends the doubling
CROWDED = 0.5  # share of rate limits at which waiting does not help unless it is long
# The endpoint is down after this many failures in a row, if there was time for a reply meanwhile.
OUTAGE = 4
COOLDOWN = 2.0  # seconds between two cuts, and at least ...
COOLDOWN_ROUNDS = 5.0  # ... this many times the usual latency
BLOCKED_SECONDS = 1.0  # how long a slot is not used after a rate limit


class Limiter:
    """The slots of one endpoint. Put `async with limiter.slot():` around each attempt. A
    `ModelError` that leaves the block counts as a failure of the endpoint.
    """

    def __init__(self, ceiling: int, clock: Clock | None = None, start: int = START) -> None:
        self.ceiling = ceiling
        self.limit = float(min(start, ceiling))
        self.in_flight = 0
        self.failed_in_a_row = 0  # over all callers
        self.outage_reported = False  # set by the caller that told the user; a success resets it
        self._failing_since = 0.0
        self._clock = clock or WallClock()
        self._queue: deque[asyncio.Event] = deque()
        self._blocked: set[asyncio.Task[None]] = set()
        self._rate_limited: deque[bool] = deque(maxlen=LATEST)
        self._latencies: deque[float] = deque(maxlen=LATEST)  # of successes, in seconds
        self._doubling = True
        self._growth_owed = 0.0  # successes that will not add a slot
        self._paused_until = self._last_cut = float("-inf")

    @property
    def latency(self) -> float | None:
        """The usual seconds until a reply, None before the first one."""
        return statistics.median(self._latencies) if self._latencies else None

    @property
    def is_down(self) -> bool:
        """Whether no request gets a reply, although there was time for one. Some failures come more
        quickly than replies, so that many of them in a row mean little.
        """
        failing_for = self._clock.now() - self._failing_since
        return self.failed_in_a_row >= OUTAGE and failing_for >= (self.latency or 0.0)

    @property
    def is_crowded(self) -> bool:
        """Whether most of the latest answers were rate limits."""
        return self._limited_share >= CROWDED

    @asynccontextmanager
    async def slot(self, waiting: Waiting = nullcontext) -> AsyncIterator[None]:
        """Yield a slot, as soon as it is this caller's turn. `waiting` is put around the wait and
        can end it.
        """
        if self._queue or not self._has_room() or self._pause_left() > 0:
            with paused():
                async with waiting():
                    await self._wait()
        self.in_flight += 1
        sent_at = self._clock.now()
        full = not self._has_room()
        try:
            yield
        except ModelError as error:
            self._failed(error, sent_at)
            raise
        else:
            self._succeeded(self._clock.now() - sent_at, full)
        finally:
            self.in_flight -= 1
            self._wake()

    async def _wait(self) -> None:
        """Wait until this caller is first in the queue, a slot is free, and no pause is on."""
        ticket = asyncio.Event()
        self._queue.append(ticket)
        try:
            while True:
                if self._queue[0] is not ticket or not self._has_room():
                    await ticket.wait()
                    ticket.clear()
                elif (pause := self._pause_left()) > 0:
                    await self._clock.sleep(pause)
                else:
                    return
        finally:
            self._queue.remove(ticket)
            self._wake()

    def _has_room(self) -> bool:
        return self.in_flight + len(self._blocked) < int(self.limit)

    def _pause_left(self) -> float:
        return self._paused_until - self._clock.now()

    def _wake(self) -> None:
        if self._queue:
            self._queue[0].set()

    def _succeeded(self, latency: float, full: bool) -> None:
        self.failed_in_a_row = 0
        self.outage_reported = False
        self._rate_limited.append(False)
        self._latencies.append(latency)
        if self._growth_owed:
            self._growth_owed = max(0.0, self._growth_owed - 1)
        elif full:
            added = 1.0 if self._doubling else 1.0 / self.limit
            self.limit = min(self.ceiling, self.limit + added)

    def _failed(self, error: ModelError, sent_at: float) -> None:
        if not self.failed_in_a_row:
            self._failing_since = self._clock.now()
        self.failed_in_a_row += 1
        endpoint = policy_of(error).endpoint
        self._rate_limited.append(endpoint == "crowded")
        if error.retry_after is not None and error.retry_after <= LONGEST_PAUSE:
            until = self._clock.now() + error.retry_after
            self._paused_until = max(self._paused_until, until)
        if endpoint == "crowded":
            self._cut(sent_at)
            if error.retry_after is None and self.is_crowded:
                self._blocked.add(asyncio.ensure_future(self._block_slot()))
        elif endpoint == "failing":
            # At most one round's worth, so that growth starts soon after an outage.
            self._growth_owed = min(self.limit, self._growth_owed + 1)

    def _cut(self, sent_at: float) -> None:
        now = self._clock.now()
        cooldown = max(COOLDOWN, COOLDOWN_ROUNDS * (self.latency or 0.0))
        if sent_at <= self._last_cut or now < self._last_cut + cooldown:
            return
        share = self._limited_share
        self.limit = max(1.0, self.limit * (1 - min(0.5, max(0.1, share))))
        self._doubling = self._doubling and share < FREQUENT
        self._last_cut = now

    async def _block_slot(self) -> None:
        try:
            await self._clock.sleep(BLOCKED_SECONDS)
        finally:
            if task := asyncio.current_task():
                self._blocked.discard(task)
            self._wake()

    @property
    def _limited_share(self) -> float:
        return sum(self._rate_limited) / len(self._rate_limited) if self._rate_limited else 0.0


class Limiters:
    """One limiter per endpoint, shared by all roles and models that call it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or WallClock()
        self._by_endpoint: dict[str, Limiter] = {}

    def of(self, endpoint: str, ceiling: int, start: int = START) -> Limiter:
        """Return the limiter of an endpoint. `ceiling` and `start` count for the first caller, who
        creates it.
        """
        return self._by_endpoint.setdefault(endpoint, Limiter(ceiling, self.clock, start))


def endpoint_of(base_url: str, key: str = "") -> str:
    """Return what shares a limit: the same server under the same key."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    account = hashlib.sha256(key.encode()).hexdigest()[:8] if key else "no-key"
    return f"{parts.scheme}://{parts.hostname}:{port}#{account}"
