"""Aggregate: the patches of a step become one. Failures are merged with failures and successes with
successes, then both meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Literal

from skillfit.optimize.optimizer import PATCH_REPLY, Call, Optimizer, PatchReply
from skillfit.optimize.patch import Patch, Proposal, union, without_duplicates
from skillfit.optimize.prompts import render, sections
from skillfit.rollout.outcome import gather
from skillfit.skill import Edit, Skill, estimate_tokens

_INSTEAD = "the union of the patches is used instead"

MergeSide = Literal["failure", "success", "final"]


async def aggregate(
    optimizer: Optimizer, skill: Skill, patches: Sequence[Patch], *, step: int, meta_skill: str = ""
) -> Patch:
    """One patch out of many. A merge that cannot be used becomes the union of its parts, and an
    event says so.
    """
    merge = _Merge(optimizer, skill, step, meta_skill)
    successes = [patch for patch in patches if patch.proposals and patch.source == "success"]
    failures = [patch for patch in patches if patch.proposals and patch.source != "success"]
    sides = await gather(
        merge.hierarchy(side, "failure" if side is failures else "success")
        for side in (failures, successes)
        if side
    )
    return await merge.hierarchy(sides, "final") if sides else Patch((), "failure")


class _Merge:
    def __init__(self, optimizer: Optimizer, skill: Skill, step: int, meta_skill: str) -> None:
        self._optimizer = optimizer
        self._mode = optimizer.settings.skill_update_mode
        self._step = step
        self._known = sections(current_skill=skill, optimizer_meta_skill=meta_skill)

    async def hierarchy(self, patches: Sequence[Patch], side: MergeSide) -> Patch:
        level = 0
        while len(patches) > 1:
            batches = self._batches(patches, side)
            if len(batches) == len(patches):
                reason = "two patches together do not fit the model's context window"
                self._optimizer.discard(
                    self._step, "merge", f"{side} level {level}", reason, _INSTEAD
                )
                return _union(patches, side)
            names = [f"{side} level {level} batch {number}" for number in range(len(batches))]
            merged = await gather(
                self._merged(batch, side, name) for batch, name in zip(batches, names, strict=True)
            )
            level += 1
            patches = [replace(patch, merge_level=level) for patch in merged]
        return patches[0]

    async def _merged(self, patches: Sequence[Patch], side: MergeSide, name: str) -> Patch:
        if len(patches) == 1:
            return patches[0]
        user = f"{self._known}\n\n{sections(proposals=_listed(patches))}"
        call = Call(
            "merge", self._step, name, self._system(side), user, self._optimizer.patch_tokens()
        )
        reply = await self._optimizer.try_ask(PATCH_REPLY[self._mode], call, otherwise=_INSTEAD)
        if reply is None:
            return _union(patches, side)
        proposals = _attributed(
            reply, [proposal for patch in patches for proposal in patch.proposals]
        )
        if not proposals:
            self._optimizer.discard(
                self._step,
                "merge",
                name,
                "the merged patch held nothing that can be used",
                _INSTEAD,
            )
            return _union(patches, side)
        return replace(_together(patches, side), proposals=proposals, reasoning=reply.reasoning)

    def _batches(self, patches: Sequence[Patch], side: MergeSide) -> list[list[Patch]]:
        """Patches in order, at most `merge_batch_size` together and never more than the context
        window takes.
        """
        room = self._optimizer.room(
            self._system(side), self._known, reply=self._optimizer.patch_tokens()
        )
        batches: list[list[Patch]] = [[]]
        for patch in patches:
            last = batches[-1]
            full = len(last) == self._optimizer.gradient.merge_batch_size
            if last and (full or estimate_tokens(_listed([*last, patch])) > room):
                batches.append([])
            batches[-1].append(patch)
        return batches

    def _system(self, side: MergeSide) -> str:
        return render("merge", side=side, mode=self._mode)


def _union(patches: Sequence[Patch], side: MergeSide) -> Patch:
    proposals = without_duplicates(proposal for patch in patches for proposal in patch.proposals)
    return replace(_together(patches, side), proposals=proposals)


def _together(patches: Sequence[Patch], side: MergeSide) -> Patch:
    return Patch(
        proposals=(),
        source="success" if side == "success" else "failure",
        items=union(*(patch.items for patch in patches)),
        reasoning="\n".join(patch.reasoning for patch in patches if patch.reasoning),
        failure_summary=tuple(note for patch in patches for note in patch.failure_summary),
        success_patterns=union(*(patch.success_patterns for patch in patches)),
        appendix_notes=union(*(patch.appendix_notes for patch in patches)),
    )


def _listed(patches: Sequence[Patch]) -> str:
    """The proposals under one numbering, so that a merged one can name what it was made from."""
    numbers = count()
    lines = []
    for patch in patches:
        lines.append(
            f"An analyst of {len(patch.items)} items: "
            f"{patch.reasoning.strip() or 'no reasoning given'}"
        )
        lines += [proposal.listed(next(numbers)) for proposal in patch.proposals]
    return "\n".join(lines)


def _attributed(reply: PatchReply, given: Sequence[Proposal]) -> tuple[Proposal, ...]:
    """The merged proposals, each supported by the distinct items behind the proposals it was made
    from.
    """
    merged = []
    for entry in reply.entries():
        payload = entry.payload()
        if payload is None:
            continue
        named = [given[index] for index in dict.fromkeys(entry.sources) if index < len(given)]
        behind = named or _look_alike(Proposal(payload, "failure"), given)
        source = behind[0].source if behind else given[0].source
        merged.append(Proposal(payload, source, union(*(proposal.items for proposal in behind))))
    return without_duplicates(merged)


def _look_alike(merged: Proposal, given: Sequence[Proposal]) -> list[Proposal]:
    """Where a merged proposal names no sources: equal ones, else those that change the same place,
    else unknown.
    """
    equal = [proposal for proposal in given if proposal.same_as() == merged.same_as()]
    if equal or not isinstance(merged.payload, Edit):
        return equal
    target = merged.payload.target
    return [
        proposal
        for proposal in given
        if target and isinstance(proposal.payload, Edit) and proposal.payload.target == target
    ]
