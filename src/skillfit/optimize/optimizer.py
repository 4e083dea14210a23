"""The optimizer's model: how it is asked, and the patches and replies it writes.

- A stage asks with an `OptimizerCall`. Prompts are Jinja2 templates in prompts/, one per stage.
- A `Patch` is what analysts propose, why, and from which items; it has one shape for all update
  modes.
- Reply types are lenient about form (nulls, one string where a list was asked for); what a stage
  cannot use is discarded with an event.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from skillfit.config.schema import GradientSection, OptimizerSection, UpdateMode
from skillfit.extensions import JsonValue
from skillfit.models import ask
from skillfit.models.failures import is_unusable
from skillfit.models.protocol import Message, Model, ModelError, Request
from skillfit.run.events import Discarded, Event
from skillfit.run.records import (
    PAYLOAD_FIELD,
    FailureNote,
    PatchRecord,
    ProposalRecord,
    ProposalSource,
    SkillCandidate,
    Suggestion,
)
from skillfit.skill import MOVE_OP, TEXT_OPS, WRITE_OP, Edit, Skill, estimate_tokens

if TYPE_CHECKING:
    from jinja2 import Environment

Payload = Edit | Suggestion | SkillCandidate
R = TypeVar("R", bound=BaseModel)

REPLY_TOKENS = 16_384
_CORPUS_OPS = (*TEXT_OPS, MOVE_OP)
_SMALLEST_PROMPT_ROOM = 1_000


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The optimizer's model with the settings of the stages that ask it."""

    model: Model
    emit: Callable[[Event], None]
    workers: asyncio.Semaphore  # calls in flight at the same time
    gradient: GradientSection = field(default_factory=GradientSection)
    settings: OptimizerSection = field(default_factory=OptimizerSection)
    max_reply_tokens: int = REPLY_TOKENS  # of a reply that carries no whole skill

    @property
    def merges(self) -> bool:
        """Whether the patches of a step are merged by the model."""
        return self.gradient.merge or self.settings.skill_update_mode != "patch"

    def reply_tokens(self, wanted: int | None = None) -> int:
        """Return the tokens a reply may have: at most half of the model's context window."""
        return min(wanted or self.max_reply_tokens, self.model.context_window // 2)

    def patch_tokens(self) -> int:
        """Return the tokens a reply with proposals may have; one with whole skills needs more."""
        if self.settings.skill_update_mode == "full_rewrite_minibatch":
            return self.settings.rewrite_max_completion_tokens
        return self.max_reply_tokens

    def room(self, *fixed: str, reply: int | None = None) -> int:
        """Return the tokens left beside the fixed parts of a prompt. A tenth of the window stays
        free, because token counts are estimates.
        """
        window = self.model.context_window
        used = sum(estimate_tokens(part) for part in fixed)
        return max(_SMALLEST_PROMPT_ROOM, window - window // 10 - self.reply_tokens(reply) - used)

    async def ask(self, returns: type[R], call: OptimizerCall) -> R:
        """Ask for a reply of this type. Raises `ModelError` when there is no usable one."""
        request = Request(
            messages=(Message("system", call.system), Message("user", call.user)),
            stage=call.stage,
            purpose=f"step {call.step} {call.name}",
            max_tokens=self.reply_tokens(call.reply_tokens),
            reasoning_effort=call.reasoning_effort,
        )
        async with self.workers:
            return await ask(self.model, request, returns)

    async def try_ask(self, returns: type[R], call: OptimizerCall, *, otherwise: str) -> R | None:
        """Ask as `ask` does, but return None when the reply cannot be used; an event then says what
        happens instead.
        """
        try:
            return await self.ask(returns, call)
        except ModelError as error:
            if not is_unusable(error.kind):
                raise
            self.discard(call.step, call.stage, call.name, error, otherwise)
            return None

    def discard(
        self, step: int, stage: str, what: str, problem: ModelError | str, otherwise: str = ""
    ) -> None:
        """Emit that something was not used, why, and what happens instead."""
        reason = problem if isinstance(problem, str) else f"{problem.kind}: {problem}"
        self.emit(Discarded(step=step, stage=stage, what=what, reason=reason, evidence=otherwise))


@dataclass(frozen=True, slots=True)
class OptimizerCall:
    """One question to the optimizer's model. Step and name tell equal questions apart."""

    stage: str
    step: int
    name: str
    system: str
    user: str
    reply_tokens: int | None = None  # None: the settings' own
    reasoning_effort: str | None = None


def render(name: str, **values: Any) -> str:
    """Fill in the blanks of the prompt `name`.md; a missing value is an error."""
    return _prompt_environment().get_template(f"{name}.md").render(**values).strip()


def sections(**parts: str | Skill) -> str:
    """Join texts as tagged sections in the order given, empty ones left out. Material cannot close
    its own section.
    """
    tagged = []
    for name, part in parts.items():
        text = part.unix_body or "(empty)" if isinstance(part, Skill) else part
        text = text.strip().replace(f"</{name}>", f"< /{name}>")
        if text:
            tagged.append(f"<{name}>\n{text}\n</{name}>")
    return "\n\n".join(tagged)


@cache
def _prompt_environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_read_prompt),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _read_prompt(name: str) -> str:
    from importlib.resources import files

    return files("skillfit.optimize").joinpath("prompts", name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Proposal:
    """One edit (or suggestion, or candidate) and the training items that support it."""

    payload: Payload
    source: ProposalSource = "custom"
    items: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.payload, Payload):
            made_of = ", ".join(kind.__name__ for kind in get_args(Payload))
            raise TypeError(f"A proposal is one of {made_of}, not {type(self.payload).__name__}")
        _check_origin(self.source, self.items)

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
        """Return the proposal as events and the files of a run hold it."""
        payload = self.payload
        return ProposalRecord(
            source=self.source,
            items=self.items,
            edit=self.edit,
            suggestion=payload if isinstance(payload, Suggestion) else None,
            candidate=payload if isinstance(payload, SkillCandidate) else None,
        )

    def listed(self, number: int) -> str:
        """Return the line a model reads, and names by its number."""
        shown = _payload_json(self.payload)
        return f"[{number}] {self.source}, {self.support} items: {shown}"

    def content_key(self) -> str:
        """Return a key that is equal for proposals that do the same, case and spacing aside."""
        text = _payload_json(self.payload, sort_keys=True)
        return " ".join(text.casefold().split())


@dataclass(frozen=True, slots=True)
class Patch:
    """Proposals of one reflection group, or of a merge of several."""

    proposals: tuple[Proposal, ...]
    source: ProposalSource = "custom"
    items: tuple[str, ...] = ()
    reasoning: str = ""
    failure_summary: tuple[FailureNote, ...] = ()
    success_patterns: tuple[str, ...] = ()
    appendix_notes: tuple[str, ...] = ()
    merge_level: int = 0
    merge: bool = True  # False: the optimizer's model does not merge it with other patches
    budgeted: bool = True  # False: the edit budget does not limit its proposals

    def __post_init__(self) -> None:
        for proposal in self.proposals:
            if not isinstance(proposal, Proposal):
                raise TypeError(f"A patch is made of Proposals, not {type(proposal).__name__}")
        _check_origin(self.source, self.items)

    @property
    def support_counts(self) -> list[int]:
        return [proposal.support for proposal in self.proposals]

    def record(self) -> PatchRecord:
        """Return the patch as events and the files of a run hold it."""
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


def edits_of(proposals: Iterable[Proposal]) -> list[Edit]:
    """Return the edits among some proposals, in order."""
    return [edit for proposal in proposals if (edit := proposal.edit) is not None]


def without_duplicates(proposals: Iterable[Proposal]) -> tuple[Proposal, ...]:
    """Merge equal proposals into the first, which then carries the items of all."""
    kept: dict[str, Proposal] = {}
    for proposal in proposals:
        key = proposal.content_key()
        if (first := kept.get(key)) is not None:
            proposal = replace(first, items=union(first.items, proposal.items))
        kept[key] = proposal
    return tuple(kept.values())


def union(*groups: Iterable[str]) -> tuple[str, ...]:
    """Return distinct values in first-seen order."""
    return tuple(dict.fromkeys(value for group in groups for value in group))


def _check_origin(source: str, items: Sequence[str]) -> None:
    known = get_args(ProposalSource)
    if source not in known:
        raise ValueError(f"Unknown source {source!r}; available: {', '.join(known)}")
    if isinstance(items, str):
        raise TypeError(f"items is a tuple of item ids, not one text: {items!r}")


def _payload_json(payload: Payload, *, sort_keys: bool = False) -> str:
    """Return what a model is shown of a proposal, and what it would send back."""
    return json.dumps(payload_fields(payload), sort_keys=sort_keys, ensure_ascii=False)


def payload_fields(payload: Payload) -> Mapping[str, JsonValue]:
    """Return a payload's fields that the optimizer reads: of an edit, only those that it writes."""
    if isinstance(payload, Edit):
        fields = {"op": payload.op, "target": payload.target, "content": payload.content}
        return {**fields, "file": payload.file} if payload.file else fields
    return asdict(payload)


def _as_text(value: Any) -> Any:
    """Read null as empty, a list of lines as text, and numbers as written."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(str(line) for line in value)
    return str(value) if isinstance(value, (int, float)) else value


def _as_list(value: Any) -> Any:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _as_objects(value: Any) -> Any:
    return [entry for entry in _as_list(value) if isinstance(entry, dict)]


def _as_indices(value: Any) -> Any:
    """Keep whole numbers only: a model may name an index as text."""
    texts = (str(entry).strip() for entry in _as_list(value) if not isinstance(entry, bool))
    return [int(text) for text in texts if text.isdecimal()]


def _as_count(value: Any) -> Any:
    return next(iter(_as_indices(value)), None)


def _as_rate(value: Any) -> Any:
    """Find the first whole number, also within words: "about 3"."""
    if isinstance(value, bool):
        return None
    found = re.search(r"-?[0-9]{1,9}", str(value))
    return found and int(found[0])


Text = Annotated[str, BeforeValidator(_as_text)]
Texts = Annotated[list[Text], BeforeValidator(_as_list)]
Indices = Annotated[list[int], BeforeValidator(_as_indices)]


def _one_of(ops: Sequence[str]) -> Any:
    """Declare the operation of an edit. Any text is read; the schema names those that exist."""
    return Field(default="", json_schema_extra={"enum": list(ops)})


def _refuse_unknown_ops(
    edits: Sequence[EditReply] | Sequence[CorpusEditReply], ops: Sequence[str]
) -> None:
    """Refuse a reply that has edits, none of them with an operation that exists."""
    given = [edit for edit in edits if (edit.op or edit.target or edit.content).strip()]
    if given and all(Edit.from_reply(edit.op, "", "").op not in ops for edit in given):
        unknown = ", ".join(repr(op) for op in dict.fromkeys(edit.op for edit in given))
        raise ValueError(f"No edit has a known op: {unknown}; available: {', '.join(ops)}")


# The replies. Their JSON schema is sent to the model, and a docstring would become part of it: that
# is why they have comments instead.


class EditReply(BaseModel):  # one edit of a patch
    op: Text = _one_of(TEXT_OPS)
    target: Text = ""
    content: Text = ""
    sources: Indices = Field(
        default=[], description="Numbers of the proposals this one was made from (merging only)."
    )

    def payload(self) -> Payload | None:
        if not (self.op or self.target or self.content).strip():
            return None
        return Edit.from_reply(self.op, self.target, self.content)


class SuggestionReply(BaseModel):  # one instruction for a rewrite
    type: Text = ""
    title: Text = ""
    motivation: Text = ""
    instruction: Text = ""
    priority_hint: Text = ""
    sources: Indices = []

    def payload(self) -> Payload | None:
        if not self.instruction.strip():
            return None
        return Suggestion(
            self.type, self.title, self.motivation, self.instruction, self.priority_hint
        )


class CandidateReply(BaseModel):  # one whole skill
    title: Text = ""
    change_summary: Texts = []
    new_skill: Text = ""
    sources: Indices = []

    def payload(self) -> Payload | None:
        if not self.new_skill.strip():
            return None
        return SkillCandidate(self.title, tuple(self.change_summary), self.new_skill)


class Reasoned(BaseModel):
    reasoning: Text = ""


class PatchReply(Reasoned):
    """Proposals, which each update mode has under its own name (`PAYLOAD_FIELD`)."""

    def entries(self) -> Sequence[EditReply | SuggestionReply | CandidateReply]:
        raise NotImplementedError


class EditsReply(PatchReply):
    edits: Annotated[list[EditReply], BeforeValidator(_as_objects)] = []

    def entries(self) -> Sequence[EditReply]:
        return self.edits


class SuggestionsReply(PatchReply):
    revise_suggestions: Annotated[list[SuggestionReply], BeforeValidator(_as_objects)] = []

    def entries(self) -> Sequence[SuggestionReply]:
        return self.revise_suggestions


class CandidatesReply(PatchReply):
    skill_candidates: Annotated[list[CandidateReply], BeforeValidator(_as_objects)] = []

    def entries(self) -> Sequence[CandidateReply]:
        return self.skill_candidates


P = TypeVar("P", bound=PatchReply)
PATCH_REPLY: dict[UpdateMode, type[PatchReply]] = {
    "patch": EditsReply,
    "rewrite_from_suggestions": SuggestionsReply,
    "full_rewrite_minibatch": CandidatesReply,
}


class FailureNoteReply(BaseModel):
    failure_type: Text = ""
    count: Annotated[int | None, BeforeValidator(_as_count)] = None
    description: Text = ""
    items: Texts = Field(default=[], description="Ids of the items that failed this way.")


class AnalystReply(BaseModel, Generic[P]):  # of one reflection group
    patch: P
    failure_summary: Annotated[list[FailureNoteReply], BeforeValidator(_as_objects)] = []
    success_patterns: Texts = []
    appendix_notes: Texts = []

    @model_validator(mode="before")
    @classmethod
    def _proposals_at_the_top(cls, value: Any) -> Any:
        """Accept the fields of `patch` beside the summary: some models leave out the object."""
        if (
            isinstance(value, dict)
            and "patch" not in value
            and not value.keys().isdisjoint(PAYLOAD_FIELD.values())
        ):
            return {**value, "patch": value}
        return value

    @model_validator(mode="after")
    def _some_op_is_known(self) -> Self:
        if isinstance(self.patch, EditsReply):
            _refuse_unknown_ops(self.patch.edits, TEXT_OPS)
        return self


class CorpusEditReply(BaseModel):  # one edit of the corpus proposer
    op: Text = _one_of(_CORPUS_OPS)
    target: Text = ""
    content: Text = ""
    items: Texts = []
    kinds: Texts = []
    purpose: Text = ""


class CorpusFileEditReply(CorpusEditReply):  # where edits may change other parts than the body
    op: Text = _one_of((*_CORPUS_OPS, WRITE_OP))
    file: Text = Field(default="", description="What the edit changes; empty for the body.")


C = TypeVar("C", bound=CorpusEditReply)


class CorpusReply(Reasoned, Generic[C]):
    failures: Annotated[list[FailureNoteReply], BeforeValidator(_as_objects)] = []
    edits: Annotated[list[C], BeforeValidator(_as_objects)]

    @model_validator(mode="after")
    def _some_op_is_known(self) -> Self:
        _refuse_unknown_ops(self.edits, (*_CORPUS_OPS, WRITE_OP))
        return self


ANALYST_REPLY: dict[UpdateMode, type[AnalystReply[Any]]] = {
    "patch": AnalystReply[EditsReply],
    "rewrite_from_suggestions": AnalystReply[SuggestionsReply],
    "full_rewrite_minibatch": AnalystReply[CandidatesReply],
}


class RankReply(Reasoned):
    selected_indices: Indices


class LearningRateReply(BaseModel):
    learning_rate: Annotated[int, BeforeValidator(_as_rate)]
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
