"""Wait for all of a stage's work, then decide in planned order: which failure is raised never
depends on who finished first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def gather(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results in the order given. Everything finishes before the first failure (in that order)
    is raised, so all of a stage's paid work is recorded and all its handoff prompts are written.
    When the caller is cancelled, so is the work.
    """
    tasks = [asyncio.ensure_future(awaitable) for awaitable in work]
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    for task in tasks:  # failures after the first are seen too, or asyncio would log them as lost
        if not task.cancelled():
            task.exception()
    return [task.result() for task in tasks]
