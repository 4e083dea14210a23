"""Runs trainings in forked children, so that many can be killed while imports are done once.

One JSON line in: {config, settings, run, key, kill: null or [kind, n]}. One JSON line out: how the
child ended and how many points of each kind it passed. A point is a row of the journal, an event,
or a file in its place; SIGKILL is sent after the n-th.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp  # noqa: F401  imported by the client when first used

import skillfit.models.providers.openai_protocols  # noqa: F401
from skillfit.config import load_config
from skillfit.errors import SkillfitError
from skillfit.run.directory import RunDirectory
from skillfit.run.events import EventLog
from skillfit.run.journal import Journal
from skillfit.training.inputs import read_inputs
from skillfit.training.start import start

POINTS: dict[str, tuple[Any, str]] = {
    "record": (Journal, "_insert"),
    "event": (EventLog, "_insert"),
    "file": (RunDirectory, "write_text"),
}


def skip_slow_operations() -> None:
    """Read certificates once for all children, and do not wait for the disk: the kernel survives
    a killed process.
    """
    context = ssl.create_default_context()
    ssl.create_default_context = lambda *_, **__: context  # type: ignore[assignment]
    os.fsync = lambda _: None  # type: ignore[assignment]


def count_points(kill: list[Any] | None) -> Counter[str]:
    """Count every point, and kill the process at one of them."""
    passed: Counter[str] = Counter()

    def counting(kind: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def written(*args: Any) -> Any:
            value = write(*args)
            passed[kind] += 1
            if kill == [kind, passed[kind]]:
                os.kill(os.getpid(), signal.SIGKILL)
            return value

        return written

    for kind, (owner, name) in POINTS.items():
        setattr(owner, name, counting(kind, getattr(owner, name)))
    return passed


def train(order: dict[str, Any]) -> dict[str, Any]:
    os.environ["OPENAI_API_KEY"] = order["key"]
    passed = count_points(order["kill"])
    try:
        inputs = read_inputs(load_config(order["config"], order["settings"]))
        result = asyncio.run(start(inputs, Path(order["run"])))
    except SkillfitError as error:
        return {
            "error": type(error).__name__,
            "message": str(error),
            "exit": int(error.exit_code),
            "passed": passed,
        }
    return {"reason": result.finish_reason, "exit": int(result.exit_code), "passed": passed}


def fork(order: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            json.dump(train(order), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        output = pipe.read()
    _, status = os.waitpid(child, 0)
    return {"killed": os.WIFSIGNALED(status), **(json.loads(output) if output else {})}


def warm_up(order: dict[str, Any]) -> None:
    """A whole run in this process, so that caches are filled before the first fork."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = read_inputs(load_config(order["config"], order["settings"]))
        asyncio.run(start(inputs, Path(folder) / "run"))


def main() -> None:
    skip_slow_operations()
    warm = False
    for line in sys.stdin:
        order = json.loads(line)
        if not warm:
            warm_up(order)
            warm = True
        print(json.dumps(fork(order)), flush=True)


if __name__ == "__main__":
    main()
