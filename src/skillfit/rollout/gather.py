"""Wait for a stage's work, and decide in planned order which failure is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gather(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results in the order given.

    All work finishes before the first failure (in that order) is raised. So everything that a
    stage has paid for is recorded, and all its handoff prompts are written. When the caller is
    cancelled, so is the work.
    """
    tasks = [asyncio.ensure_future(awaitable) for awaitable in work]
    try:
        await settle(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await settle(tasks)
        raise
    return [task.result() for task in tasks]


async def settle(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until all tasks have ended. Their exceptions stay in the tasks and are not logged."""
    listed = list(tasks)
    try:
        if listed:
            await asyncio.wait(listed)
    finally:
        for task in listed:
            if task.done():
                mark_retrieved(task)
            else:
                task.add_done_callback(mark_retrieved)


def mark_retrieved(task: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging the exception of a task whose result nobody reads."""
    if not task.cancelled():
        task.exception()
