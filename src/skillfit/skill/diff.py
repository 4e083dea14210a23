"""The differences between two skills, as a unified diff and as lines for a page.

The text is exact, so that `patch` and `git apply` accept it. Pass it through
`skillfit.plain_text.visible` before printing it to a terminal: the skill may contain control
characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from skillfit.skill.document import BOM, Skill

_SIGNS = {"same": " ", "removed": "-", "added": "+"}
_NO_NEWLINE = "\\ No newline at end of file"


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line with its number in the old and in the new document."""

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
    """A changed place with the lines around it."""

    header: str
    lines: tuple[DiffLine, ...]


def diff_hunks(old: Skill | str, new: Skill | str, context: int = 3) -> tuple[Hunk, ...]:
    """The changed places of the document, each with `context` unchanged lines around it."""
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
        hunks.append(Hunk(f"@@ -{removed} +{added} @@", tuple(lines)))
    return tuple(hunks)


def diff(old: Skill | str, new: Skill | str, context: int = 3) -> str:
    """A unified diff of the document, then a line for each package file that changed.

    Empty when nothing changed.
    """
    out = []
    if hunks := diff_hunks(old, new, context):
        out.append(f"--- a/{_name(old)}\n+++ b/{_name(new)}\n")
    for hunk in hunks:
        out.append(f"{hunk.header}\n")
        out += [line.unified for line in hunk.lines]
    out += [f"{line}\n" for line in _changed_files(old, new)]
    return "".join(out)


def _changed_files(old: Skill | str, new: Skill | str) -> list[str]:
    before = old.files if isinstance(old, Skill) else {}
    after = new.files if isinstance(new, Skill) else {}
    lines = []
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            lines.append(f"file added: {name}")
        elif name not in after:
            lines.append(f"file removed: {name}")
        elif before[name] != after[name]:
            lines.append(f"file changed: {name}")
    return lines


def _line(
    kind: Literal["same", "removed", "added"], text: str, old: int | None, new: int | None
) -> DiffLine:
    return DiffLine(kind, text.removesuffix("\n"), old, new, newline=text.endswith("\n"))


def _range(start: int, end: int) -> str:
    """A line range in a hunk header. An empty range names the line before it."""
    length = end - start
    return f"{start + 1 if length else start},{length}"


def _name(skill: Skill | str) -> str:
    """The file name for the diff's header; a tab ends a name that contains a space."""
    name = skill.document_name if isinstance(skill, Skill) else "SKILL.md"
    return f"{name}\t" if " " in name else name


def _lines(skill: Skill | str) -> Sequence[str]:
    """Lines with their newline, as in the file."""
    if isinstance(skill, Skill):
        skill = (BOM if skill.bom else "") + skill.text
    lines = skill.split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])
