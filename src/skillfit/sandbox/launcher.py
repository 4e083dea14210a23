"""The first program in a new process: it applies the restrictions and then starts the real program.

skillfit runs this file as a script (`python -I -S launcher.py [SETTING=VALUE ...] -- PROGRAM ...`),
once for every program it starts. It must start quickly, so it imports little and only what the
standard library has. `Launch.command` in programs.py writes the settings. In order:

1. With `parent`, stay as the parent of the program. When the program ends, or when skillfit
   itself is gone (even after `kill -9`), end every process the program has started, including those
   that left its process group or session.
2. Set the resource limits.
3. Confine the program with Landlock, when asked to.
4. Write `started` to the status pipe and execute the program. If that fails, write the reason to
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
        self.network = False
        for argument in arguments:
            name, _, value = argument.partition("=")
            if name in ("status", "parent"):
                setattr(self, name, int(value))
            elif name in ("landlock", "network"):
                setattr(self, name, True)
            elif name in ("readable", "writable"):
                getattr(self, name).append(value)
            else:
                self.limits[name] = int(value)


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
        _set_limits(settings.limits)
        if settings.landlock:
            _confine(settings.readable, settings.writable, settings.network)
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
    """The program's exit code, 128 + N when signal N ended it or told this process to end.

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
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    found = list(children.get(ancestor, ()))
    for pid in found:  # grows while it is read
        found += children.get(pid, ())
    return found


def landlock_version() -> int:
    """The version of Landlock this kernel has; 0: none."""
    return max(0, _syscall(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION))


def _confine(readable: list[str], writable: list[str], network: bool) -> None:
    """Let this process and its children use nothing but these files and folders.

    A process in a Landlock domain can also not read the memory or the environment of processes
    outside it. Without `network`, TCP connections are refused, from Landlock version 4 on.
    """
    version = landlock_version()
    files = _FIRST_RIGHTS | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled = [files]
    if version >= 4:
        handled.append(0 if network else _TCP_BIND_AND_CONNECT)
    if version >= 6:
        handled.append(_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    attributes = b"".join(value.to_bytes(8, sys.byteorder) for value in handled)
    rules = _check(_syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0), "Landlock")
    _allow(rules, readable, files & _READ)
    _allow(rules, writable, files)
    # Root's capabilities would bypass the rules.
    for capability in range(64):
        _prctl(_PR_CAPBSET_DROP, capability)
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")
    _check(_syscall(_LANDLOCK_RESTRICT, rules, 0, 0), "Landlock")
    os.close(rules)


def _allow(rules: int, paths: Iterable[str], rights: int) -> None:
    for path in paths:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not on this machine
        allowed = rights if os.path.isdir(path) else rights & _ON_FILES  # noqa: PTH112
        rule = allowed.to_bytes(8, sys.byteorder) + opened.to_bytes(4, sys.byteorder)
        added = _syscall(_LANDLOCK_ADD_RULE, rules, _LANDLOCK_PATH_BENEATH, rule, 0)
        _check(added, f"Landlock rule for {path}")
        os.close(opened)


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    """Raise nothing: the result is negative when the call failed. `bytes` are passed by address."""
    import ctypes

    passed = [
        ctypes.c_long(argument) if isinstance(argument, int) else ctypes.c_char_p(argument)
        for argument in arguments
    ]
    return int(_libc().syscall(ctypes.c_long(number), *passed))


def _prctl(option: int, value: int) -> int:
    import ctypes

    return int(_libc().prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3))


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
