"""The end of an epoch: its first and its last skill are compared on the same training items.

The slow update writes what that teaches into a protected region of the skill. The meta skill is
advice that the optimizer writes for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skillfit.gate import Candidate
from skillfit.optimize import epoch as look_back
from skillfit.optimize.epoch import Pair
from skillfit.rollout import Outcome, Tally, gather, requests_for
from skillfit.run.events import MetaSkillFinished, SlowUpdateFinished
from skillfit.run.records import MetaSkillRecord, SlowUpdateRecord
from skillfit.skill import SLOW_UPDATE_OP, Edit, Skill, with_slow_update
from skillfit.tasks.item import Item
from skillfit.training.components import Components, UsageByStage, raise_if_skipped
from skillfit.training.plan import Epoch, Place
from skillfit.training.stages import decide
from skillfit.training.state import TrainingState
from skillfit.training.step_end import adopt


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
