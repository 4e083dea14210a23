"""What an agent did on an item (the attempt, with its trajectory) and what a grader thinks of it (the score)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

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


@dataclass(frozen=True, slots=True)
class Score:
    """`hard` is 0/1 or a fraction of checks passed; `soft` is a graded 0..1 (equal to hard where the grader has none).
    `feedback` may reach the optimizer; `evidence` (judge words, patterns, gold) never does."""

    hard: float
    soft: float = -1.0  # filled with hard when not given
    feedback: str = ""
    evidence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.soft < 0:
            object.__setattr__(self, "soft", self.hard)


class Grader(Protocol):
    """Scores an attempt. Raises `ModelError` when a judge could not be reached: that is a failure, not a zero."""

    async def grade(self, item: Item, attempt: Attempt) -> Score: ...

    def patterns(self) -> tuple[str, ...]:
        """What would give the grader away if it stood in a skill (regexes, rubric lines): the leak check reads it."""
        ...

    def describe(self) -> dict[str, Any]:
        """Settings that make this grader this grader, for the run's identity."""
        ...
