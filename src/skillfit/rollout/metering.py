"""Meter rollouts whose model calls skillfit does not see: programs and the user's own code.

What such a rollout costs is known only when it has ended. So under a cap `RolloutMeter` reserves an
estimate from the rollouts before it: the highest cost seen, and a margin for how much the costs
vary. The first rollout reserves everything that is left. Until several have shown their cost, no
more run at the same time than have ended, and near the cap they run one by one.

A program that accepts a spending limit is given the reserved amount as its limit. If it
reaches the limit, the engine repeats the rollout with a larger reservation, as long as the budget
has one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from skillfit.config.schema import BudgetSection
from skillfit.errors import InputError
from skillfit.models.protocol import Meter, Reservation, Usage
from skillfit.run.budget import Remaining
from skillfit.tasks.item import Reported

# A program that has a limit stops after the model call that passes it, not before.
_ROOM_ABOVE_LIMIT = 1.25
_NEAR_THE_CAP = 4  # reservations: with less left than this many, rollouts run one by one


class CappedMeter(Meter, Protocol):
    """A budget that can say what is left."""

    def left(self) -> Remaining: ...


@dataclass(slots=True)
class RolloutReservation:
    """What is reserved for one rollout."""

    max_usd: float | None  # the limit to give to a program that accepts one
    _meter: RolloutMeter
    _reservation: Reservation  # settling it a second time changes nothing

    def bill(self, reported: Usage) -> Usage:
        """Replace the reservation by what the rollout used. Returns it with its price."""
        used = self._meter.priced(reported)
        self._meter.learn(used)
        self._reservation.settle(used if used.usd is not None else self._meter.guess(used))
        return used

    def close(self) -> None:
        """Bill an estimate when nothing was billed: the cost of a cancelled rollout is unknown."""
        self._reservation.settle(self._meter.guess(Usage(calls=1)))


@dataclass(slots=True)
class RolloutMeter:
    """Reserves and bills rollouts as a whole.

    `capped`: there is a cap in dollars or tokens. `limits_itself`: the agent accepts a limit in
    dollars. `usd_per_rollout`: the user's own figure for agents that report no usage.
    """

    budget: CappedMeter
    price: Callable[[Usage], Usage] = lambda usage: usage
    capped: bool = False
    limits_itself: bool = False
    usd_per_rollout: float | None = None
    _seen: int = 0
    _highest: Usage = field(default_factory=Usage)
    _lowest_usd: float = 0.0
    _lowest_tokens: int = 0
    _running: int = 0
    _ended: asyncio.Condition = field(default_factory=asyncio.Condition)

    @asynccontextmanager
    async def reserve(self) -> AsyncIterator[RolloutReservation]:
        """Reserve what the next rollout may cost; wait while the running ones may reach the cap."""
        async with self._ended:
            await self._ended.wait_for(lambda: self._running < self._most_at_once())
            bound = self._bound()
            reservation = await self.budget.reserve("agent", bound)
            self._running += 1
        limit = None
        if self.limits_itself and bound.usd and self.budget.left().usd is not None:
            limit = bound.usd / _ROOM_ABOVE_LIMIT
        reserved = RolloutReservation(limit, self, reservation)
        try:
            yield reserved
        finally:
            reserved.close()
            self._running -= 1
            async with self._ended:
                self._ended.notify_all()

    def priced(self, reported: Usage) -> Usage:
        """The usage of a rollout with its price. A rollout counts as at least one call. Where
        nothing was reported the price is unknown, not zero, unless the user has named one.
        """
        calls = max(1, reported.calls)
        if not reported.tokens and not reported.usd:
            return Usage(calls=calls, usd=self.usd_per_rollout)
        return replace(self.price(reported), calls=calls)

    def guess(self, used: Usage) -> Usage:
        """What to count for a rollout whose cost is unknown: the highest seen so far."""
        return replace(self._highest, calls=used.calls)

    def learn(self, used: Usage) -> None:
        """Remember what a rollout cost, if it is known."""
        if used.usd is None and not used.tokens:
            return
        usd, tokens = used.usd or 0.0, used.tokens
        self._lowest_usd = min(self._lowest_usd, usd) if self._seen else usd
        self._lowest_tokens = min(self._lowest_tokens, tokens) if self._seen else tokens
        self._seen += 1
        highest = self._highest
        self._highest = Usage(input=max(highest.tokens, tokens), usd=max(highest.usd or 0.0, usd))

    def _most_at_once(self) -> float:
        """How many rollouts may run at the same time."""
        if not self.capped:
            return math.inf
        left, bound = self.budget.left(), self._bound()
        few_dollars = left.usd is not None and left.usd < _NEAR_THE_CAP * (bound.usd or 0.0)
        few_tokens = left.tokens is not None and left.tokens < _NEAR_THE_CAP * bound.tokens
        return 1 if few_dollars or few_tokens else max(1, self._seen)

    def _bound(self) -> Usage:
        """What to reserve for the next rollout."""
        if not self.capped:
            return Usage(calls=1)
        if not self._seen:
            left = self.budget.left()
            return Usage(calls=1, input=left.tokens or 0, usd=left.usd or 0.0)
        highest_usd, highest_tokens = self._highest.usd or 0.0, self._highest.tokens
        room = _ROOM_ABOVE_LIMIT if self.limits_itself else 1.0
        return Usage(
            calls=1,
            input=round(highest_tokens * self._margin(self._lowest_tokens, highest_tokens)),
            usd=highest_usd * self._margin(self._lowest_usd, highest_usd) * room,
        )

    def _margin(self, lowest: float, highest: float) -> float:
        """How much more than the highest cost so far the next rollout may cost: much while few
        rollouts were seen, later as much as they differed.
        """
        spread = (highest - lowest) / highest if highest else 0.0
        return 1 + max(spread, 1 / self._seen)


def refuse_unseen_usage(
    caps: BudgetSection,
    agent: str,
    reports: frozenset[Reported],
    *,
    has_price: bool,
    usd_per_rollout: float | None,
) -> None:
    """Refuse a cap in dollars or tokens that could not be held, because the agent does not report
    what it uses.
    """
    free = usd_per_rollout == 0
    if caps.tokens is not None and "tokens" not in reports and not free:
        raise InputError(
            f"budget.tokens is set, but {agent} does not report the tokens it uses.",
            hint="Cap calls (each rollout counts as one) or minutes instead; or set "
            "env.rollout_usd: 0 if it uses no paid model.",
        )
    seen = "usd" in reports or ("tokens" in reports and has_price)
    if caps.usd is not None and not seen and usd_per_rollout is None:
        why = "no price is known for its model" if "tokens" in reports else "reports no usage"
        raise InputError(
            f"budget.usd is set, but the cost of {agent} cannot be seen ({why}).",
            hint="Give the price in model.prices, or your own figure for one rollout in "
            "env.rollout_usd (0: it is free), or cap calls or minutes.",
        )
