"""The end of an epoch: its first and its last skill are compared on the same training items.

The slow update writes what that teaches into a protected region of the skill. The meta skill is
advice that the optimizer writes for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skillfit.config.schema import EvaluationSection, OptimizerSection
from skillfit.gate import Candidate, Gate, TextFilter
from skillfit.optimize.stages import Pair, keep_pairs, pair_up, top_up, write_advice, write_lesson
from skillfit.rollout import Outcome, RolloutEngine, Tally, gather, requests_for
from skillfit.rollout.outcome import raise_if_skipped
from skillfit.run.events import MetaSkillFinished, SlowUpdateFinished
from skillfit.run.records import (
    EpochSkip,
    MetaSkillAction,
    MetaSkillRecord,
    SlowUpdateAction,
    SlowUpdateRecord,
    slow_update_name,
)
from skillfit.skill import SLOW_UPDATE_OP, Edit, Skill, with_slow_update
from skillfit.tasks.item import Item
from skillfit.training.plan import Epoch, Place
from skillfit.training.state import Components, Emit, StepLog, TrainingState
from skillfit.training.step_end import adopt, carry_winner, emit_verdict


@dataclass(frozen=True, slots=True)
class EpochComparison:
    """The same training items under the skill the epoch began with and the one it ended with."""

    previous: Skill
    current: Skill
    pairs: tuple[Pair, ...]  # all that were tried
    kept: tuple[Pair, ...]  # those that the policy shows
    previous_hard: float  # on the items of the sample, without those that topped up the pairs
    current_hard: float


@dataclass(frozen=True, slots=True)
class SlowUpdated:
    """The state after the slow update, and the comparison it made, for the meta skill."""

    state: TrainingState
    comparison: EpochComparison | None = None


async def make_slow_update(run: Components, epoch: Epoch, state: TrainingState) -> SlowUpdated:
    """Write a lesson from the epoch."""
    if not run.config.optimizer.use_slow_update or run.optimizer is None:
        return SlowUpdated(state)
    settings, last = run.config.optimizer, epoch is run.plan.epochs[-1]
    log = StepLog(run.emit, Place(epoch.number, epoch.last_step))
    if epoch.number == 1 and not run.gate.pools_edits and not last:
        state = await _placeholder(run.gate, run.config.evaluation, epoch, state, log)
        return SlowUpdated(state)
    if skipped := _skipped(run.gate, epoch, state):
        record = SlowUpdateRecord(action=skipped, standings=state.standings)
        _emit(run.emit, epoch, state, state.skill, record)
        return SlowUpdated(state)
    with run.decision(slow_update_name(epoch.number)), log.stage("slow_update"):
        comparison = await _compare(run.engine, settings, epoch, state)
        lesson = await write_lesson(
            run.optimizer,
            comparison.previous,
            comparison.current,
            comparison.kept,
            epoch=epoch.number,
            step=log.step,
        )
        candidate = _with_lesson(run.text_filter, comparison.current, lesson.text, log.step)
        brought = await _bring_in(run, epoch, state, candidate, lesson.text, log)
        state, tally = brought.state, brought.tally
    record = SlowUpdateRecord(
        action=brought.action,
        standings=state.standings,
        reasoning=lesson.reasoning,
        slow_update_content=lesson.text,
        prev_hash=comparison.previous.hash,
        prev_hard=comparison.previous_hard,
        curr_hard=comparison.current_hard,
        candidate_hash=candidate.hash,
        selection_hard=tally.hard if tally else None,
        selection_soft=tally.soft if tally else None,
    )
    _emit(log.emit, epoch, state, candidate, record, comparison)
    return SlowUpdated(state, comparison)


async def write_meta_skill(
    run: Components, epoch: Epoch, state: TrainingState, comparison: EpochComparison | None
) -> TrainingState:
    """The optimizer's advice to itself, used from the next epoch on."""
    if not run.config.optimizer.use_meta_skill or run.optimizer is None:
        return state
    skipped: MetaSkillAction | None = _skipped(run.gate, epoch, state)
    if run.gate.pools_edits and not skipped and epoch is run.plan.epochs[-1]:
        skipped = "skip_last_epoch"
    if skipped:
        record = MetaSkillRecord(action=skipped)
        run.emit(MetaSkillFinished(epoch=epoch.number, result=record))
        return state
    log = StepLog(run.emit, Place(epoch.number, epoch.last_step))
    own = None
    with run.decision(f"meta_skill_{epoch.number}"), log.stage("meta_skill"):
        if comparison is None:
            comparison = own = await _compare(run.engine, run.config.optimizer, epoch, state)
        advice = await write_advice(
            run.optimizer,
            comparison.previous,
            comparison.current,
            comparison.kept,
            advice=state.meta_skill,
            epoch=epoch.number,
            step=log.step,
        )
    record = MetaSkillRecord(
        action="write_meta_skill" if advice.text else "no_content",
        reasoning=advice.reasoning,
        meta_skill_content=advice.text,
        prev_hash=comparison.previous.hash,
    )
    run.emit(
        MetaSkillFinished(
            epoch=epoch.number,
            result=record,
            pairs=[pair.record() for pair in own.kept] if own else [],
            all_pairs=[pair.record() for pair in own.pairs] if own else [],
        )
    )
    return replace(state, meta_skill=advice.text or state.meta_skill)


def _skipped(gate: Gate, epoch: Epoch, state: TrainingState) -> EpochSkip | None:
    """Why the end of an epoch has nothing to compare; None when it has. With a gate that pools
    edits, the same skill twice teaches nothing. Others compare in any case, as SkillOpt does.
    """
    if epoch.number == 1:
        return "skip_first_epoch"
    if gate.pools_edits and state.skill.hash == state.epoch_start.hash:
        return "skip_same_skill"
    return None


async def _placeholder(
    gate: Gate, evaluation: EvaluationSection, epoch: Epoch, state: TrainingState, log: StepLog
) -> TrainingState:
    """An empty region in epoch 1, so that step edits cannot take its place."""
    skill = with_slow_update(state.skill)
    if skill.hash != state.skill.hash:
        with log.stage("slow_update"):
            origin = slow_update_name(epoch.number)
            state = await adopt(gate, evaluation, state, skill, origin, log, like=state.skill)
    record = SlowUpdateRecord(action="inject_placeholder", standings=state.standings)
    _emit(log.emit, epoch, state, skill, record)
    return state


async def _compare(
    engine: RolloutEngine, settings: OptimizerSection, epoch: Epoch, state: TrainingState
) -> EpochComparison:
    """Roll out some training items under the first and the last skill of the epoch."""
    previous, current = state.epoch_start, state.skill
    before: list[Outcome] = []
    after: list[Outcome] = []

    async def compare(items: Sequence[Item]) -> tuple[Pair, ...]:
        series = f"slow_update/{epoch.name}"
        old, new = await gather(
            engine.run(
                requests_for(skill, items),
                stage="slow_update",
                step=epoch.last_step,
                series=series,
            )
            for skill in (previous, current)
        )
        raise_if_skipped([*old, *new])
        before.extend(old)
        after.extend(new)
        return pair_up(items, old, new)

    sample = epoch.slow_order[: settings.slow_update_samples]
    pairs = await compare(sample)
    previous_hard, current_hard = Tally.of(before).hard, Tally.of(after).hard
    if settings.longitudinal_pair_policy == "changed":
        others = epoch.slow_order[len(sample) :]
        pairs = await top_up(pairs, others, len(sample), compare)
    kept = keep_pairs(pairs, settings.longitudinal_pair_policy)
    return EpochComparison(previous, current, pairs, kept, previous_hard, current_hard)


def _with_lesson(text_filter: TextFilter, skill: Skill, text: str, step: int) -> Skill:
    """The skill with the lesson; unchanged when there is none or it must not enter."""
    if not text or not text_filter.passes(text, step):
        return skill
    wanted = with_slow_update(skill, text)
    return wanted if text_filter.fits(wanted, skill, "slow_update", step) else skill


@dataclass(frozen=True, slots=True)
class LessonResult:
    """The state after a lesson, and what was done with it."""

    state: TrainingState
    action: SlowUpdateAction
    tally: Tally | None = None  # of the skill with the lesson, where it was measured


async def _bring_in(
    run: Components, epoch: Epoch, state: TrainingState, candidate: Skill, text: str, log: StepLog
) -> LessonResult:
    """Bring the lesson into training: as a pending edit of the pool, as a candidate that a gate
    without a pool judges, or without a verdict.
    """
    gate, name = run.gate, slow_update_name(epoch.number)
    if not text:
        return LessonResult(state, "no_content")
    if candidate.hash == state.skill.hash:
        same = with_slow_update(state.skill, text).hash == state.skill.hash
        return LessonResult(state, "unchanged" if same else "refused")
    if not run.config.optimizer.slow_update_gate_with_selection:
        state = await adopt(gate, run.config.evaluation, state, candidate, name, log)
        return LessonResult(state, "force_accept", gate.tally(candidate))
    if gate.pools_edits:
        waiting = (*state.waiting_edits, Edit(SLOW_UPDATE_OP, content=text, label="slow update"))
        return LessonResult(replace(state, waiting_edits=waiting), "join_pool")
    proposed = Candidate(candidate, step=log.step, label="slow update", gated=True)
    verdict = await gate.begin(name).decide(proposed)
    if verdict is None:
        return LessonResult(state, "unchanged")
    emit_verdict(log, name, proposed, verdict)
    state = carry_winner(gate, state, verdict, name, log.step)
    return LessonResult(state, verdict.decision, verdict.candidate_tally)


def _emit(
    emit: Emit,
    epoch: Epoch,
    state: TrainingState,
    candidate: Skill,
    record: SlowUpdateRecord,
    comparison: EpochComparison | None = None,
) -> None:
    emit(
        SlowUpdateFinished(
            epoch=epoch.number,
            action=record.action,
            result=record,
            pairs=[pair.record() for pair in comparison.kept] if comparison else [],
            all_pairs=[pair.record() for pair in comparison.pairs] if comparison else [],
            candidate=candidate.text,
            skill=state.skill.text,
            best_skill=state.best.text,
        )
    )
