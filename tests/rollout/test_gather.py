import asyncio

import pytest

from skillfit.rollout import gather


async def give(value: int, after: float = 0) -> int:
    await asyncio.sleep(after)
    return value


async def fail(message: str, after: float = 0) -> int:
    await asyncio.sleep(after)
    raise ValueError(message)


async def test_results_are_in_the_given_order() -> None:
    assert await gather([give(1, 0.02), give(2), give(3, 0.01)]) == [1, 2, 3]


async def test_an_empty_gather_returns_an_empty_result() -> None:
    assert await gather([]) == []


async def test_the_first_failure_in_planned_order_is_raised() -> None:
    with pytest.raises(ValueError, match="planned first"):
        await gather([give(1), fail("planned first", 0.02), fail("failed first")])


async def test_everything_finishes_before_a_failure_is_raised() -> None:
    written: list[str] = []

    async def write(name: str) -> int:
        await asyncio.sleep(0.01)
        written.append(name)
        return 0

    with pytest.raises(ValueError, match="at once"):
        await gather([fail("at once"), write("a"), write("b")])
    assert written == ["a", "b"]


async def test_cancelling_the_caller_cancels_the_work_and_waits_for_its_cleanup() -> None:
    cleaned: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    caller = asyncio.create_task(gather([work(1), work(2)]))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert sorted(cleaned) == [1, 2]
