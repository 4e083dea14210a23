"""The budget of a run: caps in dollars, tokens, calls, rollouts and minutes, held in advance.

The most an attempt can cost is reserved before it is sent, and replaced by its real cost
afterwards, so no cap is ever passed. While a cap is set, reservations are recorded in the journal
too: an attempt that was in flight when the process was killed counts in full after a resume,
because nobody knows whether it was billed. The cap in rollouts is the plan of a run and bills
nothing: a rollout that was interrupted runs again when the run is resumed, and counts once.

A command that works in several run directories (`verify` measures twice, `eval` once per model)
hands one list to the budget of each run. The caps then hold for all of them together.
"""

from __future__ import annotations

import asyncio
import math
import operator
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Literal

from skillfit.config.schema import BudgetSection
from skillfit.errors import Exit, InputError, SkillfitError, TaskFailure
from skillfit.models.failures import policy_of
from skillfit.models.protocol import ModelError, Role, Usage
from skillfit.plain_text import budget_amount
from skillfit.run.journal import ROLLOUTS, Journal

Cap = Literal["usd", "tokens", "calls", "rollouts", "minutes"]
WarnAboutCap = Callable[[Cap, int, str], None]
"""Told the cap, the percentage of it that is used, and a message."""

_COUNTED: tuple[Cap, ...] = ("usd", "tokens", "calls", "rollouts")  # reserved, unlike minutes
_FACT = "budget"  # the name of the journal's fact
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
            amounts.append(f"{budget_amount(cap, held)} kept for the end of the run")
        if cap in ("usd", "tokens") and wanted:
            amounts.append(f"the next call may take up to {budget_amount(cap, wanted)}")
        caps = f"budget.{cap} or --rollouts" if cap == "rollouts" else f"budget.{cap}"
        super().__init__(
            f"The budget of {budget_amount(cap, limit)} is reached ({', '.join(amounts)}).",
            hint=f"Raise {caps} and run the same command again: it resumes from here.",
        )
        self.cap = cap


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is neither spent nor reserved nor kept for later. None: no cap."""

    usd: float | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
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
        return self._with(other, operator.add)

    def __sub__(self, other: Amounts) -> Amounts:
        return self._with(other, operator.sub)

    def at_least(self, other: Amounts) -> Amounts:
        """Return the larger amount of both for each cap."""
        return self._with(other, max)

    def _with(self, other: Amounts, combine: Callable[[float, float], float]) -> Amounts:
        return Amounts(*(combine(getattr(self, cap), getattr(other, cap)) for cap in _COUNTED))  # type: ignore[arg-type]


NOTHING = Amounts()
_ONE_ROLLOUT = Amounts(rollouts=1)


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

    Counts over all resumes of the run, and over all runs of a command: `together` is the list of
    their budgets, which this one joins.
    """

    def __init__(
        self,
        caps: BudgetSection,
        journal: Journal,
        *,
        together: list[Budget] | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_warning: WarnAboutCap = lambda _cap, _percent, _message: None,
    ) -> None:
        """Count what earlier processes spent: the journal's bill, or what their budget counted
        where a kill came before the record; and in full what was in flight at the kill.
        """
        self._caps, self._journal = caps, journal
        self._clock, self._on_warning = clock, on_warning
        bill = journal.bill()
        billed = Amounts(bill.known_usd, bill.total.tokens, bill.total.calls)
        kept = journal.fact(_FACT, dict[str, Amounts]) or {}
        counted = billed.at_least(kept.get("counted", NOTHING))
        self._failed_rollouts = counted.rollouts
        self._counted = replace(counted, rollouts=counted.rollouts + journal.count(ROLLOUTS))
        self._lost = kept.get("unsure", NOTHING).at_least(NOTHING)  # in flight when it was killed
        self._in_flight = NOTHING
        self._held, self._held_minutes = NOTHING, 0.0
        self._minutes_before = max(0.0, journal.fact("minutes", float) or 0.0)
        self._opened = self._saved = clock()
        self._closed_after: float | None = None
        self._stopped_by: SkillfitError | None = None
        self._waits: set[asyncio.Timeout] = set()
        self._waiting: set[asyncio.Future[None]] = set()
        self._together = [] if together is None else together
        self._join()
        self._warned = {(cap, percent) for cap, percent, _ in self._warnings()}
        journal.on_failure(self.stop)

    def _join(self) -> None:
        """Join the budgets of the command, in the place of an earlier budget of the same run."""
        self._first = self._opened, self._minutes_before  # when this command opened the run first
        for other in [one for one in self._together if one._journal.path == self._journal.path]:
            self._first = other._first
            self._together.remove(other)
        self._together.append(self)

    def cap(self, name: str) -> float | None:
        """Return a cap by its name; None: there is none."""
        limit: float | None = getattr(self._caps, name, None)
        return limit

    def set_cap(self, cap: str, value: float) -> None:
        """Change a cap during the run."""
        names = tuple(BudgetSection.model_fields)
        if cap not in names:
            raise InputError(f"Unknown cap {cap!r}.", hint=f"Caps: {', '.join(names)}.")
        limit = value if cap in ("usd", "minutes") else int(value)
        self._caps = self._caps.model_copy(update={cap: limit})
        self._wake()

    @property
    def minutes(self) -> float:
        """The time that this run has taken, over all its processes."""
        now = self._clock() if self._closed_after is None else self._closed_after
        return self._minutes_before + (now - self._opened) / 60

    @property
    def spent(self) -> Amounts:
        """What all runs of the command count against the caps so far."""
        return sum((one._counted + one._lost for one in self._together), NOTHING)

    def left(self) -> Remaining:
        """Return what the caps in dollars and tokens still allow."""
        left = {
            cap: max(0.0, value - used - self._reserved(cap))
            for cap, value, used in self._limits()
            if cap in ("usd", "tokens")
        }
        tokens = left.get("tokens")
        return Remaining(usd=left.get("usd"), tokens=None if tokens is None else int(tokens))

    def seconds_left(self) -> float | None:
        """Return the time until the cap in minutes is reached, None without one."""
        if self._caps.minutes is None:
            return None
        return max(0.0, (self._caps.minutes - self._minutes_of_all) * 60)

    @property
    def _minutes_of_all(self) -> float:
        """The time that this command has taken, and the earlier processes of its runs."""
        begun = min(one._first[0] for one in self._together)
        return sum(one._first[1] for one in self._together) + (self._clock() - begun) / 60

    async def reserve(self, role: Role, upper_bound: Usage) -> Reserved:
        """Reserve the most an attempt can cost. Wait while reservations of attempts in flight take
        up what is left; raise `BudgetReached` when the cap itself is reached.
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
        """Count one attempt at a rollout against the cap in rollouts, also a failed one; not one
        that a resumed run makes again. It is interrupted when the time is over: a program that
        hangs must not hold the cap in minutes.
        """
        reserved = await self._reserve(_ONE_ROLLOUT)
        used = NOTHING
        try:
            async with self._until_time_is_over():
                yield
            used = _ONE_ROLLOUT
        except Exception as error:
            if not self._made_again(error):
                used = _ONE_ROLLOUT
                self._failed_rollouts += 1
            raise
        finally:
            reserved.count(used)

    def _made_again(self, error: Exception) -> bool:
        """Return whether a rollout that ended with `error` runs again when the run is resumed."""
        if self._stopped_by is not None or isinstance(error, BudgetReached):
            return True
        if not isinstance(error, (ModelError, TaskFailure)):
            return False
        policy = policy_of(error)
        return policy.fatal or policy.pending

    async def _reserve(self, bound: Amounts) -> Reserved:
        while True:
            self.ensure_open()
            self._refuse_what_cannot_fit(bound)
            if all(
                used + self._reserved(cap) + getattr(bound, cap) <= value + _EPSILON
                for cap, value, used in self._limits()
            ):
                break
            with suppress(TimeoutError):  # the minutes are over: ensure_open says so
                await asyncio.wait_for(self._changed(), self.seconds_left())
        self._in_flight += bound
        self._keep()
        return Reserved(self, bound)

    def checked(self, usage: Usage, bound: Amounts) -> Amounts:
        """Return what to count for `usage`. A number that cannot be right (NaN, negative), or an
        unknown price under a cap in dollars, counts as the upper bound: a wrong report must not
        free budget.
        """
        known_price = usage.usd is not None or self._caps.usd is None
        return Amounts(
            usd=(usage.usd or 0.0) if _countable(usage.usd) and known_price else bound.usd,
            tokens=usage.tokens if _countable(usage.input, usage.output) else bound.tokens,
            calls=usage.calls if _countable(usage.calls) else bound.calls,
        )

    def settle(self, bound: Amounts, used: Amounts) -> None:
        """Replace a reservation by what was used; called by `Reserved`."""
        self._in_flight -= bound
        self._counted += used
        self._wake()
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
        if limit is not None and (taken := self._minutes_of_all) >= limit:
            self._save_minutes()
            raise BudgetReached("minutes", taken, limit)

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Enclose a wait that spends nothing: a slot at the endpoint, back-off, Retry-After. It is
        interrupted by `stop`, by a failed write, and when the time is over; raises the reason.
        """
        async with self._until_time_is_over() as timeout:
            self._waits.add(timeout)
            try:
                yield
            finally:
                self._waits.discard(timeout)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Enclose an attempt that is being paid for: interrupted only when the time is over."""
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
            self._wake()

    def hold_back(self, amounts: Amounts, minutes: float = 0.0) -> None:
        """Keep this much of every cap for the end of the run: until `release_held`, attempts
        that would use it raise `BudgetReached`. Attempts in flight may finish.
        """
        self._held, self._held_minutes = amounts, minutes

    def release_held(self) -> None:
        self._held, self._held_minutes = NOTHING, 0.0
        self._wake()

    def close(self) -> None:
        """Record the time taken. What was spent keeps counting for the other runs."""
        if self._closed_after is None:
            self._closed_after = self._clock()
            self._save_minutes()

    def _limits(self) -> Iterator[tuple[Cap, float, float]]:
        """Yield the caps that are set, without the one in minutes, and what is spent of each."""
        spent = self.spent
        for cap in _COUNTED:
            value = getattr(self._caps, cap)
            if value is not None:
                yield cap, value, getattr(spent, cap)

    def _reserved(self, cap: Cap) -> float:
        """Return what attempts in flight and the ship test take of a cap."""
        in_flight = sum(getattr(one._in_flight, cap) for one in self._together)
        return float(in_flight + getattr(self._held, cap))

    def _refuse_what_cannot_fit(self, need: Amounts) -> None:
        most, held = self._caps.minutes, self._held_minutes
        if most is not None and held and self._minutes_of_all >= most - held:
            raise BudgetReached("minutes", self._minutes_of_all, most, held)
        for cap, value, used in self._limits():
            wanted, held = getattr(need, cap), getattr(self._held, cap)
            if used + wanted > value - held + _EPSILON:
                raise BudgetReached(cap, used, value, held, wanted)

    async def _changed(self) -> None:
        """Wait until a reservation of this command was settled or a budget was stopped."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

    def _wake(self) -> None:
        """Wake everyone who waits in `_changed`, in all runs of the command."""
        for waiter in [waiter for one in self._together for waiter in one._waiting]:
            if not waiter.done():
                waiter.set_result(None)

    def _keep(self) -> None:
        """Record what is counted and reserved, for a process that resumes after a kill. Of the
        rollouts only those that failed: the journal has the others.
        """
        if any(limit is not None for _, limit in self._caps):
            kept = {
                "counted": replace(self._counted, rollouts=self._failed_rollouts),
                "unsure": replace(self._lost + self._in_flight, rollouts=0),
            }
            self._journal.set_fact(_FACT, {name: asdict(each) for name, each in kept.items()})
        if self._clock() - self._saved > _SAVE_EVERY:
            self._save_minutes()

    def _save_minutes(self) -> None:
        if not self._journal.failed:
            self._saved = self._clock()
            self._journal.set_fact("minutes", self.minutes)

    def _warnings(self) -> Iterator[tuple[Cap, int, str]]:
        """Yield one warning for each share of a cap that is used up, given ones too."""
        limits = list(self._limits())
        if self._caps.minutes is not None:
            limits.append(("minutes", self._caps.minutes, self._minutes_of_all))
        for cap, value, used in limits:
            for percent in _WARN_AT:
                if used >= value * percent / 100:
                    message = (
                        f"{percent} % of the budget of {budget_amount(cap, value)} is "
                        f"used ({budget_amount(cap, used)})."
                    )
                    yield cap, percent, message

    def _warn(self) -> None:
        given = set().union(*(one._warned for one in self._together))
        for cap, percent, message in self._warnings():
            if (cap, percent) not in given:
                self._warned.add((cap, percent))
                self._on_warning(cap, percent, message)


def refuse_unpriced(caps: BudgetSection, unpriced: Iterable[str]) -> None:
    """Refuse a cap in dollars before anything is spent, if it cannot be held because a model has no
    known price.
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
    """Return whether every number is finite and not negative; None is an unknown price."""
    return all(number is None or (math.isfinite(number) and number >= 0) for number in numbers)
