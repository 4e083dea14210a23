"""The first program in a new process: it applies the restrictions and then starts the real program.

skillfit runs this file as a script (`python -I -S launcher.py [SETTING=VALUE ...] -- PROGRAM ...`),
once for every program it starts. It must start quickly, so it imports little and only what the
standard library has. `Launch.command` in programs.py writes the settings. In order:

1. With `parent`, stay as the parent of the program. When the program ends, or when skillfit
   itself is gone (even after `kill -9`), end every process the program has started, including those
   that left its process group or session.
2. Replace the file system by one that has nothing but what is listed, when asked to.
3. Set the resource limits.
4. Confine the program with Landlock, and keep it from sockets with seccomp, when asked to.
5. Write `started` to the status pipe and execute the program. If that fails, write the reason to
   the same pipe. skillfit can thus tell a program that failed from one that never ran.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing would take longer than everything else here
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

STARTED = b"started\n"

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
_LANDLOCK_CREATE, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION, _LANDLOCK_PATH_BENEATH = 1, 1
# Access rights of Landlock: the bits are those of <linux/landlock.h>.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_FIRST_RIGHTS = (1 << 13) - 1  # everything that Landlock version 1 handles
_TCP_BIND_AND_CONNECT = 0b11  # version 4
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11  # version 6
_CAPABILITY_VERSION = 0x20080522
_MOUNT_SETATTR, _IO_URING_SETUP = 442, 425
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _DETACH = 1, 2, 4, 8, 1 << 12, 1 << 14, 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MEMORY_FILES = "size=256m,mode=0755"  # of /dev/shm and all else that is not on a disk
_OLD = "/.old"  # where the file system from outside is while the new one is made
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}
_PR_SET_SECCOMP, _FILTER = 22, 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 13  # the call fails with EACCES
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET = 1, 1, 5
_X32 = 0x40000000  # in the number of a call of the other 64-bit interface of x86
_END_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}  # to the supervisor
_GIVE_UP_AFTER = 5.0  # seconds for processes that cannot be killed (they run as another user)


class LauncherSettings:
    """The settings on the command line."""

    def __init__(self, arguments: list[str]) -> None:
        self.status = -1  # file descriptor of the status pipe; -1: report nothing
        self.parent = 0  # process id of skillfit, when the program is to be supervised
        self.limits: dict[str, int] = {}  # by the name in `resource`, without RLIMIT_
        self.landlock = False
        self.readable: list[str] = []
        self.writable: list[str] = []
        self.listed: list[str] = []
        self.network = False
        self.no_sockets = False
        self.no_unix_sockets = False
        self.view: list[tuple[str, str, str]] = []  # how, source, at: as `Shown` in file_view.py
        for argument in arguments:
            name, _, value = argument.partition("=")
            if name in ("status", "parent"):
                setattr(self, name, int(value))
            elif name in ("landlock", "network", "no_sockets", "no_unix_sockets"):
                setattr(self, name, True)
            elif name in ("readable", "writable", "listed"):
                getattr(self, name).append(value)
            elif name in ("link", "read", "write", "hide"):
                length, _, paths = value.partition(":")
                self.view.append((name, paths[: int(length)], paths[int(length) :]))
            else:
                self.limits[name] = int(value)


class Machine:
    """The numbers of system calls that differ between processors."""

    def __init__(self, audit: int, pivot_root: int, capset: int, socket: int, pair: int) -> None:
        self.audit = audit  # AUDIT_ARCH_…
        self.pivot_root, self.capset = pivot_root, capset
        self.socket, self.socketpair = socket, pair


_MACHINES = {
    "x86_64": Machine(0xC000003E, 155, 126, 41, 53),
    "aarch64": Machine(0xC00000B7, 41, 91, 198, 199),
    "riscv64": Machine(0xC00000F3, 41, 91, 198, 199),
}


def _machine() -> Machine:
    name = os.uname().machine
    if name not in _MACHINES:
        raise OSError(f"this isolation does not know the processor {name}")
    return _MACHINES[name]


def main(arguments: list[str]) -> NoReturn:
    end = arguments.index("--")
    settings, command = LauncherSettings(arguments[:end]), arguments[end + 1 :]
    if settings.parent:
        _supervise(settings, command)
    _become(settings, command)


def _become(settings: LauncherSettings, command: list[str]) -> NoReturn:
    """Restrict this process and replace it by the program."""
    status = settings.status
    try:
        # Python ignores these two, and the program would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.umask(os.umask(0o077) & 0o077)  # the program must be able to read its own files
        if settings.view:
            _enter_view(settings.view)
        _set_limits(settings.limits)
        if settings.landlock or settings.view:
            _give_up_privileges()
        if settings.landlock:
            _confine(settings)
        if settings.no_sockets or settings.no_unix_sockets:
            _refuse_sockets(all_families=settings.no_sockets)
        if status >= 0:
            os.set_inheritable(status, False)
            os.write(status, STARTED)
        os.execvp(command[0], command)
    except OSError as error:
        if status >= 0:
            os.write(status, f"{command[0]}: {error}".encode())
    os._exit(127)


def _set_limits(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        if name == "NPROC":
            _limit_processes(value)
        else:
            number = getattr(resource, f"RLIMIT_{name}")
            most = resource.getrlimit(number)[1]
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(number, (value, value))


def _limit_processes(most: int) -> None:
    """Limit the number of processes, where the kernel counts them per user namespace.

    Before Linux 5.14 the limit counts all processes of the user, so that a small one would stop
    the program from starting any. One trial fork shows which it is.
    """
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, before[1]))
    try:
        child = os.fork()
    except OSError:
        resource.setrlimit(resource.RLIMIT_NPROC, before)
        return
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _supervise(settings: LauncherSettings, command: list[str]) -> NoReturn:
    """Run the program in a child; end all its descendants when it ends or when skillfit is gone.

    The signals are blocked and waited for, not handled: a handler could miss one that arrives just
    before a system call, and a second signal could interrupt the ending of the processes.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS | {signal.SIGCHLD})
    code = 128 + signal.SIGTERM
    try:
        # Processes that lose their parent become children of this one, so none can get away.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == settings.parent:  # otherwise it was gone before the line above
            program = os.fork()
            if program == 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                _become(settings, command)
            code = _wait_for(program)
    finally:
        _end_descendants()
    os._exit(code)


def _wait_for(program: int) -> int:
    """Wait for the program and return its exit code: 128 + N when signal N ended it or told this
    process to end.

    Collects adopted orphans too.
    """
    while True:
        number = signal.sigwait(_END_SIGNALS | {signal.SIGCHLD})
        if number in _END_SIGNALS:
            return 128 + number
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == program:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if pid == 0:  # the children that are left still run
                break


def _end_descendants() -> None:
    give_up = time.monotonic() + _GIVE_UP_AFTER
    while time.monotonic() < give_up:
        for pid in _descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # it has just ended, or belongs to another user
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # there are no children any more
        time.sleep(0.005)


def _descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    found = list(children.get(ancestor, ()))
    for pid in found:  # grows while it is read
        found += children.get(pid, ())
    return found


def landlock_version() -> int:
    """Return the version of Landlock this kernel has; 0: none."""
    return max(0, _syscall(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION))


def _enter_view(view: list[tuple[str, str, str]]) -> None:
    """Replace the file system by an empty one with these entries, /dev, /proc and /tmp.

    This process must be in a mount namespace of its own, with capabilities.
    """
    folder = os.getcwd()
    _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, _MEMORY_FILES)
    os.mkdir(f"/tmp{_OLD}")
    _check(_syscall(_machine().pivot_root, b"/tmp", f"/tmp{_OLD}".encode()), "pivot_root")
    os.chdir("/")
    _bind("/proc", "/proc")
    _make_devices()
    os.mkdir("/run")
    for shared in ("/tmp", "/dev/shm"):
        os.mkdir(shared)
        os.chmod(shared, 0o1777)
    for how, source, at in view:
        _show(how, source, at)
    if not os.path.lexists("/var/tmp"):
        _show("link", "/tmp", "/var/tmp")
    _check(_libc().umount2(_OLD.encode(), _DETACH), "umount")
    os.rmdir(_OLD)
    os.chdir(folder)


def _make_devices() -> None:
    for name in _DEVICES:
        _bind(f"/dev/{name}", f"/dev/{name}")
    os.mkdir("/dev/pts")
    options = "newinstance,ptmxmode=0666,mode=620"
    _mount("devpts", "/dev/pts", "devpts", _NOSUID | _NOEXEC, options)
    os.symlink("pts/ptmx", "/dev/ptmx")
    for name, part in _DEVICE_LINKS.items():
        os.symlink(f"/proc/self/fd{part}", f"/dev/{name}")


def _show(how: str, source: str, at: str) -> None:
    """Make one entry of a view: see `Shown` in file_view.py."""
    if how == "link":
        os.makedirs(os.path.dirname(at), exist_ok=True)
        if not os.path.lexists(at):
            os.symlink(source, at)
    elif how == "hide" and os.path.isdir(at):
        _mount("tmpfs", at, "tmpfs", _RDONLY | _NOSUID | _NODEV, "size=4k,mode=0755")
    elif how != "hide" or os.path.exists(at):
        _bind(source, at)
        if how != "write":
            attributes = _RDONLY.to_bytes(8, sys.byteorder) + bytes(24)
            arguments = (_AT_FDCWD, at.encode(), _AT_RECURSIVE, attributes, len(attributes))
            _check(_syscall(_MOUNT_SETATTR, *arguments), f"read-only {at}")


def _bind(source: str, at: str) -> None:
    """Show a file or folder of the old file system at this place in the new one."""
    old = _OLD + source
    if os.path.isdir(old):
        os.makedirs(at, exist_ok=True)
    elif not os.path.exists(at):
        os.makedirs(os.path.dirname(at), exist_ok=True)
        os.close(os.open(at, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    _mount(old, at, "", _BIND | _REC, "")


def _mount(source: str, at: str, kind: str, flags: int, options: str) -> None:
    import ctypes

    texts = [text.encode() if text else None for text in (source, at, kind, options)]
    mounted = _libc().mount(*texts[:3], ctypes.c_ulong(flags), texts[3])
    _check(mounted, f"mount {at}")


def _refuse_sockets(*, all_families: bool) -> None:
    """Let the program create no sockets, or no Unix sockets, which could be connected to services
    outside. Pairs of connected sockets stay possible.
    """
    import ctypes

    program = _assembled(_socket_filter(_machine(), all_families=all_families))
    held = ctypes.create_string_buffer(program, len(program))
    count = (len(program) // 8).to_bytes(2, sys.byteorder) + bytes(6)
    pointer = ctypes.addressof(held).to_bytes(8, sys.byteorder)
    filtered = ctypes.create_string_buffer(count + pointer, 16)
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")
    _check(_prctl(_PR_SET_SECCOMP, _FILTER, ctypes.addressof(filtered)), "seccomp")


def _socket_filter(machine: Machine, *, all_families: bool) -> list[tuple[str, int, int, str, str]]:
    """Return a seccomp filter: label, code, value, and the labels to go to if it holds and if not.

    io_uring is refused because it makes sockets without these calls, and so are the calls of the
    other interfaces of a processor (32 bits, x32), which have other numbers.
    """
    load, equal, at_least, mask, end = 0x20, 0x15, 0x35, 0x54, 0x06
    number, processor, first, second = 0, 4, 16, 24  # offsets in what the filter sees of a call
    return [
        ("", load, processor, "", ""),
        ("", equal, machine.audit, "", "refuse"),
        ("", load, number, "", ""),
        ("", at_least, _X32, "refuse", ""),
        ("", equal, _IO_URING_SETUP, "refuse", ""),
        ("", equal, machine.socket, "refuse" if all_families else "family", ""),
        ("", equal, machine.socketpair, "", "allow"),
        # A socket for datagrams can be connected again, to another address.
        ("", load, second, "", ""),
        ("", mask, 0xF, "", ""),
        ("", equal, _SOCK_STREAM, "allow", ""),
        ("", equal, _SOCK_SEQPACKET, "allow", "refuse"),
        ("family", load, first, "", ""),
        ("", equal, _AF_UNIX, "refuse", "allow"),
        ("allow", end, _ALLOW, "", ""),
        ("refuse", end, _REFUSE, "", ""),
    ]


def _assembled(rules: list[tuple[str, int, int, str, str]]) -> bytes:
    place = {label: at for at, (label, *_) in enumerate(rules) if label}
    return b"".join(
        code.to_bytes(2, sys.byteorder)
        + bytes(place[label] - at - 1 if label else 0 for label in (yes, no))
        + value.to_bytes(4, sys.byteorder)
        for at, (_, code, value, yes, no) in enumerate(rules)
    )


def _give_up_privileges() -> None:
    """Drop all capabilities, which would bypass the restrictions and let the program change its
    mounts, and the means to get new ones.
    """
    for capability in range(64):
        _prctl(_PR_CAPBSET_DROP, capability)
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")
    header = _CAPABILITY_VERSION.to_bytes(4, sys.byteorder) + bytes(4)
    _check(_syscall(_machine().capset, header, bytes(24)), "capabilities")


def _confine(settings: LauncherSettings) -> None:
    """Let this process and its children use nothing but these files and folders.

    A process in a Landlock domain can also not read the memory or the environment of processes
    outside it. Without `network`, TCP connections are refused, from Landlock version 4 on.
    """
    version = landlock_version()
    files = _FIRST_RIGHTS | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled = [files]
    if version >= 4:
        handled.append(0 if settings.network else _TCP_BIND_AND_CONNECT)
    if version >= 6:
        handled.append(_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    attributes = b"".join(value.to_bytes(8, sys.byteorder) for value in handled)
    rules = _check(_syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0), "Landlock")
    _allow(rules, settings.readable, files & _READ)
    _allow(rules, settings.writable, files)
    _allow(rules, settings.listed, files & _READ_DIR)
    _check(_syscall(_LANDLOCK_RESTRICT, rules, 0, 0), "Landlock")
    os.close(rules)


def _allow(rules: int, paths: Iterable[str], rights: int) -> None:
    for path in paths:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not on this machine
        allowed = rights if os.path.isdir(path) else rights & _ON_FILES
        rule = allowed.to_bytes(8, sys.byteorder) + opened.to_bytes(4, sys.byteorder)
        added = _syscall(_LANDLOCK_ADD_RULE, rules, _LANDLOCK_PATH_BENEATH, rule, 0)
        _check(added, f"Landlock rule for {path}")
        os.close(opened)


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call. The result is negative when it failed. `bytes` are passed by address."""
    import ctypes

    passed = [
        ctypes.c_long(argument) if isinstance(argument, int) else ctypes.c_char_p(argument)
        for argument in arguments
    ]
    return int(_libc().syscall(ctypes.c_long(number), *passed))


def _prctl(option: int, *values: int) -> int:
    import ctypes

    padded = (*values, 0, 0, 0, 0)[:4]
    return int(_libc().prctl(option, *(ctypes.c_ulong(value) for value in padded)))


def _check(result: int, what: str) -> int:
    if result < 0:
        import ctypes

        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    main(sys.argv[1:])
