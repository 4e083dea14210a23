"""Protected regions: parts of a body that only their owner may change.

A region runs from a START marker to the END marker that closes it. Everything between them belongs
to the region, including other markers. There are four kinds: `protected` belongs to the user. The
slow update, the appendix of notes and the worked examples belong to skillfit, which writes them.

Files that people wrote may contain markers that do not pair up. These never raise:

- A lone marker is a separate region (kind `orphan`). It stays where it is and opens nothing.
- A PROTECTED_START without an END protects the text up to the next marker.
- A PROTECTED marker with a small mistake (`<!-- protected start -->`, a no-break space, a dash that
  a word processor changed) counts as the marker it resembles.

`lint` reports all three. Text that comes from a model never keeps a marker (`clean`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from skillfit.skill.document import Skill

SLOW_UPDATE = "slow_update"
APPENDIX = "appendix"
EXAMPLES = "examples"
PROTECTED = "protected"
ORPHAN = "orphan"

_EXACT = (
    r"<!--(?a:\s*)(?P<kind>SLOW_UPDATE|APPENDIX|EXAMPLES|PROTECTED)_(?P<edge>START|END)(?a:\s*)-->"
)


def _inexact_protected_marker() -> str:
    """Return a pattern for PROTECTED markers with small mistakes: other spaces, separators or
    dashes, and invisible characters anywhere, on one line.

    Only the user's markers are read so generously: a comment such as `<!-- examples end -->` is
    ordinary text.
    """
    invisible = "\u00ad\u200b-\u200f\u2060-\u2064\ufeff"
    blank = f"\t\x0b\x0c \x85\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000{invisible}"
    dash = "\\-\u2010-\u2015\u2212\ufe63\uff0d"

    def word(letters: str) -> str:
        return f"[{invisible}]*".join(letters)

    edges = "|".join(word(edge) for edge in ("START", "BEGIN", "END"))
    return (
        rf"<[{blank}]*![{blank}]*[{dash}]+[{blank}]*{word('PROTECTED')}[{blank}{dash}_.:\\]*"
        rf"(?P<near_edge>{edges})[{blank}]*[{dash}]+[{blank}]*>"
    )


DECEPTIVE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
MARKER = re.compile(f"{_EXACT}|{_inexact_protected_marker()}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Marker:
    """One marker in a body."""

    kind: str
    opens: bool
    start: int
    end: int
    text: str
    exact: bool

    @property
    def corrected(self) -> str:
        """How the marker should be written."""
        return f"<!-- {self.kind.upper()}_{'START' if self.opens else 'END'} -->"


@dataclass(frozen=True, slots=True)
class Region:
    """A protected region of a body. `problem` says what is wrong with its markers, if anything."""

    kind: str
    start: int
    end: int
    text: str
    problem: str = ""

    @property
    def inner(self) -> str:
        """The text between the outer markers."""
        if self.problem:
            return MARKER.sub("", self.text)
        return self.text[self.text.index("-->") + 3 : self.text.rindex("<!--")]


@dataclass(frozen=True, slots=True)
class RegionText:
    """The text of a region, wherever it is in the body."""

    kind: str
    text: str


def scan(body: str) -> tuple[Region, ...]:
    """Return the outermost regions of a body, in order."""
    markers = [_read_marker(match) for match in MARKER.finditer(body)]
    closed_by = _pairs(markers)
    regions: list[Region] = []
    index = 0
    while index < len(markers):
        last = closed_by.get(index, index)
        regions.append(_region(body, markers, index, last))
        index = last + 1
    return tuple(regions)


def _read_marker(match: re.Match[str]) -> _Marker:
    exact = match["kind"] is not None
    edge = match["edge"] if exact else match["near_edge"]
    return _Marker(
        kind=match["kind"].lower() if exact else PROTECTED,
        opens=re.sub(r"\W", "", edge).upper() != "END",
        start=match.start(),
        end=match.end(),
        text=match[0],
        exact=exact,
    )


def _region(body: str, markers: Sequence[_Marker], first: int, last: int) -> Region:
    """Return the region from one marker to the marker that closes it, which is the same one when no
    other marker does.
    """
    opening = markers[first]
    kind, end, problem = opening.kind, markers[last].end, ""
    if last > first + 1:
        problem = f"markers nested inside {opening.text}"
    elif last == first and opening.opens and kind == PROTECTED:
        following = markers[first + 1].start if first + 1 < len(markers) else len(body)
        end = max(end, len(body[:following].rstrip()))
        problem = f"{opening.text} is never closed; everything up to the next marker is protected"
    elif last == first:
        problem = (
            f"{opening.text} has no {'END' if opening.opens else 'START'} marker and is ignored"
        )
        kind = ORPHAN
    inexact = [marker for marker in (opening, markers[last]) if not marker.exact]
    if inexact:
        marker = inexact[0]
        mistake = f"{marker.text!r} is treated as {marker.corrected}; correct the marker"
        problem = f"{mistake}; {problem}" if problem else mistake
    return Region(kind, opening.start, end, body[opening.start : end], problem)


def _pairs(markers: Sequence[_Marker]) -> dict[int, int]:
    """Map the index of each START marker that is closed to the index of its END marker.

    Pairs never cross, so a region can be removed or replaced without changing what the other
    markers mean.
    """
    opened: list[tuple[str, int]] = []
    pairs = {}
    for index, marker in enumerate(markers):
        if marker.opens:
            opened.append((marker.kind, index))
        elif any(marker.kind == kind for kind, _ in opened):
            while opened[-1][0] != marker.kind:
                opened.pop()
            pairs[opened.pop()[1]] = index
    return pairs


def protected(body: str) -> list[RegionText]:
    """Return what every region of a body says. No edit or rewrite may change this list."""
    return texts_of(scan(body))


def texts_of(regions: Sequence[Region]) -> list[RegionText]:
    return [RegionText(region.kind, region.text) for region in regions]


def clean(text: str) -> str:
    """Return text from a model as valid UTF-8 with Unix newlines and without markers. Control
    characters and direction overrides are removed: in a terminal or editor they can hide what the
    text says.

    Removing a marker can join the text around it into another marker, so this repeats until no
    marker is left.
    """
    text = text.encode("utf-8", "replace").decode().replace("\r\n", "\n").replace("\r", "\n")
    text = DECEPTIVE.sub("", text)
    while MARKER.search(text):
        text = MARKER.sub("", text)
    return text


def fence(kind: str, inner: str) -> str:
    """Return a whole region around text that contains no markers."""
    name, inner = kind.upper(), inner.strip("\n")
    lines = [f"<!-- {name}_START -->", inner, f"<!-- {name}_END -->"]
    return "\n".join(line for line in lines if line)


def region_text(skill: Skill, kind: str) -> str | None:
    """Return the text inside the regions of a kind; None when the skill has no such region."""
    texts = [region.inner.strip("\n") for region in scan(skill.unix_body) if region.kind == kind]
    return "\n\n".join(texts) if texts else None


def with_region(skill: Skill, kind: str, block: str) -> Skill:
    """Return the skill with `block` as its only region of this kind. An empty block removes the
    region.

    The block takes the place of the first region of the kind. Without one it goes to the end, but
    before the slow update, which always comes last.
    """
    return skill.with_body(_replace_regions(skill.unix_body, kind, block))


def _replace_regions(body: str, kind: str, block: str) -> str:
    old = [region for region in scan(body) if region.kind == kind]
    text_follows = bool(old and body[old[0].end :].strip())
    if block and (not old or (kind == SLOW_UPDATE and text_follows)):
        new = _placed_at_end(_with_replaced(body, old), block)
    else:
        new = _with_replaced(body, old, block)
    if _others(new, kind) == _others(body, kind):
        return new
    # Without the region, the text around it would join into a marker or an unclosed region. An
    # empty region keeps the two parts separate.
    return _with_replaced(body, old, block or fence(kind, ""), fence(kind, ""))


def _others(body: str, kind: str) -> list[RegionText]:
    return [region for region in protected(body) if region.kind != kind]


def _with_replaced(body: str, regions: Sequence[Region], first: str = "", rest: str = "") -> str:
    """Return the body with the first of these regions replaced by `first` and the others by
    `rest`.
    """
    for number, region in reversed(list(enumerate(regions))):
        text = rest if number else first
        before, after = body[: region.start], body[region.end :]
        if not text:
            before, after = before.rstrip("\n"), after.lstrip("\n")
            if before:
                text = "\n\n" if after else "\n"
        body = before + text + after
    return body


def _placed_at_end(body: str, block: str) -> str:
    place = len(body)
    for last in scan(body)[-1:]:
        if last.kind == SLOW_UPDATE and not body[last.end :].strip():
            place = last.start
    parts = (body[:place].rstrip("\n"), block, body[place:].strip("\n"))
    return "\n\n".join(part for part in parts if part) + "\n"


def rewrite(skill: Skill, new_body: str) -> Skill:
    """Return the skill with a new body from a model.

    The frontmatter stays, and so does every protected region, in the same order. Where the new text
    has a region of that kind, the old region takes its place; regions that the new text lacks come
    back at the end. Other markers in the new text are removed. An empty rewrite changes nothing.
    """
    incoming = Skill.from_text(new_body).body.replace("\r\n", "\n").replace("\r", "\n")
    if not incoming.strip():
        return skill
    old = scan(skill.unix_body)
    body = _with_old_regions(incoming, old)
    if protected(body) != protected(skill.unix_body):
        # In these places free text would join a region or form a marker, so all regions go to the
        # end.
        free = "".join(text for text, region in _segments(incoming) if region is None)
        parts = [clean(free).strip("\n"), *(region.text for region in old)]
        body = "\n\n".join(part for part in parts if part.strip())
    return skill.with_body(body + "\n")


def with_trained_body(present: Skill, trained: Skill, *, same_skill: bool) -> Skill:
    """Return the present skill with the body of a trained one: its text and all of its regions.

    Protected regions that only the present skill has are kept. If it is the same skill, changed
    since, they take the place of the protected regions that it no longer has; the others go to the
    end. The frontmatter stays. An empty trained body changes nothing.
    """
    body = trained.unix_body
    if not body.strip():
        return present
    theirs, ours = (
        [region for region in scan(text) if region.kind == PROTECTED]
        for text in (body, present.unix_body)
    )
    new = [mine.text for mine in ours if mine.text not in {region.text for region in theirs}]
    gone = [region for region in theirs if region.text not in {mine.text for mine in ours}]
    pairs = list(zip(gone, new, strict=False)) if same_skill else []
    merged = body
    for region, text in reversed(pairs):
        merged = merged[: region.start] + text + merged[region.end :]
    kept = [region.text for region in theirs if region not in gone[: len(pairs)]]
    if not {*kept, *new[: len(pairs)]} <= {region.text for region in scan(merged)}:
        merged, pairs = body, []  # an unclosed region would include the text that follows it
    for text in new[len(pairs) :]:
        merged = _placed_at_end(merged, text)
    return present.with_body(merged)


def _segments(text: str) -> Iterator[tuple[str, Region | None]]:
    """Yield free text and regions in turn."""
    position = 0
    for region in scan(text):
        yield text[position : region.start], None
        yield region.text, region
        position = region.end
    yield text[position:], None


def _with_old_regions(incoming: str, old: Sequence[Region]) -> str:
    """Return the incoming text with the old regions in place of the incoming ones."""
    parts: list[str] = []
    placed = 0  # how many of the old regions are in `parts`
    old_texts = {" ".join(region.inner.split()) for region in old}
    for text, region in _segments(incoming):
        if region is None:
            parts.append(clean(text))
            continue
        match = _matching(region, old, placed)
        if match is not None:
            parts.append("\n\n".join(kept.text for kept in old[placed : match + 1]))
            placed = match + 1
        elif " ".join(region.inner.split()) not in old_texts:
            parts.append(clean(region.inner))
    return "\n\n".join(["".join(parts).strip("\n"), *(kept.text for kept in old[placed:])])


def _matching(region: Region, old: Sequence[Region], placed: int) -> int | None:
    """Return which old region an incoming one stands for: one with the same text, else the next of
    its kind. Regions before index `placed` are used already.
    """
    candidates = range(placed, len(old))
    for index in candidates:
        if old[index].text == region.text:
            return index
    for index in candidates:
        if old[index].kind == region.kind != ORPHAN:
            return index
    return None


# The regions that skillfit writes itself. The agent reads them; edits cannot change them.

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
    """Return the guidance in the slow-update region; empty when there is none."""
    return (region_text(skill, SLOW_UPDATE) or "").strip()


def with_slow_update(skill: Skill, text: str | None = None) -> Skill:
    """Return the skill with this text in its slow-update region, which is at the end of the body.

    Without a text, add an empty region if the skill has none.
    """
    if text is not None:
        return with_region(skill, SLOW_UPDATE, fence(SLOW_UPDATE, clean(text).strip()))
    if region_text(skill, SLOW_UPDATE) is not None:
        return skill
    return with_region(skill, SLOW_UPDATE, fence(SLOW_UPDATE, ""))


def without_slow_update(skill: Skill) -> Skill:
    """Return the skill without its slow-update region."""
    if region_text(skill, SLOW_UPDATE) is None:
        return skill
    return with_region(skill, SLOW_UPDATE, "")


def without_placeholder(skill: Skill) -> Skill:
    """Return the skill without an empty slow-update region, which training adds to reserve the
    place.
    """
    return skill if slow_update_text(skill) else without_slow_update(skill)


def appendix_notes(skill: Skill) -> tuple[str, ...]:
    """Return the notes in the appendix, in order. Indented lines after a bullet belong to it."""
    notes: list[str] = []
    for line in (region_text(skill, APPENDIX) or "").splitlines():
        if bullet := _BULLET.match(line):
            notes.append(line[bullet.end() :].strip())
        elif line[:1].isspace() and line.strip() and notes:
            notes[-1] += f" {line.strip()}"
    return tuple(note for note in notes if note)


def with_notes(skill: Skill, notes: Iterable[str] = ()) -> Skill:
    """Return the skill with these notes added to its appendix, except those it already has.

    A skill without an appendix gets one, even when there are no notes.
    """
    present = region_text(skill, APPENDIX)
    new = _new_notes(notes, appendix_notes(skill))
    if present is not None and not new:
        return skill
    text = _appendix(present or APPENDIX_HEADING, new)
    return with_region(skill, APPENDIX, fence(APPENDIX, text))


def with_consolidated_notes(skill: Skill, notes: Iterable[str]) -> Skill:
    """Return the skill with these notes in place of all that its appendix holds."""
    text = _appendix(APPENDIX_HEADING, _new_notes(notes, ()))
    return with_region(skill, APPENDIX, fence(APPENDIX, text))


def _appendix(present: str, notes: Sequence[str]) -> str:
    last_line = present[present.rfind("\n") + 1 :]
    gap = "" if _BULLET.match(last_line) or not notes else "\n"
    return "\n".join([clean(present).rstrip() + gap, *(f"- {note}" for note in notes)])


def _new_notes(notes: Iterable[str], present: Iterable[str]) -> list[str]:
    """Return the notes as one line each, without those that are present already. Notes that differ
    only in case, spacing or final punctuation count as the same.
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
    """Return the worked examples in the skill."""
    found = _EXAMPLE.finditer(region_text(skill, EXAMPLES) or "")
    return tuple(Example(match["input"], match["output"], unquote(match["id"])) for match in found)


def with_examples(skill: Skill, new: Iterable[Example]) -> Skill:
    """Return the skill with these examples in place of all it has. Without any, the section is
    removed.
    """
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
    """Return backticks that can enclose the text: more in a row than the text contains."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    return "`" * max(3, longest + 1)
