"""The algorithm: roll out, reflect, aggregate, select, update, gate; over epochs, with slow updates
and the optimizer's memory.

A deterministic function of config, seed and journaled values. It knows no files, no vendor, no
resume: started again, everything already paid for comes back at once.
"""

from __future__ import annotations

from skillfit.training.epoch_end import meta_skill, slow_update
from skillfit.training.parts import Parts
from skillfit.training.plan import PlannedStep
from skillfit.training.progress import Progress, begin
from skillfit.training.step import Step


async def train(parts: Parts, progress: Progress) -> None:
    await begin(parts, progress)
    for epoch in parts.plan.epochs:
        progress.open_epoch()
        for planned in epoch.steps:
            await take_step(parts, planned, progress)
        comparison = await slow_update(parts, epoch, progress)
        await meta_skill(parts, epoch, progress, comparison)


async def take_step(parts: Parts, planned: PlannedStep, progress: Progress) -> None:
    step = Step(parts, planned, progress)
    rollouts = (
        step.roll_out()
    )  # 1: started; a reflection group begins as soon as its members are known
    patches = await step.reflect(rollouts)  # 2
    patch = await step.aggregate(patches)  # 3
    selection = await step.select(patch)  # 4
    candidates = await step.update(selection)  # 5
    verdict = await step.gate(candidates)  # 6
    await step.close(verdict)
