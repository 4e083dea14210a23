"""Calling a user's Python code: functions that are not async are called in a thread, and exceptions
they raise become failures.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from skillfit.errors import SkillfitError
from skillfit.tasks.item import (
    Attempt,
    Item,
    ScoredAttempt,
    TaskFailure,
    as_score,
    listed_answers,
)

T = TypeVar("T")
Reported = Literal["tokens", "usd"]


class _Intercepted(Exception):
    """Wraps what the user's function raised (the cause) if asyncio would treat it specially:
    `SystemExit`, `KeyboardInterrupt`, `CancelledError`, `StopIteration`.
    """


async def call(
    function: Callable[..., Any], *arguments: Any, kind: str, where: str, **named: Any
) -> Any:
    """Call a user's function. Whatever it raises, even `SystemExit`, is a `TaskFailure` of this
    kind; skillfit's own errors pass through. A function that is not async runs in a thread. If the
    call is cancelled, the thread runs on and its result is dropped.
    """
    running = asyncio.ensure_future(_run(partial(function, *arguments, **named)))
    try:
        await asyncio.wait([running])
    finally:
        running.cancel()
    error = running.exception()
    if error is None:
        return running.result()
    if isinstance(error, SkillfitError):
        raise error
    raised = error.__cause__ if isinstance(error, _Intercepted) and error.__cause__ else error
    last = traceback.extract_tb(raised.__traceback__)[-1]
    message = f"{type(raised).__name__}: {raised}".removesuffix(": ")
    raise TaskFailure(
        kind, f"{where}: {message} ({Path(last.filename).name}:{last.lineno})"
    ) from raised


async def _run(function: partial[Any]) -> Any:
    """A KeyboardInterrupt on the main thread comes from the user and passes through; in a worker
    thread it comes from the function.
    """
    called, task = function.func, asyncio.current_task()
    try:
        if _is_async(called):
            return await function()
        value = await in_thread(partial(_guarded, function))
        return await value if inspect.isawaitable(value) else value
    except SystemExit as error:
        raise _Intercepted from error
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raise _Intercepted from error


def _is_async(function: Callable[..., Any]) -> bool:
    call_method = getattr(type(function), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call_method)


def _guarded(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        raise _Intercepted from error


def in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Run the function in a new thread. It is a daemon thread, because a thread cannot be stopped
    and must not keep the process from ending.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # cancelling the asyncio future must not cancel this one
    threading.Thread(
        target=contextvars.copy_context().run,
        args=(_set_result, done, function),
        daemon=True,
        name="skillfit-user",
    ).start()
    return asyncio.wrap_future(done)


def _set_result(done: Future[T], function: Callable[[], T]) -> None:
    try:
        done.set_result(function())
    except BaseException as error:  # noqa: BLE001  # raised again where the result is awaited
        done.set_exception(error)


def reported_by(function: Callable[..., Any]) -> frozenset[Reported]:
    """What a function of the user reports about its usage: everything if it is annotated to return
    an `Attempt`, which has a field for it, and else nothing.
    """
    called = function if inspect.isroutine(function) else type(function).__call__
    returned = inspect.signature(called).return_annotation
    name = returned if isinstance(returned, str) else getattr(returned, "__name__", "")
    return frozenset({"tokens", "usd"} if name.rpartition(".")[2] == "Attempt" else ())


def described(function: Callable[..., Any]) -> str:
    """The function's name in the run's identity."""
    return getattr(function, "__qualname__", repr(type(function)))


def plain(item: Item) -> dict[str, Any]:
    """The item as a user's code gets it: the whole row under canonical names. `answers` is always
    a list.
    """
    content = item.content()
    row = {**content, "id": item.id}
    if "answers" in content:
        row["answers"] = listed_answers(content)
    return row


def evaluated(value: Any, *, source: str) -> ScoredAttempt:
    """The result of a user's evaluation: a score in any form, and the answer if it has one."""
    answer = str(value.get("answer", "")) if isinstance(value, Mapping) else ""
    return ScoredAttempt(Attempt(answer), as_score(value, source=source))
