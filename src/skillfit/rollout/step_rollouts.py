"""The training rollouts of one step while they run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Outcome, RolloutRequest


@dataclass(frozen=True, slots=True)
class StepRollouts:
    """What was asked for and the tasks that run it, one list per accumulation batch."""

    requests: tuple[tuple[RolloutRequest, ...], ...]
    running: tuple[tuple[asyncio.Task[Outcome], ...], ...]

    def all_running(self) -> list[asyncio.Task[Outcome]]:
        return [task for batch in self.running for task in batch]

    async def outcomes(self) -> tuple[tuple[Outcome, ...], ...]:
        """Wait for all rollouts: their outcomes per batch, in planned order."""
        await gather(self.all_running())
        return tuple(tuple(task.result() for task in batch) for batch in self.running)
