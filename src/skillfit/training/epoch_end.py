"""The end of an epoch: its first and its last skill are compared on the same training items.

The slow update writes what that teaches into a protected region of the skill. The meta skill is
advice that the optimizer writes for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skillfit.config.schema import OptimizerSection
from skillfit.gate import Candidate, Gate, Origin, TextFilter
from skillfit.optimize.stages import Pair, keep_pairs, pair_up, top_up, write_advice, write_lesson
from skillfit.rollout import Outcome, RolloutEngine, Tally, gather, requests_for
from skillfit.rollout.outcome import raise_if_skipped
from skillfit.run.events import MetaSkillFinished, SlowUpdateFinished
from skillfit.run.records import (
    EpochSkip,
    MetaSkillRecord,
    SlowUpdateAction,
    SlowUpdateRecord,
    slow_update_name,
)
from skillfit.skill import SLOW_UPDATE_OP, Edit, Skill, with_slow_update
from skillfit.skill.parts import changed_parts
from skillfit.tasks.item import Item
from skillfit.training.plan import Epoch, Place
from skillfit.training.state import Components, StepLog, TrainingState
from skillfit.training.step_end import emit_score, emit_verdict


@dataclass(frozen=True, slots=True)
class EpochComparison:
    """The same training items under the skill the epoch began with and the one it ended with."""

    previous: Skill
    current: Skill
    pairs: tuple[Pair, ...]  # all that were tried
    kept: tuple[Pair, ...]  # those that the policy shows
    previous_hard: float  # on the items of the sample, without those that topped up the pairs
    current_hard: float


async def make_slow_update(
    run: Components, epoch: Epoch, state: TrainingState
) -> EpochComparison | None:
    """Write a lesson from the epoch. Return the comparison that it was made from, if any."""
    if not run.config.optimizer.use_slow_update or run.optimizer is None:
        return None
    settings, last = run.config.optimizer, epoch is run.schedule.epochs[-1]
    log = StepLog(run.emit, Place(epoch.number, epoch.last_step))
    region = run.gate.with_lesson_region() if epoch.number == 1 and not last else None
    if region is not None:
        await _leave_room(run, region, epoch, log)
        return None
    if skipped := _skipped(run.gate, epoch, state):
        record = SlowUpdateRecord(action=skipped, standings=run.gate.standings)
        _emit(run, epoch, run.gate.incumbent, record)
        return None
    with run.decision(slow_update_name(epoch.number)), log.stage("slow_update"):
        comparison = await _compare(run.engine, settings, epoch, state, run.gate.incumbent)
        lesson = await write_lesson(
            run.optimizer,
            comparison.previous,
            comparison.current,
            comparison.kept,
            epoch=epoch.number,
            step=log.step,
        )
        candidate = _with_lesson(run.text_filter, comparison.current, lesson.text, log.step)
        brought = await _bring_in(run, epoch, candidate, lesson.text, log)
        tally = brought.tally
    record = SlowUpdateRecord(
        action=brought.action,
        standings=run.gate.standings,
        reasoning=lesson.reasoning,
        slow_update_content=lesson.text,
        prev_hash=comparison.previous.hash,
        prev_hard=comparison.previous_hard,
        curr_hard=comparison.current_hard,
        candidate_hash=candidate.hash,
        selection_hard=tally.hard if tally else None,
        selection_soft=tally.soft if tally else None,
    )
    _emit(run, epoch, candidate, record, comparison)
    return comparison


async def write_meta_skill(
    run: Components, epoch: Epoch, state: TrainingState, comparison: EpochComparison | None
) -> TrainingState:
    """Let the optimizer write advice to itself, used from the next epoch on."""
    if not run.config.optimizer.use_meta_skill or run.optimizer is None:
        return state
    last = epoch is run.schedule.epochs[-1]
    if skipped := _skipped(run.gate, epoch, state, unused=last):
        record = MetaSkillRecord(action=skipped)
        run.emit(MetaSkillFinished(epoch=epoch.number, result=record))
        return state
    log = StepLog(run.emit, Place(epoch.number, epoch.last_step))
    own = None
    with run.decision(f"meta_skill_{epoch.number}"), log.stage("meta_skill"):
        if comparison is None:
            comparison = own = await _compare(
                run.engine, run.config.optimizer, epoch, state, run.gate.incumbent
            )
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


def _skipped(
    gate: Gate, epoch: Epoch, state: TrainingState, *, unused: bool = False
) -> EpochSkip | None:
    """Return why the end of an epoch has nothing to compare; None when it has."""
    if epoch.number == 1:
        return "skip_first_epoch"
    return gate.skips_epoch(gate.incumbent.hash != state.epoch_start.hash, unused)


async def _leave_room(run: Components, skill: Skill, epoch: Epoch, log: StepLog) -> None:
    """Adopt the skill with an empty region in epoch 1, so that step edits cannot take its place."""
    gate = run.gate
    if skill.hash != gate.incumbent.hash:
        with log.stage("slow_update"):
            await _adopt(gate, skill, epoch, log, like=gate.incumbent)
    record = SlowUpdateRecord(action="inject_placeholder", standings=gate.standings)
    _emit(run, epoch, skill, record)


async def _adopt(
    gate: Gate, skill: Skill, epoch: Epoch, log: StepLog, like: Skill | None = None
) -> Tally:
    """Adopt a skill that no verdict chose. It is measured unless `like`, an equivalent one, was."""
    origin = Origin(slow_update_name(epoch.number), log.step)
    tally = await gate.adopt(skill, origin, like)
    emit_score(log.emit, origin.name, skill, tally)
    return tally


async def _compare(
    engine: RolloutEngine,
    settings: OptimizerSection,
    epoch: Epoch,
    state: TrainingState,
    current: Skill,
) -> EpochComparison:
    """Roll out some training items under the first and the last skill of the epoch."""
    previous = state.epoch_start
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
    """Return the skill with the lesson; unchanged when there is none or it must not enter."""
    if not text or not text_filter.passes(text, step):
        return skill
    wanted = with_slow_update(skill, text)
    return wanted if text_filter.fits(wanted, skill, "slow_update", step) else skill


@dataclass(frozen=True, slots=True)
class LessonResult:
    """What was done with a lesson."""

    action: SlowUpdateAction
    tally: Tally | None = None  # of the skill with the lesson, where it was measured


async def _bring_in(
    run: Components, epoch: Epoch, candidate: Skill, text: str, log: StepLog
) -> LessonResult:
    """Bring the lesson into training: as the gate decides, or without a verdict."""
    gate, origin = run.gate, Origin(slow_update_name(epoch.number), log.step)
    if not text:
        return LessonResult("no_content")
    if candidate.hash == gate.incumbent.hash:
        same = with_slow_update(gate.incumbent, text).hash == gate.incumbent.hash
        return LessonResult("unchanged" if same else "refused")
    if not run.config.optimizer.slow_update_gate_with_selection:
        return LessonResult("force_accept", await _adopt(gate, candidate, epoch, log))
    edit = Edit(SLOW_UPDATE_OP, content=text, label="slow update")
    proposed = Candidate(candidate, (edit,), step=log.step, label="slow update", gated=True)
    verdict = await gate.judge_lesson(proposed, origin)
    if verdict is None:
        return LessonResult("join_pool")
    emit_verdict(log, origin.name, proposed, verdict)
    return LessonResult(verdict.decision, verdict.candidate_tally)


def _emit(
    run: Components,
    epoch: Epoch,
    candidate: Skill,
    record: SlowUpdateRecord,
    comparison: EpochComparison | None = None,
) -> None:
    gate = run.gate
    run.emit(
        SlowUpdateFinished(
            epoch=epoch.number,
            action=record.action,
            result=record,
            pairs=[pair.record() for pair in comparison.kept] if comparison else [],
            all_pairs=[pair.record() for pair in comparison.pairs] if comparison else [],
            candidate=candidate.text,
            skill=gate.incumbent.text,
            best_skill=gate.best.text,
            skill_files=changed_parts(gate.incumbent, run.initial),
            best_files=changed_parts(gate.best, run.initial),
        )
    )
