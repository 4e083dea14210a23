"""Temporary folders of this process, and the removal of what a killed process left behind.

All folders of one process stand in one root folder in the system's temporary folder. The process
holds a lock on a file in that root for as long as it lives. A root whose lock is free belongs to a
process that was killed: the next process that needs a folder removes it and ends the programs that
still run for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "SKILLFIT_PROCESS"  # this variable of a child's environment says which process started it

_PREFIX = "skillfit-"
_LOCK_FILE = ".owner"


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
        with contextlib.suppress(OSError):  # another user's, or just removed by its owner
            lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its owner lives
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
    for parent, names, _ in os.walk(folder):
        for name in names:
            if not (path := Path(parent, name)).is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
