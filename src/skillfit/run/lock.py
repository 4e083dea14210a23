"""One writer per run directory. The lock dies with its process, so a killed run is no obstacle."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import IO

from skillfit.errors import InputError

NAME = "run.lock"


class RunLock:
    """An advisory lock of the operating system on a small file that says who holds it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._file: IO[str] = self._path.open("a+", encoding="utf-8")
        if not _try_lock(self._file) or not self._in_place():
            self._file.seek(0)
            holder = _holder(self._file.read())
            self._file.close()
            raise InputError(
                f"The run in {directory} is in use by {holder}.",
                hint="Wait for it, end it, or give another directory with --run.",
            )
        self._file.truncate(0)
        self._file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        self._file.flush()

    def _in_place(self) -> bool:
        """Whether the locked file is the one others will find: a run that came to nothing takes its
        lock's file away.
        """
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        self._file.close()

    def remove(self) -> None:
        """Release it and leave no file."""
        if sys.platform == "win32":  # there, an open file stays
            self.release()
        self._path.unlink(missing_ok=True)
        self.release()


def in_use(directory: Path) -> bool:
    """Whether a process writes this run now. For faces: nothing is changed."""
    try:
        with (directory / NAME).open("r+", encoding="utf-8") as file:
            text = file.read()
            return not text or (
                not _gone(text) and not _try_lock(file)
            )  # no text yet: a run is taking its place now
    except (FileNotFoundError, PermissionError):
        return False


def _gone(text: str) -> bool:
    """Whether the last holder is known to be dead; then the lock need not be touched, which a
    starting run could feel.
    """
    try:
        owner = json.loads(text)
        if sys.platform == "win32" or owner["host"] != socket.gethostname():
            return False
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return True
    except (ValueError, KeyError, TypeError, PermissionError):
        return False
    return False


def _holder(text: str) -> str:
    try:
        owner = json.loads(text)
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _try_lock(file: IO[str]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(1 << 20)  # Windows locks bytes against reading too: one far behind the text
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
