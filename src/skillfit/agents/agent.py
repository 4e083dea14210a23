"""Who uses the skill: an agent takes a skill and an item and makes an attempt.

Any Python callable as an agent: `def solve(skill: str, item: dict) -> str | Attempt`, sync or
async.

From plain settings to an agent.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from skillfit.models.protocol import ModelError, Usage
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Step, TaskFailure
from skillfit.tasks.user_code import call as call_function
from skillfit.tasks.user_code import plain


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """What one attempt is called with, beside skill and item."""

    seed: int | None = None
    purpose: str = (
        ""  # names item and repeat: tells equal requests apart in the journal, never sent
    )
    instruction: str = ""  # deep reflection's question, put after the item


class Agent(Protocol):
    """Makes attempts. `recorded`: its calls go through a model that journals and meters each of
    them; when they do not (a program of its own, foreign code), the usage of the attempt is all
    that is known, and the rollout's record is the bill.
    """

    @property
    def recorded(self) -> bool: ...

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        """What the agent did. Raises `ModelError` (an `AgentFailure` is one) when the machinery
        broke: that is never an answer. At its time limit it is cancelled.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Settings that make this agent this agent, for the run's identity. Holds nothing secret."""
        ...


class AgentFailure(ModelError):
    """The agent's machinery broke. `kind`: agent, command, sandbox, timeout. `usage` is what it
    cost all the same.
    """

    def __init__(
        self, message: str, *, kind: str = "agent", hint: str = "", usage: Usage | None = None
    ) -> None:
        super().__init__(message, hint=hint, usage=usage)
        self.kind = kind


Solve = Callable[..., str | Attempt | Awaitable[str | Attempt]]
_OPTIONAL = ("seed", "instruction")  # handed over when the callable has a parameter of that name


@dataclass(frozen=True)
class CallableAgent:
    """The callable gets the skill's text and the item's content, without the answers. A sync one
    runs in a thread.
    """

    recorded: ClassVar[bool] = False

    solve: Solve

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        extra = {
            name: getattr(context, name)
            for name in _OPTIONAL
            if name in inspect.signature(self.solve).parameters
        }
        where = f"{self._name} on item {item.id}"
        try:
            result = await call_function(
                self.solve, skill.text, visible(item), kind="agent", where=where, **extra
            )
        except TaskFailure as failure:
            raise AgentFailure(failure.message) from failure
        if isinstance(result, str):
            return Attempt(result, (Step("message", result),))
        if not isinstance(result, Attempt):
            raise AgentFailure(
                f"{self._name} gave {type(result).__name__} on item {item.id}.",
                hint="Return a str or an Attempt.",
            )
        return result

    @property
    def _name(self) -> str:
        return getattr(self.solve, "__qualname__", type(self.solve).__name__)

    def describe(self) -> dict[str, Any]:
        return {
            "agent": "callable",
            "callable": f"{getattr(self.solve, '__module__', '')}:{self._name}",
        }


def visible(item: Item) -> dict[str, Any]:
    """The item's content as an agent may see it: no gold, no hidden reference."""
    return {
        name: value for name, value in plain(item).items() if name not in ("answers", "reference")
    }
