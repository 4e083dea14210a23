"""How long retries wait, on a clock that does not wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import chain

import pytest

from skillfit.models import Limiters, ModelSpec, Prices, Reply, Request
from skillfit.models.client import Client
from skillfit.models.limiter import Limiter
from skillfit.models.protocol import (
    ModelError,
    NetworkFailed,
    Notice,
    Overloaded,
    RateLimited,
    log_notice,
)
from skillfit.models.providers.scripted import ScriptedModel
from tests.models.clocks_and_meters import SimulatedClock, say


class Endpoint:
    """A simulated server: replies take about `latency` (log-normal, as model servers do); `faults`
    says what happens to each request.
    """

    def __init__(self, latency: float, faults: Iterator[str]) -> None:
        self.clock, self.latency, self._faults = SimulatedClock(), latency, faults
        self.down_until = 0.0
        self._luck = random.Random(5)
        self.limiters = Limiters(self.clock)

    async def answer(self, request: Request) -> str:
        fault = "refused" if self.clock.now() < self.down_until else next(self._faults)
        if fault == "refused":
            raise Overloaded("down")
        if fault == "429":
            raise RateLimited("not now")
        if fault == "500":
            raise Overloaded("not now")
        await self.clock.sleep(self.latency * self._luck.lognormvariate(0, 0.8))
        if fault == "cut":
            raise NetworkFailed("cut")
        return "fine"

    def client(self, concurrency: int = 32, notice: Notice = log_notice, **spec: object) -> Client:
        return Client(
            ScriptedModel(self.answer),
            ModelSpec(id="scripted/m", **spec),
            role="agent",
            limiter=self.limiters.of("here", concurrency),
            prices=Prices(),
            clock=self.clock,
            notice=notice,
            jitter=random.Random(7),
        )

    async def stages(self, stages: int, calls: int, concurrency: int = 32) -> list[object]:
        """Stages one after the other, each of so many calls at once."""
        model, results = self.client(concurrency), []
        for stage in range(stages):
            work = [model.complete(say(f"{stage} {number}")) for number in range(calls)]
            results += await asyncio.gather(*work, return_exceptions=True)
        return results


def some_fail(share: float, seed: int = 1) -> Iterator[str]:
    luck = random.Random(seed)
    while True:
        yield luck.choice(["429", "500", "cut"]) if luck.random() < share else ""


def none_fail() -> Iterator[str]:
    while True:
        yield ""


async def seconds(endpoint: Endpoint, *stages: int) -> float:
    results = await endpoint.clock.run(endpoint.stages(*stages))
    assert sum(not isinstance(result, Reply) for result in results) <= 2
    return endpoint.clock.now()


@pytest.mark.parametrize("latency", [0.005, 0.02, 0.2, 2.0, 20.0])
@pytest.mark.parametrize(("stages", "calls"), [(20, 40), (60, 8)])
async def test_a_third_of_failing_requests_costs_less_than_twice_the_time(latency, stages, calls):
    clean = await seconds(Endpoint(latency, none_fail()), stages, calls)
    faulty = await seconds(Endpoint(latency, some_fail(0.3)), stages, calls)
    assert faulty < 2 * clean


async def test_isolated_rate_limits_do_not_collapse_the_concurrency():
    def one_in_five_is_limited() -> Iterator[str]:
        luck = random.Random(3)
        while True:
            yield "429" if luck.random() < 0.2 else ""

    for latency in (0.02, 2.0):
        endpoint = Endpoint(latency, one_in_five_is_limited())
        await endpoint.clock.run(endpoint.stages(1, 2000))
        assert endpoint.limiters.of("here", 32).limit > 16


async def test_quick_failures_before_the_first_reply_of_a_round_are_not_an_outage():
    clock = SimulatedClock()
    limiter = Limiter(32, clock, start=32)

    async def one(error: ModelError | None) -> None:
        async with limiter.slot():
            if error:
                raise error
            await clock.sleep(0.1)

    async def round_of(failing: int, fine: int) -> bool:
        errors = [Overloaded("busy")] * failing + [None] * fine
        work = [asyncio.ensure_future(one(error)) for error in errors]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        was_down = limiter.is_down
        await asyncio.gather(*work, return_exceptions=True)
        return was_down

    assert not await clock.run(round_of(0, 10))
    assert not await clock.run(round_of(10, 10))
    await clock.run(round_of(10, 0))
    await clock.run(clock.sleep(0.5))
    assert limiter.is_down
    await clock.run(round_of(0, 1))
    assert not limiter.is_down


@pytest.mark.parametrize(("calls", "outage"), [(30, 5.0), (1, 2.5)])
async def test_retries_outlast_an_outage_of_a_fast_server(calls, outage):
    endpoint = Endpoint(0.02, none_fail())
    await endpoint.clock.run(endpoint.stages(3, calls))
    endpoint.down_until = endpoint.clock.now() + outage
    results = await endpoint.clock.run(endpoint.stages(1, calls))
    assert all(isinstance(result, Reply) for result in results)
    assert endpoint.clock.now() < endpoint.down_until + 15


async def test_a_call_that_always_fails_does_not_delay_the_others():
    async def time_of_other_calls(unlucky: int) -> float:
        endpoint = Endpoint(0.1, none_fail())

        async def answer(request: Request) -> str:
            if request.messages[0].content == "unlucky":
                raise Overloaded("busy")
            return await endpoint.answer(request)

        model = endpoint.client(concurrency=4)
        model.provider = ScriptedModel(answer)

        async def all_calls() -> float:
            failing = [
                asyncio.ensure_future(model.complete(say("unlucky"))) for _ in range(unlucky)
            ]
            await asyncio.gather(*(model.complete(say(str(number))) for number in range(40)))
            ended = endpoint.clock.now()
            failures = await asyncio.gather(*failing, return_exceptions=True)
            assert all(isinstance(failure, Overloaded) for failure in failures)
            return ended

        return await endpoint.clock.run(all_calls())

    assert await time_of_other_calls(1) <= 1.2 * await time_of_other_calls(0)


async def test_each_outage_is_reported_once():
    endpoint, notices = Endpoint(0.02, none_fail()), []
    model = endpoint.client(notice=notices.append)

    async def calls(count: int) -> None:
        await asyncio.gather(*(model.complete(say(str(number))) for number in range(count)))

    await endpoint.clock.run(calls(20))
    assert notices == []
    for outage in (1, 2):
        endpoint.down_until = endpoint.clock.now() + 4
        await endpoint.clock.run(calls(20))
        assert len(notices) == outage
        assert notices[-1].startswith("Retrying up to ") and notices[-1].endswith(": down")


async def test_failures_among_replies_are_not_reported_as_an_outage():
    endpoint, notices = Endpoint(0.2, chain([""], some_fail(0.3))), []
    model = endpoint.client(notice=notices.append)

    async def calls() -> None:
        await model.complete(say("first"))
        work = [model.complete(say(str(number))) for number in range(200)]
        await asyncio.gather(*work, return_exceptions=True)

    await endpoint.clock.run(calls())
    assert notices == []


@pytest.mark.parametrize(
    ("pause", "reported"),
    [(2.0, []), (120.0, ["Retrying after 2.0 min, as the server asks: slow down"])],
)
async def test_a_long_retry_after_is_reported(pause, reported):
    clock, notices = SimulatedClock(), []
    model = Client(
        ScriptedModel([RateLimited("slow down", retry_after=pause), "fine"]),
        ModelSpec(id="scripted/m"),
        role="agent",
        limiter=Limiter(4, clock),
        prices=Prices(),
        clock=clock,
        notice=notices.append,
    )
    reply = await clock.run(model.complete(say("x")))
    assert (reply.text, notices) == ("fine", reported)
