"""Write files and folders atomically: each appears complete or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from skillfit.errors import InputError


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
    """`write_whole` for callers that handle the OSError themselves.

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
    """A file to write to. It takes the place of `path` at the end of the block, and is removed when
    the block raises.
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
    """A folder to write to. It becomes `path` at the end of the block. It is removed when the block
    raises, or when another process has made `path` in the meantime.
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
    """A new folder in `parent` under a hidden name, for files that are moved elsewhere on this disk
    once all are complete. It is removed at the end of the block.
    """
    folder = parent / _hidden_name()
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hidden_name() -> str:
    return f".writing-{secrets.token_hex(8)}"
