"""What changed between two skills, as text and as lines a page can colour."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from skillfit.skill.document import Skill


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line with its number in the old and the new document, where it stands in them."""

    kind: Literal["same", "removed", "added"]
    text: str
    old: int | None
    new: int | None


@dataclass(frozen=True, slots=True)
class Hunk:
    header: str
    lines: tuple[DiffLine, ...]


def diff_hunks(old: Skill | str, new: Skill | str, context: int = 3) -> tuple[Hunk, ...]:
    """Changed places of the document with the lines around them."""
    before, after = _lines(old), _lines(new)
    hunks = []
    for group in SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(context):
        lines: list[DiffLine] = []
        for tag, a, b, c, d in group:
            if tag == "equal":
                lines += [
                    DiffLine("same", before[a + i], a + i + 1, c + i + 1) for i in range(b - a)
                ]
            else:
                lines += [DiffLine("removed", before[i], i + 1, None) for i in range(a, b)]
                lines += [DiffLine("added", after[i], None, i + 1) for i in range(c, d)]
        (_, a, _, c, _), (_, _, b, _, d) = group[0], group[-1]
        hunks.append(Hunk(f"@@ -{a + (b > a)},{b - a} +{c + (d > c)},{d - c} @@", tuple(lines)))
    return tuple(hunks)


def diff(old: Skill | str, new: Skill | str, context: int = 3) -> str:
    """A unified diff of the document, then the package files that changed; empty when nothing did."""
    signs = {"same": " ", "removed": "-", "added": "+"}
    out = []
    for hunk in diff_hunks(old, new, context):
        out += [hunk.header, *(signs[line.kind] + line.text for line in hunk.lines)]
    before = old.files if isinstance(old, Skill) else {}
    after = new.files if isinstance(new, Skill) else {}
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            change = (
                "added" if name not in before else "removed" if name not in after else "changed"
            )
            out.append(f"file {change}: {name}")
    return "".join(f"{line}\n" for line in out)


def _lines(skill: Skill | str) -> list[str]:
    text = skill.text if isinstance(skill, Skill) else skill
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else [*lines[:-1], f"{lines[-1]} (no newline at the end)"]
