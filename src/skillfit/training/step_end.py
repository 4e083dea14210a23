"""What surrounds the stages: the baseline before the first step, the end of a step, of an epoch.

The end of a step carries the winner on and writes the record. The end of an epoch compares its
first and last skill and writes what that teaches: the slow update writes a lesson into a protected
region of the skill, the meta skill writes advice for the optimizer itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from skillfit.gate import Candidate, EditEffect, Observation, Verdict
from skillfit.optimize import epoch as look_back
from skillfit.optimize.context import failure_patterns
from skillfit.optimize.epoch import Pair, collect_notes, consolidate
from skillfit.optimize.optimizer import Patch
from skillfit.rollout import Outcome, Tally, gather, requests_for
from skillfit.run.events import (
    EvaluationFinished,
    MetaSkillFinished,
    SlowUpdateFinished,
    StepFinished,
)
from skillfit.run.records import (
    ApplySummary,
    BatchRecord,
    MetaSkillRecord,
    SlowUpdateRecord,
    StepMemory,
    StepRecord,
    TypeScore,
)
from skillfit.skill import (
    SLOW_UPDATE_OP,
    Edit,
    Skill,
    appendix_notes,
    with_consolidated_notes,
    with_notes,
    with_slow_update,
)
from skillfit.tasks.item import Item
from skillfit.training.components import Components, StepLog, UsageByStage, raise_if_skipped
from skillfit.training.plan import Epoch, Place, PlannedStep
from skillfit.training.stages import Learned, Updated, decide
from skillfit.training.state import TrainingState


async def measure_baseline(run: Components, state: TrainingState) -> TrainingState:
    """Measure the initial skill on the selection items."""
    stage = run.stage(Place(), "baseline", len(run.task.selection))
    with stage, run.selection.during("baseline", 0, UsageByStage()):
        tally = await run.gate.baseline(run.initial)
    emit_score(run, "baseline", run.initial, tally)
    score = run.gate.best_score
    return replace(state, baseline=tally, score=score, baseline_score=score, best_score=score)


async def close_step(
    run: Components,
    planned: PlannedStep,
    state: TrainingState,
    training: Sequence[Observation],
    learned: Learned,
    updated: Updated,
    verdict: Verdict | None,
    log: StepLog,
) -> TrainingState:
    """The state after a step, and the events that tell what happened in it."""
    outcomes = [observation.outcome for observation in training]
    log.usage.add_outcomes("rollout", outcomes)
    before = state
    if verdict is not None and verdict.winner.hash != state.skill.hash:
        score = verdict.score.mean if verdict.tally is None else verdict.candidate_score
        state = state.carrying(verdict.winner, planned.name, score or 0.0)
    elif verdict is not None and verdict.tally is None:
        state = replace(state, score=verdict.score.mean)  # screening: a better estimate
    state = state.tracking_best(run.gate, planned.step)
    notes = Notes()
    if not run.gate.pools_edits:
        state, notes = await add_notes(run, planned, state, learned.proposals.patches, log)
    action = verdict.action if verdict is not None else updated.skipped
    entry = _memory_entry(planned, before, outcomes, learned, verdict, action)
    state = replace(
        state,
        waiting_edits=(),
        memory=(*state.memory, entry),
        proposed=state.proposed + (len(learned.patch.proposals) if learned.patch else 0),
        usable_edits=state.usable_edits + _usable(updated),
        optimizer_failures=state.optimizer_failures + learned.proposals.failures,
    )
    await run.persist_failures()
    record = _record(run, planned, state, outcomes, learned, updated, verdict, notes, log, action)
    state = replace(state, records=(*state.records, record))
    run.emit(
        StepFinished(
            epoch=planned.epoch,
            step=planned.step,
            action=action,
            skill=state.skill.text,
            skill_hash=state.skill.hash,
            best_skill=run.gate.best.text,
            record=record,
            digest=entry,
            appendix_notes=list(notes.added),
        )
    )
    return state


def _usable(updated: Updated) -> int:
    """Edits that could be applied; a rewrite counts as one."""
    if updated.candidate is None or updated.update is None:
        return 0
    return len(updated.update.applied) if updated.update.report else 1


@dataclass(frozen=True, slots=True)
class Notes:
    """What a step added to the appendix of execution notes."""

    seen: int = 0
    added: tuple[str, ...] = ()
    total: int = 0
    consolidated: bool = False


async def add_notes(
    run: Components,
    planned: PlannedStep,
    state: TrainingState,
    patches: Sequence[Patch],
    log: StepLog,
) -> tuple[TrainingState, Notes]:
    """Add a step's notes to the appendix, whatever the verdict was, and measure the result."""
    if not run.config.optimizer.use_skill_aware_reflection or run.optimizer is None:
        return state, Notes()
    notes = [note for note in collect_notes(patches) if run.leaks.passes(note, planned.step)]
    if not notes:
        return state, Notes()
    held = set(appendix_notes(state.skill))
    skill = with_notes(state.skill, notes)
    condensed = await consolidate(run.optimizer, appendix_notes(skill), step=planned.step)
    consolidated = condensed is not None and all(
        run.leaks.passes(note, planned.step) for note in condensed
    )
    if condensed is not None and consolidated:
        skill = with_consolidated_notes(skill, condensed)
    unchanged = skill.hash == state.skill.hash
    if unchanged or not run.leaks.fits(skill, state.skill, "appendix", planned.step):
        return state, Notes()
    origin = f"appendix_{planned.name}"
    state = await adopt(run, planned.place, state, skill, origin, "gate", log.usage)
    kept = appendix_notes(skill)
    added = tuple(note for note in kept if note not in held)
    return state, Notes(len(notes), added, len(kept), consolidated)


async def adopt(
    run: Components,
    place: Place,
    state: TrainingState,
    skill: Skill,
    origin: str,
    phase: str,
    usage: UsageByStage,
    like: Skill | None = None,
) -> TrainingState:
    """Carry a skill that no verdict chose. It is measured too, unless `like` says the
    same to an agent and is measured already.
    """
    with run.selection.during(phase, place.step, usage):
        tally = await run.gate.adopt(skill, like)
    emit_score(run, origin, skill, tally)
    score = run.gate_settings.value(tally.hard, tally.soft)
    return state.carrying(skill, origin, score).tracking_best(run.gate, place.step)


def emit_score(
    run: Components,
    name: str,
    skill: Skill,
    tally: Tally,
    split: str = "selection",
    by_type: Mapping[str, Tally] | None = None,
) -> None:
    """Emit the score of a skill on a split, with the scores of its item types."""
    types = {
        kind: TypeScore(part.scored, part.hard, part.soft) for kind, part in (by_type or {}).items()
    }
    run.emit(
        EvaluationFinished(
            name=name,
            split=split,
            skill_hash=skill.hash,
            hard=tally.hard,
            soft=tally.soft,
            scored=tally.scored,
            planned=tally.planned,
            by_type=types,
        )
    )


def _memory_entry(
    planned: PlannedStep,
    before: TrainingState,
    outcomes: Sequence[Outcome],
    learned: Learned,
    verdict: Verdict | None,
    action: str,
) -> StepMemory:
    scored = [outcome for outcome in outcomes if outcome.score is not None]
    screening = verdict is not None and bool(verdict.effects)
    rejected = verdict is not None and not verdict.accepted and not screening
    proposals = learned.selection.proposals if learned.selection and rejected else ()
    return StepMemory(
        step=planned.step,
        action=action,
        n_total=len(scored),
        n_fail=sum(not outcome.succeeded for outcome in scored),
        failure_patterns=failure_patterns(outcomes, learned.proposals.patches),
        score_before=before.score if verdict else None,
        score_after=verdict.candidate_score if verdict else None,
        rejected_edits=tuple(proposal.record() for proposal in proposals),
        decided=_decided(before, verdict),
    )


def _decided(before: TrainingState, verdict: Verdict | None) -> tuple[EditEffect, ...]:
    """Edits that this step's verdict promoted or dropped."""
    if verdict is None:
        return ()
    known = {effect.id: effect.status for entry in before.memory for effect in entry.decided}
    return tuple(
        effect
        for effect in verdict.effects
        if effect.status != "pending" and known.get(effect.id) != effect.status
    )


def _record(
    run: Components,
    planned: PlannedStep,
    state: TrainingState,
    outcomes: Sequence[Outcome],
    learned: Learned,
    updated: Updated,
    verdict: Verdict | None,
    notes: Notes,
    log: StepLog,
    action: str,
) -> StepRecord:
    timing = {f"{name}_s": round(seconds, 3) for name, seconds in sorted(log.seconds.items())}
    if "gate_s" in timing:
        timing["evaluate_s"] = timing.pop("gate_s")
    tally = Tally.of(outcomes)
    record = StepRecord(
        step=planned.step,
        epoch=planned.epoch,
        step_in_epoch=planned.index,
        action=action,
        lr_control_mode=run.config.optimizer.lr_control_mode,
        gate_metric=run.config.evaluation.gate_metric,
        standings=state.standings,
        skill_len=len(state.skill.text),
        timing=timing,
        tokens=log.usage.counts(),
        wall_time_s=round(sum(timing.values()), 3),
        n_edits_blocked=log.blocked,
        rollout_hard=tally.hard,
        rollout_soft=tally.soft,
        rollout_n=tally.scored,
        rollout_coverage=tally.coverage,
    )
    record = _with_proposals(record, learned, _batch_records(planned, outcomes, learned))
    record = _with_candidate(record, updated)
    record = _with_verdict(record, verdict)
    return _with_notes(record, notes)


def _with_proposals(
    record: StepRecord, learned: Learned, batches: tuple[BatchRecord, ...]
) -> StepRecord:
    """Stages 2 to 4: what was proposed, merged and selected."""
    extra, patch, selection = learned.proposals.extra, learned.patch, learned.selection
    successes = sum(patch.source == "success" for patch in extra)
    record = replace(
        record,
        accumulation_batches=batches,
        n_patches=len(learned.proposals.patches),
        n_failure_patches=sum(row.n_failure_patches for row in batches) + len(extra) - successes,
        n_success_patches=sum(row.n_success_patches for row in batches) + successes,
    )
    if patch is not None:
        counts = tuple(patch.support_counts)
        record = replace(record, n_edits_merged=len(patch.proposals), support_counts=counts)
    if selection is not None:
        decided = selection.decision.learning_rate is not None
        record = replace(
            record,
            n_edits_ranked=len(selection.proposals),
            edit_budget=selection.edit_budget,
            lr_decision=selection.decision if decided else None,
        )
    return record


def _with_candidate(record: StepRecord, updated: Updated) -> StepRecord:
    """Stage 5: what became of the selected edits, and the candidate they made."""
    whole = updated.update
    if whole is None:
        return record
    total, applied = len(whole.report), len(whole.applied)
    return replace(
        record,
        rewrite_change_summary=whole.change_summary or None,
        edit_apply_summary=ApplySummary(total, applied, total - applied) if total else None,
        candidate_hash=whole.skill.hash if whole.skill else None,
        candidate_skill_len=len(whole.skill.text) if whole.skill else None,
    )


def _with_verdict(record: StepRecord, verdict: Verdict | None) -> StepRecord:
    """Stage 6: the scores that were compared, the decision, and the pool of edits after it."""
    if verdict is None:
        return record
    statuses = [effect.status for effect in verdict.effects]
    return replace(
        record,
        selection_hard=verdict.tally.hard if verdict.tally else None,
        selection_soft=verdict.tally.soft if verdict.tally else None,
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
    """What the step added to the appendix."""
    if not notes.seen:
        return record
    return replace(
        record,
        n_execution_lapse_notes=notes.seen,
        n_appendix_notes_added=len(notes.added),
        n_appendix_notes_total=notes.total,
        n_appendix_notes_consolidated=notes.consolidated,
    )


def _batch_records(
    planned: PlannedStep, outcomes: Sequence[Outcome], learned: Learned
) -> tuple[BatchRecord, ...]:
    records = []
    at = 0
    size = len(outcomes) // max(1, len(planned.items))  # rollouts per item
    patches = learned.proposals.batches
    for number, batch in enumerate(planned.batches):
        count = len(batch.items) * size
        tally = Tally.of(outcomes[at : at + count])
        at += count
        found = patches[number] if number < len(patches) else ()
        success = sum(patch.source == "success" for patch in found)
        records.append(
            BatchRecord(
                batch_idx=number,
                batch_seed=batch.seed,
                n_envs=len(batch.items),
                hard=tally.hard,
                soft=tally.soft,
                n_failure_patches=len(found) - success,
                n_success_patches=success,
            )
        )
    return tuple(records)


@dataclass(frozen=True, slots=True)
class EpochComparison:
    """The same training items under the skill the epoch began with and the one it ended with."""

    previous: Skill
    current: Skill
    pairs: tuple[Pair, ...]  # all that were tried
    kept: tuple[Pair, ...]  # those that the policy shows
    previous_hard: float
    current_hard: float


async def slow_update(
    run: Components, epoch: Epoch, state: TrainingState
) -> tuple[TrainingState, EpochComparison | None]:
    """Write a lesson from the epoch. Returns the comparison too, for the meta skill."""
    if not run.config.optimizer.use_slow_update or run.optimizer is None:
        return state, None
    pools = run.gate.pools_edits
    if epoch.number == 1:
        return (await _placeholder(run, epoch, state) if not pools else state), None
    if pools and epoch is run.plan.epochs[-1]:
        return state, None  # nothing could measure the lesson any more
    place = Place(epoch.number, epoch.last_step)
    with run.stage(place, "slow_update"):
        met = await _compare(run, epoch, state)
        lesson = await look_back.slow_update(
            run.optimizer, met.previous, met.current, met.kept, epoch=epoch.number, step=place.step
        )
        candidate = _with_lesson(run, place, met.current, lesson.text)
        state, action, tally = await _carry(run, epoch, place, state, candidate, lesson.text)
        await run.persist_failures()
    record = SlowUpdateRecord(
        action=action,
        standings=state.standings,
        reasoning=lesson.reasoning,
        slow_update_content=lesson.text,
        prev_hash=met.previous.hash,
        prev_hard=met.previous_hard,
        curr_hard=met.current_hard,
        candidate_hash=candidate.hash,
        selection_hard=tally.hard if tally else None,
        selection_soft=tally.soft if tally else None,
    )
    _emit(run, epoch, state, candidate, record, met)
    return state, met


async def meta_skill(
    run: Components, epoch: Epoch, state: TrainingState, met: EpochComparison | None
) -> TrainingState:
    """The optimizer's advice to itself, used from the next epoch on."""
    if not run.config.optimizer.use_meta_skill or run.optimizer is None:
        return state
    if epoch.number == 1:
        record = MetaSkillRecord(action="skip_first_epoch")
        run.emit(MetaSkillFinished(epoch=1, result=record))
        return state
    if epoch is run.plan.epochs[-1] and run.gate.pools_edits:
        return state  # no epoch is left to use it
    place = Place(epoch.number, epoch.last_step)
    with run.stage(place, "meta_skill"):
        met = met or await _compare(run, epoch, state)
        advice = await look_back.meta_skill(
            run.optimizer,
            met.previous,
            met.current,
            met.kept,
            advice=state.meta_skill,
            epoch=epoch.number,
            step=place.step,
        )
        await run.persist_failures()
    record = MetaSkillRecord(
        action="write_meta_skill" if advice.text else "no_content",
        reasoning=advice.reasoning,
        meta_skill_content=advice.text,
        prev_hash=met.previous.hash,
    )
    run.emit(MetaSkillFinished(epoch=epoch.number, result=record))
    return replace(state, meta_skill=advice.text or state.meta_skill)


async def _placeholder(run: Components, epoch: Epoch, state: TrainingState) -> TrainingState:
    """An empty region in epoch 1, so that step edits cannot take its place."""
    if len(run.plan.epochs) == 1:
        return state
    skill = with_slow_update(state.skill)
    place = Place(epoch.number, epoch.last_step)
    if skill.hash != state.skill.hash:
        with run.stage(place, "slow_update"):
            origin, usage = f"slow_update_{epoch.name}", UsageByStage()
            state = await adopt(
                run, place, state, skill, origin, "slow_update", usage, like=state.skill
            )
    record = SlowUpdateRecord(action="inject_placeholder", standings=state.standings)
    _emit(run, epoch, state, skill, record)
    return state


async def _compare(run: Components, epoch: Epoch, state: TrainingState) -> EpochComparison:
    settings = run.config.optimizer
    previous, current = state.epoch_start, state.skill
    before: list[Outcome] = []
    after: list[Outcome] = []

    async def compare(items: Sequence[Item]) -> tuple[Pair, ...]:
        series = f"slow_update/{epoch.name}"
        old, new = await gather(
            run.engine.run(
                requests_for(skill, items),
                phase="slow_update",
                step=epoch.last_step,
                series=series,
            )
            for skill in (previous, current)
        )
        raise_if_skipped([*old, *new], run.path)
        before.extend(old)
        after.extend(new)
        return look_back.pair_up(items, old, new)

    sample = epoch.slow_order[: settings.slow_update_samples]
    pairs = await compare(sample)
    if settings.longitudinal_pair_policy == "changed":
        others = epoch.slow_order[len(sample) :]
        pairs = await look_back.top_up(pairs, others, len(sample), compare)
    kept = look_back.keep(pairs, settings.longitudinal_pair_policy)
    return EpochComparison(
        previous, current, pairs, kept, Tally.of(before).hard, Tally.of(after).hard
    )


def _with_lesson(run: Components, place: Place, skill: Skill, text: str) -> Skill:
    """The skill with the lesson; unchanged when there is none or it must not enter."""
    if not text or not run.leaks.passes(text, place.step):
        return skill
    wanted = with_slow_update(skill, text)
    return wanted if run.leaks.fits(wanted, skill, "slow_update", place.step) else skill


async def _carry(
    run: Components,
    epoch: Epoch,
    place: Place,
    state: TrainingState,
    candidate: Skill,
    text: str,
) -> tuple[TrainingState, str, Tally | None]:
    """Put the lesson to work: as a pending edit, through the strict gate, or without a verdict.

    Returns the state, what was done, and the candidate's score where it was measured.
    """
    name = f"slow_update_{epoch.name}"
    if candidate.hash == state.skill.hash:
        return state, "no_content" if not text else "unchanged", None
    if not run.config.optimizer.slow_update_gate_with_selection:
        usage = UsageByStage()
        state = await adopt(run, place, state, candidate, name, "slow_update", usage)
        return state, "force_accept", run.gate.tally(candidate)
    if run.gate.pools_edits:
        waiting = (*state.waiting_edits, Edit(SLOW_UPDATE_OP, content=text, label="slow update"))
        return replace(state, waiting_edits=waiting), "join_pool", None
    proposed = Candidate(candidate, step=place.step, label="slow update", gated=True)
    verdict = await decide(run, place, name, proposed, (), UsageByStage(), "slow_update")
    if verdict.accepted:
        state = state.carrying(verdict.winner, name, verdict.candidate_score or 0.0)
    return state.tracking_best(run.gate, place.step), verdict.decision, verdict.tally


def _emit(
    run: Components,
    epoch: Epoch,
    state: TrainingState,
    candidate: Skill,
    record: SlowUpdateRecord,
    met: EpochComparison | None = None,
) -> None:
    run.emit(
        SlowUpdateFinished(
            epoch=epoch.number,
            action=record.action,
            result=record,
            pairs=[pair.record() for pair in met.kept] if met else [],
            all_pairs=[pair.record() for pair in met.pairs] if met else [],
            candidate=candidate.text,
            skill=state.skill.text,
            best_skill=run.gate.best.text,
        )
    )
