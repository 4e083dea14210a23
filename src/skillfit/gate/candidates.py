"""Several candidates from one step's reflections: they were paid for already, and racing them is what finds gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skillfit.gate.verdict import Candidate
from skillfit.skill import Edit, Skill, apply_edits


def propose(
    incumbent: Skill,
    edits: Sequence[Edit],
    *,
    spare: Sequence[Edit] = (),
    sources: Sequence[Sequence[str]] = (),
    limit: int = 4,
    max_tokens: int | None = None,
) -> list[Candidate]:
    """The whole patch first, then patches of the same size from `spare` (edits ranked below the budget), then clusters of edits
    that share training items (`sources`, one entry per edit), then single edits. Distinct skills that differ from the incumbent;
    `limit` at the most. Bigger patches come first because small ones move the score too little to be seen."""
    found: dict[str, Candidate] = {}
    for label, group in _groups(edits, spare, sources):
        applied = apply_edits(incumbent, group, max_tokens)
        if len(found) < limit and applied.skill.hash != incumbent.hash and applied.skill.hash not in found:
            found[applied.skill.hash] = Candidate(applied.skill, applied.edits, label)
    return list(found.values())


def _groups(edits: Sequence[Edit], spare: Sequence[Edit], sources: Sequence[Sequence[str]]) -> Iterator[tuple[str, Sequence[Edit]]]:
    yield "whole patch", edits
    size = max(1, len(edits))
    for number, start in enumerate(range(0, len(spare), size), start=1):
        yield f"spare patch {number}", spare[start : start + size]
    clusters = cluster(edits, sources)
    if 1 < len(clusters) < len(edits):
        for number, members in enumerate(clusters, start=1):
            yield f"cluster {number}", [edits[index] for index in members]
    for number, edit in enumerate(edits, start=1):
        yield f"edit {number}", [edit]


def cluster(edits: Sequence[Edit], sources: Sequence[Sequence[str]]) -> list[list[int]]:
    """Indices of edits that belong together: linked by a shared training item, or by the same target text."""
    marks = [{*sources[i]} if i < len(sources) else set[str]() for i in range(len(edits))]
    marks = [mark | ({f"target: {edit.target}"} if edit.target else set()) for mark, edit in zip(marks, edits, strict=True)]
    clusters: list[list[int]] = []
    for index, mark in enumerate(marks):
        linked = [members for members in clusters if any(mark & marks[member] for member in members)]
        clusters = [members for members in clusters if members not in linked]
        clusters.append(sorted([index, *(member for members in linked for member in members)]))
    return sorted(clusters)
