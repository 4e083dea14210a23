"""Any Python callable as an agent: `def solve(skill: str, item: dict) -> str | Attempt`, sync or async."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from skillfit.agents.agent import AgentFailure, Calling
from skillfit.skill import Skill
from skillfit.tasks.attempt import Attempt, Step, TaskFailure
from skillfit.tasks.function import call as call_function
from skillfit.tasks.function import plain
from skillfit.tasks.item import Item

Solve = Callable[..., str | Attempt | Awaitable[str | Attempt]]
_OPTIONAL = ("seed", "instruction")  # handed over when the callable has a parameter of that name


@dataclass(frozen=True)
class CallableAgent:
    """The callable gets the skill's text and the item's content, without the answers. A sync one runs in a thread."""

    recorded: ClassVar[bool] = False

    solve: Solve

    async def attempt(self, skill: Skill, item: Item, call: Calling) -> Attempt:
        extra = {name: getattr(call, name) for name in _OPTIONAL if name in inspect.signature(self.solve).parameters}
        where = f"{self._name} on item {item.id}"
        try:
            result = await call_function(self.solve, skill.text, visible(item), kind="agent", where=where, **extra)
        except TaskFailure as failure:
            raise AgentFailure(failure.message) from failure
        if isinstance(result, str):
            return Attempt(result, (Step("message", result),))
        if not isinstance(result, Attempt):
            raise AgentFailure(f"{self._name} gave {type(result).__name__} on item {item.id}.", hint="Return a str or an Attempt.")
        return result

    @property
    def _name(self) -> str:
        return getattr(self.solve, "__qualname__", type(self.solve).__name__)

    def describe(self) -> dict[str, Any]:
        return {"agent": "callable", "callable": f"{getattr(self.solve, '__module__', '')}:{self._name}"}


def visible(item: Item) -> dict[str, Any]:
    """The item's content as an agent may see it: no gold, no hidden reference."""
    return {name: value for name, value in plain(item).items() if name not in ("answers", "reference")}
