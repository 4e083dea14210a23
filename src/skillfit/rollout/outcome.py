"""The outcome of a rollout: scored, failed (the machinery broke) or skipped. Failed ones never enter a mean."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from skillfit.models.protocol import Usage
from skillfit.tasks.attempt import Attempt, Score

Metric = Literal["hard", "soft", "mixed"]


@dataclass(frozen=True, slots=True)
class Failure:
    kind: str  # a ModelError kind, or: agent, grader, command, sandbox, timeout, worker
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    item_id: str
    repeat: int
    status: Literal["scored", "failed", "skipped"]
    score: Score | None = None
    failure: Failure | None = None
    attempt: Attempt | None = None
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Full marks on the hard score. A fraction below 1 is a failure to learn from."""
        return self.score is not None and self.score.hard >= 1.0

    def value(self, metric: Metric = "hard", mixed_weight: float = 0.5) -> float | None:
        """The score under a metric, None when there is none."""
        if self.score is None:
            return None
        if metric == "hard":
            return self.score.hard
        if metric == "soft":
            return self.score.soft
        return (1 - mixed_weight) * self.score.hard + mixed_weight * self.score.soft


@dataclass(frozen=True, slots=True)
class Tally:
    """Means over the scored outcomes, and how many of the planned rollouts they are."""

    hard: float
    soft: float
    scored: int
    planned: int

    @property
    def coverage(self) -> float:
        return self.scored / self.planned if self.planned else 0.0

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Tally:
        listed = list(outcomes)
        scores = [outcome.score for outcome in listed if outcome.score is not None]
        count = len(scores)
        return cls(
            hard=sum(score.hard for score in scores) / count if count else 0.0,
            soft=sum(score.soft for score in scores) / count if count else 0.0,
            scored=count,
            planned=sum(outcome.status != "skipped" for outcome in listed),
        )
