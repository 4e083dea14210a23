"""Run programs. Untrusted ones can see and reach only what they are given, and leave no process.

Which isolation is used depends on the machine. `ISOLATIONS` lists them, the strongest first; the
documentation page docs/isolation.md has the same table in words. The result of a program says under
which one it ran. A program can always see the files that it needs in order to run: its
installation, its interpreter, their links.

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
import fcntl
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

from skillfit.errors import Exit, InputError, SkillfitError
from skillfit.plain_text import last_part
from skillfit.sandbox.launcher import STARTED, landlock_version

SandboxMode = Literal["auto", "require", "off"]
IsolationName = Literal["bubblewrap", "namespaces+landlock", "landlock", "namespaces", "none"]
Killed = Literal["", "time limit", "process limit"]  # the limit at which a program was killed
MARK = "SKILLFIT_PROCESS"  # this variable of a child's environment says which process started it

# Folders of the system, which every sandboxed program may read.
_SYSTEM_FOLDERS = tuple(
    Path(name) for name in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix")
)
# Files and folders of /etc, which it may read too.
_BASICS = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "passwd", "group")
_RESOLVER = ("resolv.conf", "hosts", "nsswitch.conf", "host.conf", "gai.conf")
_NETWORK = (*_RESOLVER, "protocols", "services")
_CERTIFICATES = ("ssl", "pki", "ca-certificates", "ca-certificates.conf")
_SYSTEM_SETTINGS = tuple(
    Path("/etc", name) for name in (*_BASICS, *_NETWORK, *_CERTIFICATES, "localtime", "os-release")
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")
_EMPTY_FILE = Path(__file__).parents[1] / "py.typed"  # any empty file would do
_MOST_LINKS = 40  # as in the kernel
_SHEBANG_BYTES = 256  # of a script, in which its interpreter is looked for

_WRAPPER_PROGRAMS: Mapping[IsolationName, str] = {
    "bubblewrap": "bwrap",
    "namespaces+landlock": "unshare",
    "namespaces": "unshare",
}
_LAUNCHER = Path(__file__).with_name("launcher.py")
_LARGEST_FILE = 1 << 30  # bytes: the largest file an untrusted program may write
_END_GRACE = 3.0  # seconds the supervisor gets to end a program's processes
_COUNT_EVERY = 0.05  # seconds between two counts of a program's processes
# Variables of our environment that a child process may see.
_LOCALE = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
_PLACES = ("PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "VIRTUAL_ENV", "PYTHONPATH")
_ROOT_PREFIX = "skillfit-"
_LOCK_FILE = ".owner"


@dataclass(frozen=True, slots=True)
class Isolation:
    """One way to isolate a program, and what it guarantees."""

    name: IsolationName
    hides_files: bool  # only the files and folders it was given can be read
    hides_processes: bool  # environment and memory of other processes cannot be read
    cuts_network: Literal["all", "tcp", "no"]  # what is cut when no network was asked for
    own_users: bool = False  # a user namespace: the kernel counts its processes apart from others
    ends_with_parent: bool = False  # the isolation itself ends all processes with skillfit

    @property
    def full(self) -> bool:
        """Whether it is enough for `sandbox: require`."""
        return self.hides_files and self.hides_processes


NO_ISOLATION = Isolation("none", False, False, "no")
ISOLATIONS: tuple[Isolation, ...] = (
    Isolation("bubblewrap", True, True, "all", own_users=True, ends_with_parent=True),
    Isolation("namespaces+landlock", True, True, "all", own_users=True),
    Isolation("landlock", True, True, "tcp"),
    Isolation("namespaces", False, True, "all", own_users=True),
    NO_ISOLATION,
)


def choose_isolation(mode: SandboxMode, setting: str) -> Isolation:
    """The isolation that a setting asks for. `require` is an error where there is no full one; the
    error names the `setting`.
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
    """The strongest isolation that works on this machine. Tried once per process."""
    return next(isolation for isolation in ISOLATIONS if works(isolation))


def works(isolation: Isolation) -> bool:
    """Whether a program can be run under this isolation here."""
    if isolation == NO_ISOLATION:
        return True
    if sys.platform != "linux":
        return False
    if "landlock" in isolation.name and landlock_version() < 1:
        return False
    program = _WRAPPER_PROGRAMS.get(isolation.name)
    if program is not None and shutil.which(program) is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder).resolve()
        readable, writable = os.pipe()
        try:
            launch = _isolated_launch(isolation, cwd, Access((cwd,)), Limits())
            tried = subprocess.run(
                launch.command([sys.executable, "-I", "-S", "-c", "print('it works')"], writable),
                cwd=cwd,
                pass_fds=[writable],
                capture_output=True,
                timeout=20,
                check=False,
            )
        finally:
            os.close(readable)
            os.close(writable)
    return tried.returncode == 0 and b"it works" in tried.stdout


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
) -> ProcessResult:
    """Run untrusted code in `cwd`, the only folder it may write to.

    PATH, HOME (the working folder) and LANG are all the environment it gets.
    """
    cwd = cwd.resolve()
    folders = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    env = {"PATH": os.pathsep.join(dict.fromkeys(folders)), "HOME": str(cwd), "LANG": "C.UTF-8"}
    return await run_sandboxed(
        argv,
        cwd=cwd,
        timeout=timeout,
        env=env,
        access=Access((cwd,), readable, mounts=mounts, network=network),
        limits=Limits(timeout, memory, processes, _LARGEST_FILE),
        stdin=stdin,
        max_output=max_output,
        isolation=isolation,
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
    return replace(result, isolation=chosen.name)


@dataclass(frozen=True, slots=True)
class Access:
    """What a sandboxed program may use besides the system's own programs and libraries."""

    writable: tuple[Path, ...]
    readable: tuple[Path, ...] = ()
    empty: tuple[Path, ...] = ()  # inside the folders above, shown as empty (bubblewrap only)
    mounts: tuple[Mount, ...] = ()
    network: bool = False


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder that a program sees at another place, read-only.

    Under bubblewrap it is mounted there. Elsewhere a symbolic link is made.
    """

    folder: Path
    at: Path

    def make_link(self) -> None:
        if not self.at.is_symlink():
            self.at.symlink_to(self.folder.resolve())


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandboxed program may use up. None: no limit."""

    cpu_seconds: float | None = None
    memory: int | None = None  # bytes of address space, per process
    processes: int | None = None
    file_size: int | None = None  # bytes of the largest file that it may write

    def resources(self, isolation: Isolation) -> dict[str, int]:
        """By the names in `resource`."""
        limits = {"CORE": 0}
        if self.cpu_seconds is not None:
            limits["CPU"] = int(self.cpu_seconds) + 1
        if self.memory is not None:
            limits["AS"] = self.memory
        if self.processes is not None and isolation.own_users:
            limits["NPROC"] = self.processes
        if self.file_size is not None:
            limits["FSIZE"] = self.file_size
        return limits


def _isolated_launch(isolation: Isolation, cwd: Path, access: Access, limits: Limits) -> Launch:
    needed = (*_python_installation(), _LAUNCHER)
    access = replace(access, readable=(*needed, *access.readable))
    if isolation.name != "bubblewrap":
        for mount in access.mounts:
            mount.make_link()
    wrapper: list[str] = []
    if isolation.name == "bubblewrap":
        wrapper = _bubblewrap_command(cwd, access)
    elif isolation.name.startswith("namespaces"):
        wrapper = _unshare_command(network=access.network)
    # NPROC does not bind root, nor programs outside a user namespace. Their processes are counted.
    counted = limits.processes if os.geteuid() == 0 or not isolation.own_users else None
    landlock = "landlock" in isolation.name
    return Launch(
        wrapper=tuple(wrapper),
        contained=isolation.ends_with_parent,
        limits=limits.resources(isolation),
        landlock=landlock,
        readable=_landlock_readable(access) if landlock else (),
        writable=_landlock_writable(access) if landlock else (),
        network=access.network,
        most_processes=counted,
    )


def _landlock_readable(access: Access) -> tuple[Path, ...]:
    paths = [*_SYSTEM_FOLDERS, *_SYSTEM_SETTINGS, Path("/proc"), *access.readable]
    paths += [mount.folder for mount in access.mounts]
    return tuple(dict.fromkeys(path.resolve() for path in paths))


def _landlock_writable(access: Access) -> tuple[Path, ...]:
    devices = (Path("/dev", name) for name in _DEVICES)
    return tuple(dict.fromkeys(path.resolve() for path in (*devices, *access.writable)))


def _unshare_command(*, network: bool) -> list[str]:
    command = [shutil.which("unshare") or "unshare", "--user", "--map-current-user", "--pid"]
    command += ["--fork", "--kill-child", "--mount-proc", "--ipc"]
    return command if network else [*command, "--net"]


def _bubblewrap_command(cwd: Path, access: Access) -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent"]
    command += ["--new-session", *(["--share-net"] if access.network else [])]
    command += ["--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"]
    view = _BubblewrapView()
    for path in (*_SYSTEM_FOLDERS, *_SYSTEM_SETTINGS):
        view.show(path)
    for path in sorted(set(access.readable), key=lambda path: len(path.parts)):
        if not _is_system(path):
            view.show(path)
    for path in access.writable:
        view.show(path, writable=True)
    for path in access.empty:
        view.hide(path)
    for mount in access.mounts:
        view.arguments += ["--ro-bind", str(mount.folder.resolve()), str(mount.at.resolve())]
    return [*command, *view.arguments, "--chdir", str(cwd), "--"]


@dataclass(slots=True)
class _BubblewrapView:
    """The part of the file system that bubblewrap shows, as its arguments."""

    arguments: list[str] = field(default_factory=list)
    _shown: list[Path] = field(default_factory=list)
    _linked: set[Path] = field(default_factory=set)

    def show(self, path: Path, *, writable: bool = False) -> None:
        """Show a file or folder under its own name, with the symbolic links that lead to it."""
        real = self._follow(path)
        if not real.exists() or (not writable and self._is_shown(real)):
            return
        self.arguments += ["--bind" if writable else "--ro-bind", str(real), str(real)]
        self._shown.append(real)

    def hide(self, path: Path) -> None:
        """Show an empty folder or file in place of the one there."""
        real = self._follow(path)
        if real.is_dir():
            self.arguments += ["--tmpfs", str(real)]
        elif real.exists():
            self.arguments += ["--ro-bind", str(_EMPTY_FILE), str(real)]

    def _follow(self, path: Path) -> Path:
        """The path without symbolic links. Links on the way are made inside the view as well."""
        done = Path(path.anchor)
        waiting = list(path.parts[1:])
        links = 0
        while waiting and links < _MOST_LINKS:
            step = done / waiting.pop(0)
            if not step.is_symlink():
                done = step
                continue
            links += 1
            target = step.readlink()
            if step not in self._linked and not self._is_shown(step):
                self.arguments += ["--symlink", str(target), str(step)]
                self._linked.add(step)
            whole = Path(os.path.normpath(step.parent / target))
            done, waiting = Path(whole.anchor), [*whole.parts[1:], *waiting]
        return done

    def _is_shown(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._shown)


def installation_of(program: Path, search_path: str) -> tuple[Path, ...]:
    """The folders and files a program outside the system folders needs in order to run.

    `search_path` is the PATH under which the interpreter of a script is looked up.
    """
    needed: list[Path] = []
    for path in _link_chain(program):
        if not _is_system(path):
            needed.append(_package_of(path))
    real = program.resolve()
    if real.is_file() and (interpreter := _interpreter_of(real, search_path)) is not None:
        needed += installation_of(interpreter, search_path)
    return tuple(dict.fromkeys(needed))


def _python_installation() -> tuple[Path, ...]:
    """What this Python needs: its environment and the installation the environment was made of."""
    found = [Path(sys.prefix), Path(sys.base_prefix), *installation_of(Path(sys.executable), "")]
    return tuple(dict.fromkeys(found))


def _is_system(path: Path) -> bool:
    """Whether the path is in a folder that every sandboxed program sees."""
    return any(path.is_relative_to(folder) for folder in _SYSTEM_FOLDERS)


def _link_chain(path: Path) -> Iterator[Path]:
    """The path, and each path that its last part links to in turn."""
    for _ in range(_MOST_LINKS):
        yield path
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / path.readlink()))


def _package_of(path: Path) -> Path:
    """The package that a program's file is part of, as far as its place shows it."""
    parts = path.parts
    if "node_modules" in parts:
        return Path(*parts[: parts.index("node_modules") + 1])
    prefix = path.parent.parent
    own_prefix = path.parent.name in ("bin", "sbin") and prefix not in _shared_prefixes()
    return prefix if own_prefix else path


def _shared_prefixes() -> tuple[Path, ...]:
    """Prefixes that hold much besides programs, such as a user's settings and logins."""
    home = Path.home()
    return (Path("/"), home, home / ".local")


def _interpreter_of(script: Path, search_path: str) -> Path | None:
    with script.open("rb") as file:
        first = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode(errors="replace").split()
    if not words:
        return None
    if Path(words[0]).name == "env":
        named = next((word for word in words[1:] if not word.startswith("-")), "")
        found = shutil.which(named, path=search_path or None) if named else None
        return Path(found) if found else None
    return Path(words[0])


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
    # These are our own pipes: asyncio's `wait` would otherwise wait until every process that
    # inherited its pipes has closed them.
    readers, writable = [], {}
    for name, output in outputs.items():
        readable, writable[name] = os.pipe()
        readers.append(asyncio.ensure_future(_read_pipe(readable, output)))
    ended = False
    try:
        command = launch.command(argv, writable["status"])
        inherited = inherited or InheritedDescriptors([])
        process = await _start_process(
            command, cwd, {**env, MARK: mark}, stdin, writable, inherited
        )
        killed = await _wait_for_end(process, timeout, launch)
        ended = not killed
    finally:
        if not ended:
            _kill_marked(mark)
        # A process that escaped every kill may still hold a pipe open.
        await asyncio.wait(readers, timeout=0.5)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    _require_started(argv, outputs, killed)
    code = process.returncode if ended else None
    return ProcessResult(code, outputs["stdout"].text(), outputs["stderr"].text(), killed)


class SandboxNotStarted(SkillfitError):
    """The program never ran: it, or the isolation around it, could not be started."""

    exit_code = Exit.INFRASTRUCTURE


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
    """The part of our environment that a child process may see: places and language, no keys."""
    return {name: os.environ[name] for name in (*_LOCALE, *_PLACES) if name in os.environ}


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
    return [sys.executable, "-I", "-S", str(_LAUNCHER), *settings, "--"]


async def _start_process(
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    stdin: bytes,
    writable: Mapping[str, int],
    inherited: InheritedDescriptors,
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
                pass_fds=[writable["status"], *inherited.descriptors],
                start_new_session=True,
            )
    except OSError as error:
        raise SandboxNotStarted(f"{command[0]} could not be started: {error}") from error
    finally:
        inherited.close()
        for end in writable.values():
            os.close(end)


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
        await _end_process(process, gently=not launch.contained)


async def _end_process(process: asyncio.subprocess.Process, *, gently: bool) -> None:
    """End the process and its group. A supervisor first gets a moment to end what it supervises."""
    try:
        if gently and process.returncode is None:
            process.terminate()
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
    """How many descendants a process has; stops counting soon after `enough`."""
    found = [pid]
    for each in found:  # grows while it is read
        if len(found) > enough + 1:
            break
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return len(found) - 1


def _require_started(argv: Sequence[str], outputs: Mapping[str, _Output], killed: str) -> None:
    """The launcher reports the start of the program. What it writes before or after that is a
    problem.
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

    def add(self, chunk: bytes) -> None:
        room = self.limit // 2 - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:]
        del self.tail[: len(self.head) - self.limit]

    def text(self) -> str:
        return bytes(self.head + self.tail).decode(errors="replace")


async def _read_pipe(pipe: int, into: _Output) -> None:
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(pipe, "rb", 0)
    )
    try:
        while chunk := await stream.read(1 << 16):
            into.add(chunk)
    finally:
        transport.close()


_root: _ProcessRoot | None = None
_root_guard = threading.Lock()


def new_folder(purpose: str) -> Path:
    """A fresh folder, which `remove_folder` removes."""
    global _root
    with _root_guard:
        if _root is None or _root.process != os.getpid() or not _root.path.exists():
            remove_abandoned()
            _root = _ProcessRoot()
        folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=_root.path))
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
    """A fresh folder that is removed at the end."""
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
    """What the programs of this process carry in `MARK`: the name of its root folder, if any."""
    return _root.path.name if _root is not None else f"{_ROOT_PREFIX}{os.getpid()}"


def _kill_marked(mark: str) -> None:
    """Kill every process whose environment says that it was started under this mark."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
