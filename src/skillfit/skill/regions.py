"""Protected regions: parts of a body that only their owner may change.

A region runs from a START marker to the END marker that balances it; everything between, other markers too, belongs to it. Files
people wrote may hold markers that do not pair up. They never raise: a lone marker is a region of its own (kind `orphan`), so it
stays where it is and opens nothing, and a PROTECTED_START without an END protects what follows up to the next marker. `lint`
reports both. Text that arrives from a model never keeps a marker (`clean`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SLOW_UPDATE, APPENDIX, EXAMPLES, PROTECTED, ORPHAN = "slow_update", "appendix", "examples", "protected", "orphan"
MARKER = re.compile(r"<!--\s*(SLOW_UPDATE|APPENDIX|EXAMPLES|PROTECTED)_(START|END)\s*-->", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Region:
    """Where a protected region stands in a body. `problem` says what is wrong with its markers, if anything."""

    kind: str
    start: int
    end: int
    text: str
    problem: str = ""

    @property
    def inner(self) -> str:
        """What stands between the outer markers."""
        return MARKER.sub("", self.text) if self.problem else self.text[self.text.index("-->") + 3 : self.text.rindex("<!--")]


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
            problem = f"{marker[0]} has no {'END' if edge == 'START' else 'START'} marker and is ignored"
            kind = ORPHAN
        regions.append(Region(kind, start, end, body[start:end], problem))
        index = (index if last is None else last) + 1
    return tuple(regions)


def _pairs(markers: list[re.Match[str]]) -> dict[int, int]:
    """Index of each START marker that is closed -> index of its END. Pairs never cross: a region can be taken out or replaced
    without a change to what the other markers mean."""
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
    """Incoming text as UTF-8 with Unix newlines and without markers, however they were put together."""
    text = text.encode("utf-8", "replace").decode().replace("\r\n", "\n").replace("\r", "\n")
    while MARKER.search(text):
        text = MARKER.sub("", text)
    return text


def fence(kind: str, inner: str) -> str:
    """A whole region around text that holds no markers."""
    name, inner = kind.upper(), inner.strip("\n")
    return "\n".join(line for line in (f"<!-- {name}_START -->", inner, f"<!-- {name}_END -->") if line)


def replace_regions(body: str, kind: str, block: str) -> str:
    """The body with one region of this kind, `block`, where the first one stood, or else at the end (before the slow update,
    which always comes last). An empty block removes the region."""
    old = [region for region in scan(body) if region.kind == kind]
    moves = block and (not old or (kind == SLOW_UPDATE and body[old[0].end :].strip()))
    new = _placed(_without(body, old), block) if moves else _without(body, old, block)
    if _others(new, kind) == _others(body, kind):
        return new
    # The text around a removed region would join into a marker or an unclosed region: an empty region keeps it apart.
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
    at = last[0].start if last and last[0].kind == SLOW_UPDATE and not body[last[0].end :].strip() else len(body)
    parts = (body[:at].rstrip("\n"), block, body[at:].strip("\n"))
    return "\n\n".join(part for part in parts if part) + "\n"
