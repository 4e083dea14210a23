"""A provider behind everything a call needs: a slot at the endpoint, money set aside, one retry
policy, one check of the reply.
"""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import replace

from skillfit.errors import SkillfitError
from skillfit.models.failures import NotReached
from skillfit.models.limiter import LONGEST_PAUSE, Limiter
from skillfit.models.prices import Prices, context_window_of, is_reasoning
from skillfit.models.protocol import (
    AnswerPending,
    BadReply,
    Meter,
    ModelError,
    NetworkFailed,
    RateLimited,
    Refused,
    Reply,
    Request,
    Role,
    TimedOut,
    Usage,
)
from skillfit.models.provider import Adapted, Provider
from skillfit.models.spec import ModelSpec
from skillfit.models.timing import Clock, not_counted

BAD_REPLY_RETRIES = (
    2  # unlike other failures these are billed, and some models repeat them for ever
)
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
_THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)


class Client:
    """The `Model` that `connect` gives."""

    def __init__(
        self,
        provider: Provider,
        spec: ModelSpec,
        *,
        role: Role,
        limiter: Limiter,
        prices: Prices,
        clock: Clock,
        meter: Meter | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        self.provider = provider
        self.spec = spec
        self.role = role
        self.limiter = limiter
        self.prices = prices
        self._clock = clock
        self._meter = meter
        self._jitter = jitter or random.Random()

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def context_window(self) -> int:
        return (
            self.spec.context_window or self.provider.context_window or context_window_of(self.id)
        )

    def __repr__(self) -> str:
        return f"Client({self.id!r}, role={self.role!r})"

    async def close(self) -> None:
        await self.provider.close()

    async def complete(self, request: Request) -> Reply:
        """The reply with the usage of every attempt, or the last failure with the same."""
        request = self._resolved(request)
        bound = self.prices.upper_bound(self.id, request, request.max_tokens or 0)
        spent, failures = Usage(), 0
        failed: ModelError | None = None
        while True:
            try:
                reply = await self._attempt(request, bound)
                return reply.with_usage(spent + reply.usage) if failed else reply
            except ModelError as error:
                failed, spent = error, spent + error.usage
                failed.usage = spent
            except SkillfitError as no_more_money:
                if failed is None:
                    raise
                # What the attempts so far cost must reach the journal; the next call meets the
                # empty purse by itself.
                raise failed from no_more_money
            failures += not isinstance(failed, Adapted)
            wait = self._wait(failed, failures)
            if wait is None:
                raise failed
            if wait:
                with not_counted():
                    await self._clock.sleep(wait)

    def _resolved(self, request: Request) -> Request:
        """The request with the spec's values where it has none of its own."""
        spec = self.spec
        usual = 16384 if self.role == "optimizer" or is_reasoning(self.id) else 4096
        return replace(
            request,
            temperature=request.temperature
            if request.temperature is not None
            else spec.temperature,
            max_tokens=request.max_tokens or spec.max_tokens or usual,
            reasoning_effort=request.reasoning_effort or spec.reasoning_effort,
        )

    async def _attempt(self, request: Request, bound: Usage) -> Reply:
        async with self.limiter.slot():
            reservation = await self._meter.reserve(self.role, bound) if self._meter else None
            used = bound  # what counts when nobody will ever tell: the call was cancelled under way
            try:
                reply = await self._send(request)
                used = self.prices.priced(self.id, reply.usage)
                return check_reply(reply.with_usage(used), self.id)
            except ModelError as error:
                used = error.usage = self._bill(error, bound)
                raise
            finally:
                if reservation:
                    reservation.settle(used)

    async def _send(self, request: Request) -> Reply:
        try:
            async with asyncio.timeout(self.spec.timeout):
                return await self.provider.send(request)
        except TimeoutError as error:
            raise TimedOut(
                f"{self.id} did not answer within {self.spec.timeout:g} s.",
                hint="Raise the model's `timeout` if replies take that long.",
            ) from error

    def _bill(self, error: ModelError, bound: Usage) -> Usage:
        """What a failed attempt costs. One that was sent and never answered may have been billed in
        full: it counts as that.
        """
        if error.usage.calls:
            return self.prices.priced(self.id, error.usage)
        if isinstance(error, (AnswerPending, NotReached)):
            return Usage()
        return bound if isinstance(error, (TimedOut, NetworkFailed)) else Usage(calls=1)

    def _wait(self, error: ModelError, failures: int) -> float | None:
        """Seconds until the next attempt, None to give up."""
        if isinstance(error, Adapted):
            return 0.0
        allowed = (
            min(BAD_REPLY_RETRIES, self.spec.retries)
            if isinstance(error, BadReply)
            else self.spec.retries
        )
        if not error.retryable or failures > allowed:
            return None
        if error.retry_after is not None:
            # The limiter holds the whole endpoint back for that long.
            return 0.0 if error.retry_after <= LONGEST_PAUSE else None
        if isinstance(error, BadReply):
            return 0.0
        if not isinstance(error, RateLimited):
            # Where others get through, this was bad luck and no outage: there is nothing to wait
            # out.
            failures = max(1, min(failures, self.limiter.failed_in_a_row))
        return min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (failures - 1)) * self._jitter.uniform(
            0.5, 1.5
        )


def check_reply(reply: Reply, model_id: str) -> Reply:
    """The reply without its thinking, or the failure it really is: refused, truncated, empty,
    thought-only.
    """
    if reply.finish_reason == "refused":
        raise Refused(
            f"{model_id} refused: {reply.text[:200] or 'no reason given'}", usage=reply.usage
        )
    if reply.finish_reason == "length":
        raise BadReply(
            f"The reply of {model_id} was cut off at {reply.usage.output} tokens.",
            hint="Raise the model's `max_tokens`.",
            usage=reply.usage,
        )
    text = _THINKING.sub("", reply.text)
    if "</think>" in text:  # some servers send the opening tag as part of the prompt
        text = text.rpartition("</think>")[2]
    if not text.strip() and not reply.tool_calls:
        what = "nothing but thinking" if reply.text.strip() else "an empty reply"
        raise BadReply(f"{model_id} sent {what}.", usage=reply.usage)
    return reply if text == reply.text else replace(reply, text=text.strip())
