"""The end of an epoch: a look back that writes to the skill's protected memory (slow update) and the optimizer's (meta skill)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skillfit.gate import Candidate
from skillfit.optimize import meta_skill as advice
from skillfit.optimize import slow_update as lesson
from skillfit.optimize.slow_update import Pair
from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Outcome, Tally
from skillfit.run.events import GateDecided, MetaSkillFinished, SlowUpdateFinished
from skillfit.skill import Skill, with_slow_update
from skillfit.tasks.item import Item
from skillfit.train.parts import Parts
from skillfit.train.plan import Epoch
from skillfit.train.progress import Progress, adopt, evaluation
from skillfit.train.record import gate_evidence


async def slow_update(parts: Parts, epoch: Epoch, progress: Progress) -> tuple[Pair, ...]:
    """Returns the pairs it looked at, for the meta skill."""
    settings = parts.config.optimizer
    if not settings.use_slow_update or parts.optimizer is None:
        return ()
    if epoch.number == 1:
        await _placeholder(parts, epoch, progress)
        return ()
    with parts.stage("slow_update"):
        everything, kept, previous_tally, current_tally = await _pairs(parts, epoch, progress)
        previous = progress.epoch_start or parts.initial
        found = await lesson.slow_update(parts.optimizer, previous, progress.skill, kept, epoch=epoch.number, step=progress.step)
        candidate, action, tally = progress.skill, "no_content", None
        if found.text and parts.screen.passes(found.text, progress.step):
            wanted = with_slow_update(progress.skill, found.text)
            if parts.screen.fits(wanted, progress.skill, progress.step, "slow_update"):
                candidate = wanted
                action, tally = await _carry(parts, epoch, progress, candidate)
        await parts.go_on_without_lost()
    result = {
        "reasoning": found.reasoning,
        "slow_update_content": found.text,
        "prev_hash": previous.hash,
        "prev_hard": previous_tally.hard,
        "curr_hard": current_tally.hard,
        "candidate_hash": candidate.hash,
        "update_origin": "slow_update_momentum",
        "update_target": "current_skill",
        "action": action,
        "selection_hard": tally.hard if tally else None,
        "selection_soft": tally.soft if tally else None,
    }
    _say(parts, epoch, progress, action, result, kept, everything, candidate)
    return kept


async def meta_skill(parts: Parts, epoch: Epoch, progress: Progress, pairs: tuple[Pair, ...]) -> None:
    """The optimizer's own memory, used from the next epoch on."""
    if not parts.config.optimizer.use_meta_skill or parts.optimizer is None:
        return
    if epoch.number == 1:
        parts.emit(MetaSkillFinished(epoch=1, result={"action": "skip_first_epoch"}))
        return
    with parts.stage("meta_skill"):
        if not pairs:
            _, pairs, _, _ = await _pairs(parts, epoch, progress)
        found = await advice.meta_skill(
            parts.optimizer,
            progress.epoch_start or parts.initial,
            progress.last_step_skill or progress.skill,
            pairs,
            advice=progress.meta_skill,
            epoch=epoch.number,
            step=progress.step,
        )
        await parts.go_on_without_lost()
    progress.meta_skill = found.text or progress.meta_skill
    action = "write_meta_skill" if found.text else "no_content"
    previous = (progress.epoch_start or parts.initial).hash
    result = {"reasoning": found.reasoning, "meta_skill_content": found.text, "action": action, "prev_hash": previous}
    parts.emit(MetaSkillFinished(epoch=epoch.number, result=result))


async def _placeholder(parts: Parts, epoch: Epoch, progress: Progress) -> None:
    """An empty region in epoch 1, so that later edits cannot take its place. After the last epoch nothing would follow it."""
    if len(parts.plan.epochs) == 1:
        return
    skill = with_slow_update(progress.skill)
    if skill.hash != progress.skill.hash:
        with parts.stage("slow_update", len(parts.task.selection)):
            await adopt(parts, progress, skill, f"slow_update_epoch_{epoch.number:02d}")
    _say(parts, epoch, progress, "inject_placeholder", {"action": "inject_placeholder"}, (), (), skill)


async def _pairs(parts: Parts, epoch: Epoch, progress: Progress) -> tuple[tuple[Pair, ...], tuple[Pair, ...], Tally, Tally]:
    """All pairs tried, those the policy keeps, and how the sampled items did under the previous and the current skill."""
    settings = parts.config.optimizer
    previous, current = progress.epoch_start or parts.initial, progress.skill
    seen: dict[str, list[Outcome]] = {"previous": [], "current": []}

    async def compare(items: Sequence[Item]) -> tuple[Pair, ...]:
        before, after = await gather([_roll(parts, epoch, previous, items), _roll(parts, epoch, current, items)])
        seen["previous"] += before
        seen["current"] += after
        return lesson.pair_up(items, before, after)

    sample = epoch.slow_order[: settings.slow_update_samples]
    pairs = await compare(sample)
    if settings.longitudinal_pair_policy == "changed":
        pairs = await lesson.top_up(pairs, epoch.slow_order[len(sample) :], len(sample), compare)
    kept = lesson.keep(pairs, settings.longitudinal_pair_policy)
    return pairs, kept, Tally.of(seen["previous"]), Tally.of(seen["current"])


async def _roll(parts: Parts, epoch: Epoch, skill: Skill, items: Sequence[Item]) -> list[Outcome]:
    outcomes = await parts.rollouts.run(
        skill, items, phase="slow_update", step=parts.at.step, series=f"slow_update/epoch_{epoch.number:02d}"
    )
    parts.refuse_skipped(outcomes)
    parts.ledger.add_outcomes("slow_update", outcomes)
    return outcomes


async def _carry(parts: Parts, epoch: Epoch, progress: Progress, candidate: Skill) -> tuple[str, Tally | None]:
    """Through the gate, or carried as it is: then it is measured, and the best skill stays unless this one is better. Returns what
    was done, and how the candidate did on the selection split."""
    name = f"slow_update_epoch_{epoch.number:02d}"
    if candidate.hash == progress.skill.hash:
        return "no_content", None
    if not parts.config.optimizer.slow_update_gate_with_selection:
        return "force_accept", await adopt(parts, progress, candidate, name)
    verdict = await parts.gate.judge(name, progress.skill, [Candidate(candidate, (), "slow update")])
    parts.emit(
        GateDecided(name=name, step=progress.step, decision=verdict.decision, reason=verdict.reason, **gate_evidence(verdict))
    )
    if verdict.tally is not None:
        parts.emit(evaluation(name, candidate, verdict.tally))
    if verdict.chosen is not None:
        progress.carry(verdict.winner, name, verdict.candidate_score or 0.0)
    return verdict.decision, verdict.tally


def _say(
    parts: Parts,
    epoch: Epoch,
    progress: Progress,
    action: str,
    result: dict[str, Any],
    kept: Sequence[Pair],
    everything: Sequence[Pair],
    candidate: Skill,
) -> None:
    progress.track_best(parts.gate.best)
    standing = {
        "current_score": progress.score,
        "current_origin": progress.origin,
        "best_score": parts.gate.best_score,
        "best_step": progress.best_step,
        "best_origin": progress.best_origin,
    }
    parts.emit(
        SlowUpdateFinished(
            epoch=epoch.number,
            action=action,
            result={**result, **standing},
            pairs=[pair.as_dict() for pair in kept],
            all_pairs=[pair.as_dict() for pair in everything],
            candidate=candidate.text,
            skill=progress.skill.text,
            best_skill=parts.gate.best.text,
        )
    )
