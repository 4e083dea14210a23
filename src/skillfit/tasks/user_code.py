"""Loading and calling a user's Python code: `path/to/file.py:name`.

Functions that are not async are called in a thread. Exceptions they raise become failures.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib.util
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from skillfit.errors import InputError, SkillfitError
from skillfit.tasks.item import (
    Attempt,
    Item,
    Score,
    TaskFailure,
    as_score,
    listed_answers,
    stable_hash,
)

T = TypeVar("T")


def load_object(reference: str, base: Path = Path()) -> Any:
    """What `file.py:name` names; the file is run once per process."""
    file, _, name = reference.rpartition(":")
    path = (base / file).resolve()
    if not path.is_file():
        raise InputError(f"{reference}: {path} does not exist.", hint="Write path/to/file.py:name.")
    module = _load_module(path, path.stat().st_mtime_ns)
    if not hasattr(module, name):
        raise InputError(
            f"{path.name} has no {name!r}.",
            hint=f"It has: {', '.join(key for key in vars(module) if not key.startswith('_'))}.",
        )
    return getattr(module, name)


@cache
def _load_module(path: Path, version: int) -> Any:
    """`version` makes a changed file load anew. Registered under a name of its own, so that
    dataclasses and pickling find it.
    """
    name = f"skillfit_user_{path.stem}_{stable_hash(str(path))[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be loaded as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(
            str(path.parent)
        )  # the file's own neighbours import as they do when it is run
    with errors_in(path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def errors_in(
    path: Path, *passing: type[Exception], hint: str = "Mend the file."
) -> Iterator[None]:
    """What a person's own file raises while a task is made of it, which may be anything, is theirs
    to mend; all but `passing`.
    """
    try:
        yield
    except passing:
        raise
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path)
        ]
        at = lines[-1] if lines else getattr(error, "lineno", None)
        raise InputError(
            f"{path}{f':{at}' if at else ''}: {type(error).__name__}: {error}", hint=hint
        ) from error


class _Ending(Exception):
    """The person's function raised what would end the process, or leave whoever waits for it
    waiting. The cause says what.
    """


async def call(
    function: Callable[..., Any], *arguments: Any, kind: str, where: str, **named: Any
) -> Any:
    """The function's value. Whatever it raises, `SystemExit` too, is a `TaskFailure` of this kind;
    skillfit's own errors pass through. A function that is not async runs in a thread; cancelled, it
    is left alone there, and runs on.
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
    raised = error.__cause__ if isinstance(error, _Ending) and error.__cause__ else error
    last = traceback.extract_tb(raised.__traceback__)[-1]
    said = f"{type(raised).__name__}: {raised}".removesuffix(": ")
    raise TaskFailure(
        kind, f"{where}: {said} ({Path(last.filename).name}:{last.lineno})"
    ) from raised


async def _run(function: partial[Any]) -> Any:
    """A KeyboardInterrupt here is the person's, who is tired of waiting; in a thread, where no
    signal arrives, the function's.
    """
    called, task = function.func, asyncio.current_task()
    try:
        if _is_async(called):
            return await function()
        value = await in_thread(partial(_guarded, function))
        return await value if inspect.isawaitable(value) else value
    except SystemExit as error:
        raise _Ending from error
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raise _Ending from error


def _is_async(function: Callable[..., Any]) -> bool:
    call_method = getattr(type(function), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call_method)


def _guarded(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        raise _Ending from error


def in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """The function's value, from a thread of its own. Nobody can end a thread, so nobody waits for
    it at the end of the process.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # whoever stops waiting cancels nothing
    threading.Thread(
        target=contextvars.copy_context().run,
        args=(_tell, done, function),
        daemon=True,
        name="skillfit-user",
    ).start()
    return asyncio.wrap_future(done)


def _tell(done: Future[T], function: Callable[[], T]) -> None:
    try:
        done.set_result(function())
    except BaseException as error:  # noqa: BLE001  # goes to whoever waits
        done.set_exception(error)


def name_of(function: Callable[..., Any]) -> str:
    """What messages call it."""
    return getattr(function, "__name__", type(function).__name__)


def described(function: Callable[..., Any]) -> str:
    """What tells it apart, for the run's identity."""
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


def evaluated(value: Any, *, source: str) -> tuple[Attempt, Score]:
    """What a user's own evaluation gave back: a score in any form, and the answer where it tells
    one.
    """
    answer = str(value.get("answer", "")) if isinstance(value, Mapping) else ""
    return Attempt(answer), as_score(value, source=source)
