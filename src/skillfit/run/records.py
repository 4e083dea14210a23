"""The records of a run, as typed data.

Events, the readable files of a run, the report, the studio and the API share these records. The
field names of `StepRecord`, `RunSummary` and the slow-update records are those that users of
SkillOpt know from its files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetPydanticSchema,
    RootModel,
    SerializerFunctionWrapHandler,
    computed_field,
    model_serializer,
)
from pydantic_core.core_schema import str_schema

from skillfit.intervals import Interval
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import Usage
from skillfit.skill import Edit
from skillfit.skill.edits import MOVE_OP, example_of

if TYPE_CHECKING:
    from skillfit.config.schema import Config

# The type of a field that holds one of these words: `action: Recorded[StepAction]`. Only these are
# written; any string is read, so that a word of another version is shown as it was recorded.
Word = TypeVar("Word", bound=str)
Recorded = Annotated[Word, GetPydanticSchema(lambda _source, _handler: str_schema())]

Level = Literal["go", "warn", "stop"]
CheckName = Literal[
    "skill",
    "tasks",
    "keys",
    "isolation",
    "gold",
    "ship gold",
    "coverage",
    "skill use",
    "blind",
    "lift",
    "headroom",
    "power",
    "shortcut",
    "cost",
    "budget",
]
MeasuredSplit = Literal["selection", "test"]
# What a run does at a time; also which rollouts it makes. `evaluate`, `ablate` and `compare` belong
# to runs that only measure.
StageName = Literal[
    "preflight",
    "baseline",
    "rollout",
    "reflect",
    "aggregate",
    "select",
    "update",
    "gate",
    "slow_update",
    "meta_skill",
    "prune",
    "compose",
    "final",
    "ship",
    "test",
    "evaluate",
    "ablate",
    "compare",
]
LEAK_CHECK = "leak_check"  # the stage of `Discarded` for texts that the leak check refused
SHORTCUT: Final = "shortcut"  # the check, and the warning at the end, about a one-line rule
RolloutStatus = Literal["scored", "failed", "skipped"]
ProposalSource = Literal["failure", "success", "contrast", "diagnosis", "examples", "custom"]
PairKind = Literal["improved", "regressed", "persistent_fail", "stable_success"]
EditStatus = Literal["pending", "promoted", "dropped"]
# What was measured about a text, as people read it; `evidence_word` decides which.
EvidenceWord = Literal["measured to help", "likely", "no evidence"]
Decision = Literal["accept", "reject", "inconclusive"]
# What became of a step: the gate decided, or it ended without a candidate.
GateAction = Literal["accept_new_best", "accept", "reject", "force_accept", "inconclusive"]
SkipAction = Literal["skip_no_patches", "skip_no_change", "skip_no_rewrite", "skip_leak"]
StepAction = GateAction | SkipAction
# Nothing to compare at the end of an epoch: it is the first one, or left the skill as it was.
EpochSkip = Literal["skip_first_epoch", "skip_same_skill", "skip_last_epoch"]
SlowUpdateAction = (
    Decision
    | EpochSkip
    | Literal[
        "force_accept", "inject_placeholder", "no_content", "unchanged", "refused", "join_pool"
    ]
)
MetaSkillAction = EpochSkip | Literal["write_meta_skill", "no_content"]
ShipVerdict = Literal["improved", "inconclusive", "no improvement"]
RunFinishReason = Literal[
    "improved", "no_improvement", "inconclusive", "unverified", "budget", "infrastructure"
]
DECIDED: tuple[GateAction, ...] = get_args(GateAction)
ACCEPTED: tuple[GateAction, ...] = ("accept", "accept_new_best", "force_accept")
SKIPPED: tuple[SkipAction, ...] = get_args(SkipAction)

PayloadField = Literal["edits", "revise_suggestions", "skill_candidates"]
# The field that holds the proposals of each update mode, in replies and in the files of a run.
PAYLOAD_FIELD: Mapping[str, PayloadField] = {
    "patch": "edits",
    "rewrite_from_suggestions": "revise_suggestions",
    "full_rewrite_minibatch": "skill_candidates",
}
SOLVED = 0.5  # an item counts as solved from this mean score on


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """An item as a person recognises it. Long texts are cut."""

    id: str
    split: str
    type: str = ""
    input: str = ""
    expected: str = ""
    weight: float = 1.0

    @property
    def is_cut(self) -> bool:
        """Whether the input is longer than what is kept here."""
        return self.input.endswith("…")


CheckValue = int | float | None | list[str] | list[float]


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What a number of rollouts buys."""

    steps: int
    batch_size: int
    selection: int  # selection rollouts of a step, from the second on
    pairs: int  # rollouts of each skill in the ship test, at the most
    total: int  # rollouts, at the most


Phase = Literal["grow", "prune", "prove"]


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """A phase of a run: what it is planned to take, and why."""

    phase: Recorded[Phase]
    rounds: int  # steps, or rounds of rollouts without proposals
    rollouts: int  # at the most
    reason: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of `skillfit check`: its verdict and the reason."""

    name: Recorded[CheckName]
    verdict: Recorded[Level]
    message: str
    # What it was decided from, for --json. Blind and shortcut have an entry for each variant or
    # rule they tried; the other checks have fixed names.
    detail: Mapping[str, CheckValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """How a candidate and the incumbent compare on the same items.

    Failed rollouts are left out. An item counts as solved from a mean score of `SOLVED` on.
    """

    fixed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    both: tuple[str, ...] = ()
    neither: tuple[str, ...] = ()
    difference: float = 0.0  # mean over items, candidate minus incumbent
    interval: tuple[float, float] = (0.0, 0.0)  # 90 %
    probability: float = 0.5  # that the candidate is better
    rollouts: int = 0  # made for this decision, all skills together
    coverage: float = 0.0  # share of them that was scored
    higher: int = 0  # items whose mean score rose, solved or not
    lower: int = 0  # items whose mean score fell


@dataclass(frozen=True, slots=True)
class CandidateComparison:
    """One candidate's line in a verdict's table."""

    label: str
    skill_hash: str
    items: int  # paired with the incumbent
    rollouts: int
    score: float
    difference: float
    probability: float
    result: Recorded[Literal["winner", "rejected"]]


@dataclass(frozen=True, slots=True)
class ScoreEstimate:
    """A skill's mean score on the selection items with a 90 % interval."""

    mean: float
    low: float
    high: float
    estimated: bool = False  # True: predicted by the regression, not a mean of its own rollouts


EDIT_ORDER: tuple[EditStatus, ...] = ("promoted", "pending", "dropped")  # in lists of edits
AWAITS_APPROVAL = "waiting for approval"  # as people read it, in reasons and on pages
EFFECT = "effect"  # how a reason begins that is the estimate of its time


def edit_id(step: int, number: int) -> str:
    """Return the id of the edit with this number, from 1, of those that a step proposed."""
    return f"s{step:04d}e{number:02d}"


def kinds_text(kinds: Sequence[KindEffect]) -> str:
    """Format effects as `+0.41 on money, 18 of 60 items; -0.12 on dates, 20 of 60 items`."""
    return "; ".join(kind.text for kind in kinds)


# The probability of helping from which a text is "likely" to help. The final skill takes every edit
# above 0.5, but fewer than half of those below 0.6 really help (bench/real/words.py).
LIKELY = 0.6


def evidence_word(mean: float | None, low: float, probability: float) -> EvidenceWord:
    """Say what was measured about a text: its 80 % interval is above 0 (`low` is its lower end), it
    is likely to help, or neither. `mean` is None for a text that was not measured.
    """
    if mean is None or mean <= 0:
        return "no evidence"
    if low > 0:
        return "measured to help"
    return "likely" if probability >= LIKELY else "no evidence"


@dataclass(frozen=True, slots=True)
class KindEffect:
    """What an edit changes on the selection items of one type. Points of their mean score."""

    kind: str  # `Item.type`
    items: int  # selection items of the type
    of: int  # selection items of all types
    mean: float
    low: float  # 80 % interval
    high: float

    def __neg__(self) -> KindEffect:
        """Return the effect of the opposite edit."""
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low)

    @property
    def text(self) -> str:
        """`+0.41 on money, 18 of 60 items`."""
        return f"{self.mean:+.2f} on {self.kind}, {self.items} of {self.of} items"


@dataclass(frozen=True, slots=True)
class EditEffect:
    """One edit of the pool and what is known about it.

    Effects are points of the mean score over the selection items: the change when the edit is
    added to the incumbent.
    """

    id: str  # "s0003e02": the step that proposed it, and its number
    step: int  # 0: text of the initial skill
    edit: Edit
    status: Recorded[EditStatus]
    mean: float | None = None  # None: not measured on its own
    low: float = 0.0  # 80 % interval
    high: float = 0.0
    probability: float = 0.5  # that the effect is above 0
    rollouts: int = 0  # scored rollouts that carried the edit
    reason: str = ""  # why it was promoted or dropped
    items: tuple[str, ...] = ()  # training items it was written from
    awaits_approval: bool = False  # pending only until a person approves it (`review: true`)
    kinds: tuple[KindEffect, ...] = ()  # the types of items that it acts on, largest effect first

    @computed_field  # type: ignore[prop-decorator]
    @property
    def evidence(self) -> EvidenceWord:
        return evidence_word(self.mean, self.low, self.probability)

    @property
    def text(self) -> str:
        """What the edit does, in one line of text."""
        example = example_of(self.edit)
        if example is not None:
            return f"worked example: {example.input} → {example.output}"
        if self.edit.op == MOVE_OP:
            return f"move to {self.edit.file}: {self.edit.target}"
        where = f"{self.edit.file}: " if self.edit.file else ""
        if self.edit.content:
            return f"{where}{self.edit.content}"
        return f"{self.edit.label or f'{where}delete'}: {self.edit.target}"

    @property
    def effect(self) -> Interval | None:
        """None: not measured on its own."""
        return None if self.mean is None else Interval(self.mean, self.low, self.high)

    @property
    def worth(self) -> Interval | None:
        """What its text is worth: the opposite of the effect when it deletes that text."""
        return -self.effect if self.effect and self.edit.op == "delete" else self.effect

    @property
    def text_evidence(self) -> EvidenceWord:
        """What was measured about its text: the opposite when it deletes that text."""
        if self.edit.op != "delete" or self.mean is None:
            return self.evidence
        return evidence_word(-self.mean, -self.high, 1 - self.probability)

    @property
    def described(self) -> str:
        """Its text, with the types of items that it acts on."""
        kinds = kinds_text(self.kinds)
        return f"{self.text} ({kinds})" if kinds else self.text

    @property
    def standing(self) -> str:
        """How the edit stands: its status, as long as no more is known."""
        return self.status

    @property
    def rank(self) -> int:
        """The place of its status in `EDIT_ORDER`; a status of another version comes last."""
        return EDIT_ORDER.index(self.status) if self.status in EDIT_ORDER else len(EDIT_ORDER)

    @property
    def note(self) -> str:
        """The reason without the estimate that was true then: pages show the latest one."""
        if self.awaits_approval:
            return AWAITS_APPROVAL
        return "" if self.reason.startswith(f"{EFFECT} ") else self.reason


@dataclass(frozen=True, slots=True)
class UnitWorth:
    """What one part of a skill is worth: the score that is lost without it.

    `mean`, `low` and `high` (80 %) are points of the mean score.
    """

    id: str  # L12 or L12-15, after its lines
    start: int
    end: int
    text: str
    tokens: int
    mean: float
    low: float
    high: float
    probability: float  # that the text helps
    rollouts: int  # scored rollouts without it
    decision: Recorded[Literal["keep", "cut", "unsure"]]
    kinds: tuple[KindEffect, ...] = ()  # the types of items that it is worth most on
    file: str = ""  # of the skill's folder; empty: the document

    @property
    def worth(self) -> Interval | None:
        """None: no rollout without it was scored."""
        return Interval(self.mean, self.low, self.high) if self.rollouts else None


@dataclass(frozen=True, slots=True)
class MeasuredScore:
    """The score of one skill on a split, with its 90 % interval (`skillfit eval`)."""

    name: str
    skill_hash: str
    hard: float
    soft: float
    low: float
    high: float
    scored: int
    planned: int
    over_no_skill: Interval | None = None  # the gain, paired by item; None: not compared

    @property
    def has_score(self) -> bool:
        """False where every rollout failed: the numbers mean nothing then."""
        return self.scored > 0


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


@dataclass(frozen=True, slots=True)
class ProposalRecord:
    """What an optimizer proposed: an edit, a suggestion for a rewrite, or a whole new skill."""

    source: Recorded[ProposalSource]
    items: tuple[str, ...]
    edit: Edit | None = None
    suggestion: Suggestion | None = None
    candidate: SkillCandidate | None = None

    @property
    def support(self) -> int:
        return len(self.items)

    @property
    def text(self) -> str:
        """What it would write, in one string."""
        if self.edit is not None:
            return self.edit.content or self.edit.target
        if self.suggestion is not None:
            return self.suggestion.instruction
        return self.candidate.new_skill if self.candidate is not None else ""


@dataclass(frozen=True, slots=True)
class FailureNote:
    """A kind of failure an analyst saw, with the items it named."""

    failure_type: str
    description: str
    count: int
    items: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PatchRecord:
    """The proposals of one reflection group, or of a merge of several."""

    proposals: tuple[ProposalRecord, ...]
    source: Recorded[ProposalSource]
    items: tuple[str, ...] = ()
    reasoning: str = ""
    failure_summary: tuple[FailureNote, ...] = ()
    success_patterns: tuple[str, ...] = ()
    appendix_notes: tuple[str, ...] = ()
    merge_level: int = 0


class RewriteRecord(BaseModel):
    """What a model wrote in a rewrite mode, as rewrite_result.json shows it. A field that the mode
    does not have is not written; in patch mode none is.
    """

    model_config = ConfigDict(frozen=True)

    title: str = ""
    reasoning: str = ""
    change_summary: tuple[str, ...] = ()
    new_skill: str = ""

    @model_serializer(mode="wrap")
    def _fields_that_are_set(
        self, handler: SerializerFunctionWrapHandler
    ) -> dict[str, str | Sequence[str]]:
        return {
            name: value for name, value in handler(self).items() if name in self.model_fields_set
        }


@dataclass(frozen=True, slots=True)
class SelectionDecision:
    """How the edits of a step were chosen: the ranking, or the optimizer's own learning rate."""

    selected_indices: tuple[int, ...] | None = None  # None: no ranking was needed
    reasoning: str = ""  # of the ranking
    learning_rate: int | None = None  # autonomous mode: what the optimizer decided
    wanted_rate: int | None = None  # the same as it was written, before it was limited
    available: int | None = None
    rate_reasoning: str = ""
    confidence: float | str | None = None
    risk_notes: tuple[str, ...] = ()
    fallback: bool = False  # no usable reply: the default rule decided


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One accumulation batch of a step."""

    batch_idx: int
    batch_seed: int
    n_envs: int
    hard: float
    soft: float
    n_failure_patches: int
    n_success_patches: int


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """A `Usage` of one stage as SkillOpt's records show it."""

    calls: int
    prompt_tokens: int
    completion_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> TokenCounts:
        return cls(usage.calls, usage.input, usage.output)


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """A `Usage` as summary.json shows it, of a run, a stage or a role."""

    calls: int = 0
    tokens: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    usd: float | None = 0.0  # None: a price is unknown

    @classmethod
    def of(cls, usage: Usage) -> UsageTotals:
        return cls(usage.calls, usage.tokens, usage.input, usage.cached, usage.output, usage.usd)


@dataclass(frozen=True, slots=True)
class ApplySummary:
    """What became of the edits of a step."""

    total: int
    applied: int
    skipped: int
    errors: int = 0


@dataclass(frozen=True, slots=True)
class FailurePattern:
    """A kind of failure in one step, for the optimizer's memory."""

    pattern: str
    count: int
    task_ids: tuple[str, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class RefusedText:
    """A text that the leak check refused, and its words that leak."""

    text: str
    leaked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvidencePattern:
    """A kind of failure over a whole run, with the distinct training items that show it."""

    name: str
    items: tuple[str, ...]
    description: str = ""
    last_step: int = 0  # in which it was seen; 0: in an earlier run

    @property
    def seen(self) -> str:
        """When it was seen last."""
        return f"step {self.last_step}" if self.last_step else "an earlier run"


@dataclass(frozen=True, slots=True)
class EvidenceMemory:
    """What failed in a run so far, and every edit that was tried, dropped ones too. The id of an
    edit of an earlier run begins with that run: run1/s0003e02.
    """

    patterns: tuple[EvidencePattern, ...] = ()
    edits: tuple[EditEffect, ...] = ()
    runs: int = 0  # earlier runs that it was carried through


@dataclass(frozen=True, slots=True)
class StepMemory:
    """One step in the memory of an epoch. Scores are None when nothing was measured."""

    step: int
    action: Recorded[StepAction]
    n_total: int
    n_fail: int
    failure_patterns: tuple[FailurePattern, ...] = ()
    score_before: float | None = None
    score_after: float | None = None
    rejected_edits: tuple[ProposalRecord, ...] = ()
    decided: tuple[EditEffect, ...] = ()  # screening: edits promoted or dropped in this step


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAndBest:
    """Where a run stands: the incumbent and the best skill."""

    current_score: float
    current_origin: str
    best_score: float
    best_step: int
    best_origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step as step_record.json and history.json show it. None: does not apply to this step."""

    step: int
    epoch: int
    step_in_epoch: int
    action: Recorded[StepAction]
    lr_control_mode: str
    gate_metric: str
    standings: CurrentAndBest
    skill_len: int
    timing: dict[str, float]  # seconds per stage: rollout_s, reflect_s, …
    tokens: dict[str, TokenCounts]
    wall_time_s: float
    n_edits_blocked: int = 0  # proposals that the leak check refused
    rollout_hard: float | None = None
    rollout_soft: float | None = None
    rollout_n: int = 0
    rollout_coverage: float = 0.0
    accumulation_batches: tuple[BatchRecord, ...] = ()
    n_patches: int = 0
    n_failure_patches: int = 0
    n_success_patches: int = 0
    n_edits_merged: int | None = None
    support_counts: tuple[int, ...] | None = None
    n_edits_ranked: int | None = None
    edit_budget: int | None = None
    lr_decision: SelectionDecision | None = None
    rewrite_change_summary: tuple[str, ...] | None = None
    edit_apply_summary: ApplySummary | None = None
    candidate_hash: str | None = None
    candidate_skill_len: int | None = None
    selection_hard: float | None = None
    selection_soft: float | None = None
    candidate_gate_score: float | None = None
    incumbent_gate_score: float | None = None
    verdict: Recorded[Decision] | None = None
    reason: str | None = None
    gate_rollouts: int | None = None
    n_edits_pending: int | None = None  # screening: the pool after this step
    n_edits_promoted: int | None = None
    n_edits_dropped: int | None = None
    n_execution_lapse_notes: int | None = None
    n_appendix_notes_added: int | None = None
    n_appendix_notes_total: int | None = None
    n_appendix_notes_consolidated: int | None = None  # what is left after they were condensed


@dataclass(frozen=True, slots=True)
class PairRecord:
    """One item under the previous and the current skill."""

    id: str
    category: Recorded[PairKind]
    prev_hard: float | None
    curr_hard: float | None
    task: str = ""
    prev_soft: float | None = None
    curr_soft: float | None = None
    prev_answer: str = ""
    curr_answer: str = ""
    prev_fail_reason: str = ""
    curr_fail_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowUpdateRecord:
    """slow_result.json: what the look back at an epoch wrote, and what became of it."""

    action: Recorded[SlowUpdateAction]
    standings: CurrentAndBest
    reasoning: str = ""
    slow_update_content: str = ""
    prev_hash: str = ""
    prev_hard: float | None = None
    curr_hard: float | None = None
    candidate_hash: str = ""
    update_origin: str = "slow_update_momentum"
    update_target: str = "items that got worse, or failed again, from epoch to epoch"
    selection_hard: float | None = None
    selection_soft: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaSkillRecord:
    """meta_skill_result.json: the optimizer's advice to itself."""

    action: Recorded[MetaSkillAction]
    reasoning: str = ""
    meta_skill_content: str = ""
    prev_hash: str = ""


@dataclass(frozen=True, slots=True)
class TypeScore:
    """A type's items in a test evaluation."""

    total: int
    hard_acc: float
    soft_acc: float = 0.0


@dataclass(frozen=True, slots=True)
class EpochStats:
    """One epoch in summary.json."""

    epoch: int
    steps: int
    accepts: int
    rejects: int
    skips: int
    best_score_at_epoch_end: float
    current_score_at_epoch_end: float


@dataclass(frozen=True, slots=True)
class TypeSummary:
    """The items of one type under the initial and the best skill."""

    type: str
    items: int
    before: float | None
    after: float | None

    @property
    def difference(self) -> float | None:
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipResult:
    """The final comparison of the skill that was found with the initial one, on fresh rollouts. The
    gate computes it; the event, summary.json, cards and `--json` hold this type.
    """

    verdict: Recorded[ShipVerdict]
    reason: str = ""
    difference: float = 0.0
    interval: tuple[float, float] | None = None  # of the difference; None: no fresh rollouts
    p_value: float = 1.0  # one-sided, corrected for the looks and the number of finalists
    pairs: int = 0  # fresh rollouts of each skill; 0: there was nothing to compare
    skill_hash: str = ""  # of the finalist that it is about; of the initial skill without one
    evidence: Evidence = Evidence()
    # With a second grader: gain under the training grader minus gain here, on the same rollouts.
    gap: float | None = None
    saving: Interval | None = None  # with `objective: cheaper`: share of a rollout's tokens
    models: tuple[TypeSummary, ...] = ()  # with `model.agents`: the items of each


def saving_sentence(saving: Interval, margin: float) -> str:
    """Say that a skill is cheaper and not worse."""
    return (
        f"The skill is cheaper and not worse: {saving.mean:.0%} fewer tokens in a fresh rollout "
        f"({saving.low:.0%} to {saving.high:.0%}), and a loss of {margin:g} or more is excluded."
    )


@dataclass(frozen=True, slots=True)
class SkillTokens:
    """Sizes of skills in tokens. `found` is what training led to, handed back or not."""

    initial: int = 0
    best: int = 0
    found: int = 0


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """How many rollouts a run planned, and how many of them were scored."""

    planned: int | None = None  # None: not recorded
    scored: int | None = None


class RecordedConfig(RootModel[JsonObject]):
    """The settings of a run. `root` is the JSON as it was written, maybe by another version;
    `settings` is what this version reads from it.
    """

    model_config = ConfigDict(frozen=True)

    @classmethod
    def of(cls, config: Config) -> RecordedConfig:
        return cls(config.model_dump(mode="json"))

    @cached_property
    def settings(self) -> Config:
        """Typed. Settings that were not recorded have their defaults."""
        from skillfit.config.schema import settings_of_run  # here: a list of runs needs no schema

        return settings_of_run(self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """summary.json. Usage counts over all resumes of the run."""

    version: str
    finish_reason: Recorded[RunFinishReason]
    diagnosis: str
    config: RecordedConfig  # the settings, as config.json
    total_steps: int
    steps_done: int
    total_accepts: int
    total_rejects: int
    total_skips: int
    edits_blocked: int  # texts that the leak check refused: proposals, notes, lessons, rewrites
    metric: str = "hard"  # what *_score fields are in
    baseline_selection_hard: float | None = None
    baseline_selection_score: float | None = None
    best_selection_hard: float | None = None
    best_selection_score: float | None = None
    final_selection_hard: float | None = None
    final_selection_soft: float | None = None
    best_step: int | None = 0  # of best_skill.md; 0: the initial skill; None: composed of edits
    current_origin: str = ""
    best_origin: str = ""
    epoch_stats: tuple[EpochStats, ...] = ()
    baseline_test_hard: float | None = None
    baseline_test_soft: float | None = None
    test_hard: float | None = None
    test_soft: float | None = None
    final_test_hard: float | None = None
    final_test_soft: float | None = None
    baseline_test_score: float | None = None  # these three in the gate's metric
    test_score: float | None = None
    final_test_score: float | None = None
    test_delta_hard: float | None = None
    final_test_delta_hard: float | None = None
    ship: ShipResult | None = None
    skill_tokens: SkillTokens = SkillTokens()
    unproven: bool = False  # something was found, but it is not what is handed back
    cut: tuple[str, ...] = ()  # lines of the initial skill that the skill found goes without
    coverage: float | None = None
    rollouts: RolloutCounts = RolloutCounts()
    usage: UsageTotals = UsageTotals()
    usage_by_stage: dict[str, UsageTotals] = field(default_factory=dict)
    usage_by_role: dict[str, UsageTotals] = field(default_factory=dict)
    token_summary: dict[str, TokenCounts] = field(default_factory=dict)
    total_wall_time_s: float = 0.0


def fields_of(record: object) -> dict[str, Any]:
    """Return the fields of a dataclass by name, as they are."""
    return {one.name: getattr(record, one.name) for one in fields(record)}  # type: ignore[arg-type]


def skill_file(step: int, suffix: str = "") -> str:
    """Return the file in a run's folder that holds the skill after a step; 0: the initial skill."""
    return f"skills/skill_v{step:04d}{suffix}.md"


COMPOSED = "composed"  # what events call the skill that the end of a run composes


def step_name(step: int) -> str:
    """Return the name of a step in events and folders."""
    return f"step_{step:04d}"


def step_number(name: str) -> int | None:
    """Return the step in such a name; None for other names."""
    found = re.fullmatch(r"step_(\d+)", name)
    return int(found[1]) if found else None


def epoch_name(epoch: int) -> str:
    return f"epoch_{epoch:02d}"


def slow_update_name(epoch: int) -> str:
    return f"slow_update_{epoch_name(epoch)}"


def slow_update_epoch(name: str) -> int | None:
    """Return the epoch in the name of a slow update; None for other names."""
    found = re.fullmatch(r"slow_update_epoch_(\d+)", name)
    return int(found[1]) if found else None
