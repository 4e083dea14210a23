"""What an agent did on an item (the attempt, with its trajectory) and what a grader thinks of it (the score)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, SupportsFloat

from skillfit.errors import Exit, SkillfitError
from skillfit.models.protocol import Usage
from skillfit.tasks.item import Item


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened in a trajectory. The skill and the item's own text are not repeated here: renderers know them."""

    kind: Literal["message", "tool_call", "tool_result", "note"]
    text: str
    role: str = "assistant"
    name: str = ""  # the tool


@dataclass(frozen=True, slots=True)
class Attempt:
    answer: str
    steps: tuple[Step, ...] = ()
    workspace: str = ""  # folder with the files the agent left, while graders run; gone afterwards
    skill_read: bool | None = None  # None: the agent cannot tell
    usage: Usage = field(default_factory=Usage)
    bare: bool = False  # the answer stands alone (a gold answer being proved): graders extract nothing


@dataclass(frozen=True, slots=True)
class Score:
    """`hard` is 0/1 or a fraction of checks passed; `soft` is a graded 0..1 (equal to hard where the grader has none).
    `feedback` may reach the optimizer; `evidence` (judge words, patterns, gold) never does."""

    hard: float
    soft: float = -1.0  # filled with hard when not given
    feedback: str = ""
    evidence: tuple[str, ...] = ()
    trained: tuple[float, float] | None = None  # hard and soft by the grader trained on, beside a score of the ship grader

    def __post_init__(self) -> None:
        if self.soft < 0:
            object.__setattr__(self, "soft", self.hard)


class TaskFailure(SkillfitError):
    """The machinery around an item broke (a program, a function, a sandbox): a failed rollout, never a score."""

    exit_code = Exit.INFRASTRUCTURE

    def __init__(self, kind: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.kind, self.message), {"hint": self.hint})


class Grader(Protocol):
    """Scores an attempt. Raises `ModelError` when a judge could not be reached: that is a failure, not a zero."""

    async def grade(self, item: Item, attempt: Attempt) -> Score: ...

    def patterns(self) -> tuple[str, ...]:
        """What would give the grader away if it stood in a skill (regexes, rubric lines): the leak check reads it."""
        ...

    def describe(self) -> dict[str, Any]:
        """Settings that make this grader this grader, for the run's identity."""
        ...


def as_score(value: Any, *, source: str) -> Score:
    """What a user's function or program gave back, as a score: a number in 0..1, a bool, (score, feedback or soft), a mapping with
    `score` or `hard`, or a Score. Anything else is a failure of `source`, not a zero."""
    if isinstance(value, Mapping):
        evidence = value.get("evidence") or ()
        hard = value.get("hard", value.get("score"))
        soft = hard if value.get("soft") is None else value["soft"]
        feedback = str(value.get("feedback") or "")
        evidence = (evidence,) if isinstance(evidence, str) else tuple(str(line) for line in evidence)
    elif isinstance(value, Score):
        hard, soft, feedback, evidence = value.hard, value.soft, value.feedback, value.evidence
    elif isinstance(value, tuple) and len(value) == 2:
        hard, other = value
        soft, feedback, evidence = (hard, other, ()) if isinstance(other, str) else (other, "", ())
    else:
        hard, soft, feedback, evidence = value, value, "", ()
    hard, soft = _number(hard), _number(soft)
    if not 0 <= hard <= 1 or not 0 <= soft <= 1:
        raise TaskFailure("grader", f"{source} gave {value!r:.200}, which is not a score.", hint="Give a number from 0 to 1.")
    return Score(hard, soft, feedback, evidence)


def _number(value: Any) -> float:
    """Numbers of every library, numpy's bools too; NaN for what is none."""
    try:
        return float(value) if isinstance(value, SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan
