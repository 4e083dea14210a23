"""Meta skill: what an epoch taught about editing this skill, told to the analysts, merger and ranker of the next one."""

from __future__ import annotations

from collections.abc import Sequence

from skillfit.optimize.optimizer import Call, Optimizer
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
    call = Call("meta_skill", step, f"epoch {epoch}", system, user)
    reply = await optimizer.try_ask(MetaSkillReply, call, otherwise="the previous advice stays")
    if reply is None:
        return Lesson("")
    return Lesson(reply.meta_skill_content.strip(), reply.reasoning)
