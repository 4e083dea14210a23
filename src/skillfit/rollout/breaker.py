"""When to stop a run because its rollouts fail for reasons other than the skill."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from skillfit.errors import InfrastructureError
from skillfit.models.failures import MACHINERY, is_machinery
from skillfit.rollout.outcome import Outcome

_ENOUGH = 5  # failures; fewer may be an accident


@dataclass(slots=True)
class Batch:
    """The rollouts of one call to `Rollouts.start`, counted as they finish.

    `proven`: something was scored earlier in this run, so the setup as such works.
    """

    planned: int
    coverage_floor: float
    proven: bool
    scored: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Outcome] = field(default_factory=dict)  # by the key that records the loss

    def count(self, outcome: Outcome) -> InfrastructureError | None:
        """Count one more outcome. Returns the reason to stop the run, if there is one now."""
        if outcome.failure is None:
            self.scored += outcome.status == "scored"
            return None
        kind = outcome.failure.kind
        self.failed[kind] += 1
        same_kind = self.failed[kind]
        message = f"The last error: {outcome.failure.message}"
        systemic = is_machinery(kind) or not self.proven
        if systemic and not self.scored and same_kind == self.failed.total() >= _ENOUGH:
            return _stop(f"The first {same_kind} rollouts all failed ({kind}). {message}")
        broken = sum(self.failed[name] for name in MACHINERY)
        if broken >= _ENOUGH and broken > (1 - self.coverage_floor) * self.planned:
            needed = f"a coverage of {self.coverage_floor:.0%} cannot be reached"
            return _stop(f"{broken} of {self.planned} rollouts failed: {needed}. {message}")
        return None

    @property
    def complete(self) -> bool:
        return self.scored + self.failed.total() == self.planned

    @property
    def coverage(self) -> float:
        return self.scored / self.planned if self.planned else 1.0


def _stop(message: str) -> InfrastructureError:
    hint = "Everything so far is saved. Fix the cause, then start the same run again."
    return InfrastructureError(message, hint=hint)
