"""Run programs. Untrusted ones can see and reach only what they are given, and leave no process.

Which isolation is used depends on the machine. `ISOLATIONS` lists them, the strongest first; the
documentation page docs/isolation.md has the same table in words. The result of a program says under
which one it ran. file_view.py says which files a program sees.

Every program, isolated or not, is started by `run_process` through launcher.py, which supervises
it. When the program ends, reaches its time limit, is cancelled, or when skillfit itself is killed,
all processes it has started end.

All temporary folders of one process are in one root folder in the system's temporary folder. The
process holds a lock on a file in that root for as long as it lives. A root whose lock is free
belongs to a process that was killed: the next process that needs a folder removes it and ends the
programs that still run for it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import io
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from skillfit.errors import InputError, TaskFailure
from skillfit.plain_text import last_part
from skillfit.sandbox.file_view import (
    TEMPORARY,
    Access,
    Mount,
    landlock_paths,
    python_installation,
    shown,
)
from skillfit.sandbox.launcher import STARTED, landlock_version

SandboxMode = Literal["auto", "require", "off"]
IsolationName = Literal["bubblewrap", "namespaces+landlock", "landlock", "namespaces", "none"]
# The limit at which a program was killed.
Killed = Literal["", "time limit", "process limit", "disk limit"]
MARK = "SKILLFIT_PROCESS"  # this variable of a child's environment says which process started it

_WRAPPER_PROGRAMS: Mapping[IsolationName, str] = {
    "bubblewrap": "bwrap",
    "namespaces+landlock": "unshare",
    "namespaces": "unshare",
}
_LAUNCHER = Path(__file__).with_name("launcher.py")
_LARGEST_FILE = 1 << 30  # bytes: the largest file an untrusted program may write
_MOST_DISK = 4 << 30  # bytes: what a sandboxed program may have in its folders
_LEAST_DISK = 1 << 20  # bytes: with less left on the disk, programs fail because of that
_START_SECONDS = 60.0  # for the isolation around a program, and the program's first instruction
_END_GRACE = 3.0  # seconds the supervisor gets to end a program's processes
_COUNT_EVERY = 0.05  # seconds between two counts of a program's processes
_MEASURE_EVERY = 0.5  # seconds between two measurements of its folders, at least
_MEASURE_SHARE = 0.05  # of the time, at most, for measuring
# Variables of our environment that a child process may see.
_LOCALE = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
_PLACES = ("PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "VIRTUAL_ENV", "PYTHONPATH")
_HINTS = {
    errno.EMFILE: "Raise the limit on open files (ulimit -n), or lower model.concurrency.",
    errno.ENFILE: "The machine has too many open files: end other programs.",
    errno.ENOSPC: "Free some space, or set TMPDIR to a folder on a disk that has some.",
    errno.EDQUOT: "Free some space, or set TMPDIR to a folder on a disk that has some.",
    errno.EAGAIN: "Raise the limit on processes (ulimit -u), or lower model.concurrency.",
    errno.ENOMEM: "Raise the limit on memory (ulimit -v), or lower model.concurrency.",
}
_ROOT_PREFIX = "skillfit-"
_LOCK_FILE = ".owner"


@dataclass(frozen=True, slots=True)
class Isolation:
    """One way to isolate a program, and what it guarantees."""

    name: IsolationName
    hides_files: (
        bool  # only what file_view.py lists can be read, and no other Unix socket be reached
    )
    hides_processes: bool  # environment and memory of other processes cannot be read
    cuts_network: bool  # when no network was asked for
    # It has users, processes, a file system, /tmp and /dev/shm of its own.
    own_namespaces: bool = False
    ends_with_parent: bool = False  # the isolation itself ends all processes with skillfit

    @property
    def full(self) -> bool:
        """Whether it is enough for `sandbox: require`."""
        return self.hides_files and self.hides_processes and self.cuts_network


NO_ISOLATION = Isolation("none", False, False, False)
ISOLATIONS: tuple[Isolation, ...] = (
    Isolation("bubblewrap", True, True, True, own_namespaces=True, ends_with_parent=True),
    Isolation("namespaces+landlock", True, True, True, own_namespaces=True),
    Isolation("namespaces", True, True, True, own_namespaces=True),
    Isolation("landlock", True, True, True),
    NO_ISOLATION,
)


def choose_isolation(mode: SandboxMode, setting: str) -> Isolation:
    """Return the isolation that a setting asks for. `require` is an error where there is no full
    one; the error names the `setting`.
    """
    if mode == "off":
        return NO_ISOLATION
    best = best_isolation()
    if mode == "require" and not best.full:
        raise InputError(
            f"{setting} is require, but this machine offers no full isolation (best: {best.name}).",
            hint="Install bubblewrap (apt install bubblewrap), use a Linux kernel with Landlock, "
            f"or set {setting} to auto.",
        )
    return best


@cache
def best_isolation() -> Isolation:
    """Return the strongest isolation that works on this machine. Tried once per process."""
    return next(isolation for isolation in ISOLATIONS if works(isolation))


def works(isolation: Isolation) -> bool:
    """Return whether a program can be run under this isolation here."""
    if isolation == NO_ISOLATION:
        return True
    if sys.platform != "linux":
        return False
    if "landlock" in isolation.name and landlock_version() < 1:
        return False
    program = _WRAPPER_PROGRAMS.get(isolation.name)
    if program is not None and shutil.which(program) is None:
        return False
    return _keeps_its_promises(isolation)


# Prints which of its two arguments it can reach: a Unix socket, and a file.
_PROBE = """
import socket, sys
def connect(path): socket.socket(socket.AF_UNIX).connect(path)
print("ran")
for act, path in zip((connect, open), sys.argv[1:]):
    try:
        act(path)
    except OSError:
        continue
    print("reached", path)
"""


def _keeps_its_promises(isolation: Isolation) -> bool:
    """Return whether a program runs here under the isolation and cannot reach what it hides."""
    with (
        scratch_folder("try") as cwd,
        scratch_folder("hidden") as hidden,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        (hidden / "file").touch()
        with suppress(OSError):  # a path that is too long for a socket
            listening.bind(str(hidden / "socket"))
            listening.listen()
        command = [sys.executable, "-I", "-S", "-c", _PROBE]
        readable, writable = os.pipe()
        try:
            launch = _isolated_launch(isolation, cwd, Access((cwd,)), Limits())
            tried = subprocess.run(
                launch.command([*command, str(hidden / "socket"), str(hidden / "file")], writable),
                cwd=cwd,
                pass_fds=[writable],
                capture_output=True,
                timeout=_START_SECONDS,
                check=False,
            )
        finally:
            os.close(readable)
            os.close(writable)
    reached = b"reached" in tried.stdout and isolation.hides_files
    return tried.returncode == 0 and b"ran" in tried.stdout and not reached


async def run_untrusted(
    argv: Sequence[str],
    *,
    cwd: Path,
    timeout: float,
    memory: int = 1 << 30,
    processes: int = 256,
    readable: tuple[Path, ...] = (),
    mounts: tuple[Mount, ...] = (),
    network: bool = False,
    stdin: bytes = b"",
    max_output: int = 1 << 16,
    isolation: Isolation | None = None,
    inherited: InheritedDescriptors | None = None,
    temporary: Path | None = None,
) -> ProcessResult:
    """Run untrusted code in `cwd`. It may write there and to its temporary folder only, which is
    `temporary`, or a fresh one that is removed at the end.

    PATH, HOME (the working folder), TMPDIR and LANG are all the environment it gets.
    """
    cwd, chosen = cwd.resolve(), isolation or best_isolation()
    folders = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    with nullcontext(temporary) if temporary is not None else scratch_folder("tmp") as own:
        env = {
            "PATH": os.pathsep.join(dict.fromkeys(folders)),
            "HOME": str(cwd),
            "TMPDIR": str(TEMPORARY if chosen.own_namespaces else own),
            "LANG": "C.UTF-8",
        }
        return await run_sandboxed(
            argv,
            cwd=cwd,
            timeout=timeout,
            env=env,
            access=Access((cwd,), readable, mounts=mounts, network=network, temporary=own),
            limits=Limits(timeout, memory, processes, _LARGEST_FILE),
            stdin=stdin,
            max_output=max_output,
            isolation=chosen,
            inherited=inherited,
        )


async def run_sandboxed(
    argv: Sequence[str],
    *,
    cwd: Path,
    timeout: float,
    env: Mapping[str, str],
    access: Access,
    limits: Limits | None = None,
    stdin: bytes = b"",
    max_output: int = 1 << 16,
    isolation: Isolation | None = None,
    inherited: InheritedDescriptors | None = None,
) -> ProcessResult:
    """Run `argv` under an isolation (default: the best one here) with this environment.

    The result names the isolation. Raises `SandboxNotStarted` when the program never ran.
    """
    chosen = isolation or best_isolation()
    _require_room(cwd)
    launch = _isolated_launch(chosen, cwd.resolve(), access, limits or Limits())
    result = await run_process(
        argv,
        cwd=cwd.resolve(),
        timeout=timeout,
        env=env,
        stdin=stdin,
        max_output=max_output,
        launch=launch,
        inherited=inherited,
    )
    if result.code != 0:
        _require_room(cwd)
    return replace(result, isolation=chosen.name)


def _require_room(folder: Path) -> None:
    """Raise an error if the disk is full: whatever a program does then says nothing about it."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < _LEAST_DISK:
        raise SandboxNotStarted(
            f"The disk with {folder.parent} is full, so that programs cannot work.",
            hint="Free some space, or set TMPDIR to a folder on a disk that has some.",
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandboxed program may use up. None: no limit."""

    cpu_seconds: float | None = None
    memory: int | None = None  # bytes of address space, per process
    processes: int | None = None
    file_size: int | None = None  # bytes of the largest file that it may write
    disk: int | None = _MOST_DISK  # bytes of all files in the folders that it may write to

    def resources(self, isolation: Isolation) -> list[str]:
        """Return the limits as settings of the launcher, by the names in `resource`."""
        limits = {"CORE": 0}
        if self.cpu_seconds is not None:
            limits["CPU"] = int(self.cpu_seconds) + 1
        if self.memory is not None:
            limits["AS"] = self.memory
        if self.processes is not None and isolation.own_namespaces:
            limits["NPROC"] = self.processes
        if self.file_size is not None:
            limits["FSIZE"] = self.file_size
        return [f"{name}={value}" for name, value in limits.items()]


def _isolated_launch(isolation: Isolation, cwd: Path, access: Access, limits: Limits) -> Launch:
    readable = (*python_installation(), _LAUNCHER, *access.readable)
    access = replace(access, readable=readable)
    if not isolation.own_namespaces:
        for mount in access.mounts:
            mount.make_link()
    wrapper, settings = [], list[str]()
    if isolation.name == "bubblewrap":
        wrapper = _bubblewrap_command(cwd, access)
    elif isolation.own_namespaces:
        wrapper = _unshare_command(network=access.network)
        settings = [
            f"{one.how}={len(str(one.source))}:{one.source}{one.at}" for one in shown(access)
        ]
    if "landlock" in isolation.name:
        settings += _landlock_settings(isolation, access)
    # NPROC does not bind root, nor programs outside a user namespace. Their processes are counted.
    counted = limits.processes if os.geteuid() == 0 or not isolation.own_namespaces else None
    return Launch(
        wrapper=tuple(wrapper),
        contained=isolation.ends_with_parent,
        settings=(*settings, *limits.resources(isolation)),
        most_processes=counted,
        folders=access.own_folders,
        most_disk=limits.disk,
    )


def _landlock_settings(isolation: Isolation, access: Access) -> list[str]:
    paths = landlock_paths(access, own_view=isolation.own_namespaces)
    settings = ["landlock", *(["network"] if access.network else [])]
    settings += [f"readable={path}" for path in paths.readable]
    settings += [f"writable={path}" for path in paths.writable]
    settings += [f"listed={path}" for path in paths.listed]
    if not isolation.own_namespaces:  # Landlock itself does not keep a program from Unix sockets
        settings.append("no_unix_sockets" if access.network else "no_sockets")
    return settings


def _unshare_command(*, network: bool) -> list[str]:
    # The launcher needs the capabilities in order to mount. It gives them up afterwards.
    command = [shutil.which("unshare") or "unshare", "--user", "--map-current-user", "--keep-caps"]
    command += ["--pid", "--fork", "--kill-child", "--mount-proc", "--ipc"]
    return command if network else [*command, "--net"]


def _bubblewrap_command(cwd: Path, access: Access) -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent"]
    command += ["--new-session", *(["--share-net"] if access.network else [])]
    command += ["--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"]
    command += [argument for one in shown(access) for argument in one.as_bubblewrap()]
    return [*command, "--chdir", str(cwd), "--"]


async def run_process(
    argv: Sequence[str],
    *,
    cwd: Path,
    timeout: float,
    env: Mapping[str, str],
    stdin: bytes = b"",
    max_output: int = 1 << 20,
    launch: Launch | None = None,
    inherited: InheritedDescriptors | None = None,
) -> ProcessResult:
    """Run a program to its end or to the time limit.

    Raises `SandboxNotStarted` when the isolation or the program could not be started. No process
    that the program started is left when this function returns, raises or is cancelled.
    """
    launch = launch or Launch()
    mark = f"{_process_mark()}/{secrets.token_hex(8)}"
    outputs = {name: _Output(max_output) for name in ("stdout", "stderr", "status")}
    inherited = inherited or InheritedDescriptors([])
    writable = InheritedDescriptors([])
    readers = list[asyncio.Future[None]]()
    ended = False
    try:
        with setting_up(f"{Path(argv[0]).name} could not be started"):
            # These are our own pipes: asyncio's `wait` would otherwise wait until every process
            # that inherited its pipes has closed them.
            for output in outputs.values():
                readable, end = os.pipe()
                writable.descriptors.append(end)
                reading = _read_pipe(os.fdopen(readable, "rb", 0), output)
                readers.append(asyncio.ensure_future(reading))
            command = launch.command(argv, writable.descriptors[-1])
            process = await _start_process(
                command, cwd, {**env, MARK: mark}, stdin, writable, inherited
            )
        killed = await _wait_for_end(process, timeout, launch, outputs["status"].begun)
        ended = not killed
    finally:
        inherited.close()
        writable.close()
        if not ended:
            _kill_marked(mark)
        # A process that escaped every kill may still hold a pipe open.
        if readers:
            await asyncio.wait(readers, timeout=0.5)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    _require_started(argv, outputs, killed)
    code = process.returncode if ended else None
    return ProcessResult(code, outputs["stdout"].text(), outputs["stderr"].text(), killed)


class SandboxNotStarted(TaskFailure):
    """The program never ran, or could not work: it, the isolation around it or its folders could
    not be set up on this machine.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("sandbox", message, hint=hint)

    def __reduce__(self) -> tuple[type, tuple[str, ...], dict[str, str]]:
        return (type(self), (self.message,), {"hint": self.hint})


@contextmanager
def setting_up(what: str) -> Iterator[None]:
    """Raise `SandboxNotStarted` for what the machine refuses in this block: files, descriptors,
    memory, processes.
    """
    try:
        yield
    except OSError as error:
        raise SandboxNotStarted(
            f"{what}: {error}.", hint=_HINTS.get(error.errno or 0, "")
        ) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "thread" not in str(error):
            raise
        # Also when there is no room for the stack of a new thread.
        raise SandboxNotStarted(
            f"{what}: there is no memory left.", hint=_HINTS[errno.ENOMEM]
        ) from error


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
class InheritedDescriptors:
    """Open file descriptors that a program gets under the same numbers. They are closed in this
    process as soon as the program has them.
    """

    descriptors: list[int]

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


def plain_environment() -> dict[str, str]:
    """Return the part of our environment that a child may see: places and language, no keys."""
    return {name: os.environ[name] for name in (*_LOCALE, *_PLACES) if name in os.environ}


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a program: the command that isolates it, and what launcher.py applies to it.

    `wrapper` is a command line in front of the launcher. With `contained`, the wrapper itself ends
    all processes when it is killed or when skillfit is gone; otherwise launcher.py supervises it.
    """

    wrapper: tuple[str, ...] = ()
    contained: bool = False
    settings: tuple[str, ...] = ()
    most_processes: int | None = None  # counted from outside, for users whom NPROC does not bind
    folders: tuple[Path, ...] = ()  # measured: all files in them must be less than `most_disk`
    most_disk: int | None = None  # bytes

    def command(self, argv: Sequence[str], status: int) -> list[str]:
        """Return the whole command line; `status` is the descriptor for the launcher's report."""
        settings = [f"status={status}", *self.settings]
        supervised = [f"parent={os.getpid()}"] if sys.platform == "linux" else []
        if self.contained:
            return [*self.wrapper, *_launcher(settings), *argv]
        if self.wrapper:
            return [*_launcher(supervised), *self.wrapper, *_launcher(settings), *argv]
        return [*_launcher([*supervised, *settings]), *argv]


def _launcher(settings: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-S", str(_LAUNCHER), *settings, "--"]


async def _start_process(
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    stdin: bytes,
    writable: InheritedDescriptors,
    inherited: InheritedDescriptors,
) -> asyncio.subprocess.Process:
    """Start a program. `writable`: its standard output, its standard error and the launcher's
    report. Those and `inherited` are closed here.
    """
    stdout, stderr, status = writable.descriptors
    try:
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            return await asyncio.create_subprocess_exec(
                *command,
                cwd=cwd,
                env=env,
                stdin=given,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[status, *inherited.descriptors],
                start_new_session=True,
            )
    finally:
        inherited.close()
        writable.close()


async def _wait_for_end(
    process: asyncio.subprocess.Process, timeout: float, launch: Launch, begun: asyncio.Event
) -> Killed:
    """Wait until the program ends, or end it at a limit. Returns that limit, if it was reached.

    The time counts from `begun`, when the launcher has reported: on a busy machine it takes a while
    to set up an isolation, for which the program must not pay.
    """
    ended: asyncio.Future[Any] = asyncio.ensure_future(process.wait())
    started: asyncio.Future[Any] = asyncio.ensure_future(begun.wait())
    limits: dict[asyncio.Future[Any], Killed] = {
        asyncio.ensure_future(_until_too_many(process.pid, launch.most_processes)): "process limit",
        asyncio.ensure_future(_until_full(launch.folders, launch.most_disk)): "disk limit",
    }
    first = asyncio.FIRST_COMPLETED
    try:
        await asyncio.wait([ended, started], timeout=_START_SECONDS, return_when=first)
        if ended.done() or not started.done():
            return "" if ended.done() else "time limit"
        await asyncio.wait([ended, *limits], timeout=timeout, return_when=first)
        if ended.done():
            return ""
        return next((limit for at, limit in limits.items() if at.done()), "time limit")
    finally:
        for waiting in (started, *limits):
            waiting.cancel()
        await _end_process(process, gently=not launch.contained)


async def _end_process(process: asyncio.subprocess.Process, *, gently: bool) -> None:
    """End the process and its group. A supervisor first gets a moment to end what it supervises."""
    try:
        if gently and process.returncode is None:
            # Not `terminate`, which may collect the exit code before asyncio does.
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _END_GRACE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _until_too_many(pid: int, most: int | None) -> None:
    """Return when the process has more than `most` descendants. Without a limit: never."""
    if most is None:
        await asyncio.Event().wait()
    while _count_descendants(pid, most or 0) <= (most or 0):  # noqa: ASYNC110
        await asyncio.sleep(_COUNT_EVERY)


def _count_descendants(pid: int, enough: int) -> int:
    """Count the descendants of a process; stop soon after `enough`."""
    found = [pid]
    for each in found:  # grows while it is read
        if len(found) > enough + 1:
            break
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return len(found) - 1


async def _until_full(folders: Sequence[Path], most: int | None) -> None:
    """Return when the files in the folders take more than `most` bytes. Without a limit: never."""
    if most is None or not folders:
        await asyncio.Event().wait()
    pause, used = _MEASURE_EVERY, 0
    while used <= (most or 0):
        await asyncio.sleep(pause)
        begun = time.monotonic()
        used = await asyncio.to_thread(disk_use, folders)
        pause = max(_MEASURE_EVERY, (time.monotonic() - begun) / _MEASURE_SHARE)


def disk_use(folders: Sequence[Path]) -> int:
    """Return the bytes that the files at or under these paths take on the disk."""
    total, waiting = 0, [str(folder) for folder in folders]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue  # a file, or a folder that has just been removed or locked
    return total


def _require_started(argv: Sequence[str], outputs: Mapping[str, _Output], killed: str) -> None:
    """Raise `SandboxNotStarted` unless the launcher reported the start of the program, and nothing
    after it. What it writes before or after that is a problem.
    """
    before, started, after = outputs["status"].text().partition(STARTED.decode())
    reason = before or after or last_part(outputs["stderr"].text().strip(), 500)
    if after or not (started or killed):
        raise SandboxNotStarted(
            f"{Path(argv[0]).name} could not be started: {reason or 'no reason was given'}",
            hint="Check that the program can be run. docs/isolation.md says what each isolation "
            "needs.",
        )


@dataclass(slots=True)
class _Output:
    """The beginning and the end of what a program prints: the last line often matters most."""

    limit: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    begun: asyncio.Event = field(default_factory=asyncio.Event)  # something was printed

    def add(self, chunk: bytes) -> None:
        self.begun.set()
        room = self.limit // 2 - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:]
        del self.tail[: len(self.head) - self.limit]

    def text(self) -> str:
        return bytes(self.head + self.tail).decode(errors="replace")


async def _read_pipe(pipe: io.FileIO, into: _Output) -> None:
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), pipe
    )
    try:
        while chunk := await stream.read(1 << 16):
            into.add(chunk)
    finally:
        transport.close()


_root: _ProcessRoot | None = None
_root_guard = threading.Lock()


def _temporary_root() -> str:
    return tempfile.tempdir or os.environ.get("TMPDIR", "the system's temporary folder")


def new_folder(purpose: str) -> Path:
    """Make a folder, which `remove_folder` removes."""
    global _root
    with _root_guard, setting_up(f"No folder could be made in {_temporary_root()}"):
        if _root is None or _root.process != os.getpid() or not _root.path.exists():
            remove_abandoned()
            _root = _ProcessRoot()
        folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=_root.path))
        folder.chmod(0o700)  # whatever the umask
        _root.folders.add(folder)
        return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder that `new_folder` made in this process; any other path is left alone."""
    global _root
    with _root_guard:
        if _root is None or folder not in _root.folders:
            return
        remove_tree(folder)
        _root.folders.discard(folder)
        if not _root.folders:
            _root.close()
            _root = None


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Yield a new folder that is removed at the end."""
    folder = new_folder(purpose)
    try:
        yield folder
    finally:
        remove_folder(folder)


def remove_abandoned() -> None:
    """Remove the folders, and end the programs, of processes that are gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_ROOT_PREFIX}*"):
        with suppress(OSError):  # just removed by its owner
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue  # another user's, or a link to one
            lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its process still runs
            else:
                _kill_marked(f"{path.name}/")
                remove_tree(path)
            finally:
                os.close(lock)


def remove_tree(folder: Path) -> None:
    """Remove a folder, including folders in it that a program made unwritable."""
    if folder.is_symlink() or not folder.is_dir():
        return
    with suppress(OSError):
        folder.chmod(0o700)
    for parent, names, _ in os.walk(folder):
        for name in names:
            if not (path := Path(parent, name)).is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


class _ProcessRoot:
    """The root folder of this process, with its lock."""

    def __init__(self) -> None:
        self.process = os.getpid()
        unlocked = Path(tempfile.mkdtemp(prefix=".skillfit-new-"))
        unlocked.chmod(0o700)  # whatever the umask
        self._lock = os.open(unlocked / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Others look at the folder under this name only, when it is locked already.
        self.path = unlocked.with_name(unlocked.name.replace(".skillfit-new-", _ROOT_PREFIX))
        unlocked.rename(self.path)
        self.folders: set[Path] = set()

    def close(self) -> None:
        remove_tree(self.path)
        os.close(self._lock)


def _process_mark() -> str:
    """Return what the programs of this process carry in `MARK`: the name of its root folder, or one
    made of the process id as long as it has none.
    """
    return _root.path.name if _root is not None else f"{_ROOT_PREFIX}{os.getpid()}"


def _kill_marked(mark: str) -> None:
    """Kill every process whose environment says that it was started under this mark."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
