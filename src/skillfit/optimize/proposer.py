"""Stage 2 of a step: proposers turn its rollouts into patches for the skill.

`AnalystProposer` asks the optimizer's model: analysts read groups of trajectories and propose how
the skill should change. Items fill the groups in planned order, whatever order their rollouts
finish in. A group starts as soon as its members are known, while the rest of the batch still runs.
`diagnose` looks closer at some failures: they are rolled out again with a question that makes
the agent explain how it works.

`ExampleProposer` adds solved training items that resemble the failures as worked examples, and
needs no model. An example is an edit with op `example`, so it is budgeted, gated and measured like
any other. `AnalystsAndExamples` combines the two.

Your own proposer is a class with the one method of `Proposer`. Name it in `optimizer.proposer`
(file.py:name, or an entry point of group `skillfit.proposers`) or hand it to
`skillfit.train(proposer=…)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, Protocol

from skillfit.config.schema import OptimizerSection
from skillfit.errors import InfrastructureError
from skillfit.models import ModelSpec, Prices
from skillfit.models.failures import can_be_lost, is_unreachable, policy_of
from skillfit.models.protocol import ModelError
from skillfit.optimize.context import (
    Context,
    ItemAttempts,
    failure_patterns,
    render_cases,
    render_pending,
)
from skillfit.optimize.likeness import likeness, word_vectors
from skillfit.optimize.optimizer import (
    ANALYST_REPLY,
    AnalystReply,
    DiagnosisReply,
    FailureNoteReply,
    Optimizer,
    OptimizerCall,
    Patch,
    PatchReply,
    Proposal,
    render,
    sections,
    union,
)
from skillfit.plain_text import head_and_tail
from skillfit.rollout.outcome import Outcome, RolloutRequest, StepRollouts, gather, settle
from skillfit.run.events import Event, ReflectionFinished
from skillfit.run.paid import PaidEffects
from skillfit.run.records import FailureNote, ProposalSource
from skillfit.sandbox.programs import SandboxMode
from skillfit.skill import MAX_EXAMPLES, Edit, Example, Skill, apply_edits, example_edit, examples
from skillfit.tasks.item import Item

_EXAMPLE_CHARACTERS = 2_000  # of an example's input or output


@dataclass(frozen=True, slots=True)
class Proposals:
    """The patches of a step: per accumulation batch, and those that belong to no batch."""

    batches: tuple[tuple[Patch, ...], ...] = ()
    extra: tuple[Patch, ...] = ()
    failures: int = 0  # model calls without a usable reply

    @property
    def patches(self) -> tuple[Patch, ...]:
        return (*(patch for batch in self.batches for patch in batch), *self.extra)

    def __add__(self, other: Proposals) -> Proposals:
        """Join the patches of both. The first batch of one belongs to the first of the other."""
        batches = zip_longest(self.batches, other.batches, fillvalue=())
        return Proposals(
            tuple((*mine, *theirs) for mine, theirs in batches),
            (*self.extra, *other.extra),
            self.failures + other.failures,
        )


class Proposer(Protocol):
    """Writes patches from the training rollouts of a step.

    A class may also have `needs_optimizer` (see `optimizer_use`), `needs_patch_mode = True` (it
    adds text that only `skill_update_mode: patch` applies), `writes_notes = False` (its patches
    have no appendix notes) and `author`.
    """

    async def propose(
        self, skill: Skill, rollouts: StepRollouts, context: Context
    ) -> Proposals | Sequence[Patch]:
        """Propose patches for the skill. The rollouts may still run; `finished_cases` waits for
        them. Only training items appear here.
        """
        ...


ProposerFactory = Callable[["ProposerParts"], Proposer]


@dataclass(frozen=True, slots=True)
class ProposerParts:
    """What a proposer may use."""

    optimizer: Optimizer | None  # None: no optimizer model is configured
    train_items: Sequence[Item]
    settings: OptimizerSection
    emit: Callable[[Event], None]
    paid: PaidEffects  # for work that costs money besides calls of the optimizer
    model: OptimizerModel | None = None  # of the optimizer; None: there is none


@dataclass(frozen=True, slots=True)
class OptimizerModel:
    """The settings of the optimizer's model, for proposers that start it as a program."""

    spec: ModelSpec
    prices: Prices
    sandbox: SandboxMode  # `env.sandbox`


OptimizerUse = Literal["required", "possible", "never"]


def optimizer_use(proposer: Proposer | ProposerFactory) -> OptimizerUse:
    """Return whether a proposer, or what makes it, calls the optimizer's model. It is required
    where `needs_optimizer` is True, and never called where that is False. A proposer that does not
    say may call it where there is one.
    """
    needs: bool | None = getattr(proposer, "needs_optimizer", None)
    if needs is None:
        return "possible"
    return "required" if needs else "never"


Author = Literal["model", "examples", "custom"]


def author_of(proposer: Proposer) -> Author:
    """Return who writes the edits, for the diagnosis of a run."""
    author: Author = getattr(proposer, "author", "custom")
    return author


async def finished_cases(rollouts: StepRollouts) -> list[ItemAttempts]:
    """Wait for the step's rollouts; return each item with all its rollouts, in planned order."""
    await rollouts.outcomes()
    batches = zip(rollouts.requests, rollouts.running, strict=True)
    return [case for requests, running in batches async for case in _cases(requests, running)]


class AnalystProposer:
    """Groups of trajectories go to the optimizer's model, which writes a patch for each."""

    needs_optimizer = True
    author: Author = "model"

    def __init__(self, parts: ProposerParts) -> None:
        self._optimizer = parts.optimizer

    async def propose(self, skill: Skill, rollouts: StepRollouts, context: Context) -> Proposals:
        found = await gather(
            self._reflect_on_batch(skill, rollouts, number, context)
            for number in range(len(rollouts.requests))
        )
        return Proposals(
            tuple(reflection.patches for reflection in found),
            failures=sum(reflection.discarded for reflection in found),
        )

    async def _reflect_on_batch(
        self, skill: Skill, rollouts: StepRollouts, number: int, context: Context
    ) -> Reflection:
        """Ask analysts about a batch. Ends only after its last rollout, also on errors: rollouts in
        flight are paid for and must be recorded.
        """
        requests, running = rollouts.requests[number], rollouts.running[number]
        if self._optimizer is None:
            await gather(running)
            return Reflection((), 0)
        prefix = f"batch_{number}/" if len(rollouts.requests) > 1 else ""
        analysts = ask_analysts(self._optimizer, skill, requests, running, context, prefix=prefix)
        work: list[Awaitable[Any]] = [analysts, *running]
        reflection: Reflection = (await gather(work))[0]
        return reflection


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
    """Ask for patches from a batch whose rollouts may still run.

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
    """Yield failures and successes in groups of `gradient.minibatch_size`, each as soon as it is
    full; the last ones may be smaller.
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
    """Yield each item with all its rollouts, in planned order."""
    places: dict[str, list[int]] = {}  # by item: where its rollouts are in the batch
    for at, request in enumerate(requests):
        places.setdefault(request.item.id, []).append(at)
    for own in places.values():
        outcomes = [await rollouts[at] for at in own]
        arms = tuple(requests[at].arm for at in own)
        yield ItemAttempts(requests[own[0]].item, tuple(outcomes), arms=arms)


async def analyse(
    optimizer: Optimizer, skill: Skill, group: Group, context: Context, *, stage: str = ""
) -> Patch | ModelError:
    """Make one analyst call. Returns the error without a usable reply (emitted as Discarded)."""
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
    """Ask for the analyst's reply. Token counts are estimates, so a prompt that turns out to be too
    long is sent again with half the room for trajectories.
    """
    returns = ANALYST_REPLY[optimizer.settings.skill_update_mode]
    try:
        return await optimizer.ask(returns, _call(optimizer, skill, group, context, stage))
    except ModelError as error:
        if not policy_of(error).shorten:
            raise
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
) -> OptimizerCall:
    settings = optimizer.settings
    system = render(
        "analyst",
        source=group.source,
        side=group.side,
        mode=settings.skill_update_mode,
        edit_budget=context.edit_budget,
        skill_aware=_wants_notes(optimizer, group),
        pending=bool(context.pending),
        guidance=bool(context.guidance),
    )
    known = sections(
        owner_wishes=context.guidance,
        current_skill=skill,
        pending_edits=render_pending(context.pending),
        optimizer_meta_skill=context.meta_skill,
        failures_so_far=context.evidence,
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
    return OptimizerCall(stage, context.step, group.name, system, user, reply_tokens)


def _wants_notes(optimizer: Optimizer, group: Group) -> bool:
    """Return whether the analyst is asked for appendix notes."""
    settings = optimizer.settings
    from_this_side = group.side == "failure" or settings.skill_aware_appendix_source == "both"
    return settings.use_skill_aware_reflection and from_this_side


def _patch(
    optimizer: Optimizer, reply: AnalystReply[PatchReply], group: Group, context: Context
) -> Patch:
    """Return the proposals of the reply, limited to the edit budget. Their support is the items of
    the group, whatever the analyst claims.
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
    """Return an analyst's pattern with its items; names of items it was not shown do not count."""
    items = tuple(item for item in union(reply.items) if item in group.items)
    count = len(items) or min(max(reply.count or 1, 1), len(group.items))
    return FailureNote(reply.failure_type or "unnamed", reply.description, count, items)


# Rolls out items again with a diagnostic instruction: the outcomes in the order of the items.
Reroll = Callable[[str, Sequence[Item]], Awaitable[Sequence[Outcome]]]


def worth_diagnosing(cases: Sequence[ItemAttempts], limit: int) -> tuple[ItemAttempts, ...]:
    """Choose failed cases of as many kinds as possible: one of each in turn, in planned order."""
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
    """Return extra patches from diagnosed failures; none without failures or an instruction."""
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
    """Return what to ask the agent in the rollouts of a diagnosis; None without a usable reply."""
    system = render("diagnose")
    known = sections(current_skill=skill)
    room = optimizer.room(system, known)
    shown = render_cases(cases, skill, room, trace=optimizer.gradient.trace_to_optimizer)
    user = f"{known}\n\n{sections(trajectories=shown)}"
    call = OptimizerCall("diagnose", step, "instruction", system, user)
    reply = await optimizer.try_ask(
        DiagnosisReply, call, otherwise="this step continues without a diagnosis"
    )
    return reply.instruction.strip() if reply is not None else None


def _with_answer(case: ItemAttempts, answer: Outcome) -> ItemAttempts:
    usual = tuple(f"Usual attempt {number}" for number in range(1, len(case.outcomes) + 1))
    return ItemAttempts(
        case.item, (*case.outcomes, answer), (*usual, "With the diagnostic question")
    )


class ExampleProposer:
    """Solved training items that resemble the step's failures, as worked examples."""

    needs_optimizer = False
    needs_patch_mode = True
    writes_notes = False
    author: Author = "examples"

    def __init__(self, parts: ProposerParts) -> None:
        self._parts = parts

    async def propose(self, skill: Skill, rollouts: StepRollouts, context: Context) -> Proposals:
        outcomes = [outcome for batch in await rollouts.outcomes() for outcome in batch]
        failed = {
            outcome.item_id
            for outcome in outcomes
            if outcome.score is not None and not outcome.succeeded
        }
        asked = {request.item.id: request.item for batch in rollouts.requests for request in batch}
        patch = propose_examples(
            skill,
            [item for name, item in asked.items() if name in failed],
            solved_examples(self._parts.train_items, outcomes),
            edit_budget=context.edit_budget,
            max_tokens=self._parts.settings.max_skill_tokens,
        )
        if not patch.proposals:
            return Proposals()
        self._parts.emit(
            ReflectionFinished(
                step=context.step,
                group="examples",
                source="examples",
                items=list(patch.items),
                patch=patch.record(),
            )
        )
        return Proposals(extra=(patch,))


class AnalystsAndExamples:
    """The proposals of `AnalystProposer` and `ExampleProposer` together."""

    needs_optimizer = True
    needs_patch_mode = True
    author: Author = "model"

    def __init__(self, parts: ProposerParts) -> None:
        self._proposers = (AnalystProposer(parts), ExampleProposer(parts))

    async def propose(self, skill: Skill, rollouts: StepRollouts, context: Context) -> Proposals:
        analysts, examples = await gather(
            proposer.propose(skill, rollouts, context) for proposer in self._proposers
        )
        return analysts + examples


def solved_examples(items: Sequence[Item], outcomes: Iterable[Outcome] = ()) -> tuple[Example, ...]:
    """Return training items with an answer known to be right: the agent's own where a rollout
    succeeded, else the gold one.

    Items with attached files or images are left out: without these, an example would mislead.
    """
    own = {
        outcome.item_id: outcome.attempt.answer
        for outcome in outcomes
        if outcome.succeeded and outcome.attempt is not None
    }
    found = []
    for item in items:
        if item.split in ("selection", "test"):
            raise ValueError(f"item {item.id} of the {item.split} split may not become an example")
        answer = own.get(item.id) or next(iter(item.answers), "")
        if answer.strip() and item.input.strip() and not item.attachments():
            found.append(
                Example(
                    head_and_tail(item.input.strip(), _EXAMPLE_CHARACTERS),
                    head_and_tail(answer.strip(), _EXAMPLE_CHARACTERS),
                    item.id,
                )
            )
    return tuple(found)


def propose_examples(
    skill: Skill,
    failures: Sequence[Item],
    solved: Sequence[Example],
    *,
    edit_budget: int | None,
    max_tokens: int | None = None,
) -> Patch:
    """Propose at most as many examples as the edit budget allows. Each is the one that adds most:
    how much more it resembles the failures than the examples chosen before it.

    Where there is no room, an example takes the place of one that resembles the failures less.
    """
    old = examples(skill)
    alike = _likeness(failures, [*old, *solved])
    covered = [0.0] * len(failures)  # how alike the best example so far is to each failure
    for example in old:
        covered = _elementwise_max(covered, alike[example])
    pool = list(dict.fromkeys(solved))
    limit = MAX_EXAMPLES if edit_budget is None else min(edit_budget, MAX_EXAMPLES)
    proposals: list[Proposal] = []
    while pool and len(proposals) < limit:
        gains = [_gain(alike[example], covered) for example in pool]
        best = max(range(len(pool)), key=lambda index: sum(gains[index]))  # the first one on ties
        example, gain = pool.pop(best), gains[best]
        if not sum(gain):
            break
        for edit in _ways_to_add(example, old, alike):
            applied = apply_edits(skill, [edit], max_tokens=max_tokens)
            if applied.edits:
                skill = applied.skill
                covered = _elementwise_max(covered, alike[example])
                helped = [item.id for item, more in zip(failures, gain, strict=True) if more > 0]
                proposals.append(Proposal(edit, "examples", tuple(helped)))
                break
    return Patch(
        tuple(proposals),
        "examples",
        tuple(item.id for item in failures),
        "Solved items that resemble the failures.",
        merge=False,  # a model would reword what was solved
    )


def _elementwise_max(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [max(pair) for pair in zip(one, other, strict=True)]


def _gain(alike: Sequence[float], covered: Sequence[float]) -> list[float]:
    """Return by how much an example resembles each failure more than the examples so far."""
    return [max(0.0, now - before) for now, before in zip(alike, covered, strict=True)]


def _ways_to_add(
    example: Example, old: Sequence[Example], alike: Mapping[Example, Sequence[float]]
) -> Iterator[Edit]:
    """Yield the edit that adds an example; then, for a skill without room, those that put it in
    place of an old one that resembles the failures less, the least first.
    """
    yield example_edit(example)
    for held in sorted(old, key=lambda held: sum(alike[held])):
        if sum(alike[held]) < sum(alike[example]):
            yield example_edit(example, replaces=held.item_id)


def _likeness(failures: Sequence[Item], shown: Sequence[Example]) -> dict[Example, list[float]]:
    """Return how alike each example is to each failure."""
    texts = [*(item.input for item in failures), *(example.input for example in shown)]
    vectors = word_vectors(texts)
    of_failures, of_examples = vectors[: len(failures)], vectors[len(failures) :]
    return {
        example: [likeness(failure, vector) for failure in of_failures]
        for example, vector in zip(shown, of_examples, strict=True)
    }
