"""Several candidates from one step's reflections: they were paid for already, and racing them is what finds gains."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

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
    """The whole patch, and patches of at most its size from `spare`: edits of the same reflections that the edit budget left out,
    best first. Spare edits that share a training item or a target stay together; `sources` names the items, one entry per edit, the
    spare ones after the others. Distinct skills that differ from the incumbent, `limit` at the most.

    Parts of the whole patch are not raced: they move the score too little to be seen at these split sizes, and their rollouts are
    better spent on other edits. Credit sorts out a patch's edits at the end."""
    found: dict[str, Candidate] = {}
    for number, group in enumerate([list(edits), *clusters(spare, sources[len(edits) :], max(1, len(edits)))]):
        applied = apply_edits(incumbent, group, max_tokens)
        if len(found) < limit and applied.skill.hash != incumbent.hash and applied.skill.hash not in found:
            label = f"spare patch {number}" if number else "whole patch"
            found[applied.skill.hash] = Candidate(applied.skill, applied.edits, label)
    return list(found.values())


def clusters(edits: Sequence[Edit], sources: Sequence[Sequence[str]], size: int) -> list[list[Edit]]:
    """Groups of at most `size` edits: an edit opens a group, those linked to it join, then the next in line."""
    named = itertools.zip_longest(edits, sources, fillvalue=())
    waiting = [(edit, {*items, edit.target or edit.content}) for edit, items in named if isinstance(edit, Edit)]
    groups = []
    while waiting:
        group = [waiting.pop(0)]
        while waiting and len(group) < size:
            marks = set[str]().union(*(mark for _, mark in group))
            group.append(waiting.pop(next((at for at, (_, mark) in enumerate(waiting) if marks & mark), 0)))
        groups.append([edit for edit, _ in group])
    return groups
