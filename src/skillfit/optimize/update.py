"""Update: the selected proposals become a candidate skill. Protected regions never change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from skillfit.optimize.optimizer import Call, Optimizer, RewriteReply
from skillfit.optimize.patch import (
    Proposal,
    SkillCandidate,
    Suggestion,
    edits_of,
    payload_dict,
)
from skillfit.optimize.prompts import render, sections
from skillfit.optimize.reflect import Context
from skillfit.skill import EditResult, Skill, apply_edits, rewrite

_STAYS = "the skill stays as it is"


@dataclass(frozen=True, slots=True)
class Update:
    """A candidate and how it came about. `skill` is None when a rewrite gave nothing usable."""

    skill: Skill | None
    changed: bool
    report: tuple[EditResult, ...] = ()  # patch mode: what became of each edit
    change_summary: tuple[str, ...] = ()
    rewrite: dict[str, Any] = field(default_factory=dict)  # the model's reply in a rewrite mode

    @property
    def applied(self) -> tuple[EditResult, ...]:
        """The edits that changed the skill."""
        return tuple(result for result in self.report if result.applied)


async def update(
    optimizer: Optimizer, skill: Skill, proposals: Sequence[Proposal], context: Context
) -> Update:
    """The candidate of the update mode. `changed` is False when it equals the incumbent."""
    mode = optimizer.settings.skill_update_mode
    if mode == "patch":
        return apply(skill, proposals, max_tokens=optimizer.settings.max_skill_tokens)
    if mode == "rewrite_from_suggestions":
        return await _rewrite(optimizer, skill, proposals, context)
    return _first_candidate(optimizer, skill, proposals, context)


def apply(skill: Skill, proposals: Sequence[Proposal], *, max_tokens: int | None = None) -> Update:
    """Apply the edits among some proposals, in order: all of a patch, or any part of it."""
    applied = apply_edits(skill, edits_of(proposals), max_tokens=max_tokens)
    return Update(applied.skill, applied.skill.hash != skill.hash, applied.results)


async def _rewrite(
    optimizer: Optimizer, skill: Skill, proposals: Sequence[Proposal], context: Context
) -> Update:
    settings = optimizer.settings
    suggestions = [
        proposal.payload for proposal in proposals if isinstance(proposal.payload, Suggestion)
    ]
    if not suggestions:
        return Update(skill, changed=False)
    listed = "\n\n".join(
        f"{number}. {entry.title} ({entry.type}) {entry.priority_hint}\n"
        f"Why: {entry.motivation}\n{entry.instruction}"
        for number, entry in enumerate(suggestions, 1)
    )
    user = sections(current_skill=skill, previous_steps=context.memory, suggestions=listed)
    tokens, effort = settings.rewrite_max_completion_tokens, settings.rewrite_reasoning_effort
    call = Call("rewrite", context.step, "rewritten skill", render("rewrite"), user, tokens, effort)
    reply = await optimizer.try_ask(RewriteReply, call, otherwise=_STAYS)
    if reply is None:
        return Update(None, changed=False)
    return _rewritten(
        optimizer, skill, reply.new_skill, tuple(reply.change_summary), reply.model_dump(), context
    )


def _first_candidate(
    optimizer: Optimizer, skill: Skill, proposals: Sequence[Proposal], context: Context
) -> Update:
    for proposal in proposals:
        candidate = proposal.payload
        if isinstance(candidate, SkillCandidate) and candidate.new_skill.strip():
            return _rewritten(
                optimizer,
                skill,
                candidate.new_skill,
                candidate.change_summary,
                payload_dict(candidate),
                context,
            )
    return Update(None, changed=False)


def _rewritten(
    optimizer: Optimizer,
    skill: Skill,
    text: str,
    summary: tuple[str, ...],
    detail: dict[str, Any],
    context: Context,
) -> Update:
    candidate = rewrite(skill, text)
    limit = optimizer.settings.max_skill_tokens
    problem = "" if text.strip() else "the rewritten skill is empty"
    if limit is not None and candidate.tokens > max(limit, skill.tokens):
        problem = f"the rewritten skill has {candidate.tokens} tokens, above the ceiling of {limit}"
    if problem:
        optimizer.discard(context.step, "rewrite", "rewritten skill", problem, _STAYS)
        return Update(None, changed=False, rewrite=detail)
    return Update(candidate, candidate.hash != skill.hash, change_summary=summary, rewrite=detail)
