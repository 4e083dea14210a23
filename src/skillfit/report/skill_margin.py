"""A skill as a document, line by line: where each line comes from, what it is worth, and whether it
is protected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skillfit.report.story import EditSummary
from skillfit.run.records import UnitWorth
from skillfit.skill import Skill
from skillfit.skill.regions import scan

_RANK = {"promoted": 0, "pending": 1, "dropped": 2}


@dataclass(frozen=True, slots=True)
class SkillLine:
    """One line of a skill."""

    number: int
    text: str
    edit: EditSummary | None = None  # the edit that wrote it; None: initial text
    first: bool = False  # the first line of its edit or part, where the margin has its text
    label: str = ""  # for the margin: where the line comes from, or what is to be done with it
    worth: float | None = None  # of its edit or part: a difference of the mean score
    low: float = 0.0  # of the 80 % interval of the worth
    high: float = 0.0
    mark: str = ""  # added: by an edit; removed: it can be cut
    region: str = ""  # protected, slow_update, appendix, examples; empty: free text
    frontmatter: bool = False


def skill_lines(text: str, edits: Iterable[EditSummary]) -> tuple[SkillLine, ...]:
    """The document with the origin and worth of each line."""
    origins = _origins(edits)
    regions = _regions(text)
    head_lines = Skill.from_text(text).head.count("\n")
    lines, last = [], ""
    for number, line in enumerate(_split(text), 1):
        edit = origins.get(line.strip()) if line.strip() else None
        worth = worth_of(edit)
        lines.append(
            SkillLine(
                number=number,
                text=line,
                edit=edit,
                first=edit is not None and edit.id != last,
                label=_origin(edit),
                worth=worth.mean if worth else None,
                low=worth.low if worth else 0.0,
                high=worth.high if worth else 0.0,
                mark="added" if edit is not None and edit.step else "",
                region=regions.get(number, ""),
                frontmatter=number <= head_lines,
            )
        )
        if line.strip():
            last = edit.id if edit else ""
    return tuple(lines)


def unit_lines(text: str, units: Iterable[UnitWorth]) -> tuple[SkillLine, ...]:
    """The document of an ablation, with the worth of each part beside its first line."""
    parts = {number: unit for unit in units for number in range(unit.start, unit.end + 1)}
    regions = _regions(text)
    head_lines = Skill.from_text(text).head.count("\n")
    lines = []
    for number, line in enumerate(_split(text), 1):
        unit = parts.get(number)
        lines.append(
            SkillLine(
                number=number,
                text=line,
                first=unit is not None and unit.start == number,
                label=unit.decision if unit else "",
                worth=unit.mean if unit and unit.rollouts else None,
                low=unit.low if unit else 0.0,
                high=unit.high if unit else 0.0,
                mark="removed" if unit and unit.decision == "cut" else "",
                region=regions.get(number, ""),
                frontmatter=number <= head_lines,
            )
        )
    return tuple(lines)


def _origin(edit: EditSummary | None) -> str:
    if edit is None:
        return ""
    return f"step {edit.step}" if edit.step else "initial text"


@dataclass(frozen=True, slots=True)
class Worth:
    """What a text changes in the mean score, with its 80 % interval."""

    mean: float
    low: float
    high: float


def worth_of(edit: EditSummary | None) -> Worth | None:
    """What the text is worth. An edit that deletes text has the opposite effect of that text."""
    if edit is None or edit.mean is None:
        return None
    if edit.edit.op == "delete":
        return Worth(-edit.mean, -edit.high, -edit.low)
    return Worth(edit.mean, edit.low, edit.high)


def _split(text: str) -> Sequence[str]:
    lines = text.split("\n")
    return lines[:-1] if lines and lines[-1] == "" else lines


def _origins(edits: Iterable[EditSummary]) -> dict[str, EditSummary]:
    """Line -> the edit that wrote it. Of several edits with the same line the promoted one."""
    origins: dict[str, EditSummary] = {}
    for edit in sorted(edits, key=lambda edit: _RANK.get(edit.status, 3)):
        initial_text = edit.step == 0 and edit.edit.op == "delete"
        for line in (edit.edit.target if initial_text else edit.edit.content).splitlines():
            if line.strip():
                origins.setdefault(line.strip(), edit)
    return origins


def _regions(text: str) -> dict[int, str]:
    """Line number -> the kind of protected region it is in."""
    found: dict[int, str] = {}
    for region in scan(text):
        first = text.count("\n", 0, region.start) + 1
        last = text.count("\n", 0, region.end) + 1
        found |= dict.fromkeys(range(first, last + 1), region.kind)
    return found
