"""File systems that fail, mounted for one subprocess only: one of a few hundred kilobytes, and one
that becomes read-only while it is in use.
"""

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


@cache
def _can_mount_image() -> bool:
    """Whether a file can be mounted as an ext4 disk and then be made read-only."""
    if not _can_mount() or shutil.which("mkfs.ext4") is None:
        return False
    script = (
        "f=$(mktemp) && truncate -s 4M $f && mkfs.ext4 -q $f && mount -o loop $f /mnt; code=$?; "
        "umount /mnt; rm -f $f; exit $code"
    )
    return (
        subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True).returncode == 0
    )


needs_failing_disk = pytest.mark.skipif(
    not _can_mount_image(), reason="needs the right to mount an ext4 image, and mkfs.ext4"
)


def on_failing_disk(folder: Path, command: Sequence[str]) -> list[str]:
    """The command line that runs `command` with an ext4 disk mounted at `folder`. When
    `folder` + ".fail" is created, the disk becomes read-only as after an I/O error, with all files
    still open; then `folder` + ".failed" appears.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = shlex.quote(str(folder))
    script = (
        f"truncate -s 32M {place}.image && mkfs.ext4 -q {place}.image && "
        f"mount -o loop {place}.image {place} || exit 99; "
        f"(while [ ! -e {place}.fail ]; do sleep 0.02; done; "
        f"mount -o remount,abort {place}; touch {place}.failed) & "
        f"{shlex.join(command)}; code=$?; kill $! 2>/dev/null; cp -r {place} {place}.after; "
        f"umount {place}; exit $code"
    )
    return ["unshare", "-m", "sh", "-c", script]
