"""The readable files of a run, written from its events.

They are at the paths that users of SkillOpt know. They are a view: a deleted file is written
again on replay, byte for byte. Files that grow with the run (history, state, best skill) are not
touched during replay until it has caught up. A step's skill file is never overwritten; the slow
update has its own file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from functools import singledispatchmethod
from typing import NotRequired, Protocol, TypedDict

import pydantic_core

from skillfit.extensions import JsonValue
from skillfit.run.events import (
    CandidateBuilt,
    EditsSelected,
    EvaluationFinished,
    Event,
    GateDecided,
    MetaSkillFinished,
    PatchMerged,
    PreflightFinished,
    ReflectionFinished,
    RolloutFinished,
    RunFinished,
    RunStarted,
    ShipTested,
    SlowUpdateFinished,
    StageFinished,
    StepFinished,
    Stored,
)
from skillfit.run.journal import ROLLOUTS
from skillfit.run.records import (
    PAYLOAD_FIELD,
    EditEffect,
    FailureNote,
    PairRecord,
    PatchRecord,
    ProposalRecord,
    RunSummary,
    SelectionDecision,
    SlowUpdateRecord,
    StageName,
    StepRecord,
    epoch_name,
    skill_file,
    slow_update_epoch,
    slow_update_name,
    step_name,
)
from skillfit.run.store import CONFIG_FILE, UNPROVEN_SKILL
from skillfit.skill import Skill, appendix_notes

_EVALUATIONS = {
    "baseline": "selection_eval_baseline",
    "final": "final_selection_eval",
    "test_baseline": "test_eval_baseline",
    "test_best": "test_eval",
    "test_final": "test_eval_final",
}
PLAN = "plan.json"
_GATED = "selection_eval"  # rollouts of a gate's decision
_RESULT_FILES = {
    "rewrite_from_suggestions": "rewrite_result.json",
    "full_rewrite_minibatch": "full_rewrite_result.json",
}


class Writer(Protocol):
    def write_text(self, name: str, text: str) -> None: ...

    def write_json(self, name: str, value: object) -> None: ...


class RunFiles:
    """A listener on the event log. Gets all events of a run, live or on replay."""

    def __init__(self, directory: Writer, progress: int = 0) -> None:
        """Begin to write files. `progress` is how far those of an earlier process are: the last
        stored event that ended a step or an epoch.
        """
        self._directory = directory
        self._progress = progress
        self._caught_up = True
        self._update_mode = "patch"
        self._step = 0
        self._notes: defaultdict[int, list[str]] = defaultdict(list)  # that analysts wrote, by step
        self._seconds: dict[tuple[str, int], float] = {}  # of the stages at the end of an epoch
        self._history: dict[int, StepRecord] = {}
        self._rates: dict[int, SelectionDecision] = {}
        self._effects: list[EditEffect] = []  # the pool after the last decision
        self._state: dict[str, JsonValue] = {}  # runtime_state.json
        self._rollouts: defaultdict[tuple[StageName, int], dict[str, RolloutFinished]]
        self._rollouts = defaultdict(dict)

    def __call__(self, stored: Stored) -> None:
        self._caught_up = stored.seq >= self._progress
        event = stored.event
        if isinstance(event, RolloutFinished):  # most events are
            self._rollouts[event.phase, event.step][event.rollout] = event
        else:
            self._on(event)

    @singledispatchmethod
    def _on(self, event: Event) -> None:
        """Ignore other events, which leave no file."""

    @_on.register
    def _(self, event: RunStarted) -> None:
        self._update_mode = event.config.settings.optimizer.skill_update_mode
        self._directory.write_json(CONFIG_FILE, event.config)
        self._directory.write_text(skill_file(0), event.skill)
        if event.total_steps:
            self._directory.write_json(PLAN, _plan_file(event))

    @_on.register
    def _(self, event: StageFinished) -> None:
        self._seconds[event.stage, event.epoch] = round(event.seconds, 1)

    @_on.register
    def _(self, event: PreflightFinished) -> None:
        self._directory.write_json(
            "preflight.json", {"verdict": event.verdict, "checks": event.checks}
        )

    @_on.register
    def _(self, event: EvaluationFinished) -> None:
        folder = _EVALUATIONS.get(event.name)
        if folder is None:
            return
        phases = (event.name, event.split)  # the test split is measured in the phase `test`
        found: list[RolloutFinished] = []
        for (phase, _), rollouts in self._rollouts.items():
            if phase in phases:
                found += rollouts.values()
        of_skill = [rollout for rollout in found if rollout.skill_hash == event.skill_hash]
        self._write_results(folder, of_skill)
        if event.by_type and event.has_score:
            overall = {"total": event.scored_items, "hard_acc": event.hard, "soft_acc": event.soft}
            summary = {**event.by_type, "overall": overall}
            self._directory.write_json(f"{folder}/summary.json", summary)

    @_on.register
    def _(self, event: ReflectionFinished) -> None:
        batch, _, group = event.group.rpartition("/")
        folder = f"{_step_folder(event.step)}/{batch + '/' if batch else ''}patches"
        reflection = _reflection_file(event.patch, self._update_mode)
        self._directory.write_json(f"{folder}/{group}.json", reflection)
        self._notes[event.step] += event.patch.appendix_notes

    @_on.register
    def _(self, event: PatchMerged) -> None:
        merged = _patch_file(event.patch, self._update_mode)
        self._directory.write_json(f"{_step_folder(event.step)}/merged_patch.json", merged)

    @_on.register
    def _(self, event: EditsSelected) -> None:
        folder, decision = _step_folder(event.step), event.decision
        self._directory.write_json(f"{folder}/ranked_edits.json", _ranked_edits_file(event))
        if decision.learning_rate is not None:
            self._directory.write_json(f"{folder}/lr_decision.json", _rate_file(decision))
            self._rates[event.step] = decision

    @_on.register
    def _(self, event: CandidateBuilt) -> None:
        folder = _step_folder(event.step)
        self._directory.write_text(f"{folder}/candidate_skill.md", event.skill)
        if self._update_mode in _RESULT_FILES:
            name = _RESULT_FILES[self._update_mode]
            self._directory.write_json(f"{folder}/{name}", event.rewrite)
        elif report := [result.as_row() for result in event.report]:
            self._directory.write_json(f"{folder}/edit_apply_report.json", report)

    @_on.register
    def _(self, event: GateDecided) -> None:
        epoch = slow_update_epoch(event.name)
        if epoch is not None:
            folder = f"slow_update/{epoch_name(epoch)}"
        else:
            folder = _step_folder(event.step) if event.step else f"prune/{event.name}"
        verdict = {
            "decision": event.decision,
            "reason": event.reason,
            "evidence": event.evidence,
            "score": event.score,
            "candidates": event.candidates,
        }
        self._directory.write_json(f"{folder}/verdict.json", verdict)
        if event.effects:
            self._directory.write_json(f"{folder}/edit_effects.json", event.effects)
            self._effects = event.effects

    @_on.register
    def _(self, event: StepFinished) -> None:
        self._step = event.step
        folder = _step_folder(event.step)
        for phase, step in [key for key in self._rollouts if key[1] == event.step and event.step]:
            rollouts = list(self._rollouts.pop((phase, step)).values())
            self._write_results(rollouts_folder(phase, step), rollouts)
        self._directory.write_text(skill_file(event.step), event.skill)
        if event.digest:
            self._directory.write_json(f"{folder}/trajectory_digest.json", event.digest)
        notes = self._notes.pop(event.step, [])
        if event.record.n_execution_lapse_notes:  # a gate that pools edits has them as edits
            after = appendix_notes(Skill.from_text(event.skill))
            shown = {"step_notes": notes, "appendix_after": after}
            self._directory.write_json(f"{folder}/appendix_notes.json", shown)
        self._history[event.step] = event.record
        self._write_progress(skill_file(event.step), event.best_skill)
        self._directory.write_json(f"{folder}/step_record.json", flat_record(event.record))

    @_on.register
    def _(self, event: SlowUpdateFinished) -> None:
        folder = f"slow_update/{epoch_name(event.epoch)}"
        self._write_look_back(folder, event.result.prev_hash)
        result = flat_record(event.result) | self._clock("slow_update", event.epoch)
        new_best = event.result.standings.best_origin == slow_update_name(event.epoch)
        if event.action == "accept" and new_best:
            result["action"] = "accept_new_best"
        self._directory.write_json(f"{folder}/slow_result.json", result)
        self._write_pairs(folder, event.pairs, event.all_pairs)
        self._directory.write_text(f"{folder}/candidate_skill.md", event.candidate)
        carried = skill_file(self._step, "_slow_update")
        self._directory.write_text(carried, event.skill)
        self._write_progress(carried, event.best_skill, event.result)

    @_on.register
    def _(self, event: MetaSkillFinished) -> None:
        folder = f"meta_skill/{epoch_name(event.epoch)}"
        self._write_look_back(folder, event.result.prev_hash)
        result = asdict(event.result) | self._clock("meta_skill", event.epoch)
        self._directory.write_json(f"{folder}/meta_skill_result.json", result)
        if event.all_pairs:
            self._write_pairs(folder, event.pairs, event.all_pairs)

    @_on.register
    def _(self, event: ShipTested) -> None:
        self._directory.write_json("ship_test.json", event)

    @_on.register
    def _(self, event: RunFinished) -> None:
        self._directory.write_text("best_skill.md", event.best_skill)
        if event.unproven_skill:
            self._directory.write_text(UNPROVEN_SKILL, event.unproven_skill)
        summary = _summary_file(event.summary, self._history.values())
        self._directory.write_json("summary.json", summary)
        if self._state:
            self._directory.write_json("runtime_state.json", self._state | _handed_back(event))

    def _clock(self, stage: StageName, epoch: int) -> dict[str, JsonValue]:
        """Return which epoch ended, and how long this part of its end took."""
        return {"epoch": epoch, "time_s": self._seconds.get((stage, epoch), 0.0)}

    def _write_pairs(
        self, folder: str, kept: Sequence[PairRecord], tried: Sequence[PairRecord]
    ) -> None:
        rows = [_pair_row(pair) for pair in kept]
        self._directory.write_json(f"{folder}/comparison_pairs.json", rows)
        if tried != kept:
            rows = [_pair_row(pair) for pair in tried]
            self._directory.write_json(f"{folder}/comparison_pairs_all.json", rows)

    def _write_progress(
        self, skill: str, best_skill: str, update: SlowUpdateRecord | None = None
    ) -> None:
        last = self._history.get(self._step)
        record = update or last
        self._state = {
            "last_completed_step": self._step,
            "current_skill_path": skill,
            "best_skill_path": "best_skill.md",
            **(asdict(record.standings) if record is not None else {}),
        }
        if not self._caught_up:
            return
        self._directory.write_text("best_skill.md", best_skill)
        history = [flat_record(record) for record in self._history.values()]
        self._directory.write_json("history.json", history)
        if self._effects:
            self._directory.write_json("edit_effects.json", self._effects)
        if self._rates:
            rates = [
                RateLine(step=step, epoch=self._history[step].epoch, **_rate_file(rate))
                for step, rate in self._rates.items()
                if step in self._history
            ]
            self._write_lines("lr_history.jsonl", rates)
        self._directory.write_json("runtime_state.json", self._state)

    def _write_look_back(self, folder: str, previous_hash: str) -> None:
        """Write the rollouts of an epoch's end: both skills on the same items, and the gate's."""
        keys = [key for key in self._rollouts if key[0] in ("slow_update", "meta_skill")]
        rows = [row for key in keys for row in self._rollouts.pop(key).values()]
        compared = [row for row in rows if row.rollout.startswith(f"{ROLLOUTS}slow_update/")]
        before = [row for row in compared if row.skill_hash == previous_hash]
        after = [row for row in compared if row not in before] or before
        self._write_results(f"{folder}/rollout_prev", before)
        self._write_results(f"{folder}/rollout_curr", after)
        gated = [row for row in rows if row not in compared]
        self._write_results(f"{folder}/{_GATED}", gated)

    def _write_results(self, folder: str, rollouts: list[RolloutFinished]) -> None:
        if rollouts:  # sorted: they finish in any order
            ordered = sorted(
                rollouts, key=lambda rollout: (rollout.skill_hash, rollout.repeat, rollout.item)
            )
            self._write_lines(
                f"{folder}/results.jsonl", [_rollout_line(rollout) for rollout in ordered]
            )

    def _write_lines(self, name: str, rows: Sequence[RateLine] | Sequence[RolloutLine]) -> None:
        self._directory.write_text(
            name, "".join(pydantic_core.to_json(row).decode() + "\n" for row in rows)
        )


def rollouts_folder(phase: str, step: int) -> str:
    """Return the folder of a run that holds the rollouts of a phase. Step 0: before or after the
    steps.
    """
    if not step:
        return _EVALUATIONS.get(phase, phase)
    return f"{_step_folder(step)}/{_GATED if phase == 'gate' else phase}"


def _step_folder(step: int) -> str:
    """Return the folder of a step in a run."""
    return f"steps/{step_name(step)}"


def flat_record(record: StepRecord | SlowUpdateRecord) -> dict[str, JsonValue]:
    """Return a record as its file shows it: standings beside the other fields, no empty fields."""
    plain = asdict(record)
    standings: dict[str, JsonValue] = plain.pop("standings")
    if isinstance(record, StepRecord) and record.lr_decision is not None:
        plain["lr_decision"] = _rate_file(record.lr_decision)
    return {name: value for name, value in plain.items() if value is not None} | standings


class ProposalFields(TypedDict, total=False):
    """A proposal as SkillOpt's files show it: the fields of its kind, then its support."""

    op: str  # an edit
    target: str
    content: str
    file: str  # left out for the body
    type: str  # a suggestion for a rewrite
    title: str  # also of a whole new skill
    motivation: str
    instruction: str
    priority_hint: str
    change_summary: Sequence[str]  # a whole new skill
    new_skill: str
    source_type: str
    support_count: int
    items: Sequence[str]


def _proposal_fields(proposal: ProposalRecord) -> ProposalFields:
    """Return the fields of a proposal in a file of patches."""
    support = ProposalFields(
        source_type=proposal.source, support_count=proposal.support, items=proposal.items
    )
    if (edit := proposal.edit) is not None:
        fields = ProposalFields(op=edit.op, target=edit.target, content=edit.content)
        if edit.file:
            fields["file"] = edit.file
        return {**fields, **support}
    if (suggestion := proposal.suggestion) is not None:
        return {
            "type": suggestion.type,
            "title": suggestion.title,
            "motivation": suggestion.motivation,
            "instruction": suggestion.instruction,
            "priority_hint": suggestion.priority_hint,
            **support,
        }
    if (candidate := proposal.candidate) is not None:
        return {
            "title": candidate.title,
            "change_summary": candidate.change_summary,
            "new_skill": candidate.new_skill,
            **support,
        }
    return support


class PatchFile(TypedDict, total=False):
    """merged_patch.json. The proposals are under the name of the update mode."""

    reasoning: str
    source_type: str
    merge_level: int
    edits: Sequence[ProposalFields]
    revise_suggestions: Sequence[ProposalFields]
    skill_candidates: Sequence[ProposalFields]


def _patch_file(patch: PatchRecord, mode: str) -> PatchFile:
    """Return the content of a file of patches. `mode` is the update mode of the run."""
    found = PatchFile(
        reasoning=patch.reasoning, source_type=patch.source, merge_level=patch.merge_level
    )
    found[PAYLOAD_FIELD[mode]] = [_proposal_fields(proposal) for proposal in patch.proposals]
    return found


def _handed_back(event: RunFinished) -> dict[str, JsonValue]:
    """Return what runtime_state.json says about best_skill.md once the run has ended."""
    summary = event.summary
    initial = summary.best_origin == "initial"
    score = summary.baseline_selection_score if initial else summary.best_selection_score
    return {
        "best_score": score,
        "best_step": summary.best_step,
        "best_origin": summary.best_origin,
    }


class ReflectionFile(TypedDict, total=False):
    """minibatch_*.json."""

    batch_size: int
    success_patterns: Sequence[str]  # of successes
    failure_summary: Sequence[FailureNote]  # of other sources
    patch: PatchFile
    appendix_notes: Sequence[str]


def _reflection_file(patch: PatchRecord, mode: str) -> ReflectionFile:
    """Return the content of the file with the patch that one group of trajectories led to."""
    found = ReflectionFile(batch_size=len(patch.items))
    if patch.source == "success":
        found["success_patterns"] = patch.success_patterns
    else:
        found["failure_summary"] = patch.failure_summary
    found["patch"] = _patch_file(patch, mode)
    found["appendix_notes"] = patch.appendix_notes
    return found


class RankedEditsFile(TypedDict):
    """ranked_edits.json."""

    edit_budget: int | None
    edits: Sequence[ProposalFields]
    selected_indices: NotRequired[Sequence[int]]  # with a ranking
    reasoning: NotRequired[str]
    fallback: NotRequired[bool]


def _ranked_edits_file(event: EditsSelected) -> RankedEditsFile:
    """Return the content of the file with the selected edits, and the reason where they were
    ranked.
    """
    decision = event.decision
    ranked = RankedEditsFile(
        edit_budget=event.edit_budget,
        edits=[_proposal_fields(proposal) for proposal in event.edits],
    )
    if decision.selected_indices is not None:
        ranked["selected_indices"] = decision.selected_indices
        ranked["reasoning"] = decision.reasoning
    if decision.fallback:
        ranked["fallback"] = True
    return ranked


class RateFile(TypedDict):
    """lr_decision.json."""

    learning_rate: int | None
    raw_learning_rate: int | None  # as the optimizer wrote it
    available_update_items: int | None
    clamped: bool
    reasoning: str
    confidence: float | str | None
    risk_notes: Sequence[str]
    fallback: bool


class RateLine(RateFile):
    """One line of lr_history.jsonl."""

    step: int
    epoch: int


def _rate_file(decision: SelectionDecision) -> RateFile:
    """Return the content of the file with the edit budget that the optimizer chose for a step."""
    wanted = decision.wanted_rate
    return {
        "learning_rate": decision.learning_rate,
        "raw_learning_rate": wanted,
        "available_update_items": decision.available,
        "clamped": wanted is not None and wanted != decision.learning_rate,
        "reasoning": decision.rate_reasoning,
        "confidence": decision.confidence,
        "risk_notes": decision.risk_notes,
        "fallback": decision.fallback,
    }


class PlanFile(TypedDict):
    """plan.json: the sizes that follow from the settings and the tasks."""

    train_size: int
    samples_per_epoch: int
    batches_per_epoch: int
    steps_per_epoch: int
    total_steps: int


def _plan_file(event: RunStarted) -> PlanFile:
    train_size = event.splits.get("train", 0)
    return {
        "train_size": train_size,
        "samples_per_epoch": train_size,
        "batches_per_epoch": event.steps_per_epoch * event.config.settings.train.accumulation,
        "steps_per_epoch": event.steps_per_epoch,
        "total_steps": event.total_steps,
    }


class PairSide(TypedDict):
    """What an item came to under one of the two skills."""

    hard: float | None
    soft: float | None
    predicted_answer: str
    fail_reason: str


class PairRow(TypedDict):
    """One item in comparison_pairs.json."""

    id: str
    task: str
    category: str
    prev: PairSide
    curr: PairSide


def _pair_row(pair: PairRecord) -> PairRow:
    return {
        "id": pair.id,
        "task": pair.task,
        "category": pair.category,
        "prev": {
            "hard": pair.prev_hard,
            "soft": pair.prev_soft,
            "predicted_answer": pair.prev_answer,
            "fail_reason": pair.prev_fail_reason,
        },
        "curr": {
            "hard": pair.curr_hard,
            "soft": pair.curr_soft,
            "predicted_answer": pair.curr_answer,
            "fail_reason": pair.curr_fail_reason,
        },
    }


def _summary_file(summary: RunSummary, steps: Iterable[StepRecord]) -> dict[str, object]:
    """Return the content of summary.json: the steps of each epoch by number, and token counts with
    totals.
    """
    shown: dict[str, object] = {one.name: getattr(summary, one.name) for one in fields(summary)}
    of_epoch: defaultdict[int, list[int]] = defaultdict(list)
    for record in steps:
        of_epoch[record.epoch].append(record.step)
    shown["epoch_stats"] = [
        asdict(stats) | {"steps": of_epoch[stats.epoch]} for stats in summary.epoch_stats
    ]
    counts = {name: asdict(count) for name, count in summary.token_summary.items()}
    total = {
        name: sum(count[name] for count in counts.values())
        for name in ("calls", "prompt_tokens", "completion_tokens")
    }
    shown["token_summary"] = {
        name: count | {"total_tokens": count["prompt_tokens"] + count["completion_tokens"]}
        for name, count in {**counts, "_total": total}.items()
    }
    return shown


class RolloutLine(TypedDict):
    """One line of results.jsonl."""

    id: str
    answer: str
    fail_reason: str
    hard: float | None
    soft: float | None
    status: str
    repeat: int
    skill_hash: str
    edits: Sequence[str]
    seconds: float
    calls: int
    tokens: int
    usd: float | None
    rollout: str


def _rollout_line(rollout: RolloutFinished) -> RolloutLine:
    """Return one line of results.jsonl."""
    return {
        "id": rollout.item,
        "answer": rollout.answer,
        "fail_reason": rollout.failure or (rollout.feedback if rollout.hard != 1.0 else ""),
        "hard": rollout.hard,
        "soft": rollout.soft,
        "status": rollout.status,
        "repeat": rollout.repeat,
        "skill_hash": rollout.skill_hash,
        "edits": rollout.edits,
        "seconds": rollout.seconds,
        "calls": rollout.calls,
        "tokens": rollout.tokens,
        "usd": rollout.usd,
        "rollout": rollout.rollout,
    }
