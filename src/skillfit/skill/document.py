"""The skill: a markdown document with optional frontmatter, and the files of its folder.

The second part of the module reads skills from disk, with limits on size and place.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from skillfit.atomic_write import write_whole
from skillfit.errors import InputError, near_file

# Frontmatter is a block between `---` lines at the very top whose first entry looks like `key:`.
# A thematic break at the top is not frontmatter.
_FENCE_LINE = r"---[ \t]*"
_BLANK_OR_COMMENT = r"[ \t\r]*(?:#[^\n]*)?\n"
_FIRST_KEY = r"[\w\"'][^\n:]*:"
_FRONTMATTER_START = re.compile(rf"{_FENCE_LINE}\r?\n[\w-]+:(?:[ \t\r\n]|$)")
_FRONTMATTER = re.compile(
    rf"{_FENCE_LINE}\r?\n(?P<block>(?:{_BLANK_OR_COMMENT})*{_FIRST_KEY}.*?\n)"
    rf"{_FENCE_LINE}(?:\r?\n|\Z)",
    re.DOTALL,
)
BOM = "\ufeff"
# A text shows the body if it has this many of its lines. Shorter lines may stand anywhere.
_LINES_READ = 5
_TELLING = 16  # characters


def estimate_tokens(text: str) -> int:
    """Return a rough number of tokens: a quarter of the UTF-8 bytes. Usually within 20 % for
    prose.
    """
    return (len(text.encode("utf-8", "replace")) + 3) // 4


DOCUMENT_NAMES = ("SKILL.md", "skill.md")
# A path with one of these endings is a document; any other path is a folder.
DOCUMENT_SUFFIXES = (".md", ".markdown", ".txt")


@dataclass(frozen=True)
class Skill:
    """The instructions that are given to the agent.

    Create one with `load` or `from_text`. A skill never changes; `with_body` and the functions of
    `skillfit.skill` return changed copies.

    `head` is the frontmatter with its `---` lines, which edits never change. `files` are the other
    files of the skill folder, by relative path.
    """

    head: str = ""
    body: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    modes: Mapping[str, int] = field(default_factory=dict, hash=False, compare=False, repr=False)
    bom: bool = field(default=False, compare=False)
    document_name: str = field(default=DOCUMENT_NAMES[0], compare=False)
    title: str = field(default="", compare=False)  # used as name when the frontmatter has none
    absent: bool = False  # there is no skill: the agent is not told of one, not even an empty one

    @classmethod
    def load(cls, path: str | Path) -> Skill:
        """Read a skill folder, a SKILL.md with the references/, scripts/ and assets/ beside it, or
        any markdown file.
        """
        path = Path(path)
        try:
            if path.is_dir():
                return cls._read_package(find_document(path))
            if path.name in DOCUMENT_NAMES:
                return cls._read_package(path, only=RESOURCE_FOLDERS)
            skill = cls.from_text(read_document(path), name=path.stem)
            return replace(skill, document_name=path.name)
        except OSError as error:
            raise InputError(
                f"Cannot read the skill {path}: {error.strerror}.",
                hint=near_file(path) or "Check the path.",
            ) from error

    @classmethod
    def _read_package(cls, document: Path, only: tuple[str, ...] = ()) -> Skill:
        folder = document.parent
        if document.is_symlink() and not document.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"{document} is a symbolic link out of its folder.",
                hint="Give the path of the file that it points to.",
            )
        skill = cls.from_text(read_document(document), name=folder.resolve().name)
        found = _read_files(folder, document, only)
        return replace(skill, files=found.contents, modes=found.modes, document_name=document.name)

    @classmethod
    def from_text(
        cls, text: str, *, name: str = "", files: Mapping[str, bytes] | None = None
    ) -> Skill:
        """Return a skill from the text of its document."""
        text = _encodable(text)
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
        """Return the same skill with another body.

        Newlines are converted to those of the skill. A body that looks like frontmatter gets a
        newline in front, so that it stays body.
        """
        body = _encodable(body)
        head = self.head
        if self.newline == "\r\n":
            body = body.replace("\r\n", "\n").replace("\n", "\r\n")
        if head and body and not head.endswith("\n"):
            head += self.newline
        if not head and (_FRONTMATTER.match(body) or body.startswith(BOM)):
            body = self.newline + body
        return replace(self, head=head, body=body)

    def with_document(self, other: Skill) -> Skill:
        """Return the document of another skill with this one's files."""
        return replace(self, head=other.head, body=other.body)

    def save(self, path: str | Path) -> None:
        """Write the document to a markdown path, or the document and its files into a folder.

        Files that already have the right content are not touched.
        """
        if not isinstance(path, str | Path):
            raise InputError(f"{path!r:.100} is not a path to save the skill to.")
        path = Path(path)
        data = (BOM * self.bom + self.text).encode()
        if path.is_file() or (path.suffix.lower() in DOCUMENT_SUFFIXES and not path.is_dir()):
            return write_whole(path.resolve(), data)
        if path.is_symlink():
            raise InputError(f"{path} is a symbolic link.", hint="Save to the real folder.")
        for name in self.files:
            if not (path / check_relative(name)).parent.resolve().is_relative_to(path.resolve()):
                raise InputError(
                    f"{path / name} is outside {path}.", hint="Remove the symbolic link there."
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
        """CRLF when every line of the document ends with it, else LF. In a document with mixed line
        ends nothing is converted.
        """
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf and crlf == self.text.count("\n") == self.text.count("\r") else "\n"

    @property
    def unix_body(self) -> str:
        """The body with LF line ends, as edits see it. `with_body` restores the skill's own."""
        return self.body.replace("\r\n", "\n") if self.newline == "\r\n" else self.body

    @property
    def frontmatter_block(self) -> str:
        """The YAML between the `---` lines. It starts on line 2 of the document."""
        match = _FRONTMATTER.match(self.head)
        return match["block"] if match else ""

    @cached_property
    def frontmatter(self) -> Mapping[str, Any]:
        """The values of the frontmatter, all as strings. Empty when it is not a YAML mapping, which
        `lint` reports.
        """
        try:
            loaded = yaml.load(self.frontmatter_block, Loader=yaml.BaseLoader)
        except (yaml.YAMLError, RecursionError):
            return {}
        return loaded if isinstance(loaded, dict) else {}

    @property
    def unclosed_frontmatter(self) -> bool:
        """The document begins like frontmatter, but the closing `---` line is missing."""
        return not self.head and _FRONTMATTER_START.match(self.body) is not None

    @property
    def name(self) -> str:
        """The name in the frontmatter, else that of the file or folder. Any text: use `folder_name`
        to make a path of it.
        """
        given = self.frontmatter.get("name")
        return given.strip() if isinstance(given, str) and given.strip() else self.title or "skill"

    def shown_in(self, text: str) -> bool:
        """Return whether a text, such as the output of a command, shows the body or a good part of
        it: half of its lines, or some of a long one. The lines may be numbered or in JSON.
        """
        lines = {line.strip() for line in self.unix_body.split("\n") if line.strip()}
        lines = {line for line in lines if len(line) >= _TELLING} or lines
        found = sum(line in text or json.dumps(line)[1:-1] in text for line in lines)
        return bool(lines) and found >= min(_LINES_READ, -(-len(lines) // 2))

    @cached_property
    def hash(self) -> str:
        """16 hex digits that identify the content: the document and every file."""
        digest = hashlib.sha256(b"absent" if self.absent else b"")
        for name, data in [("", self.text.encode()), *sorted(self.files.items())]:
            digest.update(f"{name}\0{len(data)}\0".encode())
            digest.update(data)
        return digest.hexdigest()[:16]

    @cached_property
    def tokens(self) -> int:
        """Estimated tokens of the document."""
        return estimate_tokens(self.text)


NO_SKILL = Skill(title="no skill", absent=True)


def over_ceiling(wanted: Skill, present: Skill, limit: int | None) -> str:
    """Say why a skill may not replace the present one under a ceiling of `limit` tokens; empty: it
    may. One that is not longer than the present one always may.
    """
    if limit is None or wanted.tokens <= max(limit, present.tokens):
        return ""
    return f"the skill would have about {wanted.tokens} tokens; {limit} are allowed"


def _encodable(text: str) -> str:
    """Return the text without lone surrogates, which JSON from a model may contain and UTF-8 may
    not.
    """
    return text.encode("utf-8", "replace").decode()


DOCUMENT_LIMIT = 1_000_000
PACKAGE_LIMIT = 32_000_000
# The resource folders of the Agent Skills format. When the user names a SKILL.md file, only these
# are read with it: other files in its folder may be tasks with answers.
RESOURCE_FOLDERS = ("references", "scripts", "assets")
# Never given to the agent: task data and caches. The same holds for hidden files (.env, .git).
_NOT_SKILL = ("evals", "evals.json", "__pycache__", "node_modules")


def find_document(folder: Path) -> Path:
    """Return the SKILL.md of a skill folder."""
    if folder.is_symlink():
        raise InputError(f"{folder} is a symbolic link.", hint="Give the skill's real folder.")
    names = {entry.name for entry in folder.iterdir()}
    for name in DOCUMENT_NAMES:
        if name in names and (folder / name).is_dir():
            raise InputError(
                f"{folder / name} is a folder.",
                hint="It must be the skill's text: a markdown file.",
            )
        if name in names:
            return folder / name
    raise InputError(
        f"{folder} has no SKILL.md.",
        hint="A skill is a folder with a SKILL.md, or a markdown file.",
    )


def read_document(path: Path) -> str:
    """Return the text of a markdown file."""
    data = read_regular_file(path, DOCUMENT_LIMIT)
    if data is None:
        raise InputError(
            f"{path} is larger than {DOCUMENT_LIMIT:,} bytes, the limit for a skill document.",
            hint="The agent reads all of it for each task: move detail to references/.",
        )
    return decode_text(data, path)


def decode_text(data: bytes, path: Path) -> str:
    """Return the text of a file; the error for another encoding names the line."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: byte {error.start} (0x{data[error.start]:02x}) is not UTF-8.",
            hint="Save the file as UTF-8.",
        ) from error


def read_regular_file(path: Path, limit: int) -> bytes | None:
    """Return the bytes of a file; None when there are more than `limit`.

    Pipes and devices are refused: reading them could block or never end.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a folder fails by itself
        raise InputError(f"{path} is not a regular file.", hint="Give the path of a text file.")
    with path.open("rb") as file:
        data = file.read(limit + 1)
    return data if len(data) <= limit else None


@dataclass(frozen=True, slots=True)
class _PackageFiles:
    """Contents and modes of the other files of a skill, by path relative to the folder."""

    contents: dict[str, bytes] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)


def _read_files(folder: Path, document: Path, only: tuple[str, ...] = ()) -> _PackageFiles:
    found = _PackageFiles()
    total = 0
    for path in _walk(folder, folder.resolve(), only):
        relative = path.relative_to(folder).as_posix()
        if path == document:
            continue
        info = path.stat()
        total += info.st_size
        if total > PACKAGE_LIMIT:
            raise InputError(
                f"{folder} contains more than {PACKAGE_LIMIT:,} bytes (at {relative}).",
                hint="Move the skill into its own folder.",
            )
        found.contents[relative] = path.read_bytes()
        found.modes[relative] = stat.S_IMODE(info.st_mode)
    return found


def _walk(folder: Path, root: Path, only: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield the files of a skill folder, sorted. At the top level only the names in `only`, if
    given.
    """
    for path in sorted(folder.iterdir()):
        if left_out(path.name) or (only and path.name not in only):
            continue
        if path.is_symlink() and (path.is_dir() or not path.resolve().is_relative_to(root)):
            raise InputError(
                f"{path} is a symbolic link out of the skill or to a folder.",
                hint="Copy the files themselves into the skill.",
            )
        if path.is_dir():
            yield from _walk(path, root)
        elif path.is_file():
            yield path


def left_out(name: str) -> bool:
    """Return whether a file or folder of this name is no part of a skill."""
    return name.startswith(".") or name in _NOT_SKILL


def reads_path(skill: Path, path: Path) -> bool:
    """Return whether `Skill.load(skill)` reads a file, or the files in a folder. It need not exist
    yet.
    """
    whole = skill.is_dir()
    root = (skill if whole else skill.parent).resolve()
    path = path.resolve()
    if not path.is_relative_to(root):
        return False
    names = path.relative_to(root).parts
    if any(map(left_out, names)):
        return False
    return whole or (skill.name in DOCUMENT_NAMES and "".join(names[:1]) in RESOURCE_FOLDERS)


def check_relative(name: str) -> str:
    """Return the name of a package file, or raise when it could point outside the folder."""
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
    """Return a name that is safe as a folder name and follows the Agent Skills format: lower-case
    letters, digits and hyphens, up to 64. Empty when nothing of the name remains.
    """
    without_accents = re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFKD", name))
    return re.sub(r"[^a-z0-9]+", "-", without_accents.lower()).strip("-")[:64].rstrip("-")
