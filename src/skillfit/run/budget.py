"""The budget of a run: caps in dollars, tokens, calls, rollouts and minutes, held in advance.

The most an attempt can cost is reserved before it is sent, and replaced by its real cost
afterwards, so no cap is ever passed. While a cap is set, reservations are recorded in the journal
too: an attempt that was in flight when the process was killed counts in full after a resume,
because nobody knows whether it was billed.

A command that works in several run directories (`verify` measures twice, `eval` once per model)
creates one `Spending` and hands it to the budget of each run. The caps then hold for all of them
together.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from skillfit.config.schema import BudgetSection
from skillfit.errors import Exit, InputError, SkillfitError
from skillfit.models.protocol import Role, Usage
from skillfit.plain_text import budget_amount
from skillfit.run.journal import ROLLOUTS, Journal

Cap = Literal["usd", "tokens", "calls", "rollouts", "minutes"]

_COUNTED: tuple[Cap, ...] = ("usd", "tokens", "calls", "rollouts")  # reserved, unlike minutes
_WARN_AT = (50, 80)
_EPSILON = 1e-9  # dollars: rounding errors of sums of floats
_SAVE_EVERY = 1.0  # seconds between two records of the time taken


class BudgetReached(SkillfitError):
    """The next attempt could pass a cap. `cap` says which."""

    exit_code = Exit.BUDGET

    def __init__(
        self, cap: Cap, spent: float, limit: float, held: float = 0.0, wanted: float = 0.0
    ) -> None:
        amounts = [f"{budget_amount(cap, spent)} used"]
        if held:
            amounts.append(f"{budget_amount(cap, held)} kept for the ship test")
        if cap in ("usd", "tokens") and wanted:
            amounts.append(f"the next call may take up to {budget_amount(cap, wanted)}")
        super().__init__(
            f"The budget of {budget_amount(cap, limit)} is reached ({', '.join(amounts)}).",
            hint=f"Raise budget.{cap} and run the same command again: it resumes from here.",
        )
        self.cap = cap


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is neither spent nor reserved nor kept for later. None: no cap."""

    usd: float | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    cap: Cap
    percent: int
    message: str


@dataclass(slots=True)
class Amounts:
    """What is counted against the caps, except for time."""

    usd: float = 0.0
    tokens: int = 0
    calls: int = 0
    rollouts: int = 0

    @classmethod
    def of(cls, usage: Usage) -> Amounts:
        return cls(usage.usd or 0.0, usage.tokens, usage.calls)

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.usd + other.usd,
            self.tokens + other.tokens,
            self.calls + other.calls,
            self.rollouts + other.rollouts,
        )

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.usd - other.usd,
            self.tokens - other.tokens,
            self.calls - other.calls,
            self.rollouts - other.rollouts,
        )

    def max_with(self, other: Amounts) -> Amounts:
        """The larger amount of both for each cap."""
        return Amounts(
            max(self.usd, other.usd),
            max(self.tokens, other.tokens),
            max(self.calls, other.calls),
            max(self.rollouts, other.rollouts),
        )


@dataclass(frozen=True, slots=True)
class _RecordedBudget:
    """The fact `budget` of a journal, for a process that resumes after a kill."""

    counted: Amounts = field(default_factory=Amounts)
    lost: Amounts = field(default_factory=Amounts)
    in_flight: Amounts = field(default_factory=Amounts)


@dataclass(slots=True)
class _Share:
    """What one run has spent. `lost` was in flight when an earlier process was killed."""

    counted: Amounts
    lost: Amounts
    in_flight: Amounts
    minutes_before: float  # of earlier processes

    @classmethod
    def load(cls, journal: Journal) -> _Share:
        """What earlier processes spent: the journal's bill, or what the budget counted where the
        kill came before the record; and what was in flight.
        """
        bill = journal.bill()
        used, rollouts = bill.total, journal.count(ROLLOUTS)
        recorded = Amounts(bill.known_usd, used.tokens, used.calls, rollouts)
        none = Amounts()
        kept = journal.fact("budget", _RecordedBudget) or _RecordedBudget()
        return cls(
            counted=recorded.max_with(kept.counted.max_with(none)),
            lost=kept.lost.max_with(none) + kept.in_flight.max_with(none),
            in_flight=Amounts(),
            minutes_before=max(0.0, journal.fact("minutes", float) or 0.0),
        )


class Spending:
    """What one command has spent over all the runs it works in. Create one per command."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._began = clock()
        self._shares: dict[Path, _Share] = {}
        self._minutes_before: dict[Path, float] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self.warned: set[tuple[Cap, int]] = set()

    def open(self, journal: Journal) -> _Share:
        """The share of a run. A run that this command opened before is read again."""
        share = self._shares[journal.path] = _Share.load(journal)
        self._minutes_before.setdefault(journal.path, share.minutes_before)
        return share

    @property
    def spent(self) -> Amounts:
        total = Amounts()
        for share in self._shares.values():
            total += share.counted + share.lost
        return total

    @property
    def in_flight(self) -> Amounts:
        total = Amounts()
        for share in self._shares.values():
            total += share.in_flight
        return total

    @property
    def minutes(self) -> float:
        """Time this command has taken, and the earlier processes of its runs."""
        return sum(self._minutes_before.values()) + (self.clock() - self._began) / 60

    async def changed(self) -> None:
        """Wait until a reservation was settled or a budget was stopped."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

    def wake(self) -> None:
        """Wake everyone who waits in `changed`."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)


@dataclass(slots=True)
class Reserved:
    """The reservation of one attempt. Settling it twice changes nothing."""

    _budget: Budget
    _bound: Amounts
    _open: bool = True

    def settle(self, usage: Usage) -> None:
        """Replace the reserved amount by what was used (`Usage()` where nothing was billed)."""
        self.count(self._budget.checked(usage, self._bound))

    def count(self, used: Amounts) -> None:
        if self._open:
            self._open = False
            self._budget.settle(self._bound, used)


class Budget:
    """The meter: models and rollouts reserve before each attempt and settle after it.

    Counts over all resumes of the run, and over all runs that share its `spending`.
    """

    def __init__(
        self,
        caps: BudgetSection,
        journal: Journal,
        *,
        spending: Spending | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_warning: Callable[[BudgetWarning], None] = lambda _: None,
    ) -> None:
        self._caps = caps
        self._journal = journal
        self._spending = spending or Spending(clock)
        self._on_warning = on_warning
        self._stopped_by: SkillfitError | None = None
        self._held = Amounts()
        self._held_minutes = 0.0
        self._waits: set[asyncio.Timeout] = set()
        self._share = self._spending.open(journal)
        self._opened = self._saved = self._spending.clock()
        self._closed_after: float | None = None
        self._spending.warned |= {(warning.cap, warning.percent) for warning in self._warnings()}
        journal.on_failure(self.stop)

    def cap(self, name: str) -> float | None:
        """A cap by its name; None: there is none."""
        limit: float | None = getattr(self._caps, name, None)
        return limit

    def set_cap(self, cap: str, value: float) -> None:
        """Change a cap during the run."""
        names = tuple(BudgetSection.model_fields)
        if cap not in names:
            raise InputError(f"Unknown cap {cap!r}.", hint=f"Caps: {', '.join(names)}.")
        limit = value if cap in ("usd", "minutes") else int(value)
        self._caps = self._caps.model_copy(update={cap: limit})
        self._spending.wake()

    @property
    def minutes(self) -> float:
        """Time this run has taken, over all its processes."""
        now = self._spending.clock() if self._closed_after is None else self._closed_after
        return self._share.minutes_before + (now - self._opened) / 60

    @property
    def spent(self) -> Usage:
        """Calls, tokens (as input) and dollars counted against the caps so far."""
        sums = self._spending.spent
        return Usage(calls=sums.calls, input=sums.tokens, usd=sums.usd)

    def left(self) -> Remaining:
        """What the caps in dollars and tokens still allow."""
        left = {limit.cap: limit.left() for limit in self._limits()}
        tokens = left.get("tokens")
        return Remaining(usd=left.get("usd"), tokens=None if tokens is None else int(tokens))

    def seconds_left(self) -> float | None:
        """Time until the cap in minutes is reached, None without one."""
        if self._caps.minutes is None:
            return None
        return max(0.0, (self._caps.minutes - self._spending.minutes) * 60)

    async def reserve(self, role: Role, upper_bound: Usage) -> Reserved:
        """Reserve the most an attempt can cost. Waits while reservations of attempts in flight take
        up what is left; raises `BudgetReached` when the cap itself is reached.
        """
        if self._caps.usd is not None and upper_bound.usd is None:
            refuse_unpriced(self._caps, [f"the {role}'s model"])
        bound = upper_bound
        if not _countable(bound.usd, bound.input, bound.output, bound.calls):
            raise InputError(
                f"What a call of the {role}'s model may cost is not a number: {bound}.",
                hint="Check model.prices and the model's max_tokens.",
            )
        return await self._reserve(Amounts.of(bound))

    @asynccontextmanager
    async def rollout(self) -> AsyncIterator[None]:
        """Count one attempt at a rollout against the cap in rollouts, however it ends. It is
        interrupted when the time is over: a program that hangs must not hold the cap in minutes.
        """
        reserved = await self._reserve(Amounts(rollouts=1))
        try:
            async with self._until_time_is_over():
                yield
        finally:
            reserved.count(Amounts(rollouts=1))

    async def _reserve(self, bound: Amounts) -> Reserved:
        while True:
            self.ensure_open()
            self._refuse_what_cannot_fit(bound)
            if self._fits_beside_those_in_flight(bound):
                break
            with suppress(TimeoutError):  # the minutes are over: ensure_open says so
                await asyncio.wait_for(self._spending.changed(), self.seconds_left())
        self._share.in_flight += bound
        self._keep()
        return Reserved(self, bound)

    def checked(self, usage: Usage, bound: Amounts) -> Amounts:
        """What to count for `usage`. A number that cannot be right (NaN, negative), or an unknown
        price under a cap in dollars, counts as the upper bound: a wrong report must not free
        budget.
        """
        known_price = usage.usd is not None or self._caps.usd is None
        return Amounts(
            usd=(usage.usd or 0.0) if _countable(usage.usd) and known_price else bound.usd,
            tokens=usage.tokens if _countable(usage.input, usage.output) else bound.tokens,
            calls=usage.calls if _countable(usage.calls) else bound.calls,
        )

    def settle(self, bound: Amounts, used: Amounts) -> None:
        """Replace a reservation by what was used; called by `Reserved`."""
        self._share.in_flight -= bound
        self._share.counted += used
        self._spending.wake()
        if not self._journal.failed:
            self._keep()
            self._warn()

    def ensure_open(self) -> None:
        """Raise if nothing new may be sent: the run was stopped, its journal cannot be written, or
        the time is over.
        """
        if self._stopped_by is not None:
            raise self._stopped_by
        self._journal.ensure_writable()
        limit = self._caps.minutes
        if limit is not None and self._spending.minutes >= limit:
            self._save_minutes()
            raise BudgetReached("minutes", self._spending.minutes, limit)

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """For waits that spend nothing: a slot at the endpoint, back-off, Retry-After. Interrupted
        by `stop`, by a failed write, and when the time is over; raises the reason.
        """
        async with self._until_time_is_over() as timeout:
            self._waits.add(timeout)
            try:
                yield
            finally:
                self._waits.discard(timeout)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """For an attempt that is being paid for: interrupted only when the time is over."""
        async with self._until_time_is_over():
            yield

    @asynccontextmanager
    async def _until_time_is_over(self) -> AsyncIterator[asyncio.Timeout]:
        self.ensure_open()
        timeout = asyncio.timeout(self.seconds_left())
        try:
            async with timeout:
                yield timeout
        except TimeoutError:
            if not timeout.expired():
                raise  # a time limit inside the block
            self.ensure_open()
            limit = self._caps.minutes or 0.0
            raise BudgetReached("minutes", limit, limit) from None

    def stop(self, reason: SkillfitError) -> None:
        """Allow nothing new: waits end with `reason`, attempts in flight finish."""
        if self._stopped_by is None:
            self._stopped_by = reason
            for timeout in [wait for wait in self._waits if not wait.expired()]:
                timeout.reschedule(asyncio.get_running_loop().time())
            self._spending.wake()

    def hold_back(self, amounts: Amounts, minutes: float = 0.0) -> None:
        """Keep this much of every cap for later (the ship test): until `release_held`, attempts
        that would use it raise `BudgetReached`. Attempts in flight may finish.
        """
        self._held, self._held_minutes = amounts, minutes

    def release_held(self) -> None:
        self._held, self._held_minutes = Amounts(), 0.0
        self._spending.wake()

    def close(self) -> None:
        """Record the time taken. What was spent keeps counting for the other runs."""
        if self._closed_after is None:
            self._closed_after = self._spending.clock()
            self._save_minutes()

    def _refuse_what_cannot_fit(self, need: Amounts) -> None:
        most, held = self._caps.minutes, self._held_minutes
        if most is not None and held and self._spending.minutes >= most - held:
            raise BudgetReached("minutes", self._spending.minutes, most, held)
        for limit in self._limits():
            wanted = getattr(need, limit.cap)
            if not limit.allows(wanted):
                raise BudgetReached(limit.cap, limit.spent, limit.value, limit.held, wanted)

    def _fits_beside_those_in_flight(self, need: Amounts) -> bool:
        return all(
            limit.allows(limit.in_flight + getattr(need, limit.cap)) for limit in self._limits()
        )

    def _limits(self) -> Iterator[_Limit]:
        """The caps that are set, without the one in minutes."""
        spent, in_flight = self._spending.spent, self._spending.in_flight
        for cap in _COUNTED:
            value = getattr(self._caps, cap)
            if value is not None:
                amounts = (getattr(sums, cap) for sums in (spent, in_flight, self._held))
                yield _Limit(cap, value, *amounts)

    def _keep(self) -> None:
        """Record what is counted and reserved, for a process that resumes after a kill."""
        if any(limit is not None for _, limit in self._caps):
            share = self._share
            kept = _RecordedBudget(share.counted, share.lost, share.in_flight)
            self._journal.set_fact("budget", asdict(kept))
        if self._spending.clock() - self._saved > _SAVE_EVERY:
            self._save_minutes()

    def _save_minutes(self) -> None:
        if not self._journal.failed:
            self._saved = self._spending.clock()
            self._journal.set_fact("minutes", self.minutes)

    def _warnings(self) -> Iterator[BudgetWarning]:
        """One for each share of a cap that is used up, also where the user was warned before."""
        limits = list(self._limits())
        if self._caps.minutes is not None:
            limits.append(_Limit("minutes", self._caps.minutes, self._spending.minutes))
        for limit in limits:
            for percent in _WARN_AT:
                if limit.spent >= limit.value * percent / 100:
                    message = (
                        f"{percent} % of the budget of {budget_amount(limit.cap, limit.value)} is "
                        f"used ({budget_amount(limit.cap, limit.spent)})."
                    )
                    yield BudgetWarning(limit.cap, percent, message)

    def _warn(self) -> None:
        for warning in self._warnings():
            given = (warning.cap, warning.percent)
            if given not in self._spending.warned:
                self._spending.warned.add(given)
                self._on_warning(warning)


@dataclass(frozen=True, slots=True)
class _Limit:
    """A cap that is set, and what counts against it."""

    cap: Cap
    value: float
    spent: float
    in_flight: float = 0.0  # reserved for attempts
    held: float = 0.0  # kept for the ship test

    def allows(self, wanted: float) -> bool:
        return self.spent + wanted <= self.value - self.held + _EPSILON

    def left(self) -> float:
        return max(0, self.value - self.spent - self.in_flight - self.held)


def refuse_unpriced(caps: BudgetSection, unpriced: Iterable[str]) -> None:
    """A cap in dollars cannot be held for a model without a known price: refuse it before anything
    is spent.
    """
    names = sorted(set(unpriced))
    if caps.usd is not None and names:
        hint = (
            "Give one in model.prices ({input, cached, output} in dollars per million "
            "tokens), or cap tokens or calls."
        )
        if any(re.fullmatch(r"cli/[^/]+", name) for name in names):
            hint = f"Name the program's model, as in cli/claude/claude-sonnet-4-5. Or: {hint}"
        raise InputError(
            f"budget.usd is set, but no price is known for {', '.join(names)}.",
            hint=hint,
        )


def _countable(*numbers: float | None) -> bool:
    """Whether every number is finite and not negative; None is an unknown price."""
    return all(number is None or (math.isfinite(number) and number >= 0) for number in numbers)
