"""Show the differences between two skills, as a unified diff and as lines for a page.

The text of a diff is exact, so that `patch` and `git apply` accept it. Pass it through
`skillfit.plain_text.visible` before printing it to a terminal: the skill may contain control
characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from skillfit.skill.document import BOM, DOCUMENT_NAMES, Skill

_SIGNS = {"same": " ", "removed": "-", "added": "+"}
_NO_NEWLINE = "\\ No newline at end of file"


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line with its number in the old and in the new file."""

    kind: Literal["same", "removed", "added"]
    text: str
    old: int | None
    new: int | None
    newline: bool = True  # False for a last line that has no newline

    @property
    def unified(self) -> str:
        """The line as a unified diff writes it, with its newline."""
        text = f"{_SIGNS[self.kind]}{self.text}\n"
        return text if self.newline else f"{text}{_NO_NEWLINE}\n"


@dataclass(frozen=True, slots=True)
class Hunk:
    """A changed place with the lines around it. The header names the file unless it is the
    document.
    """

    header: str
    lines: tuple[DiffLine, ...]
    file: str = ""  # of the skill folder; empty: the document


def diff_hunks(old: Skill | str, new: Skill | str, context: int = 3) -> tuple[Hunk, ...]:
    """Return the changed places, each with `context` unchanged lines around it.

    The document comes first, then the text files of the folder by name.
    """
    hunks = _hunks(_document(old), _document(new), context)
    for file, before, after in _changed_files(old, new):
        if before is not None and after is not None:
            hunks += _hunks(before, after, context, file)
    return tuple(hunks)


def diff(old: Skill | str, new: Skill | str, context: int = 3) -> str:
    """Return a unified diff of the document and of the text files of the folder, then a line for
    each other file that changed.

    Empty when nothing changed.
    """
    out: list[str] = []
    if hunks := _hunks(_document(old), _document(new), context):
        out += _unified(_name(old), _name(new), hunks)
    named = []
    for file, before, after in _changed_files(old, new):
        is_old, is_new = file in _files(old), file in _files(new)
        if before is not None and after is not None and (before or after):
            names = (file if is_old else "", file if is_new else "")
            out += _unified(*names, _hunks(before, after, context))
        else:
            what = "changed" if is_old and is_new else "added" if is_new else "removed"
            named.append(f"file {what}: {file}\n")
    return "".join(out + named)


def _unified(old: str, new: str, hunks: Sequence[Hunk]) -> Iterator[str]:
    """Write hunks as a unified diff of one file. An empty name stands for no file."""
    before, after = (
        f"{prefix}/{name}" + "\t" * (" " in name) if name else "/dev/null"
        for prefix, name in (("a", old), ("b", new))
    )
    yield f"--- {before}\n+++ {after}\n"
    for hunk in hunks:
        yield f"{hunk.header}\n"
        yield from (line.unified for line in hunk.lines)


def _hunks(old: str, new: str, context: int, file: str = "") -> list[Hunk]:
    before, after = _lines(old), _lines(new)
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    hunks = []
    for group in matcher.get_grouped_opcodes(context):
        lines: list[DiffLine] = []
        for tag, start, end, new_start, new_end in group:
            if tag == "equal":
                for offset in range(end - start):
                    numbers = (start + offset + 1, new_start + offset + 1)
                    lines.append(_line("same", before[start + offset], *numbers))
                continue
            for index in range(start, end):
                lines.append(_line("removed", before[index], index + 1, None))
            for index in range(new_start, new_end):
                lines.append(_line("added", after[index], None, index + 1))
        removed = _range(group[0][1], group[-1][2])
        added = _range(group[0][3], group[-1][4])
        header = f"@@ -{removed} +{added} @@ {file}".rstrip()
        hunks.append(Hunk(header, tuple(lines), file))
    return hunks


def _changed_files(
    old: Skill | str, new: Skill | str
) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield each changed file with its texts: empty where it is missing, None if it is no text."""
    before, after = _files(old), _files(new)
    for name in sorted(before.keys() | after.keys()):
        data, changed = before.get(name), after.get(name)
        if data != changed:
            yield name, _text(data), _text(changed)


def _files(skill: Skill | str) -> dict[str, bytes]:
    return dict(skill.files) if isinstance(skill, Skill) else {}


def _text(data: bytes | None) -> str | None:
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _line(
    kind: Literal["same", "removed", "added"], text: str, old: int | None, new: int | None
) -> DiffLine:
    return DiffLine(kind, text.removesuffix("\n"), old, new, newline=text.endswith("\n"))


def _range(start: int, end: int) -> str:
    """Write a line range of a hunk header. An empty range names the line before it."""
    length = end - start
    return f"{start + 1 if length else start},{length}"


def _name(skill: Skill | str) -> str:
    return skill.document_name if isinstance(skill, Skill) else DOCUMENT_NAMES[0]


def _document(skill: Skill | str) -> str:
    return (BOM * skill.bom) + skill.text if isinstance(skill, Skill) else skill


def _lines(text: str) -> Sequence[str]:
    """Split a text into lines with their newline, as in the file."""
    lines = text.split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])
