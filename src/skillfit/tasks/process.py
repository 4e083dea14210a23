"""Running a program so that it ends: time limit, capped output, its whole process group killed, our keys kept from it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LOCALE = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
_KEPT = (*_LOCALE, "PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "VIRTUAL_ENV", "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class Result:
    code: int | None  # None: killed at the time limit
    stdout: str
    stderr: str
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
    kept = (bytearray(), bytearray())
    # Pipes of our own: asyncio's `wait` would go on until everyone who inherited its pipes has closed them.
    readers, ends = [], []
    for into in kept:
        readable, writable = os.pipe()
        ends.append(writable)
        readers.append(asyncio.ensure_future(_drain(readable, into, max_output)))
    try:
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *argv, cwd=cwd, env=dict(env), stdin=given, stdout=ends[0], stderr=ends[1], start_new_session=True
            )
    finally:
        for end in ends:
            os.close(end)
    code: int | None = None
    try:
        with contextlib.suppress(TimeoutError):
            code = await asyncio.wait_for(process.wait(), timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await asyncio.wait(readers, timeout=0.5)  # someone who left the group may still hold the other end
        for reader in readers:
            reader.cancel()
    stdout, stderr = (part.decode(errors="replace") for part in kept)
    return Result(code, stdout, stderr)


async def _drain(pipe: int, into: bytearray, limit: int) -> None:
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(pipe, "rb", 0)
    )
    try:
        while chunk := await stream.read(1 << 16):
            into += chunk[: limit - len(into)]
    finally:
        transport.close()
