"""Meta skill: what an epoch taught about editing this skill, told to the analysts, merger and ranker of the next one."""

from __future__ import annotations

from collections.abc import Sequence

from skillfit.optimize.optimizer import UNUSABLE, Optimizer
from skillfit.optimize.replies import MetaSkillReply
from skillfit.optimize.slow_update import Lesson, Pair, compare_prompt
from skillfit.skill import Skill


async def meta_skill(
    optimizer: Optimizer, previous: Skill, current: Skill, pairs: Sequence[Pair], *, advice: str, epoch: int, step: int
) -> Lesson:
    """Advice for the optimizer in place of `advice`, or an empty lesson."""
    if not pairs:
        return Lesson("")
    system, user = compare_prompt(optimizer, "meta_skill", previous, current, pairs, previous_advice=advice)
    try:
        reply = await optimizer.ask(MetaSkillReply, stage="meta_skill", purpose=f"epoch {epoch}", system=system, user=user)
    except UNUSABLE as error:
        optimizer.discard(step, "meta_skill", f"epoch {epoch}", error, "the previous advice stays")
        return Lesson("")
    return Lesson(reply.meta_skill_content.strip(), reply.reasoning)
