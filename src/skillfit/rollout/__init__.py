"""Run items under skills: requests, outcomes, the engine, and where rollouts execute."""

from skillfit.rollout.engine import Executor, LocalExecutor, RolloutEngine
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
    "RolloutEngine",
    "RolloutRequest",
    "Tally",
    "gather",
    "requests_for",
]
