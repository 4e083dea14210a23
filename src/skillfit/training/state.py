"""What a run works with (`Components`), and where its training stands (`TrainingState`): the two
values that the functions of the loop take.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from skillfit.config.schema import Config
from skillfit.gate import Gate, GateSettings, TextFilter
from skillfit.optimize.context import render_memory
from skillfit.optimize.optimizer import Optimizer
from skillfit.optimize.proposer import Proposer
from skillfit.rollout import Rollouts
from skillfit.rollout.outcome import Tally
from skillfit.run.budget import Budget
from skillfit.run.records import CheckResult, CurrentAndBest, StepMemory, StepRecord
from skillfit.skill import Edit, Skill
from skillfit.tasks.task import Task
from skillfit.training.plan import Plan
from skillfit.training.step_log import Emit

if TYPE_CHECKING:
    from skillfit.training.steering import RecordedRequests


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


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Where training stands after a step. The next step starts from it and returns a new one."""

    skill: Skill  # the incumbent: what the next step starts from
    epoch_start: Skill  # the incumbent when this epoch began
    baseline: Tally | None = None  # of the initial skill on the selection items; None: not yet
    baseline_score: float = 0.0  # the same under the gate's metric
    score: float = 0.0  # of the incumbent under the gate's metric
    origin: str = "initial"  # which step or update the incumbent comes from
    best_origin: str = "initial"
    best_step: int = 0
    best_score: float = 0.0
    meta_skill: str = ""  # the optimizer's advice to itself
    memory: tuple[StepMemory, ...] = ()  # steps of this epoch
    waiting_edits: tuple[Edit, ...] = ()  # written between steps; join the pool with the next one
    records: tuple[StepRecord, ...] = ()
    proposed: int = 0  # proposals left after merging and the leak check, over the run
    usable_edits: int = 0  # edits that could be applied
    optimizer_failures: int = 0  # optimizer calls without a usable reply
    checks: tuple[CheckResult, ...] = ()  # of the preflight

    @classmethod
    def begin(cls, initial: Skill) -> TrainingState:
        return cls(initial, initial)

    def next_epoch(self) -> TrainingState:
        return replace(self, epoch_start=self.skill, memory=())

    def with_incumbent(self, skill: Skill) -> TrainingState:
        """After a user's requests, which may have changed the incumbent."""
        if skill.hash == self.skill.hash:
            return self
        return replace(self, skill=skill, origin="person")

    def carrying(self, skill: Skill, origin: str, score: float) -> TrainingState:
        return replace(self, skill=skill, origin=origin, score=score)

    def tracking_best(self, gate: Gate, step: int) -> TrainingState:
        """With the best skill's origin, when the best skill is the new incumbent."""
        new = gate.best.hash == self.skill.hash and self.best_origin != self.origin
        return replace(
            self,
            best_origin=self.origin if new else self.best_origin,
            best_step=step if new else self.best_step,
            best_score=gate.best_score,
        )

    @property
    def memory_text(self) -> str:
        return render_memory(self.memory)

    @property
    def standings(self) -> CurrentAndBest:
        return CurrentAndBest(
            current_score=self.score,
            current_origin=self.origin,
            best_score=self.best_score,
            best_step=self.best_step,
            best_origin=self.best_origin,
        )
