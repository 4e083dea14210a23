"""The one outside view of a run, as plain data: `RunStory` and the records it consists of.
Terminal, report, studio, Python API and MCP server all read it. `story_builder.py` makes it from
events. What there may be very much of (steps, items, rollouts) is left to `run_details.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from skillfit.models.protocol import Usage
from skillfit.plain_text import display_name, label_of, one_line, quantity
from skillfit.run.control import Action
from skillfit.run.events import AblationFinished, RunFinished, ShipTested, SkillsMeasured
from skillfit.run.journal import BillRow
from skillfit.run.records import (
    ACCEPTED,
    AWAITS_APPROVAL,
    EFFECT,
    LEAK_CHECK,
    SKIPPED,
    CandidateComparison,
    CheckResult,
    EditStatus,
    RecordedConfig,
    RunFinishReason,
    RunSummary,
    StageName,
    StepAction,
)
from skillfit.run.view import RunState, ended_for_good, score_doubt
from skillfit.skill import Edit, Hunk, diff_hunks
from skillfit.skill.edits import example_of
from skillfit.skill.units import Granularity

EDIT_ORDER: tuple[EditStatus, ...] = ("promoted", "pending", "dropped")  # in lists of edits
IN_SKILL, NOT_IN_SKILL = "in the skill", "not in the skill"  # instead, when the run has ended
APPLIED = "applied"  # the folder of a run in which `skillfit apply` keeps what was there before
PointSplit = Literal["selection", "ship", "test"]


@dataclass(frozen=True, slots=True)
class Point:
    """A skill's mean score on some items, with its 90 % interval."""

    # baseline, step_0003, slow_update_epoch_02, composed, final, ship_initial, test_baseline, …
    name: str
    split: PointSplit
    score: float
    low: float
    high: float
    items: int
    decision: StepAction = "accept"  # whether the loop continued with this skill
    estimated: bool = False  # predicted by the regression over all rollouts

    @property
    def label(self) -> str:
        return label_of(self.name)

    @property
    def kept(self) -> bool:
        return self.decision in ACCEPTED


@dataclass(frozen=True, slots=True)
class GateSummary:
    """A decision of the gate, or why a step ended without one."""

    name: str
    step: int
    epoch: int
    action: StepAction
    reason: str = ""
    difference: float = 0.0
    interval: tuple[float, float] = (0.0, 0.0)
    probability: float | None = None  # None: nothing was measured
    fixed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    higher: int = 0  # items whose mean score rose, solved or not
    lower: int = 0
    rollouts: int = 0
    coverage: float = 0.0
    candidates: tuple[CandidateComparison, ...] = ()
    entered: tuple[str, ...] = ()  # screening: ids of the edits that joined the pool
    promoted: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    pending: int | None = None  # edits in the pool afterwards; None: no pool
    at: float = 0.0

    @property
    def label(self) -> str:
        return label_of(self.name)

    @property
    def decision(self) -> str:
        """The action as people read it. With a pool, edits that were not promoted stay pending:
        nothing was rejected.
        """
        if self.action == "reject" and self.pending is not None:
            return "no change"
        return display_name(self.action)

    @property
    def accepted(self) -> bool:
        return self.action in ACCEPTED

    @property
    def skipped(self) -> bool:
        """Whether the step had no candidate."""
        return self.action in SKIPPED

    @property
    def measured(self) -> bool:
        """Whether the candidate and the incumbent were compared as a whole."""
        return self.probability is not None and self.interval != (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class EffectPoint:
    """What was known about an edit after a step."""

    step: int
    status: EditStatus
    mean: float | None
    low: float
    high: float
    rollouts: int


@dataclass(frozen=True, slots=True)
class EditSummary:
    """One edit: its text, effect and status.

    Effects are differences of the mean score; `low` and `high` bound the 80 % interval.
    """

    id: str
    step: int  # 0: text of the initial skill
    edit: Edit
    status: EditStatus
    mean: float | None = None  # None: not measured on its own
    low: float = 0.0
    high: float = 0.0
    probability: float = 0.5
    rollouts: int = 0
    reason: str = ""
    items: tuple[str, ...] = ()  # training items it was written from
    history: tuple[EffectPoint, ...] = ()
    in_best: bool | None = None  # in the skill that was found; None until the run has ended
    awaits_approval: bool = False  # pending only until a person approves it (`review: true`)

    @property
    def text(self) -> str:
        """What the edit does, in one line of text."""
        example = example_of(self.edit)
        if example is not None:
            return f"worked example: {example.input} → {example.output}"
        if self.edit.content:
            return self.edit.content
        return f"{self.edit.label or 'delete'}: {self.edit.target}"

    @property
    def measured(self) -> bool:
        return self.mean is not None

    @property
    def standing(self) -> str:
        """Its status; after the end of the run, whether the skill that was found has it."""
        if self.in_best is None:
            return self.status
        return IN_SKILL if self.in_best else NOT_IN_SKILL

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

    @property
    def decided_in_step(self) -> int:
        """The step after which it got its present status; 0 when that is not recorded."""
        since = 0
        for point in reversed(self.history):
            if point.status != self.status:
                break
            since = point.step
        return since


def blocked_text(text: str, reason: str, words: str) -> str:
    """What the leak check blocked, in one line: the words found, their text, and why."""
    found = f'"{one_line(words, 80)}" in ' if words else ""
    return f'{found}"{one_line(text, 120)}", which {reason}'


@dataclass(frozen=True, slots=True)
class Rejection:
    """Something an optimizer proposed that was not used, and why."""

    step: int
    stage: str
    what: str
    reason: str
    evidence: str = ""

    @property
    def leak(self) -> bool:
        return self.stage == LEAK_CHECK

    @property
    def blocked(self) -> str:
        """Of a leak: the words found, the text that was blocked, and why."""
        return blocked_text(self.what, self.reason, self.evidence)


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


@dataclass(frozen=True, slots=True)
class StageProgress:
    """One stage: how far it is and how long it takes."""

    epoch: int
    step: int
    stage: StageName
    total: int  # rollouts planned; 0 for a stage that only asks the optimizer
    begun: float
    done: int = 0
    failed: int = 0
    latest: float = 0.0  # time of its last rollout
    seconds: float | None = None  # None: still running

    @property
    def over(self) -> bool:
        return self.seconds is not None

    @property
    def share(self) -> float | None:
        """How much of it is done, 0 to 1; None when that cannot be counted."""
        if self.over:
            return 1.0
        return min(1.0, self.done / self.total) if self.total else None

    @property
    def rate(self) -> float:
        """Rollouts per second."""
        took = self.latest - self.begun
        return self.done / took if self.done and took > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Expected time to the end of the stage; None when there is nothing to go by."""
        if self.over or not self.total or not self.rate:
            return None
        return max(0, self.total - self.done) / self.rate


@dataclass(frozen=True, slots=True)
class PersonDecision:
    """A person steered the run. `done` is False until the run has read it."""

    number: int
    action: Action
    target: str
    text: str
    command: str
    at: float
    done: bool = True
    cap: float | None = None  # budget: the cap that the request led to


@dataclass(frozen=True, slots=True)
class RunNotice:
    """Something a person should know: a check, a warning, or a kind of failure."""

    kind: Literal["check", "warning", "failed", "retried"]
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class SkillVersion:
    """A skill that the run worked with. `name` is what `skillfit diff` takes: initial, 3, best."""

    name: str
    label: str
    text: str
    skill_hash: str = ""
    after: int = 0  # the last step before it, or that made it


@dataclass(frozen=True, slots=True)
class SelectionScores:
    """The initial and the best skill on the selection split."""

    initial: float
    best: float


@dataclass(frozen=True, slots=True)
class DataSummary:
    """What the skill is trained on."""

    skill: str = ""  # path
    tasks: str = ""
    grader: str = ""
    splits: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, int] = field(default_factory=dict)


def practice_models(agent: str, optimizer: str) -> str:
    """Which of the models are built-in practice models and no language models: "practice models",
    "practice agent", "practice optimizer", or nothing.
    """
    models = {"agent": agent, "optimizer": optimizer}
    roles = [role for role, model in models.items() if model.startswith("practice/")]
    if not roles:
        return ""
    return "practice models" if len(roles) > 1 else f"practice {roles[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStory:
    """What a run did so far: settings, scores, edits, decisions, cost and result."""

    run: str
    path: str
    state: RunState
    has_begun: bool = False  # the start is recorded; the run's directory exists before that
    finished: RunFinished | None = None  # None while the run is in progress, or was stopped
    verdict: str = ""  # one sentence
    skill_name: str = ""
    agent: str = ""
    optimizer: str = ""
    judge: str = ""
    version: str = ""
    isolation: str = ""  # how agents and graders were kept apart from this machine
    ablated_by: Granularity | None = None  # what an ablation leaves out at a time
    metric: str = "hard"  # hard, soft or mixed: which score every number here is in
    config: RecordedConfig = field(default_factory=lambda: RecordedConfig({}))
    data: DataSummary = DataSummary()
    total_steps: int = 0
    total_epochs: int = 0
    steps_done: int = 0
    begun: float | None = None
    ended: float | None = None  # time of the last event
    seconds: float = 0.0
    seconds_left: float | None = None  # expected; None when there is nothing to go by
    initial_skill: str = ""
    best_skill: str = ""  # what the run hands back; while it runs, the best so far
    unproven_skill: str = ""  # what was found where it is not handed back
    tokens: tuple[int, int] = (0, 0)  # of the initial and of the found skill
    versions: tuple[SkillVersion, ...] = ()
    points: tuple[Point, ...] = ()
    ship: ShipTested | None = None  # None unless fresh rollouts were made
    ablation: AblationFinished | None = None  # of `skillfit ablate`
    measured: SkillsMeasured | None = None  # of `skillfit eval`
    checks: tuple[CheckResult, ...] = ()  # of the preflight
    gates: tuple[GateSummary, ...] = ()
    edits: tuple[EditSummary, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    types: tuple[TypeSummary, ...] = ()
    stages: tuple[StageProgress, ...] = ()  # of the present step, and any that still run
    decisions: tuple[PersonDecision, ...] = ()
    prompts: int = 0  # handoff prompts that wait for an answer
    costs: tuple[BillRow, ...] = ()
    total: Usage = field(default_factory=Usage)
    notices: tuple[RunNotice, ...] = ()
    graded: bool = False  # some scores are neither 0 nor 1
    rollouts: int = 0
    skill_loaded: int = 0  # rollouts in which the agent loaded the skill, where that is known
    skill_missed: int = 0  # and in which it did not
    applied: bool = False  # `skillfit apply` put its skill into place, and nothing undid that

    @property
    def skill_use(self) -> str:
        """In how many rollouts the agent loaded the skill; empty where that is not known."""
        known = self.skill_loaded + self.skill_missed
        return f"in {self.skill_loaded:,} of {quantity(known, 'rollout')}" if known else ""

    @property
    def finish_reason(self) -> RunFinishReason | Literal[""]:
        """Empty while the run has not finished."""
        return self.finished.finish_reason if self.finished else ""

    @property
    def diagnosis(self) -> str:
        return self.finished.diagnosis if self.finished else ""

    @property
    def summary(self) -> RunSummary | None:
        """As summary.json; None while the run has not finished."""
        return self.finished.summary if self.finished else None

    @property
    def failed(self) -> bool:
        return self.finish_reason == "infrastructure"

    @property
    def is_ablation(self) -> bool:
        """Whether `skillfit ablate` made this run: it measures the parts of a skill."""
        return self.ablation is not None or self.ablated_by is not None

    @property
    def only_measures(self) -> bool:
        """Whether `skillfit eval` or `skillfit ablate` made this run: it has no steps."""
        return self.has_begun and not self.total_steps

    @property
    def only_checked(self) -> bool:
        """Whether `skillfit check` made this run, and nothing was trained yet."""
        trained = self.point("baseline") or self.gates or self.steps_done or self.finished
        return bool(self.checks) and self.state == "stopped" and not trained

    @property
    def is_evaluation(self) -> bool:
        """Whether `skillfit eval` made this run."""
        return self.only_measures and not self.is_ablation

    @property
    def is_over(self) -> bool:
        """Whether the run has ended for good: there is nothing to resume."""
        return ended_for_good(self.state, self.finish_reason)

    @property
    def to_review(self) -> tuple[EditSummary, ...]:
        """Edits that wait for a person's approval."""
        waiting = [edit for edit in self.edits if edit.awaits_approval]
        return () if self.is_over else tuple(waiting)

    @property
    def practice(self) -> str:
        """The built-in practice models that took part, in words; empty when there were none."""
        return practice_models(self.agent, self.optimizer)

    @property
    def found_skill(self) -> str:
        """What the training led to, whether it is handed back or not."""
        return self.unproven_skill or self.best_skill

    @property
    def changed(self) -> bool:
        return self.found_skill != self.initial_skill

    @property
    def doubt(self) -> str:
        """Why the score of the skill that was found is not a result; empty: it is one, or nothing
        was found.
        """
        return score_doubt(self.ship.verdict if self.ship else None) if self.changed else ""

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        """What changed from the initial skill to the one found."""
        return diff_hunks(self.initial_skill, self.found_skill)

    @property
    def caps(self) -> dict[str, float]:
        """The budgets that are set, with those that a person changed while the run was running."""
        budget = self.config.settings.budget
        caps = {name: float(cap) for name, cap in budget if cap is not None}
        for decision in self.decisions:
            if decision.action == "budget" and decision.done:
                name, cap = decision.target, decision.cap
                if cap is None:  # an event of an earlier version
                    cap = max(caps.get(name, 0.0), float(decision.text))
                caps[name] = cap
        return caps

    @property
    def running_stage(self) -> StageProgress | None:
        """The latest stage that is not over."""
        return next((stage for stage in reversed(self.stages) if not stage.over), None)

    def point(self, name: str) -> Point | None:
        return next((point for point in reversed(self.points) if point.name == name), None)

    def version_of(self, name: str) -> SkillVersion | None:
        return next((version for version in self.versions if version.name == name), None)

    def skill_after(self, step: int) -> SkillVersion | None:
        """The skill that a step ended with, from an earlier version when the step left it as it
        was; None for a step that the run has not done.
        """
        if not 0 <= step <= self.steps_done:
            return None
        earlier = [
            version
            for version in self.versions
            if version.name in ("initial", str(step)) or 0 < version.after < step
        ]
        return earlier[-1] if earlier else None

    def edit(self, edit_id: str) -> EditSummary | None:
        return next((edit for edit in self.edits if edit.id == edit_id), None)

    @property
    def kept_edits(self) -> tuple[EditSummary, ...]:
        """The edits in the skill that was found; until the run has ended, the promoted ones."""
        return tuple(edit for edit in self.edits if edit.standing in (IN_SKILL, "promoted"))

    @property
    def edit_counts(self) -> str:
        """How many edits have each standing: "2 promoted, 3 pending, 0 dropped", or after the end
        "4 in the skill, 1 not in the skill". Empty without edits.
        """
        if not self.edits:
            return ""
        ended = any(edit.in_best is not None for edit in self.edits)
        counts = Counter(edit.standing for edit in self.edits)
        names = (IN_SKILL, NOT_IN_SKILL) if ended else EDIT_ORDER
        text = ", ".join(f"{counts[name]} {name}" for name in names)
        return text.replace("the skill", "the unproven skill") if self.unproven_skill else text

    def selection_scores(self) -> SelectionScores | None:
        """Scores on the selection split: what the end of the run says, or the best point of the
        curve that the loop continued with.
        """
        ended = self.summary
        if ended is not None and ended.baseline_selection_score is not None:
            initial, best = ended.baseline_selection_score, ended.best_selection_score
            return SelectionScores(initial, initial if best is None else best)
        kept = [point for point in self.points if point.split == "selection" and point.kept]
        if not kept:
            return None
        first, last = kept[0], kept[-1]
        if last.estimated:  # later estimates rest on more rollouts
            return SelectionScores((first if self.changed else last).score, last.score)
        highest = max(point.score for point in kept) if self.changed else first.score
        return SelectionScores(first.score, highest)


def by_effect(edits: Iterable[EditSummary]) -> list[EditSummary]:
    """Measured edits from the best to the worst, then those without a measurement."""
    return sorted(edits, key=lambda edit: (edit.mean is None, -(edit.mean or 0.0), edit.id))
