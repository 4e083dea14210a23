"""Select: at most an edit budget of proposals goes on from the merged patch.

The edit budget is the learning rate; `edit_budget` is its schedule. The optimizer ranks the
proposals only where there are more than the budget allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import cos, pi
from typing import Literal

from skillfit.optimize.optimizer import Call, LearningRateReply, Optimizer, RankReply
from skillfit.optimize.patch import Patch, Proposal
from skillfit.optimize.prompts import render, sections
from skillfit.optimize.reflect import Context
from skillfit.optimize.trajectories import cut
from skillfit.run.events import EditsSelected
from skillfit.run.records import SelectionDecision
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
    edit_budget: int | None  # the limit that applied; None: no limit
    decision: SelectionDecision = field(default_factory=SelectionDecision)


async def select(
    optimizer: Optimizer, skill: Skill, patch: Patch, context: Context, *, control: Control
) -> Selection:
    """The proposals to use. The scheduled `context.edit_budget` applies in `fixed` mode only."""
    budget = context.edit_budget
    decision = SelectionDecision()
    if optimizer.settings.skill_update_mode == "full_rewrite_minibatch" or control == "none":
        budget = None
    elif control == "autonomous":
        decision = await decide_edit_budget(optimizer, skill, patch, context)
        budget = decision.learning_rate
    chosen = patch.proposals
    if budget is not None and len(chosen) > budget:
        ranking = await _rank(optimizer, skill, patch, budget, context)
        chosen = tuple(chosen[index] for index in ranking.selected_indices or ())
        decision = replace(
            decision,
            selected_indices=ranking.selected_indices,
            reasoning=ranking.reasoning,
            fallback=decision.fallback or ranking.fallback,
        )
    selection = Selection(chosen, budget, decision)
    optimizer.emit(selection_event(context.step, selection))
    return selection


def selection_event(step: int, selection: Selection) -> EditsSelected:
    return EditsSelected(
        step=step,
        edit_budget=selection.edit_budget,
        edits=[proposal.record() for proposal in selection.proposals],
        decision=selection.decision,
    )


async def decide_edit_budget(
    optimizer: Optimizer, skill: Skill, patch: Patch, context: Context
) -> SelectionDecision:
    """The optimizer's own learning rate for this step, between none and all of the proposals."""
    available = len(patch.proposals)
    system = render("learning_rate", available=available)
    user = _prompt(optimizer, skill, patch, context, system, memory=context.memory)
    call = Call("lr_autonomous", context.step, "learning rate", system, user)
    reply = await optimizer.try_ask(
        LearningRateReply, call, otherwise="no edit is applied in this step"
    )
    if reply is None:
        return SelectionDecision(learning_rate=0, available=available, fallback=True)
    return SelectionDecision(
        learning_rate=min(max(reply.learning_rate, 0), available),
        available=available,
        rate_reasoning=reply.reasoning,
        confidence=reply.confidence or None,
        risk_notes=tuple(reply.risk_notes),
    )


async def _rank(
    optimizer: Optimizer, skill: Skill, patch: Patch, budget: int, context: Context
) -> SelectionDecision:
    """Which proposals to keep, best first, and why."""
    if budget <= 0:
        return SelectionDecision(selected_indices=())
    otherwise = f"the {budget} proposals with the most support are used instead"
    system = render("rank", edit_budget=budget)
    prompt = _prompt(optimizer, skill, patch, context, system)
    call = Call("rank", context.step, "ranking", system, prompt)
    reply = await optimizer.try_ask(RankReply, call, otherwise=otherwise)
    if reply is not None:
        named = dict.fromkeys(reply.selected_indices)
        indices = tuple(index for index in named if index < len(patch.proposals))[:budget]
        if indices:
            return SelectionDecision(selected_indices=indices, reasoning=reply.reasoning)
        problem = "no usable index was selected"
        optimizer.discard(context.step, "rank", "ranking", problem, otherwise)
    by_support = sorted(
        range(len(patch.proposals)), key=lambda index: -patch.proposals[index].support
    )
    return SelectionDecision(selected_indices=tuple(by_support[:budget]), fallback=True)


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
