"""Reflect: analysts read groups of trajectories and propose how the skill should change.

Items fill the groups in planned order, whatever order their rollouts finish in. A group starts as
soon as its members are known, while the rest of the batch still runs.

`diagnose` looks deeper at some failures: they are rolled out again with a question that makes the
agent explain how it works.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from skillfit.errors import InfrastructureError
from skillfit.models.failures import can_be_lost, is_unreachable
from skillfit.models.protocol import ContextTooLong, ModelError
from skillfit.optimize.context import (
    Context,
    ItemAttempts,
    failure_patterns,
    render_cases,
    render_pending,
)
from skillfit.optimize.optimizer import (
    ANALYST_REPLY,
    AnalystReply,
    Call,
    DiagnosisReply,
    FailureNoteReply,
    Optimizer,
    Patch,
    PatchReply,
    Proposal,
    render,
    sections,
    union,
)
from skillfit.rollout.outcome import Outcome, RolloutRequest, gather, settle
from skillfit.run.events import ReflectionFinished
from skillfit.run.records import FailureNote, ProposalSource
from skillfit.skill import Skill
from skillfit.tasks.item import Item

Side = Literal["failure", "success"]


@dataclass(frozen=True, slots=True)
class Group:
    """Trajectories that one analyst reads together: failures, or successes."""

    name: str
    side: Side
    cases: tuple[ItemAttempts, ...]
    source: ProposalSource
    question: str = ""  # of a diagnosis: asked besides the task in the last attempt of each case

    @property
    def items(self) -> tuple[str, ...]:
        return tuple(case.item.id for case in self.cases)


@dataclass(frozen=True, slots=True)
class Reflection:
    """The usable patches in planned order, and how many groups gave none."""

    patches: tuple[Patch, ...]
    discarded: int


async def ask_analysts(
    optimizer: Optimizer,
    skill: Skill,
    requests: Sequence[RolloutRequest],
    rollouts: Sequence[asyncio.Future[Outcome]],
    context: Context,
    *,
    prefix: str = "",
) -> Reflection:
    """Patches from a batch whose rollouts may still run.

    `rollouts` belong to `requests`, one by one. `prefix` distinguishes the groups of several
    batches of one step. Raises InfrastructureError when no analyst could be reached.
    """
    started: list[asyncio.Task[Patch | ModelError]] = []
    try:
        async for group in _groups(optimizer, requests, rollouts, prefix):
            started.append(asyncio.create_task(analyse(optimizer, skill, group, context)))
    except asyncio.CancelledError:
        for task in started:
            task.cancel()
        raise
    finally:
        # Calls in flight are paid for: they finish and are recorded before an error is raised.
        await settle(started)
    results = await gather(started)
    patches = tuple(result for result in results if isinstance(result, Patch))
    errors = [result for result in results if isinstance(result, ModelError)]
    if not patches and any(is_unreachable(error.kind) for error in errors):
        raise InfrastructureError(
            f"None of the {len(results)} analyst calls for this batch got an answer; the last "
            f"failure was: {errors[-1].message}",
            hint="Nothing was learned and nothing was decided. Check the optimizer's endpoint, "
            "then start the same run again.",
        )
    return Reflection(patches, discarded=len(errors))


async def _groups(
    optimizer: Optimizer,
    requests: Sequence[RolloutRequest],
    rollouts: Sequence[asyncio.Future[Outcome]],
    prefix: str,
) -> AsyncIterator[Group]:
    """Failures and successes in groups of `gradient.minibatch_size`, each as soon as it is full;
    the last ones may be smaller.
    """
    size = optimizer.gradient.minibatch_size
    waiting: dict[Side, list[ItemAttempts]] = {"failure": [], "success": []}
    counts: dict[Side, int] = {"failure": 0, "success": 0}

    def close(side: Side) -> Group:
        cases, waiting[side] = tuple(waiting[side]), []
        name = f"{prefix}minibatch_{'fail' if side == 'failure' else 'succ'}_{counts[side]:03d}"
        counts[side] += 1
        source: ProposalSource = "contrast" if any(case.mixed for case in cases) else side
        return Group(name, side, cases, source)

    async for case in _cases(requests, rollouts):
        side: Side = "failure" if case.failed else "success"
        if not case.scored or (side == "success" and optimizer.gradient.failure_only):
            continue
        waiting[side].append(case)
        if len(waiting[side]) == size:
            yield close(side)
    for side in ("failure", "success"):
        if waiting[side]:
            yield close(side)


async def _cases(
    requests: Sequence[RolloutRequest], rollouts: Sequence[asyncio.Future[Outcome]]
) -> AsyncIterator[ItemAttempts]:
    """Each item with all its rollouts, in planned order."""
    for case in group_by_item(requests):
        outcomes = [await rollouts[at] for at in case.positions]
        yield ItemAttempts(
            case.item, tuple(outcomes), arms=tuple(requests[at].arm for at in case.positions)
        )


@dataclass(frozen=True, slots=True)
class ItemRequests:
    """One item of a batch, and where its rollouts stand among the batch's requests."""

    item: Item
    positions: tuple[int, ...]


def group_by_item(requests: Sequence[RolloutRequest]) -> list[ItemRequests]:
    """The items of a batch in planned order, each with all its rollouts."""
    positions: dict[str, list[int]] = {}
    items: dict[str, Item] = {}
    for at, request in enumerate(requests):
        items.setdefault(request.item.id, request.item)
        positions.setdefault(request.item.id, []).append(at)
    return [ItemRequests(item, tuple(positions[name])) for name, item in items.items()]


async def analyse(
    optimizer: Optimizer, skill: Skill, group: Group, context: Context, *, stage: str = ""
) -> Patch | ModelError:
    """One analyst call. Returns the error when there is no usable reply (emitted as Discarded)."""
    stage = stage or f"reflect.{group.side}"
    try:
        reply = await _ask_analyst(optimizer, skill, group, context, stage)
    except ModelError as error:
        if not can_be_lost(error.kind):
            raise
        optimizer.discard(context.step, stage, group.name, error)
        return error
    patch = _patch(optimizer, reply, group, context)
    optimizer.emit(
        ReflectionFinished(
            step=context.step,
            group=group.name,
            source=group.source,
            items=list(group.items),
            patch=patch.record(),
        )
    )
    return patch


async def _ask_analyst(
    optimizer: Optimizer, skill: Skill, group: Group, context: Context, stage: str
) -> AnalystReply[PatchReply]:
    """The analyst's reply. Token counts are estimates, so a prompt that turns out to be too long is
    sent again with half the room for trajectories.
    """
    returns = ANALYST_REPLY[optimizer.settings.skill_update_mode]
    try:
        return await optimizer.ask(returns, _call(optimizer, skill, group, context, stage))
    except ContextTooLong:
        shorter = _call(optimizer, skill, group, context, stage, shrink=2)
        return await optimizer.ask(returns, shorter)


def _call(
    optimizer: Optimizer,
    skill: Skill,
    group: Group,
    context: Context,
    stage: str,
    *,
    shrink: int = 1,
) -> Call:
    settings = optimizer.settings
    system = render(
        "analyst",
        source=group.source,
        side=group.side,
        mode=settings.skill_update_mode,
        edit_budget=context.edit_budget,
        skill_aware=_wants_notes(optimizer, group),
        pending=bool(context.pending),
    )
    known = sections(
        current_skill=skill,
        pending_edits=render_pending(context.pending),
        optimizer_meta_skill=context.meta_skill,
        previous_steps=context.memory,
        diagnostic_question=group.question,
    )
    reply_tokens = optimizer.patch_tokens()
    room = optimizer.room(system, known, reply=reply_tokens) // shrink
    shown = render_cases(
        group.cases,
        skill,
        room,
        trace=optimizer.gradient.trace_to_optimizer,
        pending=context.pending_ids,
    )
    user = f"{known}\n\n{sections(trajectories=shown)}"
    return Call(stage, context.step, group.name, system, user, reply_tokens)


def _wants_notes(optimizer: Optimizer, group: Group) -> bool:
    """Whether the analyst is asked for appendix notes."""
    settings = optimizer.settings
    if settings.skill_update_mode == "full_rewrite_minibatch":
        return False
    from_this_side = group.side == "failure" or settings.skill_aware_appendix_source == "both"
    return settings.use_skill_aware_reflection and from_this_side


def _patch(
    optimizer: Optimizer, reply: AnalystReply[PatchReply], group: Group, context: Context
) -> Patch:
    """The proposals of the reply, limited to the edit budget. Their support is the items of the
    group, whatever the analyst claims.
    """
    mode = optimizer.settings.skill_update_mode
    limit = None if mode == "full_rewrite_minibatch" else context.edit_budget
    payloads = [
        payload for entry in reply.patch.entries() if (payload := entry.payload()) is not None
    ]
    notes = reply.appendix_notes if _wants_notes(optimizer, group) else []
    return Patch(
        proposals=tuple(
            Proposal(payload, group.source, group.items) for payload in payloads[:limit]
        ),
        source=group.source,
        items=group.items,
        reasoning=reply.patch.reasoning,
        failure_summary=tuple(
            _note(entry, group)
            for entry in reply.failure_summary
            if entry.failure_type or entry.description
        ),
        success_patterns=tuple(reply.success_patterns),
        appendix_notes=tuple(note.strip() for note in notes if note.strip()),
    )


def _note(reply: FailureNoteReply, group: Group) -> FailureNote:
    """An analyst's pattern with its items; names of items it was not shown do not count."""
    items = tuple(item for item in union(reply.items) if item in group.items)
    count = len(items) or min(max(reply.count or 1, 1), len(group.items))
    return FailureNote(reply.failure_type or "unnamed", reply.description, count, items)


# Rolls out items again with a diagnostic instruction: the outcomes in the order of the items.
Reroll = Callable[[str, Sequence[Item]], Awaitable[Sequence[Outcome]]]


def worth_diagnosing(cases: Sequence[ItemAttempts], limit: int) -> tuple[ItemAttempts, ...]:
    """Failed cases of as many kinds as possible: one of each kind of failure in turn, in planned
    order.
    """
    failed = {case.item.id: case for case in cases if case.failed}
    outcomes = [outcome for case in failed.values() for outcome in case.scored]
    kinds = [pattern.task_ids for pattern in failure_patterns(outcomes, ())]
    in_turn = [item for turn in zip_longest(*kinds) for item in turn if item is not None]
    return tuple(failed[item] for item in union(in_turn)[:limit])


async def diagnose(
    optimizer: Optimizer,
    skill: Skill,
    cases: Sequence[ItemAttempts],
    reroll: Reroll,
    context: Context,
    *,
    limit: int,
) -> tuple[Patch, ...]:
    """Extra patches from diagnosed failures; none when there is nothing to diagnose or no
    instruction came.
    """
    chosen = worth_diagnosing(cases, limit)
    if not chosen:
        return ()
    instruction = await _diagnostic_instruction(optimizer, skill, chosen, context.step)
    if instruction is None:
        return ()
    answers = await reroll(instruction, [case.item for case in chosen])
    answered = [
        _with_answer(case, answer)
        for case, answer in zip(chosen, answers, strict=True)
        if answer.score is not None
    ]
    size = optimizer.gradient.minibatch_size
    groups = []
    for number, start in enumerate(range(0, len(answered), size)):
        members = tuple(answered[start : start + size])
        name = f"diagnosis_{number:03d}"
        groups.append(Group(name, "failure", members, "diagnosis", instruction))
    results = await gather(
        analyse(optimizer, skill, group, context, stage="reflect.diagnosis") for group in groups
    )
    return tuple(result for result in results if isinstance(result, Patch))


async def _diagnostic_instruction(
    optimizer: Optimizer, skill: Skill, cases: Sequence[ItemAttempts], step: int
) -> str | None:
    """What to ask the agent in the rollouts of a diagnosis; None without a usable reply."""
    system = render("diagnose")
    known = sections(current_skill=skill)
    room = optimizer.room(system, known)
    shown = render_cases(cases, skill, room, trace=optimizer.gradient.trace_to_optimizer)
    user = f"{known}\n\n{sections(trajectories=shown)}"
    call = Call("diagnose", step, "instruction", system, user)
    reply = await optimizer.try_ask(
        DiagnosisReply, call, otherwise="this step continues without a diagnosis"
    )
    return reply.instruction.strip() if reply is not None else None


def _with_answer(case: ItemAttempts, answer: Outcome) -> ItemAttempts:
    usual = tuple(f"Usual attempt {number}" for number in range(1, len(case.outcomes) + 1))
    return ItemAttempts(
        case.item, (*case.outcomes, answer), (*usual, "With the diagnostic question")
    )
