"""What an agent is: it gets a skill and an item, and makes an attempt at the item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from skillfit.models.protocol import ModelError, Usage
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item
from skillfit.tasks.user_code import Reported


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """What an attempt depends on besides skill and item."""

    seed: int | None = None
    purpose: str = ""
    """Names item and repeat. It tells equal requests apart in the journal and is never sent."""
    instruction: str = ""
    """A question to be answered too, put after the item (deep reflection)."""
    max_usd: float | None = None
    """Dollars this attempt may spend, for agents that can be given a limit of their own."""


class Agent(Protocol):
    """Makes attempts."""

    @property
    def recorded(self) -> bool:
        """Whether every model call goes through skillfit's own client, which journals and meters
        it. Otherwise (a program, the user's own code) the rollout is metered and billed as a whole,
        with the usage that the attempt reports.
        """
        ...

    @property
    def reports(self) -> frozenset[Reported]:
        """What attempts report about their usage, for agents that are not `recorded`."""
        ...

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        """Let the agent work on the item.

        Raises a `ModelError` (such as `AgentFailure`) when the machinery failed: that is a failed
        rollout and never an answer. A time limit cancels this call.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """The settings that distinguish this agent from others, as JSON, for the run's identity.
        They hold nothing secret.
        """
        ...


class AgentFailure(ModelError):
    """The agent's machinery failed. `kind` is one of agent, command, config, limit, sandbox,
    timeout.
    """

    def __init__(
        self, message: str, *, kind: str = "agent", hint: str = "", usage: Usage | None = None
    ) -> None:
        super().__init__(message, hint=hint, usage=usage)
        self.kind = kind
