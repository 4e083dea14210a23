import asyncio
import subprocess
import sys

import pytest

from skillfit.tasks import TaskFailure
from skillfit.tasks.user_code import call


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(0),
        asyncio.CancelledError("x"),
        KeyboardInterrupt(),
        StopIteration(),
        GeneratorExit(),
    ],
)
async def test_what_would_end_the_process_is_a_failure_like_any_other(error):
    def evaluate():
        raise error

    with pytest.raises(
        TaskFailure, match=rf"evaluate: {type(error).__name__}.* \(test_function\.py:\d+\)"
    ):
        await call(evaluate, kind="evaluate", where="evaluate")


@pytest.mark.parametrize("error", [SystemExit(0), asyncio.CancelledError("x")])
async def test_the_same_holds_for_async_functions(error):
    async def evaluate():
        await asyncio.sleep(0)
        raise error

    with pytest.raises(TaskFailure, match=f"evaluate: {type(error).__name__}"):
        await call(evaluate, kind="evaluate", where="evaluate")


async def test_cancelling_is_still_cancelling():
    begun = asyncio.Event()

    async def evaluate():
        begun.set()
        await asyncio.sleep(600)

    running = asyncio.ensure_future(call(evaluate, kind="evaluate", where="evaluate"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_function_that_never_ends_does_not_keep_the_process_from_ending():
    script = """
import asyncio, threading
from skillfit.tasks.user_code import call

async def main():
    try:
        async with asyncio.timeout(0.2):
            await call(threading.Event().wait, kind="evaluate", where="evaluate")
    except TimeoutError:
        print("over")

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("over\n", "")
