"""The training loop: roll out, reflect, aggregate, select, update, judge, over steps and epochs.

A deterministic function of config, seed and journaled values. It knows no files, no vendors and no
resume: a run that is started again gets everything it already paid for from the journal at once.

`take_step` is one step. The functions it calls are in stages.py; what they need to know arrives as
arguments, and what they find out is returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from skillfit.optimize.context import Context
from skillfit.rollout.outcome import StepRollouts, settle
from skillfit.skill import Skill
from skillfit.training.components import Components, StepLog, counting_usage
from skillfit.training.epoch_end import meta_skill, slow_update
from skillfit.training.plan import PlannedStep
from skillfit.training.stages import (
    Judging,
    Learned,
    StartedStep,
    aggregate,
    begin_judging,
    context_of,
    judge,
    note_edits,
    observations,
    reflect,
    roll_out,
    select,
    update,
)
from skillfit.training.state import TrainingState
from skillfit.training.steering import follow_requests
from skillfit.training.step_end import close_step, measure_baseline


@dataclass(slots=True)
class InFlight:
    """Work that runs beside the present step."""

    started: dict[int, StartedStep] = field(default_factory=dict)  # steps that began early
    learning: dict[int, asyncio.Task[Learned]] = field(default_factory=dict)  # by step
    judging: Judging | None = None

    async def settle(self) -> None:
        """Wait for all of it, so that everything paid for is recorded. Its errors are dropped."""
        running: list[asyncio.Future[Any]] = list(self.learning.values())
        for step in self.started.values():
            running += step.rollouts.all_running()
        if self.judging and self.judging.begun and self.judging.begun.running:
            running.append(self.judging.begun.running)
        await settle(running)


async def train(run: Components, state: TrainingState) -> AsyncIterator[TrainingState]:
    """Yield the state after the baseline, after each step and after each epoch."""
    in_flight = InFlight()
    try:
        state = await measure_baseline(run, state)
        yield state
        for epoch in run.plan.epochs:
            state = state.next_epoch()
            for planned in epoch.steps:
                state = await take_step(run, planned, state, in_flight)
                yield state
            state, comparison = await slow_update(run, epoch, state)
            state = await meta_skill(run, epoch, state, comparison)
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
    lag = run.lag
    state = await follow_requests(run, planned.name, state)
    skill = state.skill
    context = context_of(run, planned, state)

    step = in_flight.started.pop(planned.step, None) or roll_out(run, planned)  # 1
    rollouts, log = step.rollouts, step.log
    if planned.step + lag <= run.plan.total_steps:  # later edits could not be measured any more
        work = learn(run, planned, skill, rollouts, context)  # 2, 3, 4
        in_flight.learning[planned.step] = asyncio.create_task(work)
    learned = Learned(planned.step)
    if planned.step - lag in in_flight.learning:
        learned = await in_flight.learning.pop(planned.step - lag)
    log.add(learned.log)
    own_edits = (*note_edits(run, learned.proposals.patches, planned), *state.waiting_edits)
    with counting_usage(log.usage):
        updated = await update(run, planned, skill, learned.selection, own_edits, context, log)  # 5
        judging = in_flight.judging = begin_judging(run, planned, updated.candidate, log)  # 6
        following = run.plan.after(planned)
        if lag and following is not None:
            in_flight.started[following.step] = roll_out(run, following)
        training = await observations(run, rollouts)
        verdict = await judge(run, planned, judging, updated.candidate, training, log)
        return await close_step(run, planned, state, training, learned, updated, verdict, log)


async def learn(
    run: Components,
    planned: PlannedStep,
    skill: Skill,
    rollouts: StepRollouts,
    context: Context,
) -> Learned:
    """Stages 2 to 4: from trajectories to the edits that the step proposes."""
    log = StepLog()
    with counting_usage(log.usage):
        proposals = await reflect(run, planned, skill, rollouts, context, log)  # 2
        patch = await aggregate(run, planned, skill, proposals.patches, context, log)  # 3
        selection = await select(run, planned, skill, patch, context, log)  # 4
    return Learned(planned.step, proposals, patch, selection, log)
