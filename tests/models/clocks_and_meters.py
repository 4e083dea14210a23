"""Shared by the tests of the models: clocks that do not wait, a meter with a cap, and a helper to
connect.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from skillfit.errors import SkillfitError
from skillfit.models import Limiters, ModelSpec, Prices, Request, Usage, connect
from skillfit.models.client import Client
from skillfit.models.protocol import Message, Role

T = TypeVar("T")


class InstantClock:
    """Sleeping takes no time and moves the clock."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


class SimulatedClock:
    """Time stops while any task can run, then jumps to the end of the next sleep."""

    def __init__(self) -> None:
        self.time = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._order = count()

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        heapq.heappush(self._sleepers, (self.time + seconds, next(self._order), woken))
        await woken.wait()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        while not task.done():
            for _ in range(20):
                await asyncio.sleep(0)
            if self._sleepers and not task.done():
                self.time, _, woken = heapq.heappop(self._sleepers)
                woken.set()
        return await task


class CapReached(SkillfitError):
    pass


@dataclass
class _Reservation:
    meter: CappedMeter
    bound: Usage

    def settle(self, usage: Usage) -> None:
        self.meter.open -= 1
        self.meter.reserved -= self.bound.usd or 0
        self.meter.settled.append(usage)
        self.meter.spent += usage


class CappedMeter:
    """A meter that enforces its cap and records every reservation."""

    def __init__(self, usd: float = 1e9, calls: int = 10**9) -> None:
        self.usd, self.calls = usd, calls
        self.settled: list[Usage] = []
        self.spent = Usage()
        self.bounds: list[Usage] = []
        self.reserved, self.open = 0.0, 0

    async def reserve(self, role: Role, upper_bound: Usage) -> _Reservation:
        if (self.spent.usd or 0) + self.reserved + (
            upper_bound.usd or 0
        ) > self.usd or self.spent.calls + self.open >= self.calls:
            raise CapReached("The cap is reached.")
        self.bounds.append(upper_bound)
        self.reserved += upper_bound.usd or 0
        self.open += 1
        return _Reservation(self, upper_bound)

    def waiting(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def sending(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()


def to(
    base_url: str,
    id: str = "openai/gpt-4o",
    *,
    clock: Any = None,
    notices: list[str] | None = None,
    **more: Any,
) -> Client:
    """A connected model whose waits take no time."""
    outside = {
        key: more.pop(key)
        for key in ("meter", "limiters", "concurrency", "role", "environ", "folder")
        if key in more
    }
    spec = ModelSpec(id=id, base_url=base_url, **more)
    limiters = outside.pop("limiters", None) or Limiters(clock or InstantClock())
    notice = (notices if notices is not None else []).append
    return connect(
        spec,
        role=outside.pop("role", "agent"),
        run_id="run-1",
        limiters=limiters,
        prices=Prices(),
        notice=notice,
        environ=outside.pop("environ", {}),
        **outside,
    )


def say(text: str, **more: Any) -> Request:
    return Request((Message("user", text),), more.pop("stage", "rollout"), **more)
