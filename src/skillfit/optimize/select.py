"""The edit budget of a step: the learning rate and its decay. A pure function of the step, so
skipped steps advance it too.

Select: at most an edit budget's worth of the merged patch goes on. The optimizer is asked only
where there is a choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Any, Literal

from skillfit.optimize.optimizer import Call, LearningRateReply, Optimizer, RankReply
from skillfit.optimize.patch import Patch, Proposal
from skillfit.optimize.prompts import render, sections
from skillfit.optimize.reflect import Context
from skillfit.optimize.trajectories import cut
from skillfit.run.events import EditsSelected
from skillfit.skill import Skill, estimate_tokens

Scheduler = Literal["constant", "linear", "cosine", "autonomous"]


def edit_budget(
    scheduler: Scheduler, step: int, total_steps: int, *, maximum: int, minimum: int
) -> int | None:
    """Edits that step `step` (from 1) may apply; None means no limit. Decay starts with the first
    step and ends at `minimum`.
    """
    if scheduler == "autonomous":
        return None
    if scheduler == "constant" or total_steps <= 1:
        return maximum
    progress = min(step, total_steps) / total_steps
    if scheduler == "linear":
        return max(minimum, round(maximum + (minimum - maximum) * progress))
    return max(minimum, round(minimum + 0.5 * (maximum - minimum) * (1 + cos(pi * progress))))


Control = Literal["fixed", "autonomous", "none"]


@dataclass(frozen=True, slots=True)
class Selection:
    proposals: tuple[Proposal, ...]
    edit_budget: int | None  # the one that acted; None: no limit
    decision: dict[str, Any]  # how it was chosen: the ranking, or the optimizer's own learning rate


async def select(
    optimizer: Optimizer,
    skill: Skill,
    patch: Patch,
    context: Context,
    *,
    control: Control = "fixed",
) -> Selection:
    """The proposals to apply. `context.edit_budget` is the schedule's word, which only `fixed`
    follows.
    """
    budget = context.edit_budget
    decision: dict[str, Any] = {}
    if optimizer.settings.update_mode == "full_rewrite_minibatch" or control == "none":
        budget = None
    elif control == "autonomous":
        decision = await decide_edit_budget(optimizer, skill, patch, context)
        budget = int(decision["learning_rate"])
    chosen = patch.proposals
    if budget is not None and len(chosen) > budget:
        ranking = await _best(optimizer, skill, patch, budget, context)
        chosen = tuple(chosen[index] for index in ranking["selected_indices"])
        decision = {**decision, **ranking}
    optimizer.emit(
        EditsSelected(
            step=context.step,
            edit_budget=budget,
            edits=[proposal.as_dict() for proposal in chosen],
            decision=decision,
        )
    )
    return Selection(chosen, budget, decision)


async def decide_edit_budget(
    optimizer: Optimizer, skill: Skill, patch: Patch, context: Context
) -> dict[str, Any]:
    """The optimizer's own learning rate for this step, between none and all of the proposals."""
    available = len(patch.proposals)
    system = render("learning_rate", available=available)
    user = _prompt(optimizer, skill, patch, context, system, memory=context.memory)
    call = Call("lr_autonomous", context.step, "learning rate", system, user)
    reply = await optimizer.try_ask(
        LearningRateReply, call, otherwise="no edit is applied in this step"
    )
    if reply is None:
        return {"learning_rate": 0, "available": available, "fallback": True}
    rate = min(max(reply.learning_rate, 0), available)
    return {**reply.model_dump(), "learning_rate": rate, "available": available, "fallback": False}


async def _best(
    optimizer: Optimizer, skill: Skill, patch: Patch, budget: int, context: Context
) -> dict[str, Any]:
    """Which proposals to keep, best first, and why."""
    if budget <= 0:
        return {"selected_indices": []}
    otherwise = f"the {budget} proposals with the most support are used instead"
    system = render("rank", edit_budget=budget)
    call = Call(
        "rank", context.step, "ranking", system, _prompt(optimizer, skill, patch, context, system)
    )
    reply = await optimizer.try_ask(RankReply, call, otherwise=otherwise)
    if reply is not None:
        indices = [
            index for index in dict.fromkeys(reply.selected_indices) if index < len(patch.proposals)
        ][:budget]
        if indices:
            return {"selected_indices": indices, "reasoning": reply.reasoning}
        optimizer.discard(
            context.step, "rank", "ranking", "no usable index was selected", otherwise
        )
    by_support = sorted(
        range(len(patch.proposals)), key=lambda index: -patch.proposals[index].support
    )
    return {"selected_indices": by_support[:budget], "fallback": True}


def _prompt(
    optimizer: Optimizer,
    skill: Skill,
    patch: Patch,
    context: Context,
    system: str,
    memory: str = "",
) -> str:
    known = sections(
        current_skill=skill, optimizer_meta_skill=context.meta_skill, previous_steps=memory
    )
    lines = [proposal.listed(number) for number, proposal in enumerate(patch.proposals)]
    room = optimizer.room(system, known)
    tokens = estimate_tokens("\n".join(lines))
    if tokens > room:
        share = int(room / tokens * sum(map(len, lines)) / len(lines))
        lines = [cut(line, share) for line in lines]
    return f"{known}\n\n{sections(proposals=chr(10).join(lines))}"
