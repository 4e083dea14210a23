"""Patches: what analysts propose, why, and on the evidence of which items. The same shape carries
all three update modes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from skillfit.skill import Edit

UpdateMode = Literal["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"]
Source = Literal["failure", "success", "contrast", "diagnosis", "examples"]

# The reply field that holds the proposals of each mode: the names users of the reference system
# find in their files.
PAYLOAD_FIELD: Mapping[UpdateMode, str] = {
    "patch": "edits",
    "rewrite_from_suggestions": "revise_suggestions",
    "full_rewrite_minibatch": "skill_candidates",
}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An instruction to whoever rewrites the skill."""

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
    """One edit (or suggestion, or candidate) and the training items that speak for it."""

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

    def as_dict(self) -> dict[str, Any]:
        return {
            **payload_dict(self.payload),
            "source_type": self.source,
            "support_count": self.support,
            "items": list(self.items),
        }

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
class FailureNote:
    """A kind of failure an analyst saw, with the items it named for it (checked against its group)."""

    failure_type: str
    description: str
    count: int
    items: tuple[str, ...] = ()


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

    def as_dict(self, mode: UpdateMode = "patch") -> dict[str, Any]:
        """As in the readable files of a run: merged_patch.json."""
        return {
            "reasoning": self.reasoning,
            "source_type": self.source,
            "merge_level": self.merge_level,
            PAYLOAD_FIELD[mode]: [proposal.as_dict() for proposal in self.proposals],
        }

    def as_reflection(self, mode: UpdateMode = "patch") -> dict[str, Any]:
        """As in the readable files of a run: minibatch_*.json."""
        found: dict[str, Any] = {"batch_size": len(self.items)}
        if self.source == "success":
            found["success_patterns"] = list(self.success_patterns)
        else:
            found["failure_summary"] = [asdict(note) for note in self.failure_summary]
        return {**found, "patch": self.as_dict(mode), "appendix_notes": list(self.appendix_notes)}


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
