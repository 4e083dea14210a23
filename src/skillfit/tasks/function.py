"""A user's Python: loaded from `path/to/file.py:name`, called in a thread when it is not async, its exceptions made failures."""

from __future__ import annotations

import asyncio
import contextvars
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from skillfit.errors import InputError, SkillfitError
from skillfit.tasks.attempt import TaskFailure
from skillfit.tasks.item import stable_hash


def load_object(reference: str, base: Path = Path()) -> Any:
    """What `file.py:name` names; the file is run once per process."""
    file, _, name = reference.rpartition(":")
    path = (base / file).resolve()
    if not path.is_file():
        raise InputError(f"{reference}: {path} does not exist.", hint="Write path/to/file.py:name.")
    module = _load_module(path, path.stat().st_mtime_ns)
    if not hasattr(module, name):
        raise InputError(
            f"{path.name} has no {name!r}.", hint=f"It has: {', '.join(key for key in vars(module) if not key.startswith('_'))}."
        )
    return getattr(module, name)


@cache
def _load_module(path: Path, version: int) -> Any:
    """`version` makes a changed file load anew. Registered under a name of its own, so that dataclasses and pickling find it."""
    name = f"skillfit_user_{path.stem}_{stable_hash(str(path))[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be loaded as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # the file's own neighbours import as they do when it is run
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a person's own file may raise anything
        del sys.modules[name]
        at = next(
            (frame.lineno for frame in reversed(traceback.extract_tb(error.__traceback__)) if frame.filename == str(path)), None
        )
        at = at or getattr(error, "lineno", None)
        raise InputError(f"{path}{f':{at}' if at else ''}: {type(error).__name__}: {error}", hint="Mend the file.") from error
    return module


async def call(function: Callable[..., Any], *arguments: Any, kind: str, where: str) -> Any:
    """The function's value. Whatever it raises is a `TaskFailure` of this kind; skillfit's own errors pass through."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        running: asyncio.Future[Any] = asyncio.ensure_future(function(*arguments))
    else:
        context = contextvars.copy_context()
        running = asyncio.get_running_loop().run_in_executor(_threads(), lambda: context.run(function, *arguments))
    try:
        await asyncio.wait([running])
    finally:
        running.cancel()
    error = running.exception()
    if error is None:
        return running.result()
    if isinstance(error, SkillfitError) or not isinstance(error, Exception):
        raise error
    last = traceback.extract_tb(error.__traceback__)[-1]
    raise TaskFailure(kind, f"{where}: {type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})") from error


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="skillfit-user")
