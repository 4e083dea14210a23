"""What a run works with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from skillfit.config.schema import Config
from skillfit.gate import Gate, GateSettings, TextFilter
from skillfit.optimize.optimizer import Optimizer
from skillfit.optimize.proposer import Proposer
from skillfit.rollout import Rollouts
from skillfit.run.budget import Budget
from skillfit.skill import Skill
from skillfit.tasks.task import Task
from skillfit.training.plan import Plan
from skillfit.training.steering import RecordedRequests
from skillfit.training.step_log import Emit


@dataclass(frozen=True, slots=True)
class Components:
    """What a run works with, put together by assemble.py.

    Only the functions that compose a run take all of it: the loop, the end of an epoch, the
    preflight and the finish. A stage is given the parts that it uses.
    """

    config: Config
    path: Path  # the run directory
    task: Task
    initial: Skill
    plan: Plan
    lag: int  # by how many steps edits join later than they were written
    engine: Rollouts
    gate: Gate
    gate_settings: GateSettings
    optimizer: Optimizer | None  # None: no optimizer model is configured
    proposer: Proposer
    texts: TextFilter  # what may enter the skill
    emit: Emit
    check_stop: Callable[[], None]  # raises Interrupted once the user asked to stop
    persist_failures: Callable[[], Awaitable[None]]  # before a decision is emitted
    budget: Budget
    requests: RecordedRequests  # of the user, while the run works
