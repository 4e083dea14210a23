"""One writer per run directory: a lock of the operating system, which ends with its process."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from skillfit.errors import InputError

LOCK = "run.lock"
_PATIENCE = 0.3  # seconds: longer than `in_use` in another process holds the lock


class RunLock:
    """Holds a run directory for this process. The lock file says which process that is."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK
        self._lock = FileLock(self._path, thread_local=False, on_acquired=_write_holder)
        try:
            self._lock.acquire(timeout=_PATIENCE)
        except Timeout as error:
            raise InputError(
                f"The run in {directory} is in use by {_read_holder(self._path) or 'a process'}.",
                hint="Wait for it, end it, or give another directory with --run.",
            ) from error

    def release(self) -> None:
        self._lock.release()

    def remove(self) -> None:
        """Release the lock and delete its file."""
        if os.name == "nt":  # there an open file cannot be deleted
            self.release()
        self._path.unlink(missing_ok=True)
        self.release()


def in_use(directory: Path) -> bool:
    """Whether a process writes this run now. Changes nothing."""
    path = directory / LOCK
    if not path.is_file():
        return False
    holder = _read_holder(path)
    if holder is not None and holder.is_dead():
        return False  # without touching the lock, which a run that starts now could be taking
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    except PermissionError:  # the run of another user, or on a read-only disk
        return False
    lock.release()
    return False


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a run, or held it last."""

    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_here(self) -> bool:
        """Whether that process is one of this machine."""
        return self.host == socket.gethostname()

    def is_dead(self) -> bool:
        """Whether that process is known to have ended."""
        if os.name == "nt" or self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            return False
        return False


def read_holder(directory: Path) -> Holder | None:
    """The process that holds the run in a directory, or held it last; None where none is known."""
    return _read_holder(directory / LOCK)


def _write_holder(descriptor: int) -> None:
    # The first byte stays blank: on Windows it is the locked one, which others cannot read.
    text = f" {json.dumps({'pid': os.getpid(), 'host': socket.gethostname()})}"
    os.ftruncate(descriptor, 0)
    os.write(descriptor, text.encode())


def _read_holder(path: Path) -> Holder | None:
    """The last holder; None where the file does not say."""
    try:
        with path.open("rb") as file:
            file.seek(1 if os.name == "nt" else 0)
            said = json.loads(file.read())
        return Holder(int(said["pid"]), str(said["host"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
