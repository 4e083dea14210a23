"""A skill on disk: reading its files within safe bounds, writing them whole."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from skillfit.errors import InputError

DOCUMENT_NAMES = ("SKILL.md", "skill.md")
DOCUMENT_SUFFIXES = (".md", ".markdown", ".txt")  # a path that ends so is a document; any other, a folder
DOCUMENT_LIMIT = 1_000_000
PACKAGE_LIMIT = 32_000_000
# The format's folders. A SKILL.md named on its own brings only these along: what else lies beside it may be tasks with answers.
RESOURCE_FOLDERS = ("references", "scripts", "assets")
# Task data, caches and hidden files (.env, .git) are not part of what the agent may see.
_NOT_SKILL = ("evals", "__pycache__", "node_modules")


def find_document(folder: Path) -> Path:
    """The SKILL.md of a skill folder."""
    if folder.is_symlink():
        raise InputError(f"{folder} is a symbolic link.", hint="Give the skill's real folder.")
    names = {entry.name for entry in folder.iterdir()}
    for name in DOCUMENT_NAMES:
        if name in names:
            return folder / name
    raise InputError(f"{folder} has no SKILL.md.", hint="A skill is a folder with a SKILL.md, or a markdown file.")


def read_document(path: Path) -> str:
    """Text of a markdown file; anything but UTF-8 of a sane size is an error that says where."""
    size = path.stat().st_size
    if size > DOCUMENT_LIMIT:
        raise InputError(
            f"{path} has {size:,} bytes; a skill document may have {DOCUMENT_LIMIT:,} at most.",
            hint="An agent reads all of it each time: move detail to references/.",
        )
    data = path.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: byte {error.start} (0x{data[error.start]:02x}) is not UTF-8.", hint="Save the file as UTF-8."
        ) from error


def read_files(folder: Path, document: Path, only: tuple[str, ...] = ()) -> tuple[dict[str, bytes], dict[str, int]]:
    """Contents and modes of a skill's other files, by path relative to the folder."""
    files: dict[str, bytes] = {}
    modes: dict[str, int] = {}
    total = 0
    for path in _walk(folder, folder.resolve(), only):
        relative = path.relative_to(folder).as_posix()
        if path == document:
            continue
        info = path.stat()
        total += info.st_size
        if total > PACKAGE_LIMIT:
            raise InputError(
                f"{folder} holds more than {PACKAGE_LIMIT:,} bytes (at {relative}).", hint="Give the skill a folder of its own."
            )
        files[relative] = path.read_bytes()
        modes[relative] = stat.S_IMODE(info.st_mode)
    return files, modes


def _walk(folder: Path, root: Path, only: tuple[str, ...] = ()) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in _NOT_SKILL or (only and path.name not in only):
            continue
        if path.is_symlink() and (path.is_dir() or not path.resolve().is_relative_to(root)):
            raise InputError(f"{path} is a symbolic link out of the skill or to a folder.", hint="Put the files themselves there.")
        if path.is_dir():
            yield from _walk(path, root)
        elif path.is_file():
            yield path


def check_relative(name: str) -> str:
    """The name of a package file, refused when it could lead out of the folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or ":" in parts[0] or "\0" in name:
        raise InputError(f"{name!r} is not a path inside a skill folder.", hint="Use a relative path without '..'.")
    return name


def folder_name(name: str) -> str:
    """The name as the format wants folders to be called: small letters, digits and hyphens; empty when none are left."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64].rstrip("-")


def write_whole(path: Path, data: bytes, mode: int | None = None) -> None:
    """The file appears complete or not at all; one that already holds these bytes is left alone."""
    try:
        _write(path, data, mode)
    except OSError as error:
        hint = "Check the path, its permissions, and the room on the disk."
        raise InputError(f"Cannot write {path}: {error.strerror}.", hint=hint) from error


def _write(path: Path, data: bytes, mode: int | None) -> None:
    old = stat.S_IMODE(path.stat().st_mode) if path.is_file() else None
    mode = mode if mode is not None else old if old is not None else 0o644
    if old == mode and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
