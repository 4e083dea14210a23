"""The record of a run, as plain data: `RunCard`, the few facts that a list shows, and `Record`,
everything that pages and programs show of one run. `fold.py` makes both from events. Terminal,
report, studio, `ls`, Python API, MCP, trackers and `--json` show these types. What there may be
very much of (steps, items, rollouts) is read when it is asked for: `report/run_details.py`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypedDict, TypeVar

from pydantic_core import to_jsonable_python

from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import Usage
from skillfit.plain_text import display_name, label_of, quantity, work_name
from skillfit.record.evidence import TriedFailure, tried_failures, with_edits
from skillfit.run.control import Action
from skillfit.run.events import AblationFinished, Discarded, RunFinished, SkillsMeasured
from skillfit.run.journal import BillRow
from skillfit.run.records import (
    ACCEPTED,
    EDIT_ORDER,
    SKIPPED,
    CandidateComparison,
    CheckResult,
    EditEffect,
    Evidence,
    EvidenceMemory,
    Recorded,
    RecordedConfig,
    RunFinishReason,
    RunSummary,
    ShipResult,
    SkillTokens,
    StageName,
    StepAction,
    TypeSummary,
    UsageTotals,
    fields_of,
)
from skillfit.skill import Hunk, Skill, diff_hunks
from skillfit.skill.parts import on_demand_tokens, with_parts
from skillfit.skill.units import Granularity

IN_SKILL, NOT_IN_SKILL = "in the skill", "not in the skill"  # instead, when the run has ended
APPLIED = "applied"  # the folder of a run in which `skillfit apply` keeps what was there before
EditLike = TypeVar("EditLike", bound=EditEffect)
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
    decision: Recorded[StepAction] = "accept"  # whether the loop continued with this skill
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
    evidence: Evidence = field(default_factory=Evidence)
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
        return bool(self.evidence.rollouts) and self.evidence.interval != (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class EditRecord(EditEffect):
    """An edit that was tried: what is known about it, how that changed, and where it ended."""

    history: Mapping[int, EditEffect] = field(default_factory=dict)  # by step: known after it
    in_best: bool | None = None  # in the skill that was found; None until the run has ended
    unproven: bool = False  # that skill is not handed back

    @property
    def standing(self) -> str:
        """Its status; after the end of the run, whether the skill that was found has it."""
        if self.in_best is None:
            return self.status
        standing = IN_SKILL if self.in_best else NOT_IN_SKILL
        return standing.replace("the skill", "the unproven skill") if self.unproven else standing

    @property
    def decided_in_step(self) -> int:
        """The step after which it got its present status; 0 when that is not recorded."""
        since = 0
        for step, known in sorted(self.history.items(), reverse=True):
            if known.status != self.status:
                break
            since = step
        return since


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


def _as_one(stages: Sequence[StageProgress]) -> StageProgress:
    """Return the first of these stages that still runs; when all are over, their sum."""
    running = [stage for stage in stages if not stage.over]
    if running:
        return running[0]
    return replace(
        stages[-1],
        total=sum(stage.total for stage in stages),
        done=sum(stage.done for stage in stages),
        failed=sum(stage.failed for stage in stages),
        seconds=sum(stage.seconds or 0.0 for stage in stages),
    )


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
    files: Mapping[str, str] = field(default_factory=dict)  # of the folder that edits may change

    @property
    def skill(self) -> Skill:
        """The document with the files that edits may change."""
        files = {name: text.encode() for name, text in self.files.items()}
        return Skill.from_text(self.text, files=files)


@dataclass(frozen=True, slots=True)
class DataSummary:
    """What the skill is trained on."""

    skill: str = ""  # path
    tasks: str = ""
    grader: str = ""
    splits: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, int] = field(default_factory=dict)


def practice_models(agent: str, optimizer: str) -> str:
    """Name which of the models are built-in practice models and no language models: "practice
    models", "practice agent", "practice optimizer", or nothing.
    """
    models = {"agent": agent, "optimizer": optimizer}
    roles = [role for role, model in models.items() if model.startswith("practice/")]
    if not roles:
        return ""
    return "practice models" if len(roles) > 1 else f"practice {roles[0]}"


RunState = Literal["running", "waiting", "review", "stopped", "finished"]
"""What a run is doing now. waiting: handoff prompts need answers; review: edits need a person's
approval; stopped: before its end, it can be resumed.
"""
# How a run ended; empty until then.
RunEnd = RunFinishReason | Literal["ablation", "evaluation", ""]
RESUMABLE: tuple[RunFinishReason, ...] = ("budget", "infrastructure")


@dataclass(frozen=True, slots=True)
class SplitScores:
    """Scores of skills on one split; None where not measured."""

    baseline: float | None = None  # the initial skill
    best: float | None = None  # the skill that was found; on the test split the one handed back
    final: float | None = None  # on the test split: the last skill, where that is not the best


@dataclass(frozen=True, slots=True)
class RolloutUse:
    """How many rollouts a finished run planned, beside `budget.rollouts`."""

    used: int | None = None
    cap: int | None = None


class ResultJson(TypedDict):
    """The line that `train --json` ends with, and the first fields of `ls` and `show --json`."""

    finish_reason: RunFinishReason | Literal["ablation", "evaluation", "unfinished"]
    run: str
    best_step: int | None
    metric: str | None
    selection: dict[str, float | None]  # baseline, best
    fresh: dict[str, float | None]  # the same on fresh rollouts; null where there were none
    test: SplitScores
    ship: ShipResult | None
    unproven: bool
    cut: tuple[str, ...]
    skill_tokens: SkillTokens | None
    rollouts: RolloutUse
    usage: UsageTotals
    wall_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """The result of a run and the facts that a list shows. The writer of a run keeps it in the
    journal, so that a list of a thousand runs reads a thousand small cards and no events. `path`
    and `state` are filled in by the reader.
    """

    path: str = ""
    state: RunState = "stopped"
    seq: int = 0  # of the last event that is in here
    run: str = ""  # the run's id; empty: not started yet
    version: str = ""  # of skillfit
    skill_name: str = ""
    tasks: str = ""  # where the items come from
    models: Mapping[str, str] = field(default_factory=dict)  # role -> model id
    metric: str = "hard"  # hard, soft or mixed: which score every number here is in
    begun: float | None = None
    ended: float | None = None  # time of the last event
    total_steps: int = 0
    steps_done: int = 0
    checked: bool = False  # the check before a run is done
    points: tuple[Point, ...] = ()
    finish_reason: Recorded[RunEnd] = ""
    diagnosis: str = ""
    best_step: int | None = None
    ship: ShipResult | None = None
    selection: SplitScores = SplitScores()
    test: SplitScores = SplitScores()
    unproven: bool = False  # something was found, but the initial skill is handed back
    cut: tuple[str, ...] = ()  # lines of the initial skill that the skill found goes without
    skill_tokens: SkillTokens | None = None  # None: the run has not finished
    rollouts_used: RolloutUse = RolloutUse()
    usage: Usage = field(default_factory=Usage)  # over all resumes, with failed attempts
    wall_s: float | None = None  # time taken, once finished
    awaiting: tuple[str, ...] = ()  # ids of edits that wait for a person's approval
    tags: tuple[str, ...] = ()  # of a person; filled in by the reader
    archived: bool = False  # the same

    @property
    def started(self) -> bool:
        return bool(self.run)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended for good: there is nothing to resume."""
        return self.state == "finished" and self.finish_reason not in RESUMABLE

    @property
    def failed(self) -> bool:
        return self.finish_reason == "infrastructure"

    @property
    def only_checked(self) -> bool:
        """Whether `skillfit check` made this run, and nothing was measured since."""
        trained = self.finish_reason or self.points or self.steps_done
        return self.checked and self.state == "stopped" and not trained

    @property
    def compared(self) -> ShipResult | None:
        """The final comparison; None unless fresh rollouts were made."""
        return self.ship if self.ship is not None and self.ship.pairs else None

    def point(self, name: str) -> Point | None:
        return next((point for point in reversed(self.points) if point.name == name), None)

    @property
    def fresh(self) -> SplitScores:
        """The scores on fresh rollouts, of the initial skill and the one that was found."""
        initial, found = self.point("ship_initial"), self.point("ship_best")
        return SplitScores(initial.score if initial else None, found.score if found else None)

    @property
    def listed_scores(self) -> SplitScores:
        """The scores that lists show: on fresh rollouts, from which the verdict follows, where the
        run made them, else on the selection split.
        """
        return self.selection if self.fresh.best is None else self.fresh

    @property
    def doubt(self) -> str:
        """Why `selection.best` is not the result of a finished run: fresh rollouts did not confirm
        that the skill is better, or there were none. Empty for a confirmed score, and for the
        initial skill's.
        """
        if not self.finish_reason or self.selection.best in (None, self.selection.baseline):
            return ""
        return score_doubt(self.compared)

    @property
    def score(self) -> float | None:
        """The selection score of the skill that the run handed back; before that, the latest."""
        if self.unproven:
            return self.selection.baseline
        if self.selection.best is not None:
            return self.selection.best
        latest = [point.score for point in self.points if point.split == "selection"]
        return latest[-1] if latest else self.selection.baseline

    @property
    def gain(self) -> float | None:
        """What the skill that was found scores above the initial one: on fresh rollouts where they
        were made, else on the selection split; None when nothing was compared.
        """
        if self.ship is not None:
            return self.compared.difference if self.compared else None
        if self.selection.baseline is None or self.selection.best is None:
            return None
        return self.selection.best - self.selection.baseline

    def result_json(self) -> ResultJson:
        return ResultJson(
            finish_reason=self.finish_reason or "unfinished",
            run=self.path,
            best_step=self.best_step,
            metric=self.metric,
            selection={"baseline": self.selection.baseline, "best": self.selection.best},
            fresh={"baseline": self.fresh.baseline, "best": self.fresh.best},
            test=self.test,
            ship=self.ship,
            unproven=self.unproven,
            cut=self.cut,
            skill_tokens=self.skill_tokens,
            rollouts=self.rollouts_used,
            usage=UsageTotals.of(self.usage),
            wall_s=self.wall_s,
        )


def score_doubt(compared: ShipResult | None) -> str:
    """Say why the score of a skill that a run found is not its result; empty: it is."""
    if compared is None:
        return "not verified"
    return "" if compared.verdict == "improved" else "not confirmed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(RunCard):
    """What a run did so far: settings, scores, edits, decisions, cost and result."""

    has_begun: bool = False  # the start is recorded; the run's directory exists before that
    finished: RunFinished | None = None  # None while the run is in progress, or was stopped
    verdict: str = ""  # one sentence
    isolation: str = ""  # how agents and graders were kept apart from this machine
    ablated_by: Granularity | None = None  # what an ablation leaves out at a time
    config: RecordedConfig = field(default_factory=lambda: RecordedConfig({}))
    data: DataSummary = DataSummary()
    total_epochs: int = 0
    seconds: float = 0.0  # so far
    seconds_left: float | None = None  # expected; None when there is nothing to go by
    initial_skill: str = ""
    initial_files: Mapping[str, str] = field(default_factory=dict)  # that edits may change
    best_skill: str = ""  # what the run hands back; while it runs, the best so far
    unproven_skill: str = ""  # what was found where it is not handed back
    found_files: Mapping[str, str] = field(default_factory=dict)  # that changed; empty: removed
    tokens: tuple[int, int] = (0, 0)  # of the initial and of the found document
    versions: tuple[SkillVersion, ...] = ()
    ablation: AblationFinished | None = None  # of `skillfit ablate`
    measured: SkillsMeasured | None = None  # of `skillfit eval`
    checks: tuple[CheckResult, ...] = ()  # of the preflight
    gates: tuple[GateSummary, ...] = ()
    edits: tuple[EditRecord, ...] = ()
    # What failed in training, and the edits of earlier runs; `failures` has those of this run too.
    evidence: EvidenceMemory = field(default_factory=EvidenceMemory)
    rejections: tuple[Discarded, ...] = ()  # what the optimizer sent and the run did not use
    types: tuple[TypeSummary, ...] = ()
    stages: tuple[StageProgress, ...] = ()  # of the present step, and any that still run
    decisions: tuple[PersonDecision, ...] = ()
    prompts: int = 0  # handoff prompts that wait for an answer
    costs: tuple[BillRow, ...] = ()
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
    def agent(self) -> str:
        return self.models.get("agent", "")

    @property
    def optimizer(self) -> str:
        return self.models.get("optimizer", "")

    @property
    def judge(self) -> str:
        return self.models.get("judge", "")

    @property
    def summary(self) -> RunSummary | None:
        """As summary.json; None while the run has not finished."""
        return self.finished.summary if self.finished else None

    @property
    def is_ablation(self) -> bool:
        """Whether `skillfit ablate` made this run: it measures the parts of a skill."""
        return self.ablation is not None or self.ablated_by is not None

    @property
    def only_measures(self) -> bool:
        """Whether `skillfit eval` or `skillfit ablate` made this run: it has no steps."""
        return self.has_begun and not self.total_steps

    @property
    def is_evaluation(self) -> bool:
        """Whether `skillfit eval` made this run."""
        return self.only_measures and not self.is_ablation

    @property
    def to_review(self) -> tuple[EditRecord, ...]:
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
    def initial(self) -> Skill:
        """The initial skill with the files that edits may change."""
        return SkillVersion("initial", "", self.initial_skill, files=self.initial_files).skill

    @property
    def found(self) -> Skill:
        """What the training led to, with the files that edits may change."""
        initial = self.initial
        return with_parts(
            initial.with_document(Skill.from_text(self.found_skill)), self.found_files
        )

    @property
    def on_demand_tokens(self) -> tuple[int, int]:
        """The tokens of the initial and of the found files that edits may change, which the agent
        reads when it needs them.
        """
        return on_demand_tokens(self.initial), on_demand_tokens(self.found)

    @property
    def changed(self) -> bool:
        return self.found_skill != self.initial_skill or bool(self.found_files)

    @property
    def doubt(self) -> str:
        """Why the score of the skill that was found is not a result; empty: it is one, or nothing
        was found.
        """
        return score_doubt(self.compared) if self.changed else ""

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        """What changed from the initial skill to the one found."""
        return diff_hunks(self.initial, self.found)

    @property
    def caps(self) -> dict[str, float]:
        """The budgets that are set, with those that a person changed while the run was running."""
        budget = self.config.settings.budget
        caps = {name: float(cap) for name, cap in budget if cap is not None}
        for decision in self.decisions:
            if decision.done and decision.cap is not None:
                caps[decision.target] = decision.cap
        return caps

    @property
    def work(self) -> tuple[StageProgress, ...]:
        """The stages, one for each kind of work in a step: the one that runs, or all together."""
        groups: dict[tuple[int, int, str], list[StageProgress]] = {}
        for stage in self.stages:
            groups.setdefault((stage.epoch, stage.step, work_name(stage.stage)), []).append(stage)
        return tuple(map(_as_one, groups.values()))

    @property
    def costs_by_work(self) -> tuple[BillRow, ...]:
        """The costs with the stages of one kind of work as one row."""
        sums: defaultdict[tuple[str, str, str], Usage] = defaultdict(Usage)
        for row in self.costs:
            sums[work_name(row.stage, row.role), row.role, row.model] += row.usage
        return tuple(BillRow(*key, usage) for key, usage in sums.items())

    @property
    def running_stage(self) -> StageProgress | None:
        """The latest stage that is not over. One whose rollouts are under way comes first: the
        optimizer's stage begins beside them and can only wait.
        """
        running = [stage for stage in self.stages if not stage.over]
        counted = [stage for stage in running if stage.done < stage.total]
        return next(reversed(counted or running), None)

    def version_of(self, name: str) -> SkillVersion | None:
        return next((version for version in self.versions if version.name == name), None)

    def skill_after(self, step: int) -> SkillVersion | None:
        """Return the skill that a step ended with, from an earlier version when the step left it
        as it was; None for a step that the run has not done.
        """
        if not 0 <= step <= self.steps_done:
            return None
        earlier = [
            version
            for version in self.versions
            if version.name in ("initial", str(step)) or 0 < version.after < step
        ]
        return earlier[-1] if earlier else None

    @property
    def failures(self) -> tuple[TriedFailure, ...]:
        """The kinds of failure in training, each with the edits that were tried against it."""
        return tried_failures(with_edits(self.evidence, self.edits))

    def edit(self, edit_id: str) -> EditRecord | None:
        return next((edit for edit in self.edits if edit.id == edit_id), None)

    @property
    def kept_edits(self) -> tuple[EditRecord, ...]:
        """The edits in the skill that was found; until the run has ended, the promoted ones."""
        return tuple(edit for edit in self.edits if edit.in_best or edit.standing == "promoted")

    @property
    def edit_counts(self) -> str:
        """How many edits have each standing: "2 promoted, 3 pending, 0 dropped", or after the end
        "4 in the skill, 1 not in the skill". Empty without edits.
        """
        if not self.edits:
            return ""
        names: tuple[str, ...] = EDIT_ORDER
        if any(edit.in_best is not None for edit in self.edits):
            ends = (replace(self.edits[0], in_best=kept) for kept in (True, False))
            names = tuple(edit.standing for edit in ends)
        counts = Counter(edit.standing for edit in self.edits)
        return ", ".join(f"{counts[name]} {name}" for name in names)

    @property
    def selection_is_estimated(self) -> bool:
        """Whether `selection_scores` are predicted by the regression over all rollouts."""
        kept = [point for point in self.points if point.split == "selection" and point.kept]
        return bool(kept) and kept[-1].estimated

    def selection_scores(self) -> tuple[float, float] | None:
        """Return the scores of the initial and the best skill on the selection split: what the end
        of the run says, or the best point of the curve that the loop continued with.
        """
        ended = self.summary
        if ended is not None and ended.baseline_selection_score is not None:
            initial, best = ended.baseline_selection_score, ended.best_selection_score
            return initial, initial if best is None else best
        kept = [point for point in self.points if point.split == "selection" and point.kept]
        if not kept:
            return None
        first, last = kept[0], kept[-1]
        if last.estimated:  # later estimates rest on more rollouts
            return (first if self.changed else last).score, last.score
        highest = max(point.score for point in kept) if self.changed else first.score
        return first.score, highest


def by_effect(edits: Iterable[EditLike]) -> list[EditLike]:
    """Sort measured edits from the best to the worst, then those without a measurement."""
    return sorted(edits, key=lambda edit: (edit.mean is None, -(edit.mean or 0.0), edit.id))


# Beside `result_json`; without the texts of other skills and how each effect changed.
_SHOWN = (
    "state",
    "verdict",
    "diagnosis",
    "practice",
    "seconds",
    "best_skill",
    "unproven_skill",
    "found_files",
    "skill_loaded",
    "skill_missed",
    "points",
    "gates",
    "rejections",
    "types",
    "costs",
    "notices",
    "decisions",
)


def record_json(record: Record) -> JsonObject:
    """Return the record for programs: what `show --json` prints and the MCP tool `show` returns."""
    edits = []
    for edit in record.edits:
        known = fields_of(edit)
        del known["history"]
        words = {"text": edit.text, "standing": edit.standing, "evidence": edit.evidence}
        edits.append({**known, **words})
    shown = {name: getattr(record, name) for name in _SHOWN}
    failures = [
        {**fields_of(one.pattern), "tried": [edit.id for edit in one.edits]}
        for one in record.failures
    ]
    listed = {"edits": edits, "failures": failures}
    data: JsonObject = to_jsonable_python({**record.result_json(), **shown, **listed})
    return data
