"""Full rewrites: a new body from a model, with the old one's protected regions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skillfit.skill.document import Skill
from skillfit.skill.regions import ORPHAN, Region, clean, protected, scan


def rewrite(skill: Skill, new_body: str) -> Skill:
    """The skill with a new body. Its own frontmatter stays, and so does every protected region, in the same order: where the new
    text has a region of that kind, in its place; dropped ones come back at the end. Other markers in the new text lose their
    meaning. An empty rewrite changes nothing."""
    incoming = Skill.from_text(new_body).body.replace("\r\n", "\n").replace("\r", "\n")
    if not incoming.strip():
        return skill
    old = scan(skill.unix_body)
    body = _woven(incoming, old)
    if protected(body) != protected(skill.unix_body):
        # Free text would join a region or make a marker where it stands, so all regions go to the end.
        free = "".join(text for text, region in _segments(incoming) if region is None)
        body = "\n\n".join(part for part in (clean(free).strip("\n"), *(region.text for region in old)) if part.strip())
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
    """Which of the old regions not yet placed this one stands for: the same text, else the next of its kind."""
    same = [index for index in range(done, len(old)) if old[index].text == region.text]
    kind = [index for index in range(done, len(old)) if old[index].kind == region.kind != ORPHAN]
    return next(iter(same or kind), None)
