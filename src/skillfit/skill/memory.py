"""The machine-written regions: slow update, appendix of execution notes, worked examples."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from skillfit.skill.document import Skill
from skillfit.skill.regions import APPENDIX, EXAMPLES, SLOW_UPDATE, clean, fence, replace_regions, scan

APPENDIX_HEADING = "## Execution Notes Appendix"
EXAMPLES_HEADING = "## Examples"
_BULLET = re.compile(r"[ \t]*[-*+][ \t]+")
_EXAMPLE = re.compile(
    r"^### Example \d+\n<!-- item (?P<id>[^\n>]*) -->\n\nInput:\n\n(?P<a>`{3,})\n(?P<input>.*?)\n(?P=a)\n\n"
    r"Output:\n\n(?P<b>`{3,})\n(?P<output>.*?)\n(?P=b)$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Example:
    """A solved training item, shown to the agent."""

    input: str
    output: str
    item_id: str = ""


def _inner(skill: Skill, kind: str) -> str | None:
    """Text of the regions of a kind; None without any."""
    regions = [region.inner.strip("\n") for region in scan(skill.unix_body) if region.kind == kind]
    return "\n\n".join(regions) if regions else None


def _with(skill: Skill, kind: str, block: str) -> Skill:
    return skill.with_body(replace_regions(skill.unix_body, kind, block))


def slow_update_text(skill: Skill) -> str:
    """The guidance in the slow-update region; empty when there is none."""
    return (_inner(skill, SLOW_UPDATE) or "").strip()


def with_slow_update(skill: Skill, text: str | None = None) -> Skill:
    """Replace the slow-update region whole; it stands at the end. Without a text, only make sure that the region is there."""
    if text is None:
        return skill if _inner(skill, SLOW_UPDATE) is not None else _with(skill, SLOW_UPDATE, fence(SLOW_UPDATE, ""))
    return _with(skill, SLOW_UPDATE, fence(SLOW_UPDATE, clean(text).strip()))


def without_placeholder(skill: Skill) -> Skill:
    """The skill without an empty slow-update region: it only keeps the place while training."""
    return _with(skill, SLOW_UPDATE, "") if _inner(skill, SLOW_UPDATE) is not None and not slow_update_text(skill) else skill


def appendix_notes(skill: Skill) -> tuple[str, ...]:
    """The notes in the appendix, in order. Lines that follow a bullet belong to it."""
    notes: list[str] = []
    for line in (_inner(skill, APPENDIX) or "").splitlines():
        if bullet := _BULLET.match(line):
            notes.append(line[bullet.end() :].strip())
        elif line[:1].isspace() and line.strip() and notes:
            notes[-1] += f" {line.strip()}"
    return tuple(note for note in notes if note)


def with_notes(skill: Skill, notes: Iterable[str] = ()) -> Skill:
    """Append notes the appendix does not hold yet. Without an appendix one is made, even for no notes."""
    held = _inner(skill, APPENDIX)
    new = _distinct(notes, appendix_notes(skill))
    if held is not None and not new:
        return skill
    return _with(skill, APPENDIX, fence(APPENDIX, _appendix(held or APPENDIX_HEADING, new)))


def with_consolidated_notes(skill: Skill, notes: Iterable[str]) -> Skill:
    """Put these notes in place of all that the appendix holds."""
    return _with(skill, APPENDIX, fence(APPENDIX, _appendix(APPENDIX_HEADING, _distinct(notes, ()))))


def _appendix(held: str, notes: list[str]) -> str:
    gap = "" if _BULLET.match(held[held.rfind("\n") + 1 :]) or not notes else "\n"
    return "\n".join([clean(held).rstrip() + gap, *(f"- {note}" for note in notes)])


def _distinct(notes: Iterable[str], held: Iterable[str]) -> list[str]:
    """Notes on one line each, without those that say the same but for case, spacing and trailing punctuation."""
    seen = {_key(note) for note in held}
    fresh = []
    for note in notes:
        line = " ".join(clean(note).split()).removeprefix("- ").removeprefix("* ")
        if line and _key(line) not in seen:
            seen.add(_key(line))
            fresh.append(line)
    return fresh


def _key(note: str) -> str:
    return " ".join(note.casefold().split()).rstrip(" .,;:!?…。！？")


def examples(skill: Skill) -> tuple[Example, ...]:
    """The worked examples a skill carries."""
    found = _EXAMPLE.finditer(_inner(skill, EXAMPLES) or "")
    return tuple(Example(match["input"], match["output"], unquote(match["id"])) for match in found)


def with_examples(skill: Skill, new: Iterable[Example]) -> Skill:
    """Put these examples in place of all the skill carries; none removes the section."""
    blocks = [_example(number, example) for number, example in enumerate(new, 1)]
    block = fence(EXAMPLES, "\n\n".join([EXAMPLES_HEADING, *blocks])) if blocks else ""
    return _with(skill, EXAMPLES, block)


def _example(number: int, example: Example) -> str:
    item = quote(example.item_id, safe="/ ", errors="replace")
    return f"### Example {number}\n<!-- item {item} -->\n\nInput:\n\n{_code(example.input)}\n\nOutput:\n\n{_code(example.output)}"


def _code(text: str) -> str:
    text = clean(text)
    ticks = code_fence(text)
    return f"{ticks}\n{text}\n{ticks}"


def code_fence(text: str) -> str:
    """Backticks around a block: more of them than the text has in a row."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    return "`" * max(3, longest + 1)
