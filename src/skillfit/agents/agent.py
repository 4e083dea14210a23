"""Who uses the skill: an agent takes a skill and an item and makes an attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from skillfit.models.protocol import ModelError, Usage
from skillfit.skill import Skill
from skillfit.tasks.attempt import Attempt
from skillfit.tasks.item import Item


@dataclass(frozen=True, slots=True)
class Calling:
    """What one attempt is called with, beside skill and item."""

    seed: int | None = None
    purpose: str = ""  # names item and repeat: tells equal requests apart in the journal, never sent
    instruction: str = ""  # deep reflection's question, put after the item


class Agent(Protocol):
    """Makes attempts. `recorded`: its calls go through a model that journals and meters each of them; when they do not (a program
    of its own, foreign code), the usage of the attempt is all that is known, and the rollout's record is the bill."""

    @property
    def recorded(self) -> bool: ...

    async def attempt(self, skill: Skill, item: Item, call: Calling) -> Attempt:
        """What the agent did. Raises `ModelError` (an `AgentFailure` is one) when the machinery broke: that is never an answer.
        At its time limit it is cancelled."""
        ...

    def describe(self) -> dict[str, Any]:
        """Settings that make this agent this agent, for the run's identity. Holds nothing secret."""
        ...


class AgentFailure(ModelError):
    """The agent's machinery broke. `kind`: agent, command, sandbox, timeout. `usage` is what it cost all the same."""

    def __init__(self, message: str, *, kind: str = "agent", hint: str = "", usage: Usage | None = None) -> None:
        super().__init__(message, hint=hint, usage=usage)
        self.kind = kind
        self.retryable = kind in ("timeout", "command")
