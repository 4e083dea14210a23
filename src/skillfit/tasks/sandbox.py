"""Running code nobody has read: no network, no environment, limited memory and time, and a result that says which isolation it got.

bubblewrap: its own view of the file system (system folders read-only, only the working folder writable), processes and network.
unshare:    its own processes and network; files are those of the user.
rlimits:    limits and a killed process tree only; the network is not cut.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

from skillfit.tasks.process import Result, run_process

Isolation = Literal["bubblewrap", "unshare", "rlimits"]

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix")
_ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "passwd",
    "group",
    "nsswitch.conf",
    "localtime",
    "ssl",
    "hosts",
)
_MARK = "SKILLFIT_SANDBOX"
_PROGRAMS: Mapping[Isolation, str] = {"bubblewrap": "bwrap", "unshare": "unshare"}


async def run_isolated(
    argv: Sequence[str],
    *,
    cwd: Path,
    timeout: float,
    memory: int | None = 1 << 30,
    network: bool = False,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    max_output: int = 1 << 16,
    readable: Sequence[Path] = (),
    isolation: Isolation | None = None,
) -> Result:
    """Run `argv` in `cwd`, the one folder it may write to. `memory` is in bytes of address space, None for no limit; `env` is all
    the environment it gets besides PATH, HOME (the working folder) and LANG. `isolation`: the best there is unless one is named."""
    cwd = cwd.resolve()
    chosen = isolation or best_isolation()
    mark = secrets.token_hex(8)
    path = os.pathsep.join(dict.fromkeys([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]))
    given = {"PATH": path, "HOME": str(cwd), "LANG": "C.UTF-8", **(env or {}), _MARK: mark}
    wrapped = [*_wrapper(chosen, cwd, network, readable), *_limits(timeout, memory), *argv]
    result = None
    try:
        result = await run_process(wrapped, cwd=cwd, timeout=timeout, env=given, stdin=stdin, max_output=max_output)
    finally:
        # Bubblewrap that is killed while it starts may leave its child behind.
        if chosen == "rlimits" or result is None or result.timed_out:
            _kill_marked(mark)
    return replace(result, isolation=chosen)


@cache
def best_isolation() -> Isolation:
    """The strongest isolation that works here; tried once."""
    for candidate, program in _PROGRAMS.items():
        argv = [*_wrapper(candidate, Path("/"), False, ()), "true"]
        if shutil.which(program) and subprocess.run(argv, capture_output=True, timeout=10, check=False).returncode == 0:
            return candidate
    return "rlimits"


def _wrapper(isolation: Isolation, cwd: Path, network: bool, readable: Sequence[Path]) -> list[str]:
    if isolation == "rlimits":
        return []
    if isolation == "unshare":
        net = [] if network else ["--net"]
        return [
            shutil.which("unshare") or "unshare",
            "--user",
            "--map-current-user",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            *net,
        ]
    etc = [f"/etc/{name}" for name in (*_ETC, *(["resolv.conf"] if network else []))]
    interpreter = {str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix)}
    shown = [*_SYSTEM, *etc, *sorted(interpreter), *(str(path.resolve()) for path in readable)]
    binds = [part for path in shown for part in ("--ro-bind-try", path, path)]
    writable = ["--bind", str(cwd), str(cwd), "--chdir", str(cwd)] if cwd != Path("/") else []
    net = ["--share-net"] if network else []
    program = shutil.which("bwrap") or "bwrap"
    return [
        program,
        "--unshare-all",
        *net,
        "--die-with-parent",
        "--new-session",
        "--tmpfs",
        "/tmp",
        *binds,
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        *writable,
        "--",
    ]


def _limits(timeout: float, memory: int | None) -> list[str]:
    """Set by a shell right before the program, so that no Python runs between fork and exec."""
    limits = [
        "ulimit -c 0",
        f"ulimit -t {int(timeout) + 1}",
        "ulimit -f 2097152",
        *([f"ulimit -v {memory // 1024}"] if memory else []),
    ]
    return ["/bin/sh", "-c", f'{"; ".join(limits)}; exec "$@"', "sh"]


def _kill_marked(mark: str) -> None:
    """Kill whoever left the process group: descendants still carry the mark in their environment."""
    wanted = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*") if Path("/proc").is_dir() else ():
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
