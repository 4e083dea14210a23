"""Paid effects of proposers: work that costs money and is no call of the optimizer's model.

A proposer that starts a program or asks a service hands that work to `PaidEffects.once`:

- its result is recorded, and a resumed run gets the recorded result instead of paying again;
- its cost is reserved before it starts and counts against the caps of the run;
- it ends at its time limit, and when the time of the run is over;
- a failure that the run continues without is recorded too, so that a resumed run decides the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from skillfit.errors import InputError
from skillfit.models.protocol import ModelError, TimedOut, Usage
from skillfit.run.budget import Budget, Remaining
from skillfit.run.journal import Journal

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Paid(Generic[T]):
    """The result of a paid effect and what it cost.

    A `usage` without tokens and dollars says that the cost is unknown: the effect then counts as
    the most it may cost. Set `usd=0.0` in `at_most` for an effect that is free.
    """

    value: T
    usage: Usage = field(default_factory=lambda: Usage(calls=1, usd=None))


class PaidEffects:
    """Runs the paid effects of a run, each once."""

    def __init__(
        self,
        journal: Journal,
        budget: Budget,
        *,
        check: Callable[[], None] = lambda: None,
        count: Callable[[str, Usage], None] = lambda _stage, _usage: None,
    ) -> None:
        """Take the journal and the budget of the run.

        `check` may refuse an effect, after a request to stop. `count` is told the stage and usage
        of every effect, recorded ones too.
        """
        self._journal, self._budget = journal, budget
        self._check, self._count = check, count

    def left(self) -> Remaining:
        """Return the dollars and tokens that the caps still allow."""
        return self._budget.left()

    def until_stopped(self) -> AbstractAsyncContextManager[None]:
        """Return a block that ends early, with the reason, when the run is asked to stop or its
        time is over. What runs in it is cancelled.
        """
        return self._budget.waiting()

    async def record(
        self,
        name: str,
        work: Callable[[], Awaitable[T]],
        *,
        returns: type[T],
        stage: str = "propose",
        used: Callable[[T], Usage] = lambda _: Usage(),
    ) -> T:
        """Return the value recorded under `name`, or do the work and record its value. For work
        that pays through calls and effects that are recorded themselves.

        `used` says what these used, to be counted in `stage` where the work is not done again.
        """
        done = False

        async def working() -> T:
            nonlocal done
            done = True
            return await work()

        value = await self._journal.once(f"paid/{name}", working, returns=returns)
        if not done:
            self._count(stage, used(value))
        return value

    async def once(
        self,
        name: str,
        effect: Callable[[], Awaitable[Paid[T]]],
        *,
        returns: type[T],
        stage: str = "propose",
        model: str = "",
        at_most: Usage | None = None,
        timeout: float | None = None,
    ) -> Paid[T]:
        """Return the result recorded under `name`, or run the effect and record its result.

        `name` must say everything that the result depends on and that can differ within a run,
        such as the step and a number. `returns` is the type of the value: text, a dataclass, or
        anything else that pydantic can write as JSON. `stage` and `model` label the cost in
        reports. `at_most` is the most that the effect may cost; a run with a cap in dollars or
        tokens requires it. `timeout` is in seconds: the effect is cancelled then, and has to end
        the programs that it started.

        The effect reports a failure as a `ModelError` with its usage. Raises that error, and
        `BudgetReached` when the effect does not fit into the budget.
        """
        self._check()
        key = f"paid/{name}"
        with self._journal.may_lose(key):
            paid = await self._journal.once(
                key,
                lambda: self._run(name, effect, at_most, timeout),
                returns=Paid[returns],  # type: ignore[valid-type]
                stage=stage,
                role="optimizer",
                model=model,
                usage=lambda paid: paid.usage,
            )
        self._count(stage, paid.usage)
        return paid

    async def _run(
        self,
        name: str,
        effect: Callable[[], Awaitable[Paid[T]]],
        at_most: Usage | None,
        timeout: float | None,
    ) -> Paid[T]:
        if at_most is None and (cap := self._cap_that_needs_a_bound()):
            raise InputError(
                f"budget.{cap} is set, but {name!r} does not say what it may cost.",
                hint="Give at_most=Usage(…) to the paid effect, for example "
                "Usage(calls=1, input=50_000, usd=0.5).",
            )
        bound = replace(at_most or Usage(), calls=max(1, (at_most or Usage()).calls))
        reserved = await self._budget.reserve("optimizer", bound)
        used = bound  # also where the effect is cancelled or fails without an account of its cost
        limit = asyncio.timeout(timeout)
        try:
            async with self._budget.sending(), limit:
                paid = await effect()
            used = _known(paid.usage, bound)
            return replace(paid, usage=_one_call(paid.usage))
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimedOut(
                f"{name} was ended after {timeout:g} s.", usage=Usage(calls=1, usd=None)
            ) from error
        except ModelError as error:
            used = _known(error.usage, bound)
            error.usage = _one_call(error.usage)
            raise
        finally:
            reserved.settle(used)

    def _cap_that_needs_a_bound(self) -> str:
        return next((cap for cap in ("usd", "tokens") if self._budget.cap(cap) is not None), "")


def _known(usage: Usage, bound: Usage) -> Usage:
    """Return what to count: the bound where the usage tells neither tokens nor dollars."""
    return usage if usage.tokens or usage.usd else replace(bound, calls=max(1, usage.calls))


def _one_call(usage: Usage) -> Usage:
    """Return the usage as at least one call, its price unknown where nothing was reported."""
    if usage.tokens or usage.usd:
        return replace(usage, calls=max(1, usage.calls))
    return replace(usage, calls=max(1, usage.calls), usd=None)
