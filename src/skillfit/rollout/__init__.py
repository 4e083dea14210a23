"""Run items under skills: requests, outcomes, the engine, and where rollouts execute."""

from skillfit.rollout.engine import Rollouts
from skillfit.rollout.executor import Executor, LocalExecutor
from skillfit.rollout.outcome import (
    Arm,
    Failure,
    Outcome,
    RolloutRequest,
    StepRollouts,
    Tally,
    gather,
    requests_for,
    settle,
)

__all__ = [
    "Arm",
    "Executor",
    "Failure",
    "LocalExecutor",
    "Outcome",
    "RolloutRequest",
    "Rollouts",
    "StepRollouts",
    "Tally",
    "gather",
    "requests_for",
    "settle",
]
