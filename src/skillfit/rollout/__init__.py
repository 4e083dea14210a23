"""Run items under skills: requests, outcomes, the engine, and where rollouts execute."""

from skillfit.rollout.engine import Executor, LocalExecutor, Rollouts
from skillfit.rollout.outcome import (
    Arm,
    Outcome,
    RolloutRequest,
    Tally,
    gather,
    requests_for,
)

__all__ = [
    "Arm",
    "Executor",
    "LocalExecutor",
    "Outcome",
    "RolloutRequest",
    "Rollouts",
    "Tally",
    "gather",
    "requests_for",
]
