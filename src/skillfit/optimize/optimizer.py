"""The optimizer's model: how it is asked, what it reads, and the patches and replies it writes.

- A stage asks with an `OptimizerCall`. Prompts are Jinja2 templates in prompts/, one per stage.
- The optimizer reads trajectories (`render_cases`), the memory of earlier steps (`render_memory`:
  what failed in them and what became of their edits) and pending edits (`render_pending`).
  Trajectories are fitted to a number of tokens. The text of the skill and of the task is not
  repeated in them. What does not fit is cut from the middle, with a mark that says how much is
  missing. The result of an attempt (score, feedback) is always shown. The grader's evidence is
  never shown: a skill written from it would fit the grader instead of the task.
- A `Patch` is what analysts propose, why, and from which items; it has one shape for all update
  modes.
- Reply types are lenient about form (nulls, one string where a list was asked for); what a stage
  cannot use is discarded with an event.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from skillfit.config.schema import GradientSection, OptimizerSection, UpdateMode
from skillfit.extensions import JsonValue
from skillfit.models import ask
from skillfit.models.failures import is_unusable
from skillfit.models.protocol import Message, Model, ModelError, Request
from skillfit.plain_text import head_and_tail, quantity
from skillfit.rollout.outcome import Arm, Outcome
from skillfit.run.events import Discarded, Event
from skillfit.run.records import (
    PAYLOAD_FIELD,
    EditEffect,
    FailureNote,
    FailurePattern,
    PatchRecord,
    ProposalRecord,
    ProposalSource,
    SkillCandidate,
    StepMemory,
    Suggestion,
)
from skillfit.skill import Edit, Skill, estimate_tokens
from skillfit.tasks.item import Item, TrajectoryStep

if TYPE_CHECKING:
    from jinja2 import Environment

Payload = Edit | Suggestion | SkillCandidate
R = TypeVar("R", bound=BaseModel)

REPLY_TOKENS = 16_384
_SMALLEST_PROMPT_ROOM = 1_000
_SHORTEST_REPEAT = 80  # shorter texts are not worth a placeholder and could match by chance
_SHORTEST_VERDICT = 200  # characters that a verdict keeps when there is little room
_ATTEMPT_MARKUP = 10  # characters around the label and the verdict of an attempt
_MEMORY_ROOM = 12_000  # characters of the rendered memory
_EDIT_ROOM = 400  # characters of an edit or of a description in it
_REASON_ROOM = 120  # characters of a grader's reason that names a kind of failure


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The optimizer's model with the settings of the stages that ask it."""

    model: Model
    emit: Callable[[Event], None]
    workers: asyncio.Semaphore  # calls in flight at the same time
    gradient: GradientSection = field(default_factory=GradientSection)
    settings: OptimizerSection = field(default_factory=OptimizerSection)
    max_reply_tokens: int = REPLY_TOKENS  # of a reply that carries no whole skill

    def reply_tokens(self, wanted: int | None = None) -> int:
        """Tokens a reply may have: at most half of the model's context window."""
        return min(wanted or self.max_reply_tokens, self.model.context_window // 2)

    def patch_tokens(self) -> int:
        """Tokens a reply with proposals may have; one with whole skills needs more."""
        if self.settings.skill_update_mode == "full_rewrite_minibatch":
            return self.settings.rewrite_max_completion_tokens
        return self.max_reply_tokens

    def room(self, *fixed: str, reply: int | None = None) -> int:
        """Tokens left beside the fixed parts of a prompt. A tenth of the window stays free, because
        token counts are estimates.
        """
        window = self.model.context_window
        used = sum(estimate_tokens(part) for part in fixed)
        return max(_SMALLEST_PROMPT_ROOM, window - window // 10 - self.reply_tokens(reply) - used)

    async def ask(self, returns: type[R], call: OptimizerCall) -> R:
        """The reply as a value of this type. Raises `ModelError` when there is no usable one."""
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
        """As `ask`, but None when the reply cannot be used; an event says what happens instead."""
        try:
            return await self.ask(returns, call)
        except ModelError as error:
            if not is_unusable(error.kind):
                raise
            self.discard(call.step, call.stage, call.name, error, otherwise)
            return None

    def discard(
        self, step: int, stage: str, what: str, problem: ModelError | str, evidence: str = ""
    ) -> None:
        """Emit that something was not used, and why."""
        reason = problem if isinstance(problem, str) else f"{problem.kind}: {problem}"
        self.emit(Discarded(step=step, stage=stage, what=what, reason=reason, evidence=evidence))


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
    """The prompt `name`.md with its blanks filled; a missing value is an error."""
    return _prompt_environment().get_template(f"{name}.md").render(**values).strip()


def sections(**parts: str | Skill) -> str:
    """Tagged sections in the order given, empty texts left out. Material cannot close its own
    section.
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
class Context:
    """What analysts know besides the trajectories."""

    step: int
    edit_budget: int | None = None  # None: no limit
    memory: str = ""  # earlier steps of the epoch
    meta_skill: str = ""  # the optimizer's advice to itself
    pending: tuple[EditEffect, ...] = ()  # edits under test, with their effects so far

    @property
    def pending_ids(self) -> frozenset[str]:
        return frozenset(effect.id for effect in self.pending)


@dataclass(frozen=True, slots=True)
class ItemAttempts:
    """An item and its rollouts: with several per item, failures beside successes."""

    item: Item
    outcomes: tuple[Outcome, ...]
    labels: tuple[str, ...] = ()  # one per rollout; numbered when not given
    arms: tuple[Arm, ...] = ()  # what each rollout ran under; empty: the skill shown

    @property
    def scored(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.score is not None)

    @property
    def failed(self) -> bool:
        return any(not outcome.succeeded for outcome in self.scored)

    @property
    def mixed(self) -> bool:
        return self.failed and any(outcome.succeeded for outcome in self.scored)


def render_cases(
    cases: Sequence[ItemAttempts],
    skill: Skill,
    room: int,
    *,
    trace: bool = True,
    pending: frozenset[str] = frozenset(),
) -> str:
    """The cases in order within `room` tokens, each with a fair share of it.

    Without `trace`, tool steps are left out. `pending` are ids of edits under test: each attempt
    says which of them its skill carried.
    """
    shown = [_ShownCase.of(case, skill, trace=trace, pending=pending) for case in cases]
    whole = "\n\n".join(case.text() for case in shown)
    tokens = estimate_tokens(whole)
    if tokens <= room:
        return whole
    characters = int(room * len(whole) / tokens)
    shares = fair_shares([len(case.text()) for case in shown], characters)
    cut = (case.within(share) for case, share in zip(shown, shares, strict=True))
    return "\n\n".join(case.text() for case in cut)


def failure_reason(outcome: Outcome) -> str:
    """What the optimizer is told about a score below full marks."""
    if outcome.score is None or outcome.succeeded:
        return ""
    return outcome.score.feedback.strip() or "the answer was not accepted"


def fair_shares(sizes: Sequence[int], room: int) -> list[int]:
    """Divide `room`: short texts keep all, the others share the rest."""
    shares = [0] * len(sizes)
    left = room
    smallest_first = sorted(range(len(sizes)), key=lambda index: sizes[index])
    for served, index in enumerate(smallest_first):
        shares[index] = min(sizes[index], left // (len(sizes) - served))
        left -= shares[index]
    return shares


@dataclass(frozen=True, slots=True)
class _ShownCase:
    """The texts of one case. When there is little room, the middle of the steps is cut first and
    the verdict last.
    """

    title: str
    task: str
    attempts: tuple[_ShownAttempt, ...]

    @classmethod
    def of(
        cls, case: ItemAttempts, skill: Skill, *, trace: bool, pending: frozenset[str]
    ) -> _ShownCase:
        item = case.item
        if item.split in ("selection", "test"):
            raise ValueError(
                f"item {item.id} of the {item.split} split was handed to the optimizer, "
                "which may only see training items"
            )
        kind = f" ({item.type})" if item.type else ""
        task = item.input.strip()
        attempts = []
        for number, outcome in enumerate(case.outcomes):
            if outcome.score is None:
                continue
            arm = case.arms[number] if case.arms else Arm(skill)
            steps = _without_repeats(_steps_text(outcome, trace=trace), task, arm.skill.unix_body)
            verdict = _verdict_text(outcome)
            if pending:
                carried = [edit for edit in arm.edits if edit in pending]
                verdict += f"\nPending edits in effect: {', '.join(carried) or 'none'}"
            attempts.append(_ShownAttempt(_attempt_label(case, number), steps, verdict))
        shown_task = f"Task:\n{task}{_attached_files(item)}{_expected_answer(item)}"
        return cls(f"### Item {item.id}{kind}", shown_task, tuple(attempts))

    def text(self) -> str:
        pieces = [self.title, self.task]
        for attempt in self.attempts:
            if attempt.label:
                pieces.append(f"#### {attempt.label}")
            pieces += [attempt.steps, attempt.verdict]
        return "\n\n".join(pieces)

    def within(self, room: int) -> _ShownCase:
        """The case cut to about `room` characters. All verdicts together get a third of it; task
        and steps share what is left.
        """
        if len(self.text()) <= room:
            return self
        verdict_room = max(room // (3 * len(self.attempts)), _SHORTEST_VERDICT)
        attempts = [
            replace(attempt, verdict=head_and_tail(attempt.verdict, verdict_room))
            for attempt in self.attempts
        ]
        fixed = len(self.title)
        for attempt in attempts:
            fixed += len(attempt.label) + len(attempt.verdict) + _ATTEMPT_MARKUP
        sizes = [len(self.task), *(len(attempt.steps) for attempt in attempts)]
        task_room, *steps_rooms = fair_shares(sizes, max(0, room - fixed))
        # The end of a trajectory usually shows what went wrong: it gets the larger half.
        attempts = [
            replace(attempt, steps=head_and_tail(attempt.steps, steps_room, head=0.4))
            for attempt, steps_room in zip(attempts, steps_rooms, strict=True)
        ]
        return _ShownCase(self.title, head_and_tail(self.task, task_room), tuple(attempts))


@dataclass(frozen=True, slots=True)
class _ShownAttempt:
    """The texts of one attempt."""

    label: str  # empty: the item's only attempt
    steps: str
    verdict: str


def _attempt_label(case: ItemAttempts, number: int) -> str:
    if case.labels:
        return case.labels[number]
    return f"Attempt {number + 1}" if len(case.outcomes) > 1 else ""


def _attached_files(item: Item) -> str:
    names = ", ".join(path.name for path in item.attachments())
    return f"\n\nAttached for the agent, not shown here: {names}" if names else ""


def _expected_answer(item: Item) -> str:
    texts = {"Expected answer": "\n".join(item.answers), "Reference": item.reference}
    return "".join(
        f"\n\n{name} (the agent does not see it):\n{text.strip()}"
        for name, text in texts.items()
        if text.strip()
    )


def _steps_text(outcome: Outcome, *, trace: bool) -> str:
    attempt = outcome.attempt
    if attempt is None:
        return "(no trajectory was kept)"
    shown = [step for step in attempt.steps if trace or step.kind == "message"]
    lines = [_step_line(step) for step in shown]
    answer = attempt.answer.strip()
    if not (shown and shown[-1].text.strip() == answer):
        lines.append(f"[answer] {answer or '(empty)'}")
    return "\n".join(lines)


def _step_line(step: TrajectoryStep) -> str:
    names = {
        "message": step.role,
        "tool_call": f"calls {step.name}",
        "tool_result": f"{step.name} returns",
        "note": "note",
    }
    return f"[{names[step.kind].strip()}] {step.text.strip()}"


def _without_repeats(text: str, task: str, skill: str) -> str:
    """The text with a placeholder wherever it repeats the whole skill or the whole task."""
    for repeated, name in ((skill.strip(), "the skill"), (task, "the task, as above")):
        if len(repeated) >= _SHORTEST_REPEAT:
            text = text.replace(repeated, f"[{name}]")
    return text


def _verdict_text(outcome: Outcome) -> str:
    score = outcome.score
    if score is None:
        return ""
    result = "succeeded" if outcome.succeeded else "failed"
    soft = f", soft {score.soft:.2f}" if score.soft != score.hard else ""
    verdict = f"Result: {result} (hard {score.hard:.2f}{soft})"
    if reason := failure_reason(outcome):
        return f"{verdict}\nWhy: {reason}"
    feedback = score.feedback.strip()
    return f"{verdict}\nFeedback: {feedback}" if feedback else verdict


def render_memory(entries: Sequence[StepMemory], room: int = _MEMORY_ROOM) -> str:
    """The entries as analysts read them. When they do not fit, the oldest go first and a line says
    how many.
    """
    shown: list[str] = []
    for entry in reversed(entries):
        text = _memory_entry(entry)
        if shown and sum(map(len, shown)) + len(text) > room:
            break
        shown.insert(0, head_and_tail(text, room))
    if left_out := len(entries) - len(shown):
        shown.insert(0, f"({left_out} earlier steps left out)")
    return "\n\n".join(shown)


def _memory_entry(entry: StepMemory) -> str:
    scores = ""
    if entry.score_before is not None and entry.score_after is not None:
        scores = f", score {entry.score_before:.3f} -> {entry.score_after:.3f}"
    failed = f"{entry.n_fail} of {entry.n_total} rollouts failed"
    lines = [f"Step {entry.step}: {entry.action}{scores}; {failed}"]
    for pattern in entry.failure_patterns:
        line = f"- failed {pattern.count}x, {pattern.pattern}"
        if pattern.description:
            line += f": {head_and_tail(pattern.description, _EDIT_ROOM)}"
        lines.append(line)
    for proposal in entry.rejected_edits:
        lines.append(f"- rejected: {head_and_tail(_proposal_text(proposal), _EDIT_ROOM)}")
    for effect in entry.decided:
        lines.append(f"- {effect.status}: {_effect_line(effect)}")
    return "\n".join(lines)


def render_pending(effects: Sequence[EditEffect]) -> str:
    """The pending edits as analysts read them: one line each, with the measured effect."""
    return "\n".join(f"[{effect.id}] {_effect_line(effect)}" for effect in effects)


def _effect_line(effect: EditEffect) -> str:
    """An edit and its effect: `append "…": +0.04 (+0.01 to +0.07) after 120 rollouts`."""
    if effect.mean is None:
        measured = "not measured yet"
    else:
        interval = f"{effect.low:+.2f} to {effect.high:+.2f}"
        rollouts = quantity(effect.rollouts, "rollout")
        measured = f"{effect.mean:+.2f} ({interval}) after {rollouts}"
    return f"{head_and_tail(_payload_text(effect.edit), _EDIT_ROOM)}: {measured}"


def _proposal_text(proposal: ProposalRecord) -> str:
    payload = proposal.edit or proposal.suggestion or proposal.candidate
    return _payload_text(payload) if payload is not None else "{}"


def _payload_text(payload: Payload) -> str:
    """As `_payload_json`, without empty fields."""
    fields = {name: value for name, value in _payload_fields(payload).items() if value}
    return json.dumps(fields, ensure_ascii=False)


def failure_patterns(
    outcomes: Sequence[Outcome], patches: Sequence[Patch]
) -> tuple[FailurePattern, ...]:
    """The kinds of failure of a step, most frequent first: as analysts described them, and the rest
    by the grader's reason.
    """
    reasons = {
        outcome.item_id: failure_reason(outcome)
        for outcome in outcomes
        if outcome.score is not None and not outcome.succeeded
    }
    notes = [note for patch in patches for note in patch.failure_summary]
    described = _described_patterns(notes, reasons.keys())
    covered = {item for pattern in described for item in pattern.task_ids}
    rest = {item: reason for item, reason in reasons.items() if item not in covered}
    patterns = [*described, *_patterns_by_reason(rest)]
    return tuple(sorted(patterns, key=lambda pattern: -pattern.count))


def _described_patterns(
    notes: Sequence[FailureNote], failed: Collection[str]
) -> list[FailurePattern]:
    """One pattern for each failure type that analysts named. A type that names no failed item keeps
    the analysts' own count.
    """
    patterns: dict[str, FailurePattern] = {}
    for note in notes:
        key = note.failure_type.casefold().strip()
        first = patterns.setdefault(key, FailurePattern(note.failure_type, 0, (), note.description))
        items = union(first.task_ids, (item for item in note.items if item in failed))
        patterns[key] = replace(first, task_ids=items, count=len(items) or first.count + note.count)
    return list(patterns.values())


def _patterns_by_reason(reasons: Mapping[str, str]) -> list[FailurePattern]:
    """One pattern for each distinct beginning of a grader's reason, up to its first colon or line
    end.
    """
    items: dict[str, list[str]] = {}
    for item, reason in reasons.items():
        beginning = reason.partition(":")[0].partition("\n")[0].strip()
        items.setdefault(head_and_tail(beginning, _REASON_ROOM), []).append(item)
    return [FailurePattern(name, len(found), tuple(found)) for name, found in items.items()]


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
        """As events and the files of a run hold it."""
        payload = self.payload
        return ProposalRecord(
            source=self.source,
            items=self.items,
            edit=self.edit,
            suggestion=payload if isinstance(payload, Suggestion) else None,
            candidate=payload if isinstance(payload, SkillCandidate) else None,
        )

    def listed(self, number: int) -> str:
        """The line a model reads, and names by its number."""
        shown = _payload_json(self.payload)
        return f"[{number}] {self.source}, {self.support} items: {shown}"

    def content_key(self) -> str:
        """Equal for proposals that would do the same thing; case and spacing aside."""
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

    def __post_init__(self) -> None:
        for proposal in self.proposals:
            if not isinstance(proposal, Proposal):
                raise TypeError(f"A patch is made of Proposals, not {type(proposal).__name__}")
        _check_origin(self.source, self.items)

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


def edits_of(proposals: Iterable[Proposal]) -> list[Edit]:
    """The edits among some proposals, in order."""
    return [edit for proposal in proposals if (edit := proposal.edit) is not None]


def without_duplicates(proposals: Iterable[Proposal]) -> tuple[Proposal, ...]:
    """Equal proposals become one that carries all their items; the first one's place and source
    stay.
    """
    kept: dict[str, Proposal] = {}
    for proposal in proposals:
        key = proposal.content_key()
        if (first := kept.get(key)) is not None:
            proposal = replace(first, items=union(first.items, proposal.items))
        kept[key] = proposal
    return tuple(kept.values())


def union(*groups: Iterable[str]) -> tuple[str, ...]:
    """Distinct values in first-seen order."""
    return tuple(dict.fromkeys(value for group in groups for value in group))


def _check_origin(source: str, items: Sequence[str]) -> None:
    known = get_args(ProposalSource)
    if source not in known:
        raise ValueError(f"Unknown source {source!r}; available: {', '.join(known)}")
    if isinstance(items, str):
        raise TypeError(f"items is a tuple of item ids, not one text: {items!r}")


def _payload_json(payload: Payload, *, sort_keys: bool = False) -> str:
    """What a model is shown of a proposal, and what it would send back."""
    return json.dumps(_payload_fields(payload), sort_keys=sort_keys, ensure_ascii=False)


def _payload_fields(payload: Payload) -> Mapping[str, JsonValue]:
    if isinstance(payload, Edit):
        return {"op": payload.op, "target": payload.target, "content": payload.content}
    return asdict(payload)


def _as_text(value: Any) -> Any:
    """Nulls are empty; a list of lines is text; numbers are read as written."""
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
    """Whole numbers only: a model may name an index as text."""
    texts = (str(entry).strip() for entry in _as_list(value) if not isinstance(entry, bool))
    return [int(text) for text in texts if text.isdecimal()]


def _as_count(value: Any) -> Any:
    return next(iter(_as_indices(value)), None)


Text = Annotated[str, BeforeValidator(_as_text)]
Texts = Annotated[list[Text], BeforeValidator(_as_list)]
Indices = Annotated[list[int], BeforeValidator(_as_indices)]


# The replies. Their JSON schema is sent to the model, and a docstring would become part of it: that
# is why they have comments instead.


class EditReply(BaseModel):  # one edit of a patch
    op: Text = ""
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
        """Some models leave out the `patch` object and put its fields beside the summary."""
        if (
            isinstance(value, dict)
            and "patch" not in value
            and not value.keys().isdisjoint(PAYLOAD_FIELD.values())
        ):
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
