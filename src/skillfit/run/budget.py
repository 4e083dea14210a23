"""The budget: caps in dollars, tokens, calls and minutes, held before each attempt is sent.

An attempt's upper bound is set aside before it goes out and replaced by what it really used
afterwards, so no cap is ever passed. While a cap is set, what is set aside stands in the journal
too: an attempt in flight when the process is killed counts in full when the run goes on, because
nobody knows whether it was billed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from skillfit.errors import Exit, InputError, SkillfitError
from skillfit.models.protocol import Role, Usage
from skillfit.run.journal import Journal

Cap = Literal["usd", "tokens", "calls", "minutes"]

_COUNTED: tuple[Cap, ...] = ("usd", "tokens", "calls")  # minutes pass by themselves
_WARN_AT = (50, 80)
_EPSILON = 1e-9  # dollars: sums of floats, not money


class BudgetReached(SkillfitError):
    """The next attempt could pass a cap. `cap` says which."""

    exit_code = Exit.BUDGET

    def __init__(self, cap: Cap, spent: float, limit: float) -> None:
        super().__init__(
            f"The budget of {_amount(cap, limit)} is reached ({_amount(cap, spent)} used).",
            hint=f"Raise budget.{cap} and run the same command again: it goes on from here.",
        )
        self.cap = cap


@dataclass(frozen=True, slots=True)
class Caps:
    """None: no cap."""

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    minutes: float | None = None


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    cap: Cap
    percent: int
    message: str


@dataclass(slots=True)
class _Reserved:
    """One attempt's share. Settling twice changes nothing."""

    budget: Budget
    upper_bound: Usage
    open: bool = True

    def settle(self, usage: Usage) -> None:
        if self.open:
            self.open = False
            self.budget._settle(self, usage)


@dataclass
class _Sums:
    usd: float = 0.0
    tokens: int = 0
    calls: int = 0

    def add(self, usage: Usage, sign: int = 1) -> None:
        self.usd += sign * (usage.usd or 0.0)
        self.tokens += sign * usage.tokens
        self.calls += sign * usage.calls

    def plus(self, other: _Sums) -> _Sums:
        return _Sums(self.usd + other.usd, self.tokens + other.tokens, self.calls + other.calls)

    def at_least(self, other: _Sums) -> _Sums:
        return _Sums(
            max(self.usd, other.usd), max(self.tokens, other.tokens), max(self.calls, other.calls)
        )


class Budget:
    """The meter every model asks before an attempt and tells after it. Counts over all resumes of
    the run.
    """

    def __init__(
        self,
        caps: Caps,
        journal: Journal,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_warning: Callable[[BudgetWarning], None] = lambda _: None,
    ) -> None:
        self._caps = caps
        self._journal = journal
        self._clock = clock
        self._on_warning = on_warning
        self._in_flight = _Sums()
        self._closed_by: SkillfitError | None = None
        self._load()
        self._minutes_before = float(journal.fact("minutes") or 0.0)
        self._begun = clock()
        self._saved = self._begun
        self._changed = asyncio.Event()
        self._warned = {(cap, percent) for cap, percent, _, _ in self._passed()}

    @property
    def minutes(self) -> float:
        """Time this run has taken, over all its processes."""
        return self._minutes_before + (self._clock() - self._begun) / 60

    @property
    def spent(self) -> Usage:
        """Calls, tokens (as input) and dollars counted against the caps so far."""
        sums = self._counted.plus(self._lost)
        return Usage(calls=sums.calls, input=sums.tokens, usd=sums.usd)

    def seconds_left(self) -> float | None:
        """Until the cap in minutes, None without one."""
        return (
            None
            if self._caps.minutes is None
            else max(0.0, (self._caps.minutes - self.minutes) * 60)
        )

    def close(self, reason: SkillfitError) -> None:
        """From here on nothing is let through: attempts that wait for a slot or for their next try
        end with `reason`.
        """
        self._closed_by = reason

    async def reserve(self, role: Role, upper_bound: Usage) -> _Reserved:
        """Set `upper_bound` aside. Waits while only attempts in flight stand in the way; raises
        `BudgetReached` when more does.
        """
        if self._closed_by is not None:
            raise self._closed_by
        if self._caps.usd is not None and upper_bound.usd is None:
            refuse_unpriced(self._caps, [f"the {role}'s model"])
        while True:
            self._refuse_what_cannot_fit(upper_bound)
            if self._fits_beside_those_in_flight(upper_bound):
                break
            # When the minutes end first, the next round says so.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self.seconds_left())
        self._in_flight.add(upper_bound)
        self._keep()
        return _Reserved(self, upper_bound)

    def _settle(self, reserved: _Reserved, usage: Usage) -> None:
        self._in_flight.add(reserved.upper_bound, -1)
        self._counted.add(usage)
        self._keep()
        self._warn()
        self._changed.set()
        self._changed = asyncio.Event()

    def _refuse_what_cannot_fit(self, need: Usage) -> None:
        if self._caps.minutes is not None and self.minutes >= self._caps.minutes:
            self.save_minutes()
            raise BudgetReached("minutes", self.minutes, self._caps.minutes)
        for cap, limit, wanted, spent, _ in self._against(need):
            if spent + wanted > limit + _EPSILON:
                raise BudgetReached(cap, spent, limit)

    def _fits_beside_those_in_flight(self, need: Usage) -> bool:
        return all(
            spent + flying + wanted <= limit + _EPSILON
            for _, limit, wanted, spent, flying in self._against(need)
        )

    def _against(self, need: Usage) -> Iterator[tuple[Cap, float, float, float, float]]:
        """Per cap that is set: its name, limit, what is wanted, what is spent, what is in flight."""
        spent = self._counted.plus(self._lost)
        for cap in _COUNTED:
            limit = getattr(self._caps, cap)
            if limit is not None:
                yield (
                    cap,
                    limit,
                    getattr(need, cap) or 0.0,
                    getattr(spent, cap),
                    getattr(self._in_flight, cap),
                )

    def _load(self) -> None:
        """What earlier processes spent: the bill, or what was counted if a kill came before the
        record; and what was in flight.
        """
        bill = _Sums()
        for spend in self._journal.bill():
            bill.add(spend.usage)
        kept = self._journal.fact("budget") or {}
        self._counted = bill.at_least(_Sums(**kept.get("counted", {})))
        self._lost = _Sums(**kept.get("lost", {})).plus(_Sums(**kept.get("in_flight", {})))

    def _keep(self) -> None:
        if self._caps != Caps():
            sums = {"counted": self._counted, "lost": self._lost, "in_flight": self._in_flight}
            self._journal.set_fact("budget", {name: vars(value) for name, value in sums.items()})
        if self._clock() - self._saved > 1:
            self.save_minutes()

    def save_minutes(self) -> None:
        """Record the time taken so far; called by itself while calls are made, and when the run is
        closed.
        """
        self._saved = self._clock()
        self._journal.set_fact("minutes", self.minutes)

    def _passed(self) -> Iterator[tuple[Cap, int, float, float]]:
        shares = [(cap, spent, limit) for cap, limit, _, spent, _ in self._against(Usage())]
        if self._caps.minutes is not None:
            shares.append(("minutes", self.minutes, self._caps.minutes))
        for cap, spent, limit in shares:
            for percent in _WARN_AT:
                if spent >= limit * percent / 100:
                    yield cap, percent, spent, limit

    def _warn(self) -> None:
        for cap, percent, spent, limit in self._passed():
            if (cap, percent) not in self._warned:
                self._warned.add((cap, percent))
                message = f"{percent} % of the budget of {_amount(cap, limit)} is used ({_amount(cap, spent)})."
                self._on_warning(BudgetWarning(cap, percent, message))


def refuse_unpriced(caps: Caps, unpriced: Iterable[str]) -> None:
    """A cap in dollars means nothing for a model without a known price: refused before anything is
    spent.
    """
    names = sorted(set(unpriced))
    if caps.usd is not None and names:
        raise InputError(
            f"budget.usd is set, but no price is known for {', '.join(names)}.",
            hint="Give one in model.prices ({input, cached, output} in dollars per million tokens), or cap tokens or calls.",
        )


def _amount(cap: Cap, value: float) -> str:
    if cap == "usd":
        return f"${value:.4f}" if 0 < value < 0.1 else f"${value:.2f}"
    return f"{value:,.1f} minutes" if cap == "minutes" else f"{int(value):,} {cap}"
