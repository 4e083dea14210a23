"""Calling a model.

- `connect`: from the spec of a model to a `Client`.
- `Client`: a provider behind what every call needs: a slot at the endpoint, reserved budget,
  retries, and a check of the reply. `with_retries` gives calls of other services their retries.
- `ask`: a reply of a given type. The type's JSON schema goes out with the request. The reply is
  read as JSON and validated; a reply that does not fit is asked for once more with the reason, and
  then it is a `BadReply`.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from skillfit.errors import InputError, SkillfitError, TaskFailure
from skillfit.models.failures import may_retry, policy_of
from skillfit.models.json_text import (
    JsonObject,
    json_candidates,
    parse_model_json,
    without_surrogates,
)
from skillfit.models.limiter import START, Clock, Limiter, Limiters, paused
from skillfit.models.prices import Prices, context_window_of, is_reasoning
from skillfit.models.protocol import (
    CONCURRENCY,
    BadReply,
    CutOff,
    Message,
    Meter,
    Model,
    ModelError,
    Notice,
    Refused,
    Reply,
    Request,
    Role,
    TimedOut,
    Usage,
    log_notice,
)
from skillfit.models.registry import (
    ModelSpec,
    Provider,
    Setup,
    create_provider,
    split_id,
    timeout_hint,
)
from skillfit.plain_text import duration, one_line, quantity, shorten

T = TypeVar("T")

# Seconds before a retry while the endpoint is down or crowded: doubles with every failure.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
# While other calls get replies, there is no outage: retry after about this share of the latency.
_WAIT_PER_LATENCY = 0.25
_SHORTEST_WAIT = 0.001
_ADDED_BY_SERVERS = 100_000  # input tokens that a server may add, such as results of a search
_LONG_PAUSE = 10.0  # seconds of Retry-After that the user is told about
_THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)


def connect(
    spec: ModelSpec,
    *,
    role: Role,
    run_id: str,
    meter: Meter | None = None,
    limiters: Limiters | None = None,
    prices: Prices | None = None,
    concurrency: int = CONCURRENCY,
    notice: Notice | None = None,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Client:
    """Return a model with limiter, retries and metering. Call `await model.close()` when done.

    Use one `limiters` for all models of a run. `notice` is called with what could not be done as
    configured, and when calls are retried because the endpoint does not answer. `folder` is where
    handoff prompts are written. Missing keys, unknown providers and settings that a provider would
    ignore are errors here, before anything is spent.
    """
    limiters = limiters or Limiters()
    setup = Setup(
        spec,
        split_id(spec.id)[1],
        role,
        run_id,
        os.environ if environ is None else environ,
        notice or log_notice,
        folder,
    )
    provider = create_provider(setup)
    slots = min(concurrency, provider.slots or concurrency)
    limiter = limiters.of(provider.endpoint, slots, start=provider.slots or START)
    return Client(
        provider,
        spec,
        role=role,
        limiter=limiter,
        prices=prices or Prices(),
        clock=limiters.clock,
        meter=meter,
        notice=setup.notice,
    )


class Client:
    """The `Model` that `connect` returns."""

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
        notice: Notice = log_notice,
        jitter: random.Random | None = None,
    ) -> None:
        self.provider = provider
        self.spec = spec
        self.role = role
        self.limiter = limiter
        self.prices = prices
        self._clock = clock
        self._meter = meter
        self._notice = notice
        self._jitter = jitter or random.Random()
        self._unbelievable_reported = False

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def context_window(self) -> int:
        known = self.spec.context_window or self.provider.context_window
        return known or context_window_of(self.id)

    def __repr__(self) -> str:
        return f"Client({self.id!r}, role={self.role!r})"

    async def close(self) -> None:
        await self.provider.close()

    async def complete(self, request: Request) -> Reply:
        """Return the reply, with the usage of all attempts. Raises the failure of the last attempt,
        with the usage of all of them, or what the budget raises.
        """
        request = self._with_defaults(request)
        bound = self.prices.upper_bound(self.id, request, request.max_tokens or 0)
        call = ModelCall(request, bound)
        waiting = self._meter.waiting if self._meter else nullcontext
        while True:
            try:
                if call.wait:
                    with paused():
                        async with waiting():
                            await self._clock.sleep(call.wait)
                async with self.limiter.slot(waiting):
                    reply = await self._metered(call)
                return reply.with_usage(call.spent)
            except ModelError as error:
                call.fail(error)
            except SkillfitError as error:  # of the budget, or a request that cannot be built
                raise error from call.unanswered()
            self._prepare_retry(call)

    def _with_defaults(self, request: Request) -> Request:
        """Return the request with the spec's values where it has none."""
        spec = self.spec
        long_replies = self.role == "optimizer" or is_reasoning(self.id)
        temperature = spec.temperature if request.temperature is None else request.temperature
        return replace(
            request,
            temperature=temperature,
            max_tokens=request.max_tokens or spec.max_tokens or (16384 if long_replies else 4096),
            reasoning_effort=request.reasoning_effort or spec.reasoning_effort,
        )

    async def _metered(self, call: ModelCall) -> Reply:
        """Reserve budget for one attempt, send it, check the reply, and settle what it cost."""
        reservation = await self._meter.reserve(self.role, call.bound) if self._meter else None
        used = call.bound  # the cost of an interrupted attempt is unknown: count the maximum
        try:
            async with self._meter.sending() if self._meter else nullcontext(), self._in_time():
                reply = await self.provider.send(call.request)
            used = self._believed(reply.usage, call.bound)
            repeatable = call.request.temperature == 0
            return check_reply(reply.with_usage(used), self.id, repeatable=repeatable)
        except ModelError as error:
            used = error.usage = self._cost_of(error, call.bound)
            raise
        except InputError:
            used = Usage()  # the request could not be built, so it was not sent
            raise
        finally:
            call.spent += used
            if reservation:
                reservation.settle(used)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """Enclose an attempt, which fails after the model's `timeout`."""
        try:
            async with asyncio.timeout(self.spec.timeout):
                yield
        except TimeoutError as error:
            raise TimedOut(
                f"{self.id} did not answer within {self.spec.timeout:g} s.",
                hint=timeout_hint(self.spec),
            ) from error

    def _cost_of(self, error: ModelError, bound: Usage) -> Usage:
        """Return what a failed attempt cost, at most `bound`."""
        if error.usage.calls:
            return self._believed(error.usage, bound)
        match policy_of(error).billed:
            case "nothing":
                return Usage()
            case "one_call":
                return Usage(calls=1)
            case "at_most":
                return bound

    def _believed(self, usage: Usage, bound: Usage) -> Usage:
        """Return the usage that counts for one attempt, with its price. A server may add text to a
        request, but counts far above that, or above the context window, are an error of the server:
        then the bound counts.
        """
        window = self.context_window
        most_input = max(bound.input, min(window, 4 * bound.input + _ADDED_BY_SERVERS))
        most_output = max(bound.output, window)
        if usage.calls == 1 and (usage.input > most_input or usage.output > most_output):
            if not self._unbelievable_reported:
                self._unbelievable_reported = True
                self._notice(
                    f"{self.id} reports {usage.input:,} input and {usage.output:,} output tokens "
                    f"for a request of {bound.input:,} at the most; such counts are replaced by "
                    "the most that can be."
                )
            taken = min(usage.input, bound.input)
            usage = replace(
                usage,
                input=taken,
                cached=min(usage.cached, taken),
                written=min(usage.written, taken),
                output=min(usage.output, bound.output),
                reasoning=min(usage.reasoning, bound.output),
            )
        return self.prices.priced(self.id, usage)

    def _prepare_retry(self, call: ModelCall) -> None:
        """Set how long to wait before the next attempt. Raises the failure if there is none."""
        error = call.failure
        assert error is not None
        call.wait = 0.0
        if not may_retry(error, call.failures, self.spec.retries):
            raise error
        if policy_of(error).retry != "after_wait":
            return
        if error.retry_after is None:  # with Retry-After the limiter pauses the whole endpoint
            call.wait = self._back_off(error, call.failures) * self._jitter.uniform(0.5, 1.5)
        self._report_outage(error, call.failures)

    def _report_outage(self, error: ModelError, failures: int) -> None:
        """Tell the user, once per outage, that calls wait and will be retried."""
        limiter = self.limiter
        pause = error.retry_after or 0.0
        # The limiter deals with rate limits all the time; only long pauses are worth a notice.
        without_replies = limiter.latency is None or limiter.is_down
        is_outage = without_replies and policy_of(error).endpoint != "crowded"
        if limiter.outage_reported or not (is_outage or pause >= _LONG_PAUSE):
            return
        limiter.outage_reported = True
        if pause:
            plan = f"Retrying after {duration(pause)}, as the server asks"
        else:
            waits = [_doubled_wait(number) for number in range(failures, self.spec.retries + 1)]
            times = quantity(len(waits), "time")
            plan = f"Retrying up to {times}, waiting about {duration(sum(waits))}"
        self._notice(f"{plan}: {error}")

    def _back_off(self, error: ModelError, failures: int) -> float:
        """Return the seconds to wait after this call has failed `failures` times in a row."""
        limiter = self.limiter
        crowded = policy_of(error).endpoint == "crowded" and limiter.is_crowded
        if limiter.latency is not None and not crowded and not limiter.is_down:
            # Replies by others in between show that there is no outage to wait for.
            in_a_row = max(1, min(failures, limiter.failed_in_a_row))
            wait = _WAIT_PER_LATENCY * limiter.latency * 2.0 ** (in_a_row - 1)
            return min(_FIRST_WAIT, max(_SHORTEST_WAIT, wait))
        # If all failures were this call's own, an outage is less likely.
        alone = limiter.latency is not None and failures >= limiter.failed_in_a_row
        return _doubled_wait(max(1, failures - 1) if alone else failures)


def _doubled_wait(failures: int) -> float:
    return min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (failures - 1))


async def with_retries(call: Callable[[], Awaitable[T]]) -> T:
    """Return what `call` returns: a call of a service or program that is not a model. When it fails
    in a way that may pass, it is called again after a wait, as often as the failure policy says.
    """
    failures = 0
    while True:
        try:
            return await call()
        except TaskFailure as failure:
            failures += 1
            if not may_retry(failure, failures):
                raise
        with paused():
            await asyncio.sleep(_doubled_wait(failures))


class ModelCall:
    """One call with all its attempts."""

    def __init__(self, request: Request, bound: Usage) -> None:
        self.request = request
        self.bound = bound  # the most one attempt can use
        self.spent = Usage()
        self.failure: ModelError | None = None  # of the last attempt
        self.failures = 0
        self.wait = 0.0  # seconds before the next attempt

    def fail(self, error: ModelError) -> None:
        """Count a failed attempt. A request that is changed and sent again is no failure of the
        endpoint. `error` has the usage of this attempt, and afterwards that of all attempts.
        """
        if not policy_of(error).pending:
            self.spent += Usage(failed=1, failed_tokens=error.usage.tokens)
        error.usage = self.spent
        error.release_reply()
        self.failure = error
        self.failures += policy_of(error).retry != "changed"

    def unanswered(self) -> ModelError | None:
        """Return a failure with what the attempts cost, which the journal records when the budget
        ends the call; None when nothing was sent.
        """
        if not self.spent.calls:
            return None
        failure = self.failure or TimedOut("The call was interrupted by the budget.")
        failure.usage = self.spent
        return failure


def check_reply(reply: Reply, model_id: str, *, repeatable: bool = False) -> Reply:
    """Return the reply without its thinking. Raises when it is refused, truncated or empty.
    `repeatable`: the same request would get the same reply, so one that was cut off is not asked
    for again.
    """
    if reply.finish_reason == "refused":
        reason = one_line(reply.text, 200) or "no reason given"
        raise Refused(f"{model_id} refused: {reason}", usage=reply.usage)
    if reply.finish_reason == "length":
        failure = CutOff if repeatable else BadReply
        raise failure(
            f"The reply of {model_id} was cut off at {reply.usage.output} tokens.",
            hint="Raise the model's `max_tokens`.",
            usage=reply.usage,
        )
    text = _THINKING.sub("", without_surrogates(reply.text))
    if "</think>" in text:  # some servers send the opening tag as part of the prompt
        text = text.rpartition("</think>")[2]
    if not text.strip() and not reply.tool_calls:
        what = "nothing but thinking" if reply.text.strip() else "an empty reply"
        raise BadReply(f"{model_id} sent {what}.", usage=reply.usage)
    return reply if text == reply.text else replace(reply, text=text.strip())


_MAX_PROBLEMS = 5  # validation problems named to the model
_MAX_REASON = 1000  # characters of the reason sent back to the model
_LONG = 50_000  # characters of a reply that takes a noticeable time to read
_MAX_SENT_BACK = 50_000  # characters of an unusable reply sent back to the model


async def ask(model: Model, request: Request, reply_type: type[T]) -> T:
    """Return the reply as `reply_type`. Raises `BadReply` when two replies in a row cannot be
    used.
    """
    form: ReplyForm[T] = _form(cast(Hashable, reply_type))
    request = replace(request, schema=request.schema or form.schema)
    first = await model.complete(request)
    try:
        return await _parse(form, first.text)
    except ValueError as error:
        second_request = _with_complaint(request, first, error)
    second = await model.complete(second_request)
    try:
        return await _parse(form, second.text)
    except ValueError as error:
        # The error carries no usage: both replies are already on the bill.
        raise BadReply(
            f"{model.id} sent two replies in a row that do not have the requested form "
            f"({request.stage}): {_reason(error)}"
        ) from error


async def _parse(form: ReplyForm[T], text: str) -> T:
    """Read a long reply in a thread: seconds in the event loop would hold up all other calls."""
    if len(text) < _LONG:
        return form.parse(text)
    return await asyncio.to_thread(form.parse, text)


@dataclass(frozen=True)
class ReplyForm(Generic[T]):
    """The form of a reply: validates a text, and has the JSON schema that asks for it."""

    adapter: TypeAdapter[T]
    schema: JsonObject

    def parse(self, text: str) -> T:
        """Return the reply in `text`. ValueError when there is none of this form."""
        first_problem: ValueError | None = None
        for candidate in json_candidates(text):
            try:
                return self.adapter.validate_python(parse_model_json(candidate))
            except ValueError as error:
                first_problem = first_problem or error
        raise first_problem or ValueError("There is no JSON in the reply.")


def reply_form(reply_type: type[T]) -> ReplyForm[T]:
    adapter = TypeAdapter(reply_type)
    return ReplyForm(adapter, adapter.json_schema())


@lru_cache(maxsize=64)  # bounded: graders create a type per item
def _form(reply_type: Any) -> ReplyForm[Any]:
    return reply_form(reply_type)


def _with_complaint(request: Request, reply: Reply, error: ValueError) -> Request:
    complaint = (
        f"That reply could not be used: {_reason(error)}\n"
        "Reply again, with nothing but JSON of the requested form."
    )
    answer = Message("assistant", reply.text[:_MAX_SENT_BACK])
    return replace(request, messages=(*request.messages, answer, Message("user", complaint)))


def _reason(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return shorten(str(error), _MAX_REASON)
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [
        f"{'.'.join(map(str, problem['loc'])) or 'reply'}: {problem['msg']}"
        for problem in problems[:_MAX_PROBLEMS]
    ]
    return shorten("; ".join(lines), _MAX_REASON)
