"""Two simulated machines: Linux namespaces on a bridge.

Each has its own network address, host name, process ids, `/tmp/ray` and `/dev/shm`. Killing one
kills all its processes and its network at once, like a power cut. Needs root, iproute2 and
util-linux.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

NETWORK = "10.77.0"
_BRIDGE = "skillfit0"
_START = """
hostname {name} && mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray
mount -t tmpfs tmpfs /dev/shm && exec sleep infinity
"""


class Machine:
    """One machine, `node1` or `node2`."""

    def __init__(self, number: int) -> None:
        self.name = f"node{number}"
        self.address = f"{NETWORK}.{number}"
        kinds = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = _START.format(name=self.name)
        self._outer = subprocess.Popen(
            ["unshare", *kinds, "sh", "-ec", script], stderr=subprocess.DEVNULL
        )
        self._first = self._first_process()
        wire = f"skillfit{number}"
        _ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", str(self._first))
        _ip("link", "set", wire, "master", _BRIDGE, "up")
        for command in (
            ["addr", "add", f"{self.address}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["link", "set", "lo", "up"],
        ):
            self.run(["ip", *command])

    def command(self, arguments: list[str]) -> list[str]:
        """The command line that runs `arguments` on this machine."""
        enter = ["nsenter", "--target", str(self._first), "--net", "--mount", "--uts", "--pid"]
        return [*enter, f"--wd={Path.cwd()}", *arguments]

    def run(self, arguments: list[str], env: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            self.command(arguments), env=env, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)} on {self.name}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def kill(self) -> None:
        """Ends every process of the machine, and its network with them."""
        if self._outer.poll() is None:
            os.kill(self._first, signal.SIGKILL)
        self._outer.wait()

    def _first_process(self) -> int:
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        for _ in range(500):
            if self._outer.poll() is not None:
                break
            for child in children.read_text().split():
                if Path(f"/proc/{child}/comm").read_text().strip() == "sleep":
                    return int(child)
            time.sleep(0.02)
        raise SystemExit("No namespaces: this needs root and util-linux.")


@contextmanager
def bridge() -> Iterator[None]:
    """The network between the machines; this one has the address .254."""
    _ip("link", "add", _BRIDGE, "type", "bridge")
    try:
        _ip("addr", "add", f"{NETWORK}.254/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        yield
    finally:
        _ip("link", "del", _BRIDGE)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
