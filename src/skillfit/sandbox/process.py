"""Run a program so that it really ends: time limit, capped output, no process and no folder left
behind.

Every program is started through launcher.py, which supervises it. When the program ends, reaches
its time limit, is cancelled, or when skillfit itself is killed, all processes it has started end.

All temporary folders of one process are in one root folder in the system's temporary folder. The
process holds a lock on a file in that root for as long as it lives. A root whose lock is free
belongs to a process that was killed: the next process that needs a folder removes it and ends the
programs that still run for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from skillfit.errors import Exit, SkillfitError
from skillfit.plain_text import last_part
from skillfit.sandbox.launcher import STARTED

LAUNCHER = Path(__file__).with_name("launcher.py")
MARK = "SKILLFIT_PROCESS"  # this variable of a child's environment says which process started it

_PREFIX = "skillfit-"
_LOCK_FILE = ".owner"
_LOCALE = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
_PLACES = ("PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "VIRTUAL_ENV", "PYTHONPATH")
_GRACE = 3.0  # seconds the supervisor gets to end a program's processes
_LOOK_EVERY = 0.05  # seconds between two counts of a program's processes


class _Root:
    """The root folder of this process, with its lock."""

    def __init__(self) -> None:
        self.process = os.getpid()
        unlocked = Path(tempfile.mkdtemp(prefix=".skillfit-new-"))
        self._lock = os.open(unlocked / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Others look at the folder under this name only, when it is locked already.
        self.path = unlocked.with_name(unlocked.name.replace(".skillfit-new-", _PREFIX))
        unlocked.rename(self.path)
        self.folders: set[Path] = set()

    def close(self) -> None:
        remove_tree(self.path)
        os.close(self._lock)


_root: _Root | None = None
_guard = threading.Lock()


def new_folder(purpose: str) -> Path:
    """A fresh folder, which `remove_folder` removes."""
    global _root
    with _guard:
        if _root is None or _root.process != os.getpid() or not _root.path.exists():
            remove_abandoned()
            _root = _Root()
        folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=_root.path))
        _root.folders.add(folder)
        return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder that `new_folder` made in this process; any other path is left alone."""
    global _root
    with _guard:
        if _root is None or folder not in _root.folders:
            return
        remove_tree(folder)
        _root.folders.discard(folder)
        if not _root.folders:
            _root.close()
            _root = None


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """A fresh folder that is removed at the end."""
    folder = new_folder(purpose)
    try:
        yield folder
    finally:
        remove_folder(folder)


def process_mark() -> str:
    """What the programs of this process carry in `MARK`: the name of its root folder, if any."""
    return _root.path.name if _root is not None else f"{_PREFIX}{os.getpid()}"


def remove_abandoned() -> None:
    """Remove the folders, and end the programs, of processes that are gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # just removed by its owner
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue  # another user's, or a link to one
            lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its process still runs
            else:
                kill_marked(f"{path.name}/")
                remove_tree(path)
            finally:
                os.close(lock)


def kill_marked(mark: str) -> None:
    """Kill every process whose environment says that it was started under this mark."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


def remove_tree(folder: Path) -> None:
    """Remove a folder, including folders in it that a program made unwritable."""
    if folder.is_symlink() or not folder.is_dir():
        return
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    for parent, names, _ in os.walk(folder):
        for name in names:
            if not (path := Path(parent, name)).is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


class SandboxNotStarted(SkillfitError):
    """The program never ran: the isolation around it could not be set up."""

    kind = "sandbox"
    exit_code = Exit.INFRASTRUCTURE


Killed = Literal["", "time limit", "process limit"]  # the limit at which a program was killed


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a program ended and what it printed."""

    code: int | None  # the exit code; None when it was killed at a limit
    stdout: str
    stderr: str
    killed: Killed = ""
    isolation: str = "none"

    @property
    def timed_out(self) -> bool:
        return self.killed == "time limit"


@dataclass(slots=True)
class Handover:
    """Open file descriptors that a program gets under the same numbers. They are closed in this
    process as soon as the program has them.
    """

    descriptors: list[int]

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a program: the command that isolates it, and what launcher.py applies to it.

    `wrapper` is a command line in front of the launcher. With `contained`, the wrapper itself ends
    all processes when it is killed or when skillfit is gone; otherwise launcher.py supervises it.
    """

    wrapper: tuple[str, ...] = ()
    contained: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)  # as in `resource`, without RLIMIT_
    landlock: bool = False
    readable: tuple[Path, ...] = ()  # for Landlock
    writable: tuple[Path, ...] = ()
    network: bool = True
    most_processes: int | None = None  # counted from outside, for users whom NPROC does not bind

    def command(self, argv: Sequence[str], status: int) -> list[str]:
        """The whole command line; `status` is the descriptor for the launcher's report."""
        settings = [f"status={status}", *(f"{name}={value}" for name, value in self.limits.items())]
        if self.landlock:
            settings += ["landlock", *(["network"] if self.network else [])]
            settings += [f"readable={path}" for path in self.readable]
            settings += [f"writable={path}" for path in self.writable]
        supervised = [f"parent={os.getpid()}"] if sys.platform == "linux" else []
        if self.contained:
            return [*self.wrapper, *_launcher(settings), *argv]
        if self.wrapper:
            return [*_launcher(supervised), *self.wrapper, *_launcher(settings), *argv]
        return [*_launcher([*supervised, *settings]), *argv]


def _launcher(settings: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-S", str(LAUNCHER), *settings, "--"]


def plain_environment() -> dict[str, str]:
    """The part of our environment that a child process may see: places and language, no keys."""
    return {name: os.environ[name] for name in (*_LOCALE, *_PLACES) if name in os.environ}


async def run_process(
    argv: Sequence[str],
    *,
    cwd: Path,
    timeout: float,
    env: Mapping[str, str],
    stdin: bytes = b"",
    max_output: int = 1 << 20,
    launch: Launch | None = None,
    handover: Handover | None = None,
) -> ProcessResult:
    """Run a program to its end or to the time limit.

    Raises `SandboxNotStarted` when the isolation or the program could not be started. No process
    that the program started is left when this function returns, raises or is cancelled.
    """
    launch = launch or Launch()
    mark = f"{process_mark()}/{secrets.token_hex(8)}"
    outputs = {name: _Output(max_output) for name in ("stdout", "stderr", "status")}
    # These are our own pipes: asyncio's `wait` would otherwise wait until every process that
    # inherited its pipes has closed them.
    readers, writable = [], {}
    for name, output in outputs.items():
        readable, writable[name] = os.pipe()
        readers.append(asyncio.ensure_future(_drain(readable, output)))
    ended = False
    try:
        command = launch.command(argv, writable["status"])
        handover = handover or Handover([])
        process = await _start(command, cwd, {**env, MARK: mark}, stdin, writable, handover)
        killed = await _wait_for_end(process, timeout, launch)
        ended = not killed
    finally:
        if not ended:
            kill_marked(mark)
        # A process that escaped every kill may still hold a pipe open.
        await asyncio.wait(readers, timeout=0.5)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    _require_started(argv, outputs, killed)
    code = process.returncode if ended else None
    return ProcessResult(code, outputs["stdout"].text(), outputs["stderr"].text(), killed)


async def _wait_for_end(
    process: asyncio.subprocess.Process, timeout: float, launch: Launch
) -> Killed:
    """Wait until the program ends, or end it at a limit. Returns that limit, if it was reached."""
    ended = asyncio.ensure_future(process.wait())
    counting = asyncio.ensure_future(_until_too_many(process.pid, launch.most_processes))
    try:
        await asyncio.wait({ended, counting}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return ""
        return "process limit" if counting.done() else "time limit"
    finally:
        counting.cancel()
        await _end(process, gently=not launch.contained)


def _require_started(argv: Sequence[str], outputs: Mapping[str, _Output], killed: str) -> None:
    started, _, problem = outputs["status"].text().partition(STARTED.decode())
    reason = started or problem or last_part(outputs["stderr"].text().strip(), 500)
    if problem or (not killed and STARTED.decode() not in outputs["status"].text()):
        raise SandboxNotStarted(
            f"{Path(argv[0]).name} could not be started: {reason or 'no reason was given'}",
            hint="`skillfit check` shows which isolation works on this machine.",
        )


async def _start(
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    stdin: bytes,
    writable: Mapping[str, int],
    handover: Handover,
) -> asyncio.subprocess.Process:
    try:
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            return await asyncio.create_subprocess_exec(
                *command,
                cwd=cwd,
                env=env,
                stdin=given,
                stdout=writable["stdout"],
                stderr=writable["stderr"],
                pass_fds=[writable["status"], *handover.descriptors],
                start_new_session=True,
            )
    except OSError as error:
        raise SandboxNotStarted(f"{command[0]} could not be started: {error}") from error
    finally:
        handover.close()
        for end in writable.values():
            os.close(end)


async def _end(process: asyncio.subprocess.Process, *, gently: bool) -> None:
    """End the process and its group. A supervisor first gets a moment to end what it supervises."""
    try:
        if gently and process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _GRACE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _until_too_many(pid: int, most: int | None) -> None:
    """Return when the process has more than `most` descendants. Without a limit: never."""
    if most is None:
        await asyncio.Event().wait()
    while count_descendants(pid, most or 0) <= (most or 0):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_EVERY)


def count_descendants(pid: int, enough: int) -> int:
    """How many descendants a process has; stops counting soon after `enough`."""
    found = [pid]
    for each in found:  # grows while it is read
        if len(found) > enough + 1:
            break
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return len(found) - 1


@dataclass(slots=True)
class _Output:
    """The beginning and the end of what a program prints: the last line often matters most."""

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
