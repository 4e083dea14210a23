"""What optimizer models are asked to send back. Lenient on form (nulls, one string where a list was asked), strict on use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from skillfit.optimize.patch import PAYLOAD_FIELD, Payload, SkillCandidate, Suggestion, UpdateMode
from skillfit.skill import Edit


def _text(value: Any) -> Any:
    """Nulls are empty; a list of lines is text; numbers are read as written."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(str(line) for line in value)
    return str(value) if isinstance(value, (int, float)) else value


def _list(value: Any) -> Any:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _objects(value: Any) -> Any:
    return [entry for entry in _list(value) if isinstance(entry, dict)]


def _indices(value: Any) -> Any:
    """Whole numbers only: a model may name an index as text."""
    texts = (str(entry).strip() for entry in _list(value) if not isinstance(entry, bool))
    return [int(text) for text in texts if text.isdecimal()]


def _count(value: Any) -> Any:
    return next(iter(_indices(value)), None)


Text = Annotated[str, BeforeValidator(_text)]
Texts = Annotated[list[Text], BeforeValidator(_list)]
Indices = Annotated[list[int], BeforeValidator(_indices)]


class EditReply(BaseModel):
    op: Text = ""
    target: Text = ""
    content: Text = ""
    sources: Indices = Field(default=[], description="Numbers of the proposals this one was made from (merging only).")

    def payload(self) -> Payload | None:
        if not (self.op or self.target or self.content).strip():
            return None
        return Edit.from_reply(self.op, self.target, self.content)


class SuggestionReply(BaseModel):
    type: Text = ""
    title: Text = ""
    motivation: Text = ""
    instruction: Text = ""
    priority_hint: Text = ""
    sources: Indices = []

    def payload(self) -> Payload | None:
        if not self.instruction.strip():
            return None
        return Suggestion(self.type, self.title, self.motivation, self.instruction, self.priority_hint)


class CandidateReply(BaseModel):
    title: Text = ""
    change_summary: Texts = []
    new_skill: Text = ""
    sources: Indices = []

    def payload(self) -> Payload | None:
        return SkillCandidate(self.title, tuple(self.change_summary), self.new_skill) if self.new_skill.strip() else None


class Reasoned(BaseModel):
    reasoning: Text = ""


class PatchReply(Reasoned):
    def entries(self) -> Sequence[EditReply | SuggestionReply | CandidateReply]:
        """The proposals, which each update mode has under a name of its own."""
        return next(getattr(self, name) for name in PAYLOAD_FIELD.values() if name in type(self).model_fields)


class EditsReply(PatchReply):
    edits: Annotated[list[EditReply], BeforeValidator(_objects)] = []


class SuggestionsReply(PatchReply):
    revise_suggestions: Annotated[list[SuggestionReply], BeforeValidator(_objects)] = []


class CandidatesReply(PatchReply):
    skill_candidates: Annotated[list[CandidateReply], BeforeValidator(_objects)] = []


P = TypeVar("P", bound=PatchReply)

PATCH_REPLY: dict[UpdateMode, type[PatchReply]] = {
    "patch": EditsReply,
    "rewrite_from_suggestions": SuggestionsReply,
    "full_rewrite_minibatch": CandidatesReply,
}


class FailureNoteReply(BaseModel):
    failure_type: Text = ""
    count: Annotated[int | None, BeforeValidator(_count)] = None
    description: Text = ""
    items: Texts = Field(default=[], description="Ids of the items that failed this way.")


class AnalystReply(BaseModel, Generic[P]):
    patch: P
    failure_summary: Annotated[list[FailureNoteReply], BeforeValidator(_objects)] = []
    success_patterns: Texts = []
    appendix_notes: Texts = []

    @model_validator(mode="before")
    @classmethod
    def _proposals_at_the_top(cls, value: Any) -> Any:
        """Some models leave out the `patch` object and put what belongs in it beside the summary."""
        if isinstance(value, dict) and "patch" not in value and not value.keys().isdisjoint(PAYLOAD_FIELD.values()):
            return {**value, "patch": value}
        return value


ANALYST_REPLY: dict[UpdateMode, type[AnalystReply[Any]]] = {
    "patch": AnalystReply[EditsReply],
    "rewrite_from_suggestions": AnalystReply[SuggestionsReply],
    "full_rewrite_minibatch": AnalystReply[CandidatesReply],
}


class RankReply(Reasoned):
    selected_indices: Indices


class LearningRateReply(BaseModel):
    learning_rate: int
    reasoning: Text = ""
    confidence: Text = ""
    risk_notes: Texts = []


class RewriteReply(Reasoned):
    change_summary: Texts = []
    new_skill: Text


class SlowUpdateReply(Reasoned):
    slow_update_content: Text


class MetaSkillReply(Reasoned):
    meta_skill_content: Text


class NotesReply(BaseModel):
    notes: Texts


class DiagnosisReply(Reasoned):
    instruction: Annotated[Text, Field(min_length=1)]
