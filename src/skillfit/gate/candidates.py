"""Several candidates from one step's reflections: they were paid for already, and racing them is
what finds gains.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

from skillfit.gate.verdict import Candidate
from skillfit.skill import Edit, Skill, apply_edits

Finest = Literal["patch", "cluster", "edit"]


def propose(
    incumbent: Skill,
    edits: Sequence[Edit],
    *,
    spare: Sequence[Edit] = (),
    sources: Sequence[Sequence[str]] = (),
    limit: int = 4,
    finest: Finest = "patch",
    max_tokens: int | None = None,
) -> list[Candidate]:
    """The whole patch; wide patches, which are two patches long, from it and `spare` (edits of the
    same reflections that the edit budget left out, best first); and, as far as `finest` says,
    clusters of half a patch and single edits. `sources` names the training items behind each edit,
    the spare ones after the others. Distinct skills that differ from the incumbent, `limit` at the
    most.

    Parts of the patch are not raced unless asked for: they move the score too little to be told
    apart at the split sizes people have (`bench/gate` measures it). Credit sorts out a patch's
    edits at the end.
    """
    found: dict[str, Candidate] = {}
    for label, group in _groups(list(edits), spare, sources, finest):
        applied = apply_edits(incumbent, group, max_tokens)
        if (
            len(found) < limit
            and applied.skill.hash != incumbent.hash
            and applied.skill.hash not in found
        ):
            found[applied.skill.hash] = Candidate(applied.skill, applied.edits, label)
    return list(found.values())


def _groups(
    edits: list[Edit], spare: Sequence[Edit], sources: Sequence[Sequence[str]], finest: Finest
) -> Iterator[tuple[str, list[Edit]]]:
    yield "whole patch", edits
    patches = [edits, *clusters(spare, sources[len(edits) :], max(1, len(edits)))]
    for at in range(0, len(patches), 2):
        yield (
            f"wide patch {at // 2 + 1}",
            [edit for patch in patches[at : at + 2] for edit in patch],
        )
    if finest != "patch":
        for number, cluster in enumerate(
            clusters(edits, sources[: len(edits)], (len(edits) + 1) // 2), start=1
        ):
            yield f"cluster {number}", cluster
    if finest == "edit":
        for number, edit in enumerate(edits, start=1):
            yield f"edit {number}", [edit]


def clusters(
    edits: Sequence[Edit], sources: Sequence[Sequence[str]], size: int
) -> list[list[Edit]]:
    """Groups of at most `size` edits: an edit opens a group, those linked to it join, then the next
    in line.
    """
    named = itertools.zip_longest(edits, sources, fillvalue=())
    waiting = [
        (edit, {*items, edit.target or edit.content})
        for edit, items in named
        if isinstance(edit, Edit)
    ]
    groups = []
    while waiting:
        group = [waiting.pop(0)]
        while waiting and len(group) < size:
            marks = set[str]().union(*(mark for _, mark in group))
            group.append(
                waiting.pop(next((at for at, (_, mark) in enumerate(waiting) if marks & mark), 0))
            )
        groups.append([edit for edit, _ in group])
    return groups
