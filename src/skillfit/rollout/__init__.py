"""Run items under a skill: outcomes, the engine, executors."""

from skillfit.rollout.engine import Rollouts
from skillfit.rollout.executor import Executor, LocalExecutor, WorkerLost
from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Failure, Metric, Outcome, Tally

__all__ = [
    "Executor",
    "Failure",
    "LocalExecutor",
    "Metric",
    "Outcome",
    "Rollouts",
    "Tally",
    "WorkerLost",
    "gather",
]
