"""The skill: a markdown document with optional frontmatter, and the files of its package.

A skill on disk: reading its files within safe bounds, writing them whole.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from skillfit.errors import InputError

# A block between `---` lines at the very top counts when its first entry looks like `key:`; a
# thematic break does not.
_FRONTMATTER = re.compile(
    r"---[ \t]*\r?\n(?P<block>(?:[ \t\r]*(?:#[^\n]*)?\n)*[\w\"'][^\n:]*:.*?\n)---[ \t]*(?:\r?\n|\Z)",
    re.DOTALL,
)
BOM = "\ufeff"


def estimate_tokens(text: str) -> int:
    """Tokens of a text, within some 20 % for prose in any script: a quarter of its UTF-8 bytes."""
    return (len(text.encode("utf-8", "replace")) + 3) // 4


DOCUMENT_NAMES = ("SKILL.md", "skill.md")
DOCUMENT_SUFFIXES = (
    ".md",
    ".markdown",
    ".txt",
)  # a path that ends so is a document; any other, a folder


@dataclass(frozen=True)
class Skill:
    """What the agent is given. Made by `load` or `from_text`; changed copies come from `with_body`
    and the functions of this room.

    `head` is the frontmatter with its fences, untouched by edits; `files` are the package's other
    files by relative path.
    """

    head: str = ""
    body: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    modes: Mapping[str, int] = field(default_factory=dict, hash=False, compare=False, repr=False)
    bom: bool = field(default=False, compare=False)
    document_name: str = field(default=DOCUMENT_NAMES[0], compare=False)
    title: str = field(default="", compare=False)  # the name to go by when the frontmatter has none

    @classmethod
    def load(cls, path: str | Path) -> Skill:
        """Read a skill folder, a SKILL.md with its references/, scripts/ and assets/, or any
        markdown file.
        """
        path = Path(path)
        try:
            if path.is_dir():
                return cls._read_package(find_document(path))
            if path.name in DOCUMENT_NAMES:
                return cls._read_package(path, only=RESOURCE_FOLDERS)
            return replace(
                cls.from_text(read_document(path), name=path.stem), document_name=path.name
            )
        except OSError as error:
            raise InputError(
                f"Cannot read the skill {path}: {error.strerror}.", hint="Check the path."
            ) from error

    @classmethod
    def _read_package(cls, document: Path, only: tuple[str, ...] = ()) -> Skill:
        folder = document.parent
        if document.is_symlink() and not document.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"{document} is a symbolic link out of its folder.",
                hint="Give the file it points to.",
            )
        skill = cls.from_text(read_document(document), name=folder.resolve().name)
        files, modes = read_files(folder, document, only)
        return replace(skill, files=files, modes=modes, document_name=document.name)

    @classmethod
    def from_text(
        cls, text: str, *, name: str = "", files: Mapping[str, bytes] | None = None
    ) -> Skill:
        """A skill from the text of its document."""
        text = text.encode(
            "utf-8", "replace"
        ).decode()  # a lone surrogate from a model's JSON could never be written
        bom, text = text.startswith(BOM), text.removeprefix(BOM)
        match = _FRONTMATTER.match(text)
        end = match.end() if match else 0
        return cls(
            text[:end],
            text[end:],
            {check_relative(path): data for path, data in (files or {}).items()},
            bom=bom,
            title=name,
        )

    def with_body(self, body: str) -> Skill:
        """The same skill with another body. Newlines become those of the skill; text that would
        pass for frontmatter does not.
        """
        body = body.encode("utf-8", "replace").decode()
        head = self.head
        if self.newline == "\r\n":
            body = body.replace("\r\n", "\n").replace("\n", "\r\n")
        if head and body and not head.endswith("\n"):
            head += self.newline
        if not head and (_FRONTMATTER.match(body) or body.startswith(BOM)):
            body = self.newline + body
        return replace(self, head=head, body=body)

    def with_document(self, other: Skill) -> Skill:
        """The document of another skill with this one's files."""
        return replace(self, head=other.head, body=other.body)

    def save(self, path: str | Path) -> None:
        """Write the document alone to a markdown path, or the whole package into a folder. What did
        not change keeps its bytes.
        """
        path = Path(path)
        data = (BOM * self.bom + self.text).encode()
        if path.is_file() or (path.suffix.lower() in DOCUMENT_SUFFIXES and not path.is_dir()):
            return write_whole(path.resolve(), data)
        if path.is_symlink():
            raise InputError(f"{path} is a symbolic link.", hint="Save to the real folder.")
        for name in self.files:
            if not (path / check_relative(name)).parent.resolve().is_relative_to(path.resolve()):
                raise InputError(
                    f"{path / name} leads out of {path}.", hint="Remove the symbolic link there."
                )
        for name, content in self.files.items():
            write_whole(path / name, content, self.modes.get(name))
        document = self.document_name if self.document_name in DOCUMENT_NAMES else DOCUMENT_NAMES[0]
        return write_whole(path / document, data)

    @property
    def text(self) -> str:
        """The whole document as the agent sees it."""
        return self.head + self.body

    @cached_property
    def newline(self) -> str:
        """CRLF when every line of the document ends so. With other newlines among them nothing is
        translated.
        """
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf and crlf == self.text.count("\n") == self.text.count("\r") else "\n"

    @property
    def unix_body(self) -> str:
        """The body as edits see it: with the newlines models send. `with_body` puts the skill's own
        back.
        """
        return self.body.replace("\r\n", "\n") if self.newline == "\r\n" else self.body

    @property
    def frontmatter_block(self) -> str:
        """The YAML between the fences, from line 2 of the document on."""
        match = _FRONTMATTER.match(self.head)
        return match["block"] if match else ""

    @cached_property
    def frontmatter(self) -> Mapping[str, Any]:
        """The frontmatter's values, all strings; empty when it is not a YAML mapping (`lint` says
        why).
        """
        try:
            loaded = yaml.load(self.frontmatter_block, Loader=yaml.BaseLoader)
        except (yaml.YAMLError, RecursionError):
            return {}
        return loaded if isinstance(loaded, dict) else {}

    @property
    def name(self) -> str:
        given = self.frontmatter.get("name")
        return given.strip() if isinstance(given, str) and given.strip() else self.title or "skill"

    @cached_property
    def hash(self) -> str:
        """16 hex digits over everything the agent sees: the document and every file."""
        digest = hashlib.sha256()
        for name, data in [("", self.text.encode()), *sorted(self.files.items())]:
            digest.update(f"{name}\0{len(data)}\0".encode())
            digest.update(data)
        return digest.hexdigest()[:16]

    @cached_property
    def tokens(self) -> int:
        """Estimated tokens of the document."""
        return estimate_tokens(self.text)


DOCUMENT_LIMIT = 1_000_000
PACKAGE_LIMIT = 32_000_000
# The format's folders. A SKILL.md named on its own brings only these along: what else lies beside
# it may be tasks with answers.
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
    raise InputError(
        f"{folder} has no SKILL.md.",
        hint="A skill is a folder with a SKILL.md, or a markdown file.",
    )


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
            f"{path}, line {line}: byte {error.start} (0x{data[error.start]:02x}) is not UTF-8.",
            hint="Save the file as UTF-8.",
        ) from error


def read_files(
    folder: Path, document: Path, only: tuple[str, ...] = ()
) -> tuple[dict[str, bytes], dict[str, int]]:
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
                f"{folder} holds more than {PACKAGE_LIMIT:,} bytes (at {relative}).",
                hint="Give the skill a folder of its own.",
            )
        files[relative] = path.read_bytes()
        modes[relative] = stat.S_IMODE(info.st_mode)
    return files, modes


def _walk(folder: Path, root: Path, only: tuple[str, ...] = ()) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in _NOT_SKILL or (only and path.name not in only):
            continue
        if path.is_symlink() and (path.is_dir() or not path.resolve().is_relative_to(root)):
            raise InputError(
                f"{path} is a symbolic link out of the skill or to a folder.",
                hint="Put the files themselves there.",
            )
        if path.is_dir():
            yield from _walk(path, root)
        elif path.is_file():
            yield path


def check_relative(name: str) -> str:
    """The name of a package file, refused when it could lead out of the folder."""
    parts = PurePosixPath(name).parts
    if (
        not parts
        or name.startswith("/")
        or ".." in parts
        or "\\" in name
        or ":" in parts[0]
        or "\0" in name
    ):
        raise InputError(
            f"{name!r} is not a path inside a skill folder.",
            hint="Use a relative path without '..'.",
        )
    return name


def folder_name(name: str) -> str:
    """The name as the format wants folders to be called: small letters, digits and hyphens; empty
    when none are left.
    """
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
