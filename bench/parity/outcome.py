"""What a run decided, in the terms both systems share."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Any


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class StepRow:
    step: int
    action: str
    edit_budget: int | None
    candidate: str | None  # the candidate skill's hash
    score: float | None  # under the gate's metric
    facts: tuple[str, ...] = ()  # where a defect of the reference may show (see compare.py)


@dataclass(frozen=True, slots=True)
class Outcome:
    steps: tuple[StepRow, ...]
    final: str
    best: str
    memory: tuple[str, ...]  # the slow update's text of each epoch
    advice: tuple[str, ...]  # the meta skill's
    test: tuple[float | None, ...]  # hard scores of the initial, best and final skill
    facts: tuple[str, ...] = ()  # as of a step, about the end of the run

    def as_dict(self) -> dict[str, Any]:
        """For the record. A final skill that is also the best is written once."""
        plain = asdict(self)
        plain["steps"] = [list(step.values()) for step in plain["steps"]]
        return {**plain, "best": None if self.best == self.final else self.best}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Outcome:
        steps = tuple(
            replace(StepRow(*values), facts=tuple(values[-1])) for values in plain["steps"]
        )
        lists = {name: tuple(plain[name]) for name in ("memory", "advice", "test", "facts")}
        best = plain["final"] if plain["best"] is None else plain["best"]
        return cls(steps=steps, final=plain["final"], best=best, **lists)
