"""The baseline before the first step, and the end of a step: notes enter the skill, results enter
the optimizer's memory, and the record of the step is written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from skillfit.config.schema import Config
from skillfit.gate import Candidate, EditEffect, Gate, Origin, TextFilter, Verdict
from skillfit.optimize.context import ItemAttempts, failure_patterns
from skillfit.optimize.optimizer import Optimizer, Patch
from skillfit.optimize.stages import collect_notes, consolidate_notes
from skillfit.record.evidence import with_step
from skillfit.rollout import Outcome, Tally
from skillfit.run.events import EvaluationFinished, GateDecided, StepFinished
from skillfit.run.records import (
    ApplySummary,
    BatchRecord,
    MeasuredSplit,
    ScoreEstimate,
    StepAction,
    StepMemory,
    StepRecord,
    TypeScore,
    step_name,
)
from skillfit.skill import (
    NOTE_OP,
    Edit,
    Skill,
    appendix_notes,
    with_consolidated_notes,
    with_notes,
)
from skillfit.skill.parts import changed_parts
from skillfit.training.plan import PlannedStep
from skillfit.training.state import Components, Emit, Learned, StepLog, StepUpdate, TrainingState


async def measure_baseline(
    gate: Gate, initial: Skill, items: int, state: TrainingState, log: StepLog
) -> TrainingState:
    """Start the gate with the initial skill, which it may measure on the selection items. `items`:
    how many they are.
    """
    with log.stage("baseline", items):
        tally = await gate.baseline(initial)
    if tally is None:
        return state
    emit_score(log.emit, "baseline", initial, tally)
    return replace(state, baseline=tally)


@dataclass(frozen=True, slots=True)
class Notes:
    """What a step added to the appendix of execution notes."""

    seen: int = 0
    added: tuple[str, ...] = ()
    total: int = 0
    consolidated: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the stages of one step found."""

    planned: PlannedStep
    batches: Sequence[Sequence[Outcome]]  # the training rollouts, by batch of the plan
    learned: Learned
    updated: StepUpdate
    verdict: Verdict | None  # None: there was nothing to decide
    cases: Sequence[ItemAttempts] = ()  # the training rollouts as the optimizer reads them
    notes: Notes = field(default_factory=Notes)

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for batch in self.batches for outcome in batch]

    @property
    def action(self) -> StepAction:
        if self.verdict is not None:
            return self.verdict.action
        assert self.updated.skipped is not None, "a candidate was not judged"
        return self.updated.skipped

    @property
    def usable_edits(self) -> int:
        """Edits that could be applied; a rewrite counts as one."""
        change = self.updated.change
        if self.updated.candidate is None or change is None:
            return 0
        return len(change.applied) if change.report else 1


def close_step(
    run: Components, before: TrainingState, result: StepResult, log: StepLog
) -> TrainingState:
    """Return the state after a step, with its memory and its record, and emit what shows them.
    `before`: the state that the step began with.
    """
    gate = run.gate
    log.usage.add_outcomes("rollout", result.outcomes)
    learned, entry = result.learned, _memory_entry(before, result)
    state = replace(
        before,
        memory=(*before.memory, entry),
        cases=(*before.cases, *result.cases),
        evidence=with_step(
            before.evidence,
            entry.step,
            entry.failure_patterns,
            result.verdict.effects if result.verdict else (),
        ),
        refused=(*before.refused, *learned.refused, *result.updated.refused),
        proposed=before.proposed + (len(learned.patch.proposals) if learned.patch else 0),
        usable_edits=before.usable_edits + result.usable_edits,
        optimizer_failures=before.optimizer_failures + learned.proposals.failures,
    )
    record = _record(run.config, gate, result, log)
    state = replace(state, records=(*state.records, record))
    log.emit(
        StepFinished(
            epoch=result.planned.epoch,
            step=result.planned.step,
            action=result.action,
            skill=gate.incumbent.text,
            skill_hash=gate.incumbent.hash,
            best_skill=gate.best.text,
            record=record,
            digest=entry,
            appendix_notes=list(result.notes.added),
            skill_files=changed_parts(gate.incumbent, run.initial),
            best_files=changed_parts(gate.best, run.initial),
        )
    )
    return state


async def add_notes(
    gate: Gate,
    optimizer: Optimizer | None,
    text_filter: TextFilter,
    patches: Sequence[Patch],
    log: StepLog,
) -> Notes:
    """Add reminders of rules that the agent knew and did not follow, whatever the verdict was."""
    if optimizer is None or not optimizer.settings.use_skill_aware_reflection:
        return Notes()
    notes = [note for note in collect_notes(patches) if text_filter.passes(note, log.step)]
    if not notes:
        return Notes()
    incumbent = gate.incumbent
    held, skill = set(appendix_notes(incumbent)), with_notes(incumbent, notes)
    with log.within("gate"):
        condensed = await consolidate_notes(optimizer, appendix_notes(skill), step=log.step)
        consolidated = condensed is not None and all(
            text_filter.passes(note, log.step) for note in condensed
        )
        if condensed is not None and consolidated:
            skill = with_consolidated_notes(skill, condensed)
        unchanged = skill.hash == incumbent.hash
        if unchanged or not text_filter.fits(skill, incumbent, "appendix", log.step):
            return Notes()
        origin = Origin(f"appendix_{step_name(log.step)}", log.step)
        tally = await gate.add(skill, [Edit(NOTE_OP, content=note) for note in notes], origin)
        if tally is not None:
            emit_score(log.emit, origin.name, skill, tally)
    kept = appendix_notes(skill)
    added = tuple(note for note in kept if note not in held)
    return Notes(len(notes), added, len(kept), consolidated)


def emit_score(
    emit: Emit,
    name: str,
    skill: Skill,
    tally: Tally,
    split: MeasuredSplit = "selection",
    by_type: Mapping[str, Tally] | None = None,
) -> None:
    """Emit the score of a skill on a split, with the scores of its item types."""
    types = {
        kind: TypeScore(part.items, part.hard, part.soft) for kind, part in (by_type or {}).items()
    }
    emit(
        EvaluationFinished(
            name=name,
            split=split,
            skill_hash=skill.hash,
            hard=tally.hard,
            soft=tally.soft,
            scored=tally.scored,
            planned=tally.planned,
            items=tally.items,
            by_type=types,
        )
    )


def emit_estimate(emit: Emit, name: str, skill: Skill, score: ScoreEstimate) -> None:
    """Emit what is expected of a skill on the selection split."""
    emit(
        EvaluationFinished(
            name=name,
            split="selection",
            skill_hash=skill.hash,
            hard=score.mean,
            soft=score.mean,
            scored=0,
            planned=0,
            estimate=score,
        )
    )


def emit_verdict(log: StepLog, name: str, candidate: Candidate | None, verdict: Verdict) -> None:
    """Emit what a gate decided, with its evidence."""
    log.emit(
        GateDecided(
            name=name,
            step=log.step,
            decision=verdict.decision,
            reason=verdict.reason,
            evidence=verdict.evidence,
            score=verdict.score,
            candidates=list(verdict.comparisons),
            effects=list(verdict.effects),
        )
    )
    # The point of the score curve: the candidate's own rollouts, or an estimate of the winner.
    tally = verdict.candidate_tally
    if tally is None:
        emit_estimate(log.emit, name, verdict.winner, verdict.score)
    else:
        shown = candidate.skill if candidate is not None else verdict.winner
        emit_score(log.emit, name, shown, tally)


def _memory_entry(before: TrainingState, result: StepResult) -> StepMemory:
    """Return what the optimizer reads about this step in the later ones of the epoch."""
    outcomes, learned, verdict = result.outcomes, result.learned, result.verdict
    scored = [outcome for outcome in outcomes if outcome.score is not None]
    measured_alone = verdict is not None and verdict.candidate_tally is not None
    rejected = verdict is not None and not verdict.accepted and measured_alone
    proposals = learned.selected.proposals if learned.selected and rejected else ()
    return StepMemory(
        step=result.planned.step,
        action=result.action,
        n_total=len(scored),
        n_fail=sum(not outcome.succeeded for outcome in scored),
        failure_patterns=failure_patterns(outcomes, learned.proposals.patches),
        score_before=verdict.incumbent_score if verdict else None,
        score_after=verdict.candidate_score if verdict else None,
        rejected_edits=tuple(proposal.record() for proposal in proposals),
        decided=_decided(before, verdict),
    )


def _decided(before: TrainingState, verdict: Verdict | None) -> tuple[EditEffect, ...]:
    """Return the edits that are promoted or dropped now and that no earlier step of this epoch
    lists. The first step of an epoch lists all of them, as the memory of steps begins anew.
    """
    if verdict is None:
        return ()
    known = {effect.id: effect.status for entry in before.memory for effect in entry.decided}
    return tuple(
        effect
        for effect in verdict.effects
        if effect.status != "pending" and known.get(effect.id) != effect.status
    )


def _record(config: Config, gate: Gate, result: StepResult, log: StepLog) -> StepRecord:
    """Return the step as step_record.json and history.json show it."""
    planned, learned = result.planned, result.learned
    timing = {f"{name}_s": round(seconds, 3) for name, seconds in sorted(log.seconds.items())}
    if "gate_s" in timing:
        timing["evaluate_s"] = timing.pop("gate_s")
    tally = Tally.of(result.outcomes)
    has_budget = config.optimizer.skill_update_mode != "full_rewrite_minibatch"
    record = StepRecord(
        step=planned.step,
        epoch=planned.epoch,
        step_in_epoch=planned.index - 1,
        action=result.action,
        lr_control_mode=config.optimizer.lr_control_mode if has_budget else "none",
        gate_metric=config.evaluation.gate_metric,
        standings=gate.standings,
        skill_len=len(gate.incumbent.text),
        timing=timing,
        tokens=log.usage.counts(),
        wall_time_s=round(time.monotonic() - log.begun, 3),  # stages overlap
        n_edits_blocked=len(learned.refused),
        rollout_hard=tally.hard,
        rollout_soft=tally.soft,
        rollout_n=tally.scored,
        rollout_coverage=tally.coverage,
    )
    record = _with_proposals(record, learned, _batch_records(result))
    record = _with_candidate(record, result.updated)
    record = _with_verdict(record, result.verdict)
    return _with_notes(record, result.notes)


def _with_proposals(
    record: StepRecord, learned: Learned, batches: tuple[BatchRecord, ...]
) -> StepRecord:
    """Add stages 2 to 4 to the record: what was proposed, merged and selected."""
    patch, selected = learned.patch, learned.selected
    extra = [patch for patch in learned.proposals.extra if patch.proposals]
    successes = sum(patch.source == "success" for patch in extra)
    record = replace(
        record,
        accumulation_batches=batches,
        n_patches=sum(bool(patch.proposals) for patch in learned.proposals.patches),
        n_failure_patches=sum(row.n_failure_patches for row in batches) + len(extra) - successes,
        n_success_patches=sum(row.n_success_patches for row in batches) + successes,
    )
    if patch is not None:
        counts = tuple(patch.support_counts)
        record = replace(record, n_edits_merged=len(patch.proposals), support_counts=counts)
    if selected is not None:
        decided = selected.decision.learning_rate is not None
        record = replace(
            record,
            n_edits_ranked=len(selected.proposals),
            edit_budget=selected.edit_budget,
            lr_decision=selected.decision if decided else None,
        )
    return record


def _with_candidate(record: StepRecord, updated: StepUpdate) -> StepRecord:
    """Add stage 5 to the record: what became of the selected edits, and the candidate they made."""
    change = updated.change
    if change is None:
        return record
    total, applied = len(change.report), len(change.applied)
    return replace(
        record,
        rewrite_change_summary=change.change_summary or None,
        edit_apply_summary=ApplySummary(total, applied, total - applied) if total else None,
        candidate_hash=change.skill.hash if change.skill else None,
        candidate_skill_len=len(change.skill.text) if change.skill else None,
    )


def _with_verdict(record: StepRecord, verdict: Verdict | None) -> StepRecord:
    """Add stage 6 to the record: the compared scores, the decision, and the pool of edits after
    it.
    """
    if verdict is None:
        return record
    statuses = [effect.status for effect in verdict.effects]
    return replace(
        record,
        selection_hard=verdict.candidate_tally.hard if verdict.candidate_tally else None,
        selection_soft=verdict.candidate_tally.soft if verdict.candidate_tally else None,
        candidate_gate_score=verdict.candidate_score,
        incumbent_gate_score=verdict.incumbent_score,
        verdict=verdict.decision,
        reason=verdict.reason,
        gate_rollouts=verdict.evidence.rollouts,
        n_edits_pending=statuses.count("pending") if statuses else None,
        n_edits_promoted=statuses.count("promoted") if statuses else None,
        n_edits_dropped=statuses.count("dropped") if statuses else None,
    )


def _with_notes(record: StepRecord, notes: Notes) -> StepRecord:
    """Add what the step added to the appendix."""
    if not notes.seen:
        return record
    return replace(
        record,
        n_execution_lapse_notes=notes.seen,
        n_appendix_notes_added=len(notes.added),
        n_appendix_notes_total=notes.total,
        n_appendix_notes_consolidated=notes.total if notes.consolidated else None,
    )


def _batch_records(result: StepResult) -> tuple[BatchRecord, ...]:
    """Record scores and patches of each accumulated batch. A user's proposer may return its patches
    without saying which batch they come from.
    """
    records = []
    patches = result.learned.proposals.batches
    for number, (batch, outcomes) in enumerate(
        zip(result.planned.batches, result.batches, strict=True)
    ):
        tally = Tally.of(outcomes)
        written = patches[number] if number < len(patches) else ()
        written = tuple(patch for patch in written if patch.proposals)
        success = sum(patch.source == "success" for patch in written)
        records.append(
            BatchRecord(
                batch_idx=number,
                batch_seed=batch.seed,
                n_envs=len(batch.items),
                hard=tally.hard,
                soft=tally.soft,
                n_failure_patches=len(written) - success,
                n_success_patches=success,
            )
        )
    return tuple(records)
