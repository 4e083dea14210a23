"""When to stop believing in the machinery: a run whose rollouts all fail the same way must not burn on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from skillfit.errors import InfrastructureError
from skillfit.rollout.outcome import Outcome

# Failures that say nothing about skill or item. Others (refused, context_too_long, agent, …) may be a candidate's own doing and
# then are the gate's business.
_MACHINERY = ("rate_limit", "overloaded", "network", "timeout", "worker", "sandbox")
_ENOUGH = 5  # failures that are no accident any more


@dataclass(slots=True)
class Batch:
    """The rollouts of one `start`. `proven`: something was scored earlier in this run, so the set-up as such works."""

    planned: int
    floor: float
    proven: bool
    scored: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    given_up: dict[str, Outcome] = field(default_factory=dict)

    def watch(self, outcome: Outcome) -> InfrastructureError | None:
        """Count one more outcome; the reason to stop, if there is one now."""
        if outcome.failure is None:
            self.scored += outcome.status == "scored"
            return None
        kind = outcome.failure.kind
        self.failed[kind] += 1
        count = self.failed[kind]
        said = f"The last said: {outcome.failure.message}"
        systemic = kind in _MACHINERY or not self.proven
        if systemic and not self.scored and count == self.failed.total() >= _ENOUGH:
            return _stop(f"The first {count} rollouts all failed ({kind}). {said}")
        broken = sum(self.failed[name] for name in _MACHINERY)
        if broken >= _ENOUGH and broken > (1 - self.floor) * self.planned:
            return _stop(f"{broken} of {self.planned} rollouts failed, too many for a coverage of {self.floor:.0%}. {said}")
        return None

    @property
    def complete(self) -> bool:
        return self.scored + self.failed.total() == self.planned

    @property
    def coverage(self) -> float:
        return self.scored / self.planned if self.planned else 1.0


def _stop(message: str) -> InfrastructureError:
    return InfrastructureError(message, hint="Nothing is lost: start the same run again when the cause is mended.")
