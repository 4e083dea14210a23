"""Protected regions: parts of a body that only their owner may change.

A region runs from a START marker to the END marker that balances it; everything between, other
markers too, belongs to it. Files people wrote may hold markers that do not pair up. They never
raise: a lone marker is a region of its own (kind `orphan`), so it stays where it is and opens
nothing, and a PROTECTED_START without an END protects what follows up to the next marker. `lint`
reports both. Text that arrives from a model never keeps a marker (`clean`).

Full rewrites: a new body from a model, with the old one's protected regions.

The machine-written regions: slow update, appendix of execution notes, worked examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from skillfit.skill.document import Skill

SLOW_UPDATE, APPENDIX, EXAMPLES, PROTECTED, ORPHAN = (
    "slow_update",
    "appendix",
    "examples",
    "protected",
    "orphan",
)
MARKER = re.compile(
    r"<!--\s*(SLOW_UPDATE|APPENDIX|EXAMPLES|PROTECTED)_(START|END)\s*-->", re.IGNORECASE | re.ASCII
)


@dataclass(frozen=True, slots=True)
class Region:
    """Where a protected region stands in a body. `problem` says what is wrong with its markers, if
    anything.
    """

    kind: str
    start: int
    end: int
    text: str
    problem: str = ""

    @property
    def inner(self) -> str:
        """What stands between the outer markers."""
        return (
            MARKER.sub("", self.text)
            if self.problem
            else self.text[self.text.index("-->") + 3 : self.text.rindex("<!--")]
        )


def scan(body: str) -> tuple[Region, ...]:
    """The outermost regions of a body, in order."""
    markers = list(MARKER.finditer(body))
    pairs = _pairs(markers)
    regions: list[Region] = []
    index = 0
    while index < len(markers):
        marker, last = markers[index], pairs.get(index)
        kind, edge = marker[1].lower(), marker[2].upper()
        start, end, problem = marker.start(), marker.end(), ""
        if last is not None:
            end = markers[last].end()
            problem = f"markers nested inside {marker[0]}" if last > index + 1 else ""
        elif edge == "START" and kind == PROTECTED:
            following = markers[index + 1].start() if index + 1 < len(markers) else len(body)
            end = max(end, len(body[:following].rstrip()))
            problem = f"{marker[0]} is never closed; everything up to the next marker is protected"
        else:
            problem = (
                f"{marker[0]} has no {'END' if edge == 'START' else 'START'} marker and is ignored"
            )
            kind = ORPHAN
        regions.append(Region(kind, start, end, body[start:end], problem))
        index = (index if last is None else last) + 1
    return tuple(regions)


def _pairs(markers: list[re.Match[str]]) -> dict[int, int]:
    """Index of each START marker that is closed -> index of its END. Pairs never cross: a region
    can be taken out or replaced without a change to what the other markers mean.
    """
    opened: list[tuple[str, int]] = []
    pairs = {}
    for index, marker in enumerate(markers):
        kind = marker[1].lower()
        if marker[2].upper() == "START":
            opened.append((kind, index))
        elif any(kind == start for start, _ in opened):
            while opened[-1][0] != kind:
                opened.pop()
            pairs[opened.pop()[1]] = index
    return pairs


def protected(body: str) -> list[tuple[str, str]]:
    """Kind and text of every region: equal before and after anything a model may do."""
    return [(region.kind, region.text) for region in scan(body)]


def clean(text: str) -> str:
    """Incoming text as UTF-8 with Unix newlines and without markers, however they were put
    together.
    """
    text = text.encode("utf-8", "replace").decode().replace("\r\n", "\n").replace("\r", "\n")
    while MARKER.search(text):
        text = MARKER.sub("", text)
    return text


def fence(kind: str, inner: str) -> str:
    """A whole region around text that holds no markers."""
    name, inner = kind.upper(), inner.strip("\n")
    return "\n".join(
        line for line in (f"<!-- {name}_START -->", inner, f"<!-- {name}_END -->") if line
    )


def replace_regions(body: str, kind: str, block: str) -> str:
    """The body with one region of this kind, `block`, where the first one stood, or else at the end
    (before the slow update, which always comes last). An empty block removes the region.
    """
    old = [region for region in scan(body) if region.kind == kind]
    moves = block and (not old or (kind == SLOW_UPDATE and body[old[0].end :].strip()))
    new = _placed(_without(body, old), block) if moves else _without(body, old, block)
    if _others(new, kind) == _others(body, kind):
        return new
    # The text around a removed region would join into a marker or an unclosed region: an empty
    # region keeps it apart.
    return _without(body, old, block or fence(kind, ""), fence(kind, ""))


def _others(body: str, kind: str) -> list[tuple[str, str]]:
    return [entry for entry in protected(body) if entry[0] != kind]


def _without(body: str, regions: list[Region], first: str = "", rest: str = "") -> str:
    """The body with the first of these regions replaced by one text and the others by another."""
    for number, region in reversed(list(enumerate(regions))):
        text = rest if number else first
        before, after = body[: region.start], body[region.end :]
        if not text:
            before, after = before.rstrip("\n"), after.lstrip("\n")
            text = "\n\n" if before and after else "\n" if before else ""
        body = before + text + after
    return body


def _placed(body: str, block: str) -> str:
    last = scan(body)[-1:]
    at = (
        last[0].start
        if last and last[0].kind == SLOW_UPDATE and not body[last[0].end :].strip()
        else len(body)
    )
    parts = (body[:at].rstrip("\n"), block, body[at:].strip("\n"))
    return "\n\n".join(part for part in parts if part) + "\n"


def rewrite(skill: Skill, new_body: str) -> Skill:
    """The skill with a new body. Its own frontmatter stays, and so does every protected region, in
    the same order: where the new text has a region of that kind, in its place; dropped ones come
    back at the end. Other markers in the new text lose their meaning. An empty rewrite changes
    nothing.
    """
    incoming = Skill.from_text(new_body).body.replace("\r\n", "\n").replace("\r", "\n")
    if not incoming.strip():
        return skill
    old = scan(skill.unix_body)
    body = _woven(incoming, old)
    if protected(body) != protected(skill.unix_body):
        # Free text would join a region or make a marker where it stands, so all regions go to the
        # end.
        free = "".join(text for text, region in _segments(incoming) if region is None)
        body = "\n\n".join(
            part
            for part in (clean(free).strip("\n"), *(region.text for region in old))
            if part.strip()
        )
    return skill.with_body(body + "\n")


def _segments(text: str) -> Iterator[tuple[str, Region | None]]:
    """Free text and regions in turn."""
    at = 0
    for region in scan(text):
        yield text[at : region.start], None
        yield region.text, region
        at = region.end
    yield text[at:], None


def _woven(incoming: str, old: Sequence[Region]) -> str:
    """Incoming free text with the old regions in place of the incoming ones."""
    parts, done = [], 0
    inners = {" ".join(region.inner.split()) for region in old}
    for text, region in _segments(incoming):
        if region is None:
            parts.append(clean(text))
            continue
        match = _match(region, old, done)
        if match is not None:
            parts.append("\n\n".join(kept.text for kept in old[done : match + 1]))
            done = match + 1
        elif " ".join(region.inner.split()) not in inners:
            parts.append(clean(region.inner))
    return "\n\n".join(["".join(parts).strip("\n"), *(kept.text for kept in old[done:])])


def _match(region: Region, old: Sequence[Region], done: int) -> int | None:
    """Which of the old regions not yet placed this one stands for: the same text, else the next of
    its kind.
    """
    same = [index for index in range(done, len(old)) if old[index].text == region.text]
    kind = [index for index in range(done, len(old)) if old[index].kind == region.kind != ORPHAN]
    return next(iter(same or kind), None)


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
    """Replace the slow-update region whole; it stands at the end. Without a text, only make sure
    that the region is there.
    """
    if text is None:
        return (
            skill
            if _inner(skill, SLOW_UPDATE) is not None
            else _with(skill, SLOW_UPDATE, fence(SLOW_UPDATE, ""))
        )
    return _with(skill, SLOW_UPDATE, fence(SLOW_UPDATE, clean(text).strip()))


def without_slow_update(skill: Skill) -> Skill:
    """The skill without its slow-update region."""
    return _with(skill, SLOW_UPDATE, "") if _inner(skill, SLOW_UPDATE) is not None else skill


def without_placeholder(skill: Skill) -> Skill:
    """The skill without an empty slow-update region, which training adds to reserve the place."""
    return skill if slow_update_text(skill) else without_slow_update(skill)


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
    """Append notes the appendix does not hold yet. Without an appendix one is made, even for no
    notes.
    """
    held = _inner(skill, APPENDIX)
    new = _distinct(notes, appendix_notes(skill))
    if held is not None and not new:
        return skill
    return _with(skill, APPENDIX, fence(APPENDIX, _appendix(held or APPENDIX_HEADING, new)))


def with_consolidated_notes(skill: Skill, notes: Iterable[str]) -> Skill:
    """Put these notes in place of all that the appendix holds."""
    return _with(
        skill, APPENDIX, fence(APPENDIX, _appendix(APPENDIX_HEADING, _distinct(notes, ())))
    )


def _appendix(held: str, notes: list[str]) -> str:
    gap = "" if _BULLET.match(held[held.rfind("\n") + 1 :]) or not notes else "\n"
    return "\n".join([clean(held).rstrip() + gap, *(f"- {note}" for note in notes)])


def _distinct(notes: Iterable[str], held: Iterable[str]) -> list[str]:
    """Notes on one line each, without those that say the same but for case, spacing and trailing
    punctuation.
    """
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
