"""The training loop: six stages, over steps and epochs.

    1  roll_out       plan -> running rollouts
    2  reflect        rollouts -> patches; reflect_again: more, from failures that are repeated
    3  aggregate      patches -> one patch
    4  select         patch -> at most an edit budget of proposals
    5  update         proposals -> a candidate skill
    6  begin_judging  edits of earlier steps -> running selection rollouts
       judge          training rollouts (observations), candidate -> verdict

`take_step` composes them. Each takes what it works with (engine, gate, proposer, optimizer, text
filter), then the data, then the log of the step, in which it notes its seconds and emits events.
What they find out is returned; the end of a step and of an epoch are in step_end.py and
epoch_end.py. After the last step, `prune` measures the edits that are still pending.

The loop is a deterministic function of config, seed and journaled values. It does not read files,
call vendors or handle resuming: a run that is started again gets everything it already paid for
from the journal at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from skillfit.errors import InputError, SkillfitError
from skillfit.gate import Candidate, EditEffect, Gate, Judgement, Observation, TextFilter, Verdict
from skillfit.optimize.context import Context
from skillfit.optimize.memory import render_evidence
from skillfit.optimize.optimizer import (
    Optimizer,
    Patch,
    Payload,
    Proposal,
    edits_of,
    without_duplicates,
)
from skillfit.optimize.proposer import Proposals, author_of, diagnose, finished_cases
from skillfit.optimize.stages import (
    SelectedProposals,
    SkillChange,
    apply_proposals,
    edit_budget,
    merge_patches,
    rewrite_skill,
    select_proposals,
    selection_event,
)
from skillfit.rollout import Arm, Outcome, RolloutEngine, RolloutRequest, requests_for
from skillfit.rollout.outcome import StepRollouts, raise_if_skipped, settle
from skillfit.run.budget import Budget
from skillfit.run.control import EDIT_ACTIONS, RecordedRequests, SteeringRequest, cap_amount
from skillfit.run.events import (
    CandidateBuilt,
    PatchMerged,
    PersonDecided,
    Warned,
)
from skillfit.run.records import RefusedText, SkillCandidate, Suggestion, step_name
from skillfit.skill import Applied, Skill, apply_edits
from skillfit.tasks.item import Item
from skillfit.training.epoch_end import make_slow_update, write_meta_skill
from skillfit.training.part_filter import PartFilter
from skillfit.training.plan import PlannedStep
from skillfit.training.schedule import training_series
from skillfit.training.state import (
    Components,
    Emit,
    Learned,
    Stage,
    StepLog,
    StepUpdate,
    TrainingState,
)
from skillfit.training.step_end import (
    StepResult,
    add_notes,
    close_step,
    emit_verdict,
    measure_baseline,
)
from skillfit.training.user_parts import PartFailed

_PEOPLE_SAID = "People read earlier answers to these training items and say:"
T = TypeVar("T")
Rollout = asyncio.Future[Outcome]
_CHEAPER = (
    "The aim is an agent that takes fewer tokens at the same score. Propose edits that make its "
    "answers and its work shorter, and short text in place of long text."
)


async def train(run: Components, state: TrainingState) -> AsyncIterator[TrainingState]:
    """Yield the state after the baseline, after each step, after each epoch and after pruning."""
    with run.decision("baseline"):
        state = await measure_baseline(
            run.gate, run.initial, len(run.task.selection), state, StepLog(run.emit)
        )
    yield state
    for epoch in run.schedule.epochs:
        state = state.next_epoch(run.gate.incumbent)
        for planned in epoch.steps:
            state = await take_step(run, planned, state)
            yield state
        comparison = await make_slow_update(run, epoch, state)
        state = await write_meta_skill(run, epoch, state, comparison)
        yield state
    await prune(run)
    yield state


async def take_step(run: Components, planned: PlannedStep, state: TrainingState) -> TrainingState:
    """Take one step of the run. Selection rollouts of edits that wait in a pool run while the
    optimizer reads.
    """
    gate, log = run.gate, StepLog(run.emit, planned.place)
    with run.decision(planned.name):
        found = await follow_requests(run.requests, planned.name, gate, run.budget, run.emit)
        state = state.with_notes(found)
        context, skill = context_of(run, state, planned), gate.incumbent
        repeats = run.config.gradient.rollouts_per_item
        rollouts = roll_out(run.engine, gate, planned, repeats, log)  # 1
        judging = begin_judging(gate, planned, log)  # 6, its first rollouts
        try:
            learned = await learn(run, skill, rollouts, context, log)  # 2, 3, 4
            updated = await update(
                run.optimizer, run.text_filter, gate, skill, learned.selected, context, log
            )  # 5
            training = await observations(rollouts)
            verdict = await judge(judging, updated.candidate, training, log)  # 6
        finally:
            await judging.settle()
        notes = await add_notes(
            gate, run.optimizer, run.text_filter, learned.proposals.patches, log
        )
    outcomes, cases = await rollouts.outcomes(), await finished_cases(rollouts)
    result = StepResult(planned, outcomes, learned, updated, verdict, cases, notes)
    return close_step(run, state, result, log)


async def prune(run: Components, after: str = "") -> None:
    """Measure the edits that are still pending, so that useless ones leave before the final skill
    is composed. `after`: what names say of rounds that a cap brought forward.
    """
    log, gate = StepLog(run.emit), run.gate
    with run.decision(f"prune{after}"), log.stage("prune", run.schedule.prune_rollouts):
        for number, planned in enumerate(run.schedule.prune, start=1):
            name = f"prune_{number}{after}"
            verdict = await gate.begin(name, planned).decide(None)
            if verdict is not None:
                emit_verdict(log, name, None, verdict)


async def learn(
    run: Components,
    skill: Skill,
    rollouts: StepRollouts,
    context: Context,
    log: StepLog,
) -> Learned:
    """Run stages 2 to 4: from trajectories to the edits that the step proposes."""
    optimizer = run.optimizer
    with log.stage("reflect"):
        proposals = await reflect(run, skill, rollouts, context)  # 2
        proposals += await reflect_again(optimizer, run.engine, skill, rollouts, context, log)
    merged = await aggregate(
        optimizer, run.text_filter, run.part_filter, skill, proposals.patches, context, log
    )  # 3
    selected = await select(optimizer, skill, merged.patch, context, log)  # 4
    return Learned(proposals, merged.patch, selected, merged.refused)


def roll_out(
    engine: RolloutEngine, gate: Gate, planned: PlannedStep, repeats: int, log: StepLog
) -> StepRollouts:
    """Start the training rollouts of a step, each under the arm that the gate assigns to it."""
    total = sum(len(batch.items) for batch in planned.batches) * repeats
    stage = log.stage("rollout", total)
    requests, running = [], []
    for number, batch in enumerate(planned.batches):
        name = f"{planned.name}/{number}"
        arms = gate.assign(name, batch.items, repeats, planned.round)
        asked = _requests(arms, batch.items, repeats)
        series = training_series(planned.name, number)
        started = engine.start(asked, stage="rollout", step=planned.step, series=series)
        requests.append(tuple(asked))
        running.append(tuple(started))
    rollouts = StepRollouts(tuple(requests), tuple(running))
    _finish_with_last(stage.done, rollouts.all_running())
    return rollouts


def _requests(arms: Sequence[Arm], items: Sequence[Item], repeats: int) -> list[RolloutRequest]:
    """List all items of the first repeat, then of the next: the order in which the gate gives
    arms.
    """
    planned = [(item, repeat) for repeat in range(repeats) for item in items]
    return [
        RolloutRequest(arm, item, repeat) for arm, (item, repeat) in zip(arms, planned, strict=True)
    ]


def _finish_with_last(done: Callable[[], None], rollouts: Sequence[Rollout]) -> None:
    """End the rollout stage with its last rollout, whatever else runs at that time."""
    left = len(rollouts)

    def ended(task: Rollout) -> None:
        nonlocal left
        left -= 1
        if not left and not task.cancelled() and task.exception() is None:
            done()

    for task in rollouts:
        task.add_done_callback(ended)


async def observations(rollouts: StepRollouts) -> list[Observation]:
    """Return the finished training rollouts as evidence for the gate."""
    found = []
    for requests, outcomes in zip(rollouts.requests, await rollouts.outcomes(), strict=True):
        raise_if_skipped(outcomes)
        for request, outcome in zip(requests, outcomes, strict=True):
            found.append(Observation(request.item.id, request.arm, outcome))
    return found


def context_of(run: Components, state: TrainingState, planned: PlannedStep) -> Context:
    """Return what the optimizer gets in this step besides trajectories."""
    settings, effects = run.config.optimizer, run.gate.effects()
    budget = None  # the optimizer chooses how many edits, or there is no limit
    if settings.lr_control_mode == "fixed" and settings.learning_rate is not None:
        budget = edit_budget(
            settings.lr_scheduler,
            planned.step,
            run.schedule.total_steps,
            maximum=settings.learning_rate,
            minimum=min(settings.min_learning_rate, settings.learning_rate),
        )
    pending = tuple(effect for effect in effects if effect.status == "pending")
    # A gate without a pool measures no single edit: there, the memory of the epoch is all.
    evidence = render_evidence(state.evidence) if effects or settings.memory else ""
    return Context(
        planned.step,
        budget,
        state.memory_text,
        state.meta_skill,
        pending,
        history=state.cases,
        effects=tuple(effects),
        working=_working_skill(run.gate.incumbent, pending),
        guidance=_wishes(run, state),
        evidence=evidence,
    )


def _wishes(run: Components, state: TrainingState) -> str:
    """List the owner's wishes, the objective where it is not the score alone, and what people say
    about answers to training items. Notes on other items do not reach the optimizer.
    """
    settings, found = run.config.optimizer, []
    if settings.guidance:
        found.append(settings.guidance)
    if run.config.evaluation.objective == "cheaper":
        found.append(_CHEAPER)
    said = {**settings.feedback, **state.feedback}
    training = {item.id for item in run.task.train} if said else set()
    notes = [f"- item {item}: {text}" for item, text in said.items() if item in training]
    return "\n".join([*found, *([_PEOPLE_SAID, *notes] if notes else [])])


def _working_skill(incumbent: Skill, pending: Sequence[EditEffect]) -> Skill:
    """Return the incumbent with all pending edits: what most rollouts run under."""
    skill = incumbent
    for effect in pending:
        skill = apply_edits(skill, [effect.edit]).skill
    return skill


async def reflect(
    run: Components, skill: Skill, rollouts: StepRollouts, context: Context
) -> Proposals:
    """Return what the proposer writes from the rollouts."""
    proposing = run.proposer.propose(skill, rollouts, context)
    try:
        if author_of(run.proposer) == "custom":
            proposing = _until_stopped(run, proposing, rollouts)
        found = await proposing
    except Exception:
        await settle(rollouts.all_running())  # they are paid for, and must be recorded
        raise
    for outcomes in await rollouts.outcomes():
        raise_if_skipped(outcomes)
    return found if isinstance(found, Proposals) else Proposals(extra=tuple(found))


async def _until_stopped(
    run: Components, proposing: Coroutine[Any, Any, T], rollouts: StepRollouts
) -> T:
    """Return what a user's proposer returns. It may hang, so it is cancelled when the run is asked
    to stop or its time is over, after the rollouts and calls in flight, which are paid for.
    """
    work = asyncio.ensure_future(proposing)
    try:
        async with run.budget.waiting():
            await asyncio.wait({work})
    except SkillfitError:
        await settle(rollouts.all_running())
        await run.calls_settled()
        raise
    finally:
        work.cancel()
        await settle([work])
    return work.result()


async def reflect_again(
    optimizer: Optimizer | None,
    engine: RolloutEngine,
    skill: Skill,
    rollouts: StepRollouts,
    context: Context,
    log: StepLog,
) -> Proposals:
    """Do deep reflection: roll out some failures again with the optimizer's question."""
    if optimizer is None or not optimizer.gradient.deep_reflection:
        return Proposals()
    cases = await finished_cases(rollouts)

    async def roll_out_again(instruction: str, items: Sequence[Item]) -> list[Outcome]:
        new = await engine.run(
            requests_for(skill, items),
            stage="reflect",
            step=context.step,
            series=f"diagnosis/{step_name(context.step)}",
            instruction=instruction,
        )
        raise_if_skipped(new)
        log.usage.add_outcomes("rollout", new)
        return new

    limit = optimizer.gradient.deep_reflection_items
    return Proposals(
        extra=await diagnose(optimizer, skill, cases, roll_out_again, context, limit=limit)
    )


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The patches of a step as one."""

    patch: Patch | None  # None: nothing is left
    refused: tuple[RefusedText, ...]  # by the leak check


async def aggregate(
    optimizer: Optimizer | None,
    text_filter: TextFilter,
    part_filter: PartFilter,
    skill: Skill,
    patches: Sequence[Patch],
    context: Context,
    log: StepLog,
) -> Aggregated:
    """Merge all patches into one, without what the leak check refuses and what may not be tried."""
    refused: list[RefusedText] = []
    cleaned = [_without_leaks(text_filter, patch, log.step, refused) for patch in patches]
    to_merge = [patch for patch in cleaned if patch.proposals and patch.merge]
    sources = [patch for patch in cleaned if not patch.merge]
    with log.stage("aggregate"):
        if optimizer is None or not optimizer.merges:
            sources = [*to_merge, *sources]
        elif to_merge:
            merged = await merge_patches(
                optimizer, skill, to_merge, step=log.step, meta_skill=context.meta_skill
            )
            # A merge may change the wording, so its result is checked again.
            sources.insert(0, _without_leaks(text_filter, merged, log.step, refused))
    proposals = without_duplicates(proposal for patch in sources for proposal in patch.proposals)
    skills = [skill, context.working or skill]
    proposals = await part_filter.usable(proposals, skills, log.step)
    if not proposals:
        return Aggregated(None, tuple(refused))
    patch = replace(sources[0], proposals=proposals)
    log.emit(PatchMerged(step=log.step, patch=patch.record()))
    return Aggregated(patch, tuple(refused))


def _without_leaks(
    text_filter: TextFilter, patch: Patch, step: int, refused: list[RefusedText]
) -> Patch:
    """Return the patch without the proposals that leak, whose texts are added to `refused`."""
    kept = []
    for proposal in patch.proposals:
        refusal = text_filter.refusal(_written_text(proposal.payload), step)
        if refusal is None:
            kept.append(proposal)
        else:
            refused.append(refusal)
    return replace(patch, proposals=tuple(kept))


def _written_text(payload: Payload) -> str:
    """Return what a proposal would put into the skill."""
    if isinstance(payload, Suggestion):
        return payload.instruction
    return payload.new_skill if isinstance(payload, SkillCandidate) else payload.content


async def select(
    optimizer: Optimizer | None,
    skill: Skill,
    patch: Patch | None,
    context: Context,
    log: StepLog,
) -> SelectedProposals | None:
    """Select at most an edit budget of the merged proposals."""
    if patch is None:
        return None
    with log.stage("select"):
        if optimizer is not None:
            control = optimizer.settings.lr_control_mode
            return await select_proposals(optimizer, skill, patch, context, control=control)
        chosen = patch.proposals[: context.edit_budget]
        selected = SelectedProposals(chosen, context.edit_budget)
        log.emit(selection_event(log.step, selected))
        return selected


async def update(
    optimizer: Optimizer | None,
    text_filter: TextFilter,
    gate: Gate,
    skill: Skill,
    selected: SelectedProposals | None,
    context: Context,
    log: StepLog,
) -> StepUpdate:
    """Return the candidate: the incumbent with the selected proposals."""
    if selected is None:
        return StepUpdate(None, "skip_no_patches")
    if not selected.proposals:
        change = SkillChange(skill, changed=False)
        log.emit(_candidate_event(log.step, Candidate(skill), change))
        return StepUpdate(None, "skip_no_change", change)
    with log.stage("update"):
        updated = await _filtered_update(
            optimizer, text_filter, gate, skill, selected.proposals, context, log
        )
    if updated.change is not None and updated.skipped in (None, "skip_no_change"):
        shown = updated.candidate or Candidate(skill)
        log.emit(_candidate_event(log.step, shown, updated.change))
    return updated


async def _filtered_update(
    optimizer: Optimizer | None,
    text_filter: TextFilter,
    gate: Gate,
    skill: Skill,
    proposals: Sequence[Proposal],
    context: Context,
    log: StepLog,
) -> StepUpdate:
    """Return the candidate made of proposals, unless the leak check refuses it."""
    if optimizer is None or optimizer.settings.skill_update_mode == "patch":
        change = apply_proposals(skill, proposals, max_tokens=text_filter.max_tokens)
        sources = [tuple(one.items) for one in proposals if one.edit is not None]
        patched = gate.candidate(Applied(change.skill or skill, change.report), sources, log.step)
        updated = StepUpdate(patched, None if patched is not None else "skip_no_change")
        if patched is not None and patched.report:
            change = replace(change, report=patched.report)
        pending = [effect.edit for effect in context.pending]
        present = apply_edits(skill, pending).skill
        wanted = apply_edits(present, edits_of(proposals)).skill
    else:
        change = await rewrite_skill(optimizer, skill, proposals, context)
        updated = _rewritten(change, log.step)
        present, wanted = skill, change.skill or skill
    # Edits that pass alone may leak side by side.
    refusal = text_filter.refusal_of_skill(wanted, present, log.step)
    if updated.candidate is not None and refusal is not None:
        updated = StepUpdate(None, "skip_leak", refused=(refusal,))
    return replace(updated, change=change)


def _rewritten(change: SkillChange, step: int) -> StepUpdate:
    if change.skill is not None and change.changed:
        return StepUpdate(Candidate(change.skill, step=step, label="rewrite"))
    return StepUpdate(None, "skip_no_rewrite" if change.skill is None else "skip_no_change")


def _candidate_event(step: int, candidate: Candidate, change: SkillChange) -> CandidateBuilt:
    return CandidateBuilt(
        step=step,
        label=candidate.label,
        skill=candidate.skill.text,
        skill_hash=candidate.skill.hash,
        report=list(change.report),
        rewrite=change.rewrite,
    )


@dataclass(frozen=True, slots=True)
class Judging:
    """A judgement that has begun."""

    name: str
    judgement: Judgement
    stage: Stage

    async def settle(self) -> None:
        """Wait for its rollouts, which are paid for and must be recorded. Errors are dropped."""
        if self.judgement.running is not None:
            await settle([self.judgement.running])


def begin_judging(gate: Gate, planned: PlannedStep, log: StepLog) -> Judging:
    """Start the selection rollouts of a step that need not wait for its candidate."""
    with log.within("gate"):
        judgement = gate.begin(planned.name, planned.round)
    return Judging(planned.name, judgement, log.stage("gate", judgement.started))


async def judge(
    judging: Judging, candidate: Candidate | None, training: Sequence[Observation], log: StepLog
) -> Verdict | None:
    """Let the gate decide about a step; None when there is nothing to decide."""
    with judging.stage:
        verdict = await judging.judgement.decide(candidate, training)
    if verdict is not None:
        emit_verdict(log, judging.name, candidate, verdict)
    return verdict


async def follow_requests(
    requests: RecordedRequests,
    place: str,
    gate: Gate,
    budget: Budget,
    emit: Emit,
    undecided: Sequence[str] = (),
) -> list[SteeringRequest]:
    """Carry out the requests that arrived since the last call, and return them. A request may
    change the incumbent.

    Raises ReviewPending when an edit in `undecided` is the target of none of them.
    """
    found = await requests.read(place, budget, undecided)
    for request in found:
        try:
            _follow(request, gate, budget)
        except PartFailed:
            raise
        except InputError as error:
            emit(Warned(what=f"request {request.number}", message=str(error)))
            continue
        emit(
            PersonDecided(
                number=request.number,
                action=request.action,
                target=request.target,
                text=request.text,
                command=request.command(requests.run),
                cap=budget.cap(request.target) if request.action == "budget" else None,
            )
        )
    return found


def set_requested_caps(requests: RecordedRequests, budget: Budget) -> None:
    """Set the caps that were asked for since the run ended. It reads requests between steps, and
    the calls of its next step may need them: a run that ended at a cap would end there again.
    """
    for request in requests.unread():
        if request.action == "budget":
            with suppress(InputError):  # a warning when the request is read
                _set_cap(request, budget)


def _follow(request: SteeringRequest, gate: Gate, budget: Budget) -> None:
    if request.action in EDIT_ACTIONS:
        gate.steer(request.action, request.target, request.text)
    elif request.action == "budget":
        _set_cap(request, budget)


def _set_cap(request: SteeringRequest, budget: Budget) -> None:
    """Set a cap as a request asks. A cap that was raised since then, in the config of a resumed
    run, stays.
    """
    wanted, cap = cap_amount(request.target, request.text), budget.cap(request.target)
    changed_since = request.cap_before is not None and cap != request.cap_before
    if changed_since and (cap is None or cap > wanted):
        return
    budget.set_cap(request.target, wanted)
