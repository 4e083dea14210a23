"""The regions that skillfit writes itself: slow update, appendix of notes, worked examples.

They are part of the document that the agent reads. Edits of a model cannot change them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from skillfit.skill.document import Skill
from skillfit.skill.regions import (
    APPENDIX,
    EXAMPLES,
    SLOW_UPDATE,
    clean,
    fence,
    region_text,
    with_region,
)

APPENDIX_HEADING = "## Execution Notes Appendix"
EXAMPLES_HEADING = "## Examples"
_BULLET = re.compile(r"[ \t]*[-*+][ \t]+")
_EXAMPLE = re.compile(
    r"^### Example \d+\n<!-- item (?P<id>[^\n>]*) -->\n\n"
    r"Input:\n\n(?P<a>`{3,})\n(?P<input>.*?)\n(?P=a)\n\n"
    r"Output:\n\n(?P<b>`{3,})\n(?P<output>.*?)\n(?P=b)$",
    re.DOTALL | re.MULTILINE,
)


def slow_update_text(skill: Skill) -> str:
    """The guidance in the slow-update region; empty when there is none."""
    return (region_text(skill, SLOW_UPDATE) or "").strip()


def with_slow_update(skill: Skill, text: str | None = None) -> Skill:
    """The skill with this text in its slow-update region, which is at the end of the body.

    Without a text, add an empty region if the skill has none.
    """
    if text is not None:
        return with_region(skill, SLOW_UPDATE, fence(SLOW_UPDATE, clean(text).strip()))
    if region_text(skill, SLOW_UPDATE) is not None:
        return skill
    return with_region(skill, SLOW_UPDATE, fence(SLOW_UPDATE, ""))


def without_slow_update(skill: Skill) -> Skill:
    """The skill without its slow-update region."""
    if region_text(skill, SLOW_UPDATE) is None:
        return skill
    return with_region(skill, SLOW_UPDATE, "")


def without_placeholder(skill: Skill) -> Skill:
    """The skill without an empty slow-update region, which training adds to reserve the place."""
    return skill if slow_update_text(skill) else without_slow_update(skill)


def appendix_notes(skill: Skill) -> tuple[str, ...]:
    """The notes in the appendix, in order. Indented lines after a bullet belong to it."""
    notes: list[str] = []
    for line in (region_text(skill, APPENDIX) or "").splitlines():
        if bullet := _BULLET.match(line):
            notes.append(line[bullet.end() :].strip())
        elif line[:1].isspace() and line.strip() and notes:
            notes[-1] += f" {line.strip()}"
    return tuple(note for note in notes if note)


def with_notes(skill: Skill, notes: Iterable[str] = ()) -> Skill:
    """The skill with these notes added to its appendix, except those it already has.

    A skill without an appendix gets one, even when there are no notes.
    """
    present = region_text(skill, APPENDIX)
    new = _new_notes(notes, appendix_notes(skill))
    if present is not None and not new:
        return skill
    text = _appendix(present or APPENDIX_HEADING, new)
    return with_region(skill, APPENDIX, fence(APPENDIX, text))


def with_consolidated_notes(skill: Skill, notes: Iterable[str]) -> Skill:
    """The skill with these notes in place of all that its appendix holds."""
    text = _appendix(APPENDIX_HEADING, _new_notes(notes, ()))
    return with_region(skill, APPENDIX, fence(APPENDIX, text))


def _appendix(present: str, notes: Sequence[str]) -> str:
    last_line = present[present.rfind("\n") + 1 :]
    gap = "" if _BULLET.match(last_line) or not notes else "\n"
    return "\n".join([clean(present).rstrip() + gap, *(f"- {note}" for note in notes)])


def _new_notes(notes: Iterable[str], present: Iterable[str]) -> list[str]:
    """The notes as one line each, without those that are present already. Notes that differ only in
    case, spacing or final punctuation count as the same.
    """
    seen = {_comparable(note) for note in present}
    new = []
    for note in notes:
        # Joining the words can turn an unusual space into a plain one and so complete a marker:
        # clean last.
        line = clean(" ".join(note.split())).strip().removeprefix("- ").removeprefix("* ")
        if line and _comparable(line) not in seen:
            seen.add(_comparable(line))
            new.append(line)
    return new


def _comparable(note: str) -> str:
    return " ".join(note.casefold().split()).rstrip(" .,;:!?…。！？")


@dataclass(frozen=True, slots=True)
class Example:
    """A solved training item, shown to the agent."""

    input: str
    output: str
    item_id: str = ""


def examples(skill: Skill) -> tuple[Example, ...]:
    """The worked examples in the skill."""
    found = _EXAMPLE.finditer(region_text(skill, EXAMPLES) or "")
    return tuple(Example(match["input"], match["output"], unquote(match["id"])) for match in found)


def with_examples(skill: Skill, new: Iterable[Example]) -> Skill:
    """The skill with these examples in place of all it has. Without any, the section is removed."""
    blocks = [_example(number, example) for number, example in enumerate(new, 1)]
    if not blocks:
        return with_region(skill, EXAMPLES, "")
    text = "\n\n".join([EXAMPLES_HEADING, *blocks])
    return with_region(skill, EXAMPLES, fence(EXAMPLES, text))


def _example(number: int, example: Example) -> str:
    item_id = quote(example.item_id, safe="/ ", errors="replace")
    parts = [
        f"### Example {number}\n<!-- item {item_id} -->",
        "Input:",
        _code_block(example.input),
        "Output:",
        _code_block(example.output),
    ]
    return "\n\n".join(parts)


def _code_block(text: str) -> str:
    text = clean(text)
    ticks = code_fence(text)
    return f"{ticks}\n{text}\n{ticks}"


def code_fence(text: str) -> str:
    """Backticks that can enclose the text: more in a row than the text contains."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    return "`" * max(3, longest + 1)
