"""The stages of one step, as functions from data to data.

    roll_out         plan -> requests and running rollouts
    reflect          rollouts -> patches
    aggregate        patches -> one patch
    select           patch -> at most an edit budget of proposals
    update           proposals -> a candidate skill
    judge            candidate and rollouts -> verdict

loop.py composes them. Each stage emits its own start and end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from skillfit.gate import Begun, Candidate, Observation, Verdict
from skillfit.optimize.candidate import Selection, Update, apply, edit_budget, selection_event
from skillfit.optimize.candidate import aggregate as merge_patches
from skillfit.optimize.candidate import select as select_proposals
from skillfit.optimize.candidate import update as update_skill
from skillfit.optimize.context import Context
from skillfit.optimize.epoch import collect_notes
from skillfit.optimize.optimizer import Patch, Proposal
from skillfit.optimize.proposer import Proposals, finished_cases
from skillfit.optimize.reflect import diagnose
from skillfit.rollout import Arm, Outcome, RolloutRequest
from skillfit.rollout.outcome import StepRollouts
from skillfit.run.events import (
    CandidateBuilt,
    EvaluationFinished,
    GateDecided,
    PatchMerged,
)
from skillfit.skill import NOTE_OP, Edit, Skill
from skillfit.tasks.item import Item
from skillfit.training.components import (
    Components,
    Stage,
    StepLog,
    UsageByStage,
    raise_if_skipped,
)
from skillfit.training.plan import Place, PlannedStep, selection_passes
from skillfit.training.state import TrainingState

Rollout = asyncio.Future[Outcome]


async def observations(run: Components, rollouts: StepRollouts) -> list[Observation]:
    """The finished training rollouts as evidence for the gate."""
    found = []
    for requests, outcomes in zip(rollouts.requests, await rollouts.outcomes(), strict=True):
        raise_if_skipped(outcomes, run.path)
        for request, outcome in zip(requests, outcomes, strict=True):
            found.append(Observation(request.item.id, request.arm, outcome))
    return found


def context_of(run: Components, planned: PlannedStep, state: TrainingState) -> Context:
    """What the optimizer gets in this step besides trajectories."""
    pending = tuple(effect for effect in run.gate.effects() if effect.status == "pending")
    budget = scheduled_budget(run, planned)
    return Context(planned.step, budget, state.memory_text, state.meta_skill, pending)


def scheduled_budget(run: Components, planned: PlannedStep) -> int | None:
    """The edit budget of a step by the schedule; None where another rule or none applies."""
    settings = run.config.optimizer
    if settings.lr_control_mode != "fixed":
        return None
    return edit_budget(
        settings.lr_scheduler,
        planned.step,
        run.plan.total_steps,
        maximum=settings.learning_rate,
        minimum=min(settings.min_learning_rate, settings.learning_rate),
    )


@dataclass(frozen=True, slots=True)
class StartedStep:
    """A step whose training rollouts run, and its log."""

    rollouts: StepRollouts
    log: StepLog


def roll_out(run: Components, planned: PlannedStep) -> StartedStep:
    """Start the training rollouts of a step, each under the arm that the gate assigns to it."""
    log = StepLog()
    repeats = run.config.gradient.rollouts_per_item
    total = sum(len(batch.items) for batch in planned.batches) * repeats
    stage = run.stage(planned.place, "rollout", total, log=log)
    requests, running = [], []
    for number, batch in enumerate(planned.batches):
        arms = run.gate.assign(f"{planned.name}/{number}", batch.items, repeats)
        asked = _requests(arms, batch.items, repeats)
        series = f"train/{planned.name}/{number}"
        started = run.engine.start(asked, phase="rollout", step=planned.step, series=series)
        requests.append(tuple(asked))
        running.append(tuple(started))
    rollouts = StepRollouts(tuple(requests), tuple(running))
    _finish_with_last(stage.done, rollouts.all_running())
    return StartedStep(rollouts, log)


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


async def reflect(
    run: Components,
    planned: PlannedStep,
    skill: Skill,
    rollouts: StepRollouts,
    context: Context,
    log: StepLog,
) -> Proposals:
    """What the proposer writes from the rollouts, and what a diagnosis of some failures adds."""
    with run.stage(planned.place, "reflect", log=log):
        found = await run.proposer.propose(skill, rollouts, context)
        proposals = found if isinstance(found, Proposals) else Proposals(extra=tuple(found))
        outcomes = await rollouts.outcomes()
        raise_if_skipped([outcome for batch in outcomes for outcome in batch], run.path)
        diagnosed = await _diagnose(run, planned, skill, rollouts, context, log)
    return proposals + Proposals(extra=diagnosed)


async def _diagnose(
    run: Components,
    planned: PlannedStep,
    skill: Skill,
    rollouts: StepRollouts,
    context: Context,
    log: StepLog,
) -> tuple[Patch, ...]:
    """Deep reflection: some failures are rolled out again with the optimizer's question."""
    gradient = run.config.gradient
    if run.optimizer is None or not gradient.deep_reflection:
        return ()
    cases = await finished_cases(rollouts)

    async def roll_out_again(instruction: str, items: Sequence[Item]) -> list[Outcome]:
        again = [RolloutRequest(Arm(skill), item) for item in items]
        series = f"diagnosis/{planned.name}"
        new = await run.engine.run(
            again, phase="reflect", step=planned.step, series=series, instruction=instruction
        )
        raise_if_skipped(new, run.path)
        log.usage.add_outcomes("rollout", new)
        return new

    limit = gradient.deep_reflection_items
    return await diagnose(run.optimizer, skill, cases, roll_out_again, context, limit=limit)


async def aggregate(
    run: Components,
    planned: PlannedStep,
    skill: Skill,
    patches: Sequence[Patch],
    context: Context,
    log: StepLog,
) -> Patch | None:
    """One patch of all, without what the leak check blocks; None when nothing was proposed."""
    cleaned = [run.leaks.clean(patch, planned.step) for patch in patches]
    log.blocked += _proposals(patches) - _proposals(cleaned)
    to_merge = [patch for patch in cleaned if patch.proposals and patch.source != "examples"]
    sources = [patch for patch in cleaned if patch.source == "examples"]
    with run.stage(planned.place, "aggregate", log=log):
        if run.optimizer is None:
            sources = [*to_merge, *sources]
        elif to_merge:
            merged = await merge_patches(
                run.optimizer, skill, to_merge, step=planned.step, meta_skill=context.meta_skill
            )
            # A merge may change the wording, so its result is checked again.
            checked = run.leaks.clean(merged, planned.step)
            log.blocked += _proposals([merged]) - _proposals([checked])
            sources.insert(0, checked)
    proposals = tuple(proposal for patch in sources for proposal in patch.proposals)
    if not proposals:
        return None
    whole = replace(sources[0], proposals=proposals)
    run.emit(PatchMerged(step=planned.step, patch=whole.record()))
    return whole


def _proposals(patches: Sequence[Patch]) -> int:
    return sum(len(patch.proposals) for patch in patches)


async def select(
    run: Components,
    planned: PlannedStep,
    skill: Skill,
    patch: Patch | None,
    context: Context,
    log: StepLog,
) -> Selection | None:
    """At most an edit budget of the merged proposals."""
    if patch is None:
        return None
    with run.stage(planned.place, "select", log=log):
        if run.optimizer is not None:
            control = run.config.optimizer.lr_control_mode
            return await select_proposals(run.optimizer, skill, patch, context, control=control)
        chosen = patch.proposals[: context.edit_budget]
        selection = Selection(chosen, context.edit_budget)
        run.emit(selection_event(planned.step, selection))
        return selection


@dataclass(frozen=True, slots=True)
class Learned:
    """What the optimizer made of one step's training rollouts (stages 2 to 4)."""

    step: int
    proposals: Proposals = field(default_factory=Proposals)
    patch: Patch | None = None  # None: nothing was proposed
    selection: Selection | None = None
    log: StepLog = field(default_factory=StepLog)


@dataclass(frozen=True, slots=True)
class Updated:
    """The candidate of a step, or why there is none."""

    candidate: Candidate | None
    skipped: str = ""  # skip_lag, skip_no_patches, skip_no_change, skip_no_rewrite, skip_leak
    update: Update | None = None


async def update(
    run: Components,
    planned: PlannedStep,
    skill: Skill,
    selection: Selection | None,
    own_edits: Sequence[Edit],
    context: Context,
    log: StepLog,
) -> Updated:
    """The candidate that the selected proposals and skillfit's own edits make of the incumbent."""
    proposals = selection.proposals if selection else ()
    if not proposals and not own_edits:
        if planned.step <= run.lag:
            return Updated(None, "skip_lag")
        return Updated(None, "skip_no_patches" if selection is None else "skip_no_change")
    with run.stage(planned.place, "update", log=log):
        if run.config.optimizer.skill_update_mode == "patch" or run.optimizer is None:
            added = [Proposal(edit, "diagnosis") for edit in own_edits]
            ceiling = run.config.optimizer.max_skill_tokens
            whole = apply(skill, [*proposals, *added], max_tokens=ceiling)
            updated = _patched(run, planned, skill, proposals, own_edits, whole)
        else:
            whole = await update_skill(run.optimizer, skill, proposals, context)
            updated = _rewritten(run, planned, skill, whole)
    if updated.candidate is not None:
        run.emit(_candidate_event(planned, updated.candidate, whole))
    return replace(updated, update=whole)


def _patched(
    run: Components,
    planned: PlannedStep,
    skill: Skill,
    proposals: Sequence[Proposal],
    own_edits: Sequence[Edit],
    whole: Update,
) -> Updated:
    """The strict gate gets the edits that apply together. The screening gate gets all of them: it
    finds out by itself what applies together with what.
    """
    wanted = [*(proposal.edit for proposal in proposals), *own_edits]
    items = [*(proposal.items for proposal in proposals), *(() for _ in own_edits)]
    pools = run.gate.pools_edits
    if not pools and not whole.changed:
        return Updated(None, "skip_no_change")
    edits: list[Edit] = []
    sources: list[tuple[str, ...]] = []
    for edit, written_from, result in zip(wanted, items, whole.report, strict=True):
        if edit is not None and (result.applied or pools):
            edits.append(edit)
            sources.append(tuple(written_from))
    candidate = Candidate(whole.skill or skill, tuple(edits), tuple(sources), planned.step)
    return Updated(candidate)


def _rewritten(run: Components, planned: PlannedStep, skill: Skill, whole: Update) -> Updated:
    if whole.skill is None:
        return Updated(None, "skip_no_rewrite")
    if not whole.changed:
        return Updated(None, "skip_no_change")
    if not run.leaks.passes(_new_lines(skill, whole.skill), planned.step):
        return Updated(None, "skip_leak")
    return Updated(Candidate(whole.skill, step=planned.step, label="rewrite"))


def note_edits(run: Components, patches: Sequence[Patch], planned: PlannedStep) -> list[Edit]:
    """Reminders of rules that the agent knew and did not follow, as edits of the appendix.

    The strict gate does not judge them: step_end.add_notes adds them without a verdict.
    """
    if not run.gate.pools_edits:
        return []
    notes = collect_notes(patches)
    return [Edit(NOTE_OP, content=note) for note in notes if run.leaks.passes(note, planned.step)]


def _new_lines(old: Skill, new: Skill) -> str:
    known = set(old.body.splitlines())
    return "\n".join(line for line in new.body.splitlines() if line not in known)


def _candidate_event(planned: PlannedStep, candidate: Candidate, whole: Update) -> CandidateBuilt:
    return CandidateBuilt(
        step=planned.step,
        label=candidate.label,
        skill=candidate.skill.text,
        skill_hash=candidate.skill.hash,
        report=list(whole.report),
        rewrite=whole.rewrite,
    )


@dataclass(frozen=True, slots=True)
class Judging:
    """A judgement that has begun."""

    stage: Stage
    begun: Begun | None  # what the gate has started


def begin_judging(
    run: Components, planned: PlannedStep, candidate: Candidate | None, log: StepLog
) -> Judging | None:
    """Start the selection rollouts of a step; None when there is nothing to decide."""
    pending = any(effect.status == "pending" for effect in run.gate.effects())
    if candidate is None and not pending:
        return None
    items = len(run.task.selection)
    rollouts = items * selection_passes(items) if run.gate.pools_edits else items
    stage = run.stage(planned.place, "gate", rollouts, log=log)
    with run.selection.during("gate", planned.step, log.usage):
        return Judging(stage, run.gate.begin(planned.name, candidate))


async def judge(
    run: Components,
    planned: PlannedStep,
    judging: Judging | None,
    candidate: Candidate | None,
    training: Sequence[Observation],
    log: StepLog,
) -> Verdict | None:
    """Let the gate decide about a step; None when there is nothing to decide."""
    if judging is None:
        return None
    with judging.stage:
        return await decide(
            run, planned.place, planned.name, candidate, training, log.usage, begun=judging.begun
        )


async def decide(
    run: Components,
    place: Place,
    name: str,
    candidate: Candidate | None,
    training: Sequence[Observation],
    usage: UsageByStage,
    phase: str = "gate",
    begun: Begun | None = None,
) -> Verdict:
    """The gate's verdict, emitted with its evidence."""
    with run.selection.during(phase, place.step, usage):
        verdict = await run.gate.judge(name, candidate, training, begun)
    run.emit(
        GateDecided(
            name=name,
            step=place.step,
            decision=verdict.decision,
            reason=verdict.reason,
            evidence=verdict.evidence,
            score=verdict.score,
            candidates=list(verdict.standings),
            effects=list(verdict.effects),
        )
    )
    run.emit(_score_event(name, candidate, verdict))
    return verdict


def _score_event(name: str, candidate: Candidate | None, verdict: Verdict) -> EvaluationFinished:
    """The point of the score curve: the candidate's own rollouts, or an estimate of the winner."""
    tally = verdict.tally
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
