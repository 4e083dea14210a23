"""Patches: what analysts propose, why, and from which items. One shape for all update modes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from skillfit.config.schema import UpdateMode
from skillfit.run.records import PAYLOAD_FIELD, FailureNote, PatchRecord, ProposalRecord
from skillfit.skill import Edit

__all__ = [
    "PAYLOAD_FIELD",
    "FailureNote",
    "Patch",
    "Payload",
    "Proposal",
    "SkillCandidate",
    "Source",
    "Suggestion",
    "UpdateMode",
    "edits_of",
    "payload_dict",
    "union",
    "without_duplicates",
]

Source = Literal["failure", "success", "contrast", "diagnosis", "examples"]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An instruction to the model that rewrites the skill."""

    type: str
    title: str
    motivation: str
    instruction: str
    priority_hint: str = ""


@dataclass(frozen=True, slots=True)
class SkillCandidate:
    """A whole new skill body."""

    title: str
    change_summary: tuple[str, ...]
    new_skill: str


Payload = Edit | Suggestion | SkillCandidate


@dataclass(frozen=True, slots=True)
class Proposal:
    """One edit (or suggestion, or candidate) and the training items that support it."""

    payload: Payload
    source: Source
    items: tuple[str, ...] = ()

    @property
    def support(self) -> int:
        return len(self.items)

    @property
    def edit(self) -> Edit | None:
        """The edit with its evidence written on it; None for suggestions and candidates."""
        if not isinstance(self.payload, Edit):
            return None
        return replace(self.payload, support_count=self.support, source_type=self.source)

    def record(self) -> ProposalRecord:
        """As events and the files of a run hold it."""
        payload = self.payload
        return ProposalRecord(
            source=self.source,
            items=self.items,
            edit=self.edit,
            suggestion=asdict(payload) if isinstance(payload, Suggestion) else None,
            candidate=asdict(payload) if isinstance(payload, SkillCandidate) else None,
        )

    def listed(self, number: int) -> str:
        """The line a model reads, and names by its number."""
        shown = json.dumps(payload_dict(self.payload), ensure_ascii=False)
        return f"[{number}] {self.source}, {self.support} items: {shown}"

    def same_as(self) -> str:
        """Equal for proposals that would do the same thing; case and spacing aside."""
        return " ".join(
            json.dumps(payload_dict(self.payload), sort_keys=True, ensure_ascii=False)
            .casefold()
            .split()
        )


@dataclass(frozen=True, slots=True)
class Patch:
    """Proposals of one reflection group, or of a merge of several."""

    proposals: tuple[Proposal, ...]
    source: Source
    items: tuple[str, ...] = ()
    reasoning: str = ""
    failure_summary: tuple[FailureNote, ...] = ()
    success_patterns: tuple[str, ...] = ()
    appendix_notes: tuple[str, ...] = ()
    merge_level: int = 0

    @property
    def support_counts(self) -> list[int]:
        return [proposal.support for proposal in self.proposals]

    def record(self) -> PatchRecord:
        """As events and the files of a run hold it."""
        return PatchRecord(
            proposals=tuple(proposal.record() for proposal in self.proposals),
            source=self.source,
            items=self.items,
            reasoning=self.reasoning,
            failure_summary=self.failure_summary,
            success_patterns=self.success_patterns,
            appendix_notes=self.appendix_notes,
            merge_level=self.merge_level,
        )


def payload_dict(payload: Payload) -> dict[str, Any]:
    """What a model is shown of a proposal, and what it would send back."""
    if isinstance(payload, Edit):
        return {"op": payload.op, "target": payload.target, "content": payload.content}
    return asdict(payload)


def edits_of(proposals: Iterable[Proposal]) -> list[Edit]:
    """The edits among some proposals, in order."""
    return [edit for proposal in proposals if (edit := proposal.edit) is not None]


def without_duplicates(proposals: Iterable[Proposal]) -> tuple[Proposal, ...]:
    """Equal proposals become one that carries all their items; the first one's place and source
    stay.
    """
    kept: dict[str, Proposal] = {}
    for proposal in proposals:
        key = proposal.same_as()
        first = kept.get(key)
        kept[key] = (
            proposal
            if first is None
            else Proposal(first.payload, first.source, union(first.items, proposal.items))
        )
    return tuple(kept.values())


def union(*groups: Iterable[str]) -> tuple[str, ...]:
    """Distinct values in first-seen order."""
    return tuple(dict.fromkeys(value for group in groups for value in group))
