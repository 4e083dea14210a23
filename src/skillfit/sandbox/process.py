"""Running a program so that it ends: time limit, capped output, everyone it started killed with it,
our keys kept from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_LOCALE = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
_KEPT = (
    *_LOCALE,
    "PATH",
    "HOME",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "SHELL",
    "VIRTUAL_ENV",
    "PYTHONPATH",
)
_MARK = "SKILLFIT_PROCESS"


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


@dataclass(slots=True)
class _Output:
    """Beginning and end of what a program says: the last line is often the one that counts."""

    limit: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)

    def add(self, chunk: bytes) -> None:
        room = self.limit // 2 - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:]
        del self.tail[: len(self.head) - self.limit]

    def text(self) -> str:
        return bytes(self.head + self.tail).decode(errors="replace")


async def run_process(
    argv: Sequence[str],
    *,
    cwd: Path,
    timeout: float,
    env: Mapping[str, str],
    stdin: bytes = b"",
    max_output: int = 1 << 20,
    contained: bool = False,
) -> Result:
    """Run to the end or to the time limit. Raises OSError when the program cannot be started.
    Whoever it left behind is killed with it, on the way out and on cancellation too. `contained`:
    nobody outlives it when it ends by itself; saves looking for them.
    """
    kept = (_Output(max_output), _Output(max_output))
    mark = secrets.token_hex(8)
    # Pipes of our own: asyncio's `wait` would go on until everyone who inherited its pipes has
    # closed them.
    readers, ends = [], []
    for into in kept:
        readable, writable = os.pipe()
        ends.append(writable)
        readers.append(asyncio.ensure_future(_drain(readable, into)))
    code: int | None = None
    try:
        process = await _start(argv, cwd, {**env, _MARK: mark}, stdin, ends)
        try:
            with contextlib.suppress(TimeoutError):
                code = await asyncio.wait_for(process.wait(), timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    finally:
        if code is None or not contained:
            _kill_marked(mark)
        await asyncio.wait(
            readers, timeout=0.5
        )  # someone who dropped the mark may still hold the other end
        for reader in readers:
            reader.cancel()
    return Result(code, *(one.text() for one in kept))


async def _start(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: bytes, ends: Sequence[int]
) -> asyncio.subprocess.Process:
    try:
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            return await asyncio.create_subprocess_exec(
                *argv,
                cwd=cwd,
                env=env,
                stdin=given,
                stdout=ends[0],
                stderr=ends[1],
                start_new_session=True,
            )
    finally:
        for end in ends:
            os.close(end)


def _kill_marked(mark: str) -> None:
    """Kill whoever left the process group: descendants still carry the mark in their environment."""
    wanted = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


async def _drain(pipe: int, into: _Output) -> None:
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(pipe, "rb", 0)
    )
    try:
        while chunk := await stream.read(1 << 16):
            into.add(chunk)
    finally:
        transport.close()
