"""Where rollouts run. An executor takes one assignment and brings back attempt and score, or raises
what went wrong.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from skillfit.agents.agent import Agent, AgentFailure, AttemptContext, remove_workspace
from skillfit.models.limiter import time_limit
from skillfit.models.protocol import ModelError
from skillfit.tasks.item import Grader, Item, ScoredAttempt

if TYPE_CHECKING:
    from skillfit.skill import Skill
    from skillfit.tasks.task import Evaluator


@dataclass(frozen=True, slots=True)
class Assignment:
    """One rollout to do: plain data that can be sent to another machine."""

    skill: Skill
    item: Item
    seed: int
    purpose: str
    instruction: str = ""
    timeout: float | None = None
    max_usd: float | None = None  # dollars the attempt may spend


@dataclass(frozen=True, slots=True)
class Worker:
    """Carries out assignments: an agent with a grader, or a task's own evaluator."""

    agent: Agent | None
    grader: Grader | None
    evaluator: Evaluator | None = None

    async def do(self, assignment: Assignment) -> ScoredAttempt:
        """Attempt and grade within the time limit. Cancelling the work at the limit is what ends
        its processes.
        """
        try:
            async with time_limit(assignment.timeout) as limit:
                return await self._do(assignment)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"Item {assignment.item.id} was ended after {assignment.timeout:g} s."
            raise AgentFailure(message, kind="timeout", hint="Raise env.exec_timeout.") from None

    async def _do(self, assignment: Assignment) -> ScoredAttempt:
        item = assignment.item.loaded()
        if self.evaluator is not None:
            return await self.evaluator(assignment.skill, item, assignment.seed)
        assert self.agent is not None and self.grader is not None, (
            "a rollout needs an agent and a grader, or an evaluator"
        )
        context = AttemptContext(
            assignment.seed, assignment.purpose, assignment.instruction, assignment.max_usd
        )
        attempt = await self.agent.attempt(assignment.skill, item, context)
        try:
            score = await self.grader.grade(item, attempt)
            return ScoredAttempt(
                replace(attempt, workspace="") if attempt.workspace else attempt, score
            )
        finally:
            remove_workspace(attempt.workspace)


class WorkerLost(ModelError):
    """The process or machine that ran the rollout is gone. The rollout did not cause it and runs
    again elsewhere.
    """

    kind = "worker"


class Executor(Protocol):
    """Where rollouts run."""

    @property
    def cores(self) -> int:
        """How many programs can compute at the same time."""
        ...

    async def run(self, worker: Worker, assignment: Assignment) -> ScoredAttempt:
        """Raises what the worker raised, or `WorkerLost`. Cancelling ends the work, wherever it
        runs.
        """
        ...

    async def close(self) -> None: ...


class LocalExecutor:
    """On this event loop. Calls wait, they do not compute, so one process holds thousands."""

    @property
    def cores(self) -> int:
        return os.cpu_count() or 1

    async def run(self, worker: Worker, assignment: Assignment) -> ScoredAttempt:
        return await worker.do(assignment)

    async def close(self) -> None:
        return None
