"""The training loop: roll out, reflect, aggregate, select, update, judge, over steps and epochs.

A deterministic function of config, seed and journaled values. It does not read files, call vendors
or handle resuming: a run that is started again gets everything it already paid for from the journal
at once.

`take_step` is one step. The functions it calls are in steering.py (what a person asked for),
stages.py and step_end.py; what they need to know arrives as arguments, and what they find out is
returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from skillfit.optimize.context import Context
from skillfit.rollout.outcome import StepRollouts, settle
from skillfit.skill import Skill
from skillfit.training.epoch_end import meta_skill, slow_update
from skillfit.training.plan import PlannedStep, rollouts_per_judgement
from skillfit.training.stages import (
    Judging,
    Learned,
    StepUpdate,
    aggregate,
    begin_judging,
    context_of,
    judge,
    note_edits,
    observations,
    reflect,
    reflect_again,
    roll_out,
    select,
    update,
)
from skillfit.training.state import Components, TrainingState
from skillfit.training.steering import follow_requests
from skillfit.training.step_end import (
    StepResult,
    add_notes,
    carry_winner,
    close_step,
    measure_baseline,
)
from skillfit.training.step_log import StepLog


@dataclass(frozen=True, slots=True)
class StartedStep:
    """A step whose training rollouts run, and its log."""

    rollouts: StepRollouts
    log: StepLog


@dataclass(slots=True)
class InFlight:
    """Work that runs beside the present step."""

    started: dict[int, StartedStep] = field(default_factory=dict)  # steps that began early
    learning: dict[int, asyncio.Task[Learned]] = field(default_factory=dict)  # by step
    judging: Judging | None = None

    async def learned_from(self, step: int) -> Learned:
        """What the optimizer made of the rollouts of a step; nothing where it was not asked."""
        work = self.learning.pop(step, None)
        return await work if work is not None else Learned()

    async def settle(self) -> None:
        """Wait for all of it, so that everything paid for is recorded. Its errors are dropped."""
        running: list[asyncio.Future[Any]] = list(self.learning.values())
        for step in self.started.values():
            running += step.rollouts.all_running()
        if self.judging and self.judging.judgement.running:
            running.append(self.judging.judgement.running)
        await settle(running)


async def train(run: Components, state: TrainingState) -> AsyncIterator[TrainingState]:
    """Yield the state after the baseline, after each step and after each epoch."""
    in_flight = InFlight()
    try:
        log = StepLog(run.emit)
        state = await measure_baseline(run.gate, run.initial, len(run.task.selection), state, log)
        yield state
        for epoch in run.plan.epochs:
            state = state.next_epoch()
            for planned in epoch.steps:
                state = await take_step(run, planned, state, in_flight)
                yield state
            updated = await slow_update(run, epoch, state)
            state = await meta_skill(run, epoch, updated.state, updated.comparison)
            yield state
    finally:
        await in_flight.settle()


async def take_step(
    run: Components, planned: PlannedStep, state: TrainingState, in_flight: InFlight
) -> TrainingState:
    """One step. With a lag of L the edits written from step t join in step t + L, and the
    rollouts of the steps between do not wait for the optimizer. The training rollouts of the next
    step then start with the selection rollouts of this one, so that none wait for its slowest.
    """
    gate, texts, lag = run.gate, run.texts, run.lag
    pools = gate.pools_edits
    state = await follow_requests(run.requests, planned.name, state, gate, run.budget, run.emit)
    skill, total = state.skill, run.plan.total_steps
    context = context_of(state, gate.effects(), planned, total, run.config.optimizer)

    step = in_flight.started.pop(planned.step, None) or start_step(run, planned)  # 1
    rollouts, log = step.rollouts, step.log
    if planned.step + lag <= total:  # later edits could not be measured any more
        work = learn(run, planned, skill, rollouts, context)  # 2, 3, 4
        in_flight.learning[planned.step] = asyncio.create_task(work)
    learned = await in_flight.learned_from(planned.step - lag)  # the edits that join now
    if learned.log is not None:
        log.add(learned.log)
    patches = learned.proposals.patches
    own_edits = [*(note_edits(texts, patches, planned.step) if pools else ()), *state.waiting_edits]
    updated = await update(  # 5
        run.optimizer, texts, skill, learned.selection, own_edits, context, log, pools_edits=pools
    )
    if updated.skipped and planned.step <= lag:
        updated = StepUpdate(
            None, "skip_lag"
        )  # the first steps of a run with a lag have no edits yet
    candidate = updated.candidate
    selection_rollouts = rollouts_per_judgement(len(run.task.selection), pools)
    judging = begin_judging(gate, planned.name, candidate, selection_rollouts, log)  # 6
    in_flight.judging = judging
    following = run.plan.after(planned)
    if lag and following is not None:
        in_flight.started[following.step] = start_step(run, following)
    training = await observations(rollouts)
    verdict = await judge(judging, training, log)

    result = StepResult(planned, training, learned, updated, verdict)
    carried = carry_winner(gate, state, verdict, planned)
    if not pools:
        noted = await add_notes(
            gate, run.optimizer, texts, run.config.evaluation, carried, patches, log
        )
        carried, result = noted.state, replace(result, notes=noted.notes)
    await run.persist_failures()
    return close_step(run.config, gate.best, state, carried, result, log)


def start_step(run: Components, planned: PlannedStep) -> StartedStep:
    """Stage 1: the training rollouts of a step, started and not awaited."""
    log = StepLog(run.emit, planned.place)
    repeats = run.config.gradient.rollouts_per_item
    return StartedStep(roll_out(run.engine, run.gate, planned, repeats, log), log)


async def learn(
    run: Components,
    planned: PlannedStep,
    skill: Skill,
    rollouts: StepRollouts,
    context: Context,
) -> Learned:
    """Stages 2 to 4: from trajectories to the edits that the step proposes."""
    optimizer, log = run.optimizer, StepLog(run.emit, planned.place)
    with log.stage("reflect"):
        proposals = await reflect(run.proposer, skill, rollouts, context)  # 2
        proposals += await reflect_again(optimizer, run.engine, skill, rollouts, context, log)
    patch = await aggregate(optimizer, run.texts, skill, proposals.patches, context, log)  # 3
    selection = await select(optimizer, skill, patch, context, log)  # 4
    return Learned(proposals, patch, selection, log)
