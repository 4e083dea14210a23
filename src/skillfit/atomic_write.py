"""Write files and folders atomically: each appears complete or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from skillfit.errors import InputError

_HIDDEN = ".writing-"
_ABANDONED = 24 * 3600.0  # seconds


def write_whole(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file atomically. A file that already has this content and mode is not touched.

    Without `mode`, an existing file keeps its mode and a new one gets the default of the process.
    """
    try:
        replace_file(path, data, mode)
    except OSError as error:
        hint = "Check the path, its permissions, and the free space on the disk."
        raise InputError(f"Cannot write {path}: {error.strerror}.", hint=hint) from error


def replace_file(
    path: Path, data: bytes, mode: int | None = None, scratch: Path | None = None
) -> None:
    """Write a file as `write_whole` does, for callers that handle the OSError themselves.

    The incomplete file is in `scratch`, on the same disk, or beside `path` under a hidden name.
    """
    old = stat.S_IMODE(path.stat().st_mode) if path.is_file() else None
    mode = old if mode is None else mode
    if old is not None and old == mode and path.read_bytes() == data:
        return
    with replacement(path, mode, scratch) as file:
        file.write(data)


@contextmanager
def replacement(
    path: Path, mode: int | None = None, scratch: Path | None = None
) -> Iterator[BinaryIO]:
    """Yield a file to write to. It takes the place of `path` at the end of the block, and is
    removed when the block raises.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.parent if scratch is None else scratch
    folder.mkdir(exist_ok=True)
    temporary = folder / _hidden_name()
    try:
        with temporary.open("xb") as file:  # not `mkstemp`, so that the umask decides the mode
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to write to. It becomes `path` at the end of the block. It is removed when the
    block raises, or when another process has made `path` in the meantime.
    """
    with hidden_folder(path.parent) as folder:
        yield folder
        try:
            folder.rename(path)
        except OSError:
            if not path.is_dir():
                raise


@contextmanager
def hidden_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder in `parent` under a hidden name, for files that are moved elsewhere on
    this disk once all are complete. It is removed at the end of the block, and folders that killed
    processes left in `parent` are removed at the beginning.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent)
    folder = parent / _hidden_name()
    with _locked(_lock_of(folder)):
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    """Remove hidden folders whose writer ended without doing so: nobody holds their lock.

    A folder without a lock is of an earlier version, or on a file system without locks. It is
    removed a day after its last change.
    """
    from filelock import FileLock, Timeout

    for folder in parent.glob(f"{_HIDDEN}*"):
        lock = _lock_of(folder)
        try:
            if not folder.is_dir():
                continue
            if not lock.exists():
                if time.time() - folder.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            with FileLock(lock, timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)
        except (Timeout, OSError, NotImplementedError):  # in use, or of another user
            continue


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Hold the lock, and remove its file at the end. On a file system without locks, hold none."""
    from filelock import FileLock

    held = FileLock(lock)
    with suppress(OSError, NotImplementedError):
        held.acquire()
    try:
        yield
    finally:
        held.release()
        with suppress(OSError):  # another process may be looking whether it is in use
            lock.unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _hidden_name() -> str:
    return f"{_HIDDEN}{secrets.token_hex(8)}"
