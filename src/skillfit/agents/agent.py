"""Who uses the skill: an agent takes a skill and an item and makes an attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from skillfit.models.protocol import ModelError, Usage
from skillfit.tasks.attempt import Attempt
from skillfit.tasks.item import Item

if TYPE_CHECKING:
    from skillfit.skill import Skill


@dataclass(frozen=True, slots=True)
class Calling:
    """What one attempt is called with, beside skill and item."""

    seed: int | None = None
    purpose: str = ""  # names item and repeat: tells equal requests apart in the journal, never sent
    stage: str = "rollout"
    instruction: str = ""  # deep reflection's question, put after the item
    deadline: float | None = None  # the event loop's clock (time.monotonic); the work is ended then

    def turn(self, number: int) -> str:
        """The purpose of this attempt's request number so-and-so."""
        return f"{self.purpose}/turn_{number}"

    @asynccontextmanager
    async def time_limit(self) -> AsyncIterator[None]:
        """Ends the body at the deadline with an `AgentFailure` of kind timeout."""
        try:
            async with asyncio.timeout_at(self.deadline) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise AgentFailure("The rollout was ended at its time limit.", kind="timeout", hint="Raise env.exec_timeout.") from None


class Agent(Protocol):
    """Makes attempts. `recorded`: its calls go through a model that journals and meters each of them; when they do not (a program
    of its own, foreign code), the usage of the attempt is all that is known, and the rollout's record is the bill."""

    @property
    def recorded(self) -> bool: ...

    async def attempt(self, skill: Skill, item: Item, call: Calling) -> Attempt:
        """What the agent did. Raises `ModelError` (an `AgentFailure` is one) when the machinery broke: that is never an answer."""
        ...

    def describe(self) -> dict[str, Any]:
        """Settings that make this agent this agent, for the run's identity. Holds nothing secret."""
        ...


class AgentFailure(ModelError):
    """The agent's machinery broke. `kind`: agent, command, sandbox, timeout. `usage` is what it cost all the same."""

    kind = "agent"

    def __init__(self, message: str, *, kind: str = "agent", hint: str = "", usage: Usage | None = None) -> None:
        super().__init__(message, hint=hint, usage=usage)
        self.kind = kind
        self.retryable = kind in ("timeout", "command")
