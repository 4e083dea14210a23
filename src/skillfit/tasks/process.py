"""Running a program so that it ends: time limit, capped output, its whole process group killed, our keys kept from it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "SHELL",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "SYSTEMROOT",
)


@dataclass(frozen=True, slots=True)
class Result:
    code: int | None  # None: killed at the time limit
    stdout: str
    stderr: str
    truncated: bool = False  # more output came than was kept
    isolation: str = "none"

    @property
    def timed_out(self) -> bool:
        return self.code is None


def plain_environment() -> dict[str, str]:
    """What a child may know of our environment: where programs and home are; no keys."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


async def run_process(
    argv: Sequence[str], *, cwd: Path, timeout: float, env: Mapping[str, str], stdin: bytes = b"", max_output: int = 1 << 20
) -> Result:
    """Run to the end or to the time limit. Raises OSError when the program cannot be started. Whoever it left behind in its process
    group is killed with it, on the way out and on cancellation too."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        env=dict(env),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    kept = (bytearray(), bytearray())
    streams = (process.stdout, process.stderr)
    readers = [
        asyncio.ensure_future(_drain(stream, into, max_output)) for stream, into in zip(streams, kept, strict=True) if stream
    ]
    feeder = asyncio.ensure_future(_feed(process.stdin, stdin))
    code: int | None = None
    try:
        with contextlib.suppress(TimeoutError):
            code = await asyncio.wait_for(process.wait(), timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await asyncio.wait([*readers, feeder], timeout=1)  # someone who left the group may still hold the pipes
        for task in (*readers, feeder):
            task.cancel()
    stdout, stderr = (bytes(part[:max_output]).decode(errors="replace") for part in kept)
    return Result(code, stdout, stderr, any(len(part) > max_output for part in kept))


async def _drain(stream: asyncio.StreamReader, into: bytearray, limit: int) -> None:
    while chunk := await stream.read(1 << 16):
        into += chunk[: max(limit + 1 - len(into), 0)]


async def _feed(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    if stream is not None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stream.write(data)
            await stream.drain()
        stream.close()
