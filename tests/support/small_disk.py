"""A file system of a few hundred kilobytes, mounted for one subprocess only."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest


@cache
def _can_mount() -> bool:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
    return subprocess.run(probe, capture_output=True).returncode == 0


needs_small_disk = pytest.mark.skipif(not _can_mount(), reason="needs the right to mount a tmpfs")


def on_small_disk(folder: Path, kilobytes: int, command: Sequence[str]) -> list[str]:
    """The command line that runs `command` with a disk of this size mounted at `folder`. The
    mount ends with the process. What was on the disk is copied to `folder` + ".after".
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = shlex.quote(str(folder))
    script = (
        f"mount -t tmpfs -o size={kilobytes}k tmpfs {place} && "
        f"{shlex.join(command)}; code=$?; cp -r {place} {place}.after; exit $code"
    )
    return ["unshare", "-m", "sh", "-c", script]
