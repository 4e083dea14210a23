"""The stages of one step, as functions from data to data.

    1  roll_out       plan -> running rollouts
    2  reflect        rollouts -> patches; reflect_again: more, from failures that are repeated
    3  aggregate      patches -> one patch
    4  select         patch -> at most an edit budget of proposals
    5  update         proposals -> a candidate skill; note_edits: skillfit's own edits
    6  begin_judging  candidate -> running selection rollouts
       judge          training rollouts (observations) -> verdict

`context_of` is what the optimizer gets in stages 2 to 5 besides trajectories.

loop.py composes them. Each takes what it works with (engine, gate, proposer, optimizer, text
filter), then the data, then the log of the step, in which it notes its seconds and emits events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from skillfit.config.schema import OptimizerSection
from skillfit.gate import Candidate, EditEffect, Gate, Judgement, Observation, TextFilter, Verdict
from skillfit.optimize.candidate import (
    Selection,
    Update,
    apply_proposals,
    edit_budget,
    merge_patches,
    rewrite_skill,
    select_proposals,
    selection_event,
)
from skillfit.optimize.context import Context
from skillfit.optimize.epoch import collect_notes
from skillfit.optimize.optimizer import Optimizer, Patch, Payload, Proposal
from skillfit.optimize.proposer import Proposals, Proposer, diagnose, finished_cases
from skillfit.rollout import Arm, Outcome, RolloutRequest, Rollouts
from skillfit.rollout.outcome import StepRollouts, raise_if_skipped, settle
from skillfit.run.events import CandidateBuilt, EvaluationFinished, GateDecided, PatchMerged
from skillfit.run.records import SkillCandidate, SkipAction, Suggestion, step_name
from skillfit.skill import EXAMPLE_OP, NOTE_OP, Edit, Skill
from skillfit.tasks.item import Item
from skillfit.training.plan import PlannedStep
from skillfit.training.state import TrainingState
from skillfit.training.step_log import Stage, StepLog

Rollout = asyncio.Future[Outcome]


def roll_out(
    engine: Rollouts, gate: Gate, planned: PlannedStep, repeats: int, log: StepLog
) -> StepRollouts:
    """Start the training rollouts of a step, each under the arm that the gate assigns to it."""
    total = sum(len(batch.items) for batch in planned.batches) * repeats
    stage = log.stage("rollout", total)
    requests, running = [], []
    for number, batch in enumerate(planned.batches):
        arms = gate.assign(f"{planned.name}/{number}", batch.items, repeats)
        asked = _requests(arms, batch.items, repeats)
        series = f"train/{planned.name}/{number}"
        started = engine.start(asked, phase="rollout", step=planned.step, series=series)
        requests.append(tuple(asked))
        running.append(tuple(started))
    rollouts = StepRollouts(tuple(requests), tuple(running))
    _finish_with_last(stage.done, rollouts.all_running())
    return rollouts


def _requests(arms: Sequence[Arm], items: Sequence[Item], repeats: int) -> list[RolloutRequest]:
    """All items of the first repeat, then of the next: the order in which the gate gives arms."""
    planned = [(item, repeat) for repeat in range(repeats) for item in items]
    return [
        RolloutRequest(arm, item, repeat) for arm, (item, repeat) in zip(arms, planned, strict=True)
    ]


def _finish_with_last(done: Callable[[], None], rollouts: Sequence[Rollout]) -> None:
    """The rollout stage ends with its last rollout, whatever else runs at that time."""
    left = len(rollouts)

    def ended(task: Rollout) -> None:
        nonlocal left
        left -= 1
        if not left and not task.cancelled() and task.exception() is None:
            done()

    for task in rollouts:
        task.add_done_callback(ended)


async def observations(rollouts: StepRollouts) -> list[Observation]:
    """The finished training rollouts as evidence for the gate."""
    found = []
    for requests, outcomes in zip(rollouts.requests, await rollouts.outcomes(), strict=True):
        raise_if_skipped(outcomes)
        for request, outcome in zip(requests, outcomes, strict=True):
            found.append(Observation(request.item.id, request.arm, outcome))
    return found


def context_of(
    state: TrainingState,
    effects: Sequence[EditEffect],
    planned: PlannedStep,
    total_steps: int,
    settings: OptimizerSection,
) -> Context:
    """What the optimizer gets in this step besides trajectories."""
    pending = tuple(effect for effect in effects if effect.status == "pending")
    budget = None  # another rule applies, or none
    if settings.lr_control_mode == "fixed":
        budget = edit_budget(
            settings.lr_scheduler,
            planned.step,
            total_steps,
            maximum=settings.learning_rate,
            minimum=min(settings.min_learning_rate, settings.learning_rate),
        )
    return Context(planned.step, budget, state.memory_text, state.meta_skill, pending)


async def reflect(
    proposer: Proposer, skill: Skill, rollouts: StepRollouts, context: Context
) -> Proposals:
    """What the proposer writes from the rollouts."""
    try:
        found = await proposer.propose(skill, rollouts, context)
    except Exception:
        await settle(rollouts.all_running())  # they are paid for, and must be recorded
        raise
    for outcomes in await rollouts.outcomes():
        raise_if_skipped(outcomes)
    return found if isinstance(found, Proposals) else Proposals(extra=tuple(found))


async def reflect_again(
    optimizer: Optimizer | None,
    engine: Rollouts,
    skill: Skill,
    rollouts: StepRollouts,
    context: Context,
    log: StepLog,
) -> Proposals:
    """Deep reflection: some failures are rolled out again with the optimizer's question."""
    if optimizer is None or not optimizer.gradient.deep_reflection:
        return Proposals()
    cases = await finished_cases(rollouts)

    async def roll_out_again(instruction: str, items: Sequence[Item]) -> list[Outcome]:
        again = [RolloutRequest(Arm(skill), item) for item in items]
        series = f"diagnosis/{step_name(context.step)}"
        new = await engine.run(
            again, phase="reflect", step=context.step, series=series, instruction=instruction
        )
        raise_if_skipped(new)
        log.usage.add_outcomes("rollout", new)
        return new

    limit = optimizer.gradient.deep_reflection_items
    return Proposals(
        extra=await diagnose(optimizer, skill, cases, roll_out_again, context, limit=limit)
    )


async def aggregate(
    optimizer: Optimizer | None,
    texts: TextFilter,
    skill: Skill,
    patches: Sequence[Patch],
    context: Context,
    log: StepLog,
) -> Patch | None:
    """One patch of all, without what the leak check refuses; None when nothing was proposed."""
    cleaned = [_without_leaks(texts, patch, log.step) for patch in patches]
    log.refused_proposals += _proposals(patches) - _proposals(cleaned)
    to_merge = [patch for patch in cleaned if patch.proposals and patch.merge]
    sources = [patch for patch in cleaned if not patch.merge]
    with log.stage("aggregate"):
        if optimizer is None:
            sources = [*to_merge, *sources]
        elif to_merge:
            merged = await merge_patches(
                optimizer, skill, to_merge, step=log.step, meta_skill=context.meta_skill
            )
            # A merge may change the wording, so its result is checked again.
            checked = _without_leaks(texts, merged, log.step)
            log.refused_proposals += _proposals([merged]) - _proposals([checked])
            sources.insert(0, checked)
    proposals = tuple(proposal for patch in sources for proposal in patch.proposals)
    if not proposals:
        return None
    merged = replace(sources[0], proposals=proposals)
    log.emit(PatchMerged(step=log.step, patch=merged.record()))
    return merged


def _without_leaks(texts: TextFilter, patch: Patch, step: int) -> Patch:
    """The patch without the proposals that leak."""
    kept = []
    for proposal in patch.proposals:
        # Only edits of the fenced examples may show training answers.
        payload = proposal.payload
        example = isinstance(payload, Edit) and payload.op == EXAMPLE_OP
        if texts.passes(_written_text(payload), step, example=example):
            kept.append(proposal)
    return replace(patch, proposals=tuple(kept))


def _written_text(payload: Payload) -> str:
    """What a proposal would put into the skill."""
    if isinstance(payload, Suggestion):
        return payload.instruction
    return payload.new_skill if isinstance(payload, SkillCandidate) else payload.content


def _proposals(patches: Sequence[Patch]) -> int:
    return sum(len(patch.proposals) for patch in patches)


async def select(
    optimizer: Optimizer | None,
    skill: Skill,
    patch: Patch | None,
    context: Context,
    log: StepLog,
) -> Selection | None:
    """At most an edit budget of the merged proposals."""
    if patch is None:
        return None
    with log.stage("select"):
        if optimizer is not None:
            control = optimizer.settings.lr_control_mode
            return await select_proposals(optimizer, skill, patch, context, control=control)
        chosen = patch.proposals[: context.edit_budget]
        selection = Selection(chosen, context.edit_budget)
        log.emit(selection_event(log.step, selection))
        return selection


@dataclass(frozen=True, slots=True)
class Learned:
    """What the optimizer made of one step's training rollouts (stages 2 to 4)."""

    proposals: Proposals = field(default_factory=Proposals)
    patch: Patch | None = None  # None: nothing was proposed
    selection: Selection | None = None
    log: StepLog | None = None  # None: the optimizer was not asked


@dataclass(frozen=True, slots=True)
class StepUpdate:
    """The candidate of a step, or why there is none."""

    candidate: Candidate | None
    skipped: SkipAction | None = None  # None: there is a candidate
    update: Update | None = None


async def update(
    optimizer: Optimizer | None,
    texts: TextFilter,
    skill: Skill,
    selection: Selection | None,
    own_edits: Sequence[Edit],
    context: Context,
    log: StepLog,
    *,
    pools_edits: bool,
) -> StepUpdate:
    """The candidate that the selected proposals and skillfit's own edits make of the incumbent.

    `pools_edits`: what the gate says of itself.
    """
    proposals = selection.proposals if selection else ()
    if not proposals and not own_edits:
        return StepUpdate(None, "skip_no_patches" if selection is None else "skip_no_change")
    with log.stage("update"):
        if optimizer is None or optimizer.settings.skill_update_mode == "patch":
            added = [Proposal(edit, "diagnosis") for edit in own_edits]
            change = apply_proposals(skill, [*proposals, *added], max_tokens=texts.max_tokens)
            updated = _patched(skill, proposals, own_edits, change, log.step, pools_edits)
        else:
            change = await rewrite_skill(optimizer, skill, proposals, context)
            updated = _rewritten(texts, skill, change, log.step)
    if updated.candidate is not None:
        log.emit(_candidate_event(log.step, updated.candidate, change))
    return replace(updated, update=change)


def _patched(
    skill: Skill,
    proposals: Sequence[Proposal],
    own_edits: Sequence[Edit],
    change: Update,
    step: int,
    pools_edits: bool,
) -> StepUpdate:
    """A gate without a pool gets the edits that apply together. A gate with one gets all of them:
    it finds out by itself what applies together with what.
    """
    wanted = [*(proposal.edit for proposal in proposals), *own_edits]
    items = [*(proposal.items for proposal in proposals), *(() for _ in own_edits)]
    if not pools_edits and not change.changed:
        return StepUpdate(None, "skip_no_change")
    edits: list[Edit] = []
    sources: list[tuple[str, ...]] = []
    for edit, written_from, result in zip(wanted, items, change.report, strict=True):
        if edit is not None and (result.applied or pools_edits):
            edits.append(edit)
            sources.append(tuple(written_from))
    return StepUpdate(Candidate(change.skill or skill, tuple(edits), tuple(sources), step))


def _rewritten(texts: TextFilter, skill: Skill, change: Update, step: int) -> StepUpdate:
    if change.skill is None:
        return StepUpdate(None, "skip_no_rewrite")
    if not change.changed:
        return StepUpdate(None, "skip_no_change")
    if not texts.passes(_new_lines(skill, change.skill), step):
        return StepUpdate(None, "skip_leak")
    return StepUpdate(Candidate(change.skill, step=step, label="rewrite"))


def note_edits(texts: TextFilter, patches: Sequence[Patch], step: int) -> list[Edit]:
    """Reminders of rules that the agent knew and did not follow, as edits of the appendix.

    For gates that pool edits. Others do not judge them: step_end.add_notes adds them without a
    verdict.
    """
    notes = collect_notes(patches)
    return [Edit(NOTE_OP, content=note) for note in notes if texts.passes(note, step)]


def _new_lines(old: Skill, new: Skill) -> str:
    known = set(old.body.splitlines())
    return "\n".join(line for line in new.body.splitlines() if line not in known)


def _candidate_event(step: int, candidate: Candidate, change: Update) -> CandidateBuilt:
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
    candidate: Candidate | None
    judgement: Judgement
    stage: Stage


def begin_judging(
    gate: Gate, name: str, candidate: Candidate | None, rollouts: int, log: StepLog
) -> Judging | None:
    """Start the selection rollouts of a step; None when there is nothing to decide.

    `rollouts`: how many they will be, for progress displays.
    """
    pending = any(effect.status == "pending" for effect in gate.effects())
    if candidate is None and not pending:
        return None
    stage = log.stage("gate", rollouts)
    with log.within("gate"):
        return Judging(name, candidate, gate.begin(name, candidate), stage)


async def judge(
    judging: Judging | None, training: Sequence[Observation], log: StepLog
) -> Verdict | None:
    """Let the gate decide about a step; None when there is nothing to decide."""
    if judging is None:
        return None
    with judging.stage:
        verdict = await judging.judgement.decide(training)
    emit_verdict(log, judging.name, judging.candidate, verdict)
    return verdict


def emit_verdict(log: StepLog, name: str, candidate: Candidate | None, verdict: Verdict) -> None:
    """Tell what a gate decided, with its evidence."""
    log.emit(
        GateDecided(
            name=name,
            step=log.step,
            decision=verdict.decision,
            reason=verdict.reason,
            evidence=verdict.evidence,
            score=verdict.score,
            candidates=list(verdict.standings),
            effects=list(verdict.effects),
        )
    )
    log.emit(_score_event(name, candidate, verdict))


def _score_event(name: str, candidate: Candidate | None, verdict: Verdict) -> EvaluationFinished:
    """The point of the score curve: the candidate's own rollouts, or an estimate of the winner."""
    tally = verdict.candidate_tally
    shown = candidate.skill if candidate is not None and tally is not None else verdict.winner
    return EvaluationFinished(
        name=name,
        split="selection",
        skill_hash=shown.hash,
        hard=tally.hard if tally else verdict.score.mean,
        soft=tally.soft if tally else verdict.score.mean,
        scored=tally.scored if tally else 0,
        planned=tally.planned if tally else 0,
        estimate=None if tally else verdict.score,
    )
