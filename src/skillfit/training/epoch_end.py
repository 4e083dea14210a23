"""The end of an epoch: a look back that writes to the skill's protected memory (slow update) and
the optimizer's (meta skill).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skillfit.gate import Candidate
from skillfit.optimize import epoch as advice
from skillfit.optimize import epoch as lesson
from skillfit.optimize.epoch import Pair
from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Outcome, Tally
from skillfit.run.events import MetaSkillFinished, SlowUpdateFinished
from skillfit.skill import Skill, with_slow_update
from skillfit.tasks.item import Item
from skillfit.training.parts import Parts
from skillfit.training.plan import Epoch
from skillfit.training.progress import Progress, adopt, hard_and_soft, judge


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same training items under the skill the epoch began with and the one its steps ended
    with.
    """

    previous: Skill
    current: Skill
    pairs: tuple[Pair, ...]  # all that were tried
    kept: tuple[Pair, ...]  # those the policy shows
    previous_hard: float
    current_hard: float


async def slow_update(parts: Parts, epoch: Epoch, progress: Progress) -> Comparison | None:
    """Returns what it looked at, for the meta skill."""
    if not parts.config.optimizer.use_slow_update or parts.optimizer is None:
        return None
    if epoch.number == 1:
        await _placeholder(parts, epoch, progress)
        return None
    with parts.stage("slow_update"):
        met = await _compare(parts, epoch, progress)
        found = await lesson.slow_update(
            parts.optimizer,
            met.previous,
            met.current,
            met.kept,
            epoch=epoch.number,
            step=parts.at.step,
        )
        candidate = _with_lesson(parts, met.current, found.text)
        action, tally = await _carry(parts, epoch, progress, candidate)
        await parts.go_on_without_lost()
    result = {
        "reasoning": found.reasoning,
        "slow_update_content": found.text,
        "prev_hash": met.previous.hash,
        "prev_hard": met.previous_hard,
        "curr_hard": met.current_hard,
        "candidate_hash": candidate.hash,
        "update_origin": "slow_update_momentum",
        "update_target": "current_skill",
        "action": action,
        **hard_and_soft("selection", tally),
    }
    _say(parts, epoch, progress, candidate, result, met)
    return met


async def meta_skill(
    parts: Parts, epoch: Epoch, progress: Progress, met: Comparison | None
) -> None:
    """The optimizer's own memory, used from the next epoch on."""
    if not parts.config.optimizer.use_meta_skill or parts.optimizer is None:
        return
    if epoch.number == 1:
        parts.emit(MetaSkillFinished(epoch=1, result={"action": "skip_first_epoch"}))
        return
    with parts.stage("meta_skill"):
        met = met or await _compare(parts, epoch, progress)
        found = await advice.meta_skill(
            parts.optimizer,
            met.previous,
            met.current,
            met.kept,
            advice=progress.meta_skill,
            epoch=epoch.number,
            step=parts.at.step,
        )
        await parts.go_on_without_lost()
    progress.meta_skill = found.text or progress.meta_skill
    result = {
        "reasoning": found.reasoning,
        "meta_skill_content": found.text,
        "action": "write_meta_skill" if found.text else "no_content",
        "prev_hash": met.previous.hash,
    }
    parts.emit(MetaSkillFinished(epoch=epoch.number, result=result))


async def _placeholder(parts: Parts, epoch: Epoch, progress: Progress) -> None:
    """An empty region in epoch 1, so that later edits cannot take its place. After the last epoch
    nothing would follow it.
    """
    if len(parts.plan.epochs) == 1:
        return
    skill = with_slow_update(progress.skill)
    if skill.hash != progress.skill.hash:
        with parts.stage("slow_update", len(parts.task.selection)):
            await adopt(parts, progress, skill, f"slow_update_{epoch.name}", like=progress.skill)
    _say(parts, epoch, progress, skill, {"action": "inject_placeholder"})


async def _compare(parts: Parts, epoch: Epoch, progress: Progress) -> Comparison:
    settings = parts.config.optimizer
    previous, current = progress.epoch_start, progress.skill
    before: list[Outcome] = []
    after: list[Outcome] = []

    async def compare(items: Sequence[Item]) -> tuple[Pair, ...]:
        series = f"slow_update/{epoch.name}"
        old, new = await gather(
            parts.roll_out(skill, items, series=series) for skill in (previous, current)
        )
        before.extend(old)
        after.extend(new)
        return lesson.pair_up(items, old, new)

    sample = epoch.slow_order[: settings.slow_update_samples]
    pairs = await compare(sample)
    if settings.longitudinal_pair_policy == "changed":
        pairs = await lesson.top_up(pairs, epoch.slow_order[len(sample) :], len(sample), compare)
    kept = lesson.keep(pairs, settings.longitudinal_pair_policy)
    return Comparison(previous, current, pairs, kept, Tally.of(before).hard, Tally.of(after).hard)


def _with_lesson(parts: Parts, skill: Skill, text: str) -> Skill:
    """The skill with the lesson in its memory; as it was when there is none, or it must not enter."""
    if not text or not parts.screen.passes(text):
        return skill
    wanted = with_slow_update(skill, text)
    return wanted if parts.screen.fits(wanted, skill, "slow_update") else skill


async def _carry(
    parts: Parts, epoch: Epoch, progress: Progress, candidate: Skill
) -> tuple[str, Tally | None]:
    """Through the gate, or carried as it is: then it is measured, and the best skill stays unless
    this one is better. Returns what was done, and how the candidate did on the selection split.
    """
    name = f"slow_update_{epoch.name}"
    if candidate.hash == progress.skill.hash:
        return "no_content", None
    if not parts.config.optimizer.slow_update_gate_with_selection:
        return "force_accept", await adopt(parts, progress, candidate, name)
    verdict = await judge(parts, progress, name, [Candidate(candidate, (), "slow update")])
    return verdict.decision, verdict.tally


def _say(
    parts: Parts,
    epoch: Epoch,
    progress: Progress,
    candidate: Skill,
    result: dict[str, Any],
    met: Comparison | None = None,
) -> None:
    progress.track_best(parts)
    parts.emit(
        SlowUpdateFinished(
            epoch=epoch.number,
            action=result["action"],
            result={**result, **progress.standing(parts)},
            pairs=[pair.as_dict() for pair in met.kept] if met else [],
            all_pairs=[pair.as_dict() for pair in met.pairs] if met else [],
            candidate=candidate.text,
            skill=progress.skill.text,
            best_skill=parts.gate.best.text,
        )
    )
