"""The rules of the limiter, on a clock that does not wait."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillfit.models.limiter import COOLDOWN, Limiter, Limiters, endpoint_of
from skillfit.models.protocol import ModelError, Overloaded, RateLimited
from tests.models.clocks_and_meters import SimulatedClock


async def use(
    limiter: Limiter, clock: SimulatedClock, seconds: float, error: ModelError | None = None
) -> None:
    async with limiter.slot():
        await clock.sleep(seconds)
        if error:
            raise error


async def many(
    limiter: Limiter, clock: SimulatedClock, calls: int, error: ModelError | None = None
) -> None:
    await asyncio.gather(
        *(use(limiter, clock, 1, error) for _ in range(calls)), return_exceptions=True
    )


async def test_the_limit_starts_small_and_doubles_per_round_up_to_the_ceiling():
    clock = SimulatedClock()
    limiter = Limiter(16, clock, start=2)
    await clock.run(many(limiter, clock, 6))
    assert 4 <= limiter.limit < 16
    await clock.run(many(limiter, clock, 100))
    assert limiter.limit == 16


async def test_the_limit_does_not_grow_while_slots_are_free():
    clock = SimulatedClock()
    limiter = Limiter(16, clock, start=4)
    for _ in range(20):
        await clock.run(use(limiter, clock, 1))
    assert limiter.limit == 4


async def test_a_burst_of_rate_limits_lowers_the_limit_once():
    clock = SimulatedClock()
    limiter = Limiter(16, clock, start=16)
    await clock.run(many(limiter, clock, 16, RateLimited("slow down")))
    assert limiter.limit == 8


async def test_rate_limits_after_the_cooldown_lower_the_limit_again_but_not_below_1():
    clock = SimulatedClock()
    limiter = Limiter(8, clock, start=8)
    for expected in (4, 2, 1, 1):
        await clock.run(many(limiter, clock, 1, RateLimited("slow down")))
        assert limiter.limit == expected
        await clock.run(clock.sleep(COOLDOWN + 1))


async def test_a_lowered_limit_grows_by_one_per_round():
    clock = SimulatedClock()
    limiter = Limiter(64, clock, start=16)
    await clock.run(many(limiter, clock, 1, RateLimited("slow down")))
    assert limiter.limit == 8
    await clock.run(many(limiter, clock, 8))
    assert 8 < limiter.limit <= 9.01


async def test_retry_after_pauses_every_waiter_and_all_resume():
    clock = SimulatedClock()
    limiter = Limiter(4, clock)
    await clock.run(many(limiter, clock, 1, RateLimited("slow down", retry_after=30)))
    begun: list[float] = []

    async def note() -> None:
        async with limiter.slot():
            begun.append(clock.now())

    async def all_of_them() -> None:
        await asyncio.gather(*(note() for _ in range(10)))

    await clock.run(all_of_them())
    assert len(begun) == 10
    assert min(begun) == 31


async def test_an_overloaded_endpoint_loses_no_slot_and_grows_again_after_as_many_successes():
    clock = SimulatedClock()
    limiter = Limiter(16, clock, start=4)
    await clock.run(many(limiter, clock, 40, Overloaded("busy")))
    await clock.run(many(limiter, clock, 4))
    assert limiter.limit == 4
    await clock.run(many(limiter, clock, 8))
    assert limiter.limit > 4


async def test_occasional_failures_do_not_keep_the_limit_low():
    clock = SimulatedClock()
    limiter = Limiter(16, clock, start=4)

    async def one_in_five_fails() -> None:
        errors = [Overloaded("busy") if number % 5 == 0 else None for number in range(100)]
        await asyncio.gather(
            *(use(limiter, clock, 1, error) for error in errors), return_exceptions=True
        )

    await clock.run(one_in_five_fails())
    assert limiter.limit == 16


async def test_a_rate_limited_endpoint_serves_every_call_within_its_retries():
    clock = SimulatedClock()
    limiter = Limiter(32, clock)
    tokens, filled, tries = 5.0, 0.0, []

    async def ask(number: int) -> None:
        nonlocal tokens, filled
        async with limiter.slot():
            now = clock.now()
            tokens, filled = min(5.0, tokens + 5 * (now - filled)), now  # five requests a second
            if tokens < 1:
                await clock.sleep(0.003)
                raise RateLimited("slow down")
            tokens -= 1
            await clock.sleep(0.3)

    async def persistent(number: int) -> None:
        for attempt in range(6):
            try:
                await ask(number)
            except RateLimited:
                await clock.sleep(0.5 * 2**attempt)
            else:
                tries.append(attempt)
                return

    async def all_calls() -> None:
        await asyncio.gather(*(persistent(number) for number in range(200)))

    await clock.run(all_calls())
    assert len(tries) == 200
    assert clock.now() < 1.5 * 200 / 5


async def test_slots_are_given_in_request_order():
    clock = SimulatedClock()
    limiter = Limiter(2, clock)
    order: list[int] = []

    async def one(number: int) -> None:
        async with limiter.slot():
            order.append(number)
            await clock.sleep(1)

    async def all_of_them() -> None:
        await asyncio.gather(*(one(n) for n in range(20)))

    await clock.run(all_of_them())
    assert order == list(range(20))


async def test_a_cancelled_waiter_does_not_block_others():
    clock = SimulatedClock()
    limiter = Limiter(1, clock)

    async def scene() -> None:
        first = asyncio.ensure_future(use(limiter, clock, 5))
        await asyncio.sleep(0)
        leaving = asyncio.ensure_future(use(limiter, clock, 5))
        await asyncio.sleep(0)
        last = asyncio.ensure_future(use(limiter, clock, 5))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(first, last)

    await clock.run(scene())
    assert clock.now() == 10
    assert limiter.in_flight == 0


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.floats(0.01, 5), st.sampled_from(["ok", "ok", "ok", "limit", "limit+", "busy"])
        ),
        max_size=60,
    ),
    st.integers(1, 20),
)
def test_any_mix_of_failures_stays_under_the_ceiling_and_finishes(calls, ceiling):
    errors = {
        "limit": RateLimited("x"),
        "limit+": RateLimited("x", retry_after=3),
        "busy": Overloaded("x"),
    }
    clock = SimulatedClock()
    limiter = Limiter(ceiling, clock)
    seen: list[int] = []

    async def one(seconds: float, how: str) -> None:
        async with limiter.slot():
            seen.append(limiter.in_flight)
            await clock.sleep(seconds)
            if how in errors:
                raise errors[how]

    async def everything() -> None:
        await asyncio.gather(*(one(*call) for call in calls), return_exceptions=True)

    asyncio.run(clock.run(everything()))
    assert len(seen) == len(calls)
    assert max(seen, default=0) <= ceiling
    assert limiter.in_flight == 0 and 1 <= limiter.limit <= ceiling


def test_one_limiter_per_server_and_key():
    limiters = Limiters()
    same = [
        endpoint_of("https://api.example.com/v1", "key-a"),
        endpoint_of("https://api.example.com:443/other", "key-a"),
    ]
    others = [
        endpoint_of("https://api.example.com/v1", "key-b"),
        endpoint_of("http://api.example.com/v1", "key-a"),
        endpoint_of("https://api.example.com"),
    ]
    assert len({limiters.of(endpoint, 4) for endpoint in same}) == 1
    assert len({limiters.of(endpoint, 4) for endpoint in same + others}) == 4
    assert all("key-" not in endpoint.replace("no-key", "") for endpoint in same + others)


async def test_failures_inside_a_slot_pass_through_unchanged():
    limiter = Limiter(2)
    with pytest.raises(KeyError):
        async with limiter.slot():
            raise KeyError("not ours")
    assert limiter.in_flight == 0
