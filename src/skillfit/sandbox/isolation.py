"""Running code nobody has read: no network, no environment, limited memory and time, and a result
that says which isolation it got.

bubblewrap: its own view of the file system (system folders read-only, only the working folder
writable), processes and network. unshare:    its own processes and network; files are those of the
user. landlock:   other processes are seen, but their memory and environment are not; network and
files are those of the user. rlimits:    limits and a killed process tree only. Without namespaces
or Landlock nothing keeps a process from what its user may read: the environment of every other
process of the user, with the keys in it, is among that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

from skillfit.sandbox.process import Result, run_process

Isolation = Literal["bubblewrap", "unshare", "landlock", "rlimits"]

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix")
_LINKER = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d")
_ETC = (*_LINKER, "passwd", "group", "nsswitch.conf", "localtime", "ssl", "hosts")
_PROGRAMS: Mapping[Isolation, str] = {
    "bubblewrap": "bwrap",
    "unshare": "unshare",
    "landlock": sys.executable,
}

# Whoever is in a Landlock domain may look into processes of that domain alone, whatever its rules
# are about. These are about moving files between folders, which any domain forbids unless it is
# allowed (everywhere, here). The powers of root would lead around it.
_LANDLOCK = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
libc.syscall.argtypes = libc.prctl.argtypes = [ctypes.c_long] * 5
create, add_rule, restrict, path_beneath, no_new_privileges, drop_capability, moving = 444, 445, 446, 1, 38, 24, 1 << 13
for capability in range(64):
    libc.prctl(drop_capability, capability, 0, 0, 0)
handled = ctypes.create_string_buffer(struct.pack("=Q", moving))
allowed = ctypes.create_string_buffer(struct.pack("=Qi", moving, os.open("/", os.O_PATH)))
rules = libc.syscall(create, ctypes.addressof(handled), 8, 0, 0)
done = (rules, libc.syscall(add_rule, rules, path_beneath, ctypes.addressof(allowed), 0),
        libc.prctl(no_new_privileges, 1, 0, 0, 0), libc.syscall(restrict, rules, 0, 0, 0))
if min(done) < 0:
    sys.exit("Landlock does not work here.")
os.execvp(sys.argv[1], sys.argv[1:])
"""


async def run_isolated(
    argv: Sequence[str],
    *,
    cwd: Path,
    timeout: float,
    memory: int = 1 << 30,
    stdin: bytes = b"",
    max_output: int = 1 << 16,
    isolation: Isolation | None = None,
) -> Result:
    """Run `argv` in `cwd`, the one folder it may write to. `memory` is in bytes of address space;
    PATH, HOME (the working folder) and LANG are all the environment it gets. `isolation`: the best
    there is unless one is named.
    """
    cwd = cwd.resolve()
    chosen = isolation or best_isolation()
    path = os.pathsep.join(
        dict.fromkeys([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
    )
    env = {"PATH": path, "HOME": str(cwd), "LANG": "C.UTF-8"}
    wrapped = [*_wrapper(chosen, cwd), *_limits(timeout, memory), *argv]
    result = await run_process(
        wrapped,
        cwd=cwd,
        timeout=timeout,
        env=env,
        stdin=stdin,
        max_output=max_output,
        contained=chosen in ("bubblewrap", "unshare"),
    )
    return replace(result, isolation=chosen)


@cache
def best_isolation() -> Isolation:
    """The strongest isolation that works here; tried once."""
    return next((candidate for candidate in _PROGRAMS if works(candidate)), "rlimits")


def works(isolation: Isolation) -> bool:
    """Whether this machine has it."""
    argv = [*_wrapper(isolation, Path("/")), "true"]
    return (
        shutil.which(argv[0]) is not None
        and subprocess.run(argv, capture_output=True, timeout=10, check=False).returncode == 0
    )


def _wrapper(isolation: Isolation, cwd: Path) -> list[str]:
    if isolation == "rlimits":
        return []
    name = _PROGRAMS[isolation]
    program = shutil.which(name) or name
    if isolation == "landlock":
        return [program, "-I", "-S", "-c", _LANDLOCK]
    if isolation == "unshare":
        return [
            program,
            "--user",
            "--map-current-user",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--net",
        ]
    interpreter = {str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix)}
    shown = [*_SYSTEM, *(f"/etc/{name}" for name in _ETC), *sorted(interpreter)]
    binds = [part for path in shown for part in ("--ro-bind-try", path, path)]
    writable = ["--bind", str(cwd), str(cwd), "--chdir", str(cwd)] if cwd != Path("/") else []
    apart = ["--unshare-all", "--die-with-parent", "--new-session", "--tmpfs", "/tmp"]
    return [program, *apart, *binds, "--proc", "/proc", "--dev", "/dev", *writable, "--"]


def _limits(timeout: float, memory: int) -> list[str]:
    """Set by a shell right before the program, so that no Python runs between fork and exec."""
    limits = (
        f"ulimit -c 0; ulimit -t {int(timeout) + 1}; ulimit -f 2097152; ulimit -v {memory // 1024}"
    )
    return ["/bin/sh", "-c", f'{limits}; exec "$@"', "sh"]
