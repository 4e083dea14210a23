"""Any Python callable as an agent: `def solve(skill: str, item: dict) -> str | Attempt`, sync or async."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from skillfit.agents.agent import AgentFailure, Calling
from skillfit.models.protocol import ModelError
from skillfit.tasks.attempt import Attempt, Step
from skillfit.tasks.item import Item

if TYPE_CHECKING:
    from skillfit.skill import Skill

Solve = Callable[..., str | Attempt | Awaitable[str | Attempt]]
_OPTIONAL = ("seed", "instruction")  # handed over when the callable has a parameter of that name


@dataclass(frozen=True)
class CallableAgent:
    """The callable gets the skill's text and the item's content, without the answers. A sync one runs in a thread."""

    recorded: ClassVar[bool] = False

    solve: Solve

    async def attempt(self, skill: Skill, item: Item, call: Calling) -> Attempt:
        extra = {name: getattr(call, name) for name in _OPTIONAL if name in inspect.signature(self.solve).parameters}
        async with call.time_limit():
            # Whatever foreign code raises is this rollout's failure, not the run's.
            results: Any = await asyncio.gather(self._call(skill.text, visible(item), extra), return_exceptions=True)
        result = results[0]
        if isinstance(result, Attempt):
            return result
        if isinstance(result, str):
            return Attempt(result, (Step("message", result),))
        if isinstance(result, ModelError) or (isinstance(result, BaseException) and not isinstance(result, Exception)):
            raise result
        if isinstance(result, Exception):
            raise AgentFailure(f"{self._name} raised {type(result).__name__} on item {item.id}: {result}") from result
        raise AgentFailure(f"{self._name} gave {type(result).__name__} on item {item.id}.", hint="Return a str or an Attempt.")

    async def _call(self, skill: str, item: Mapping[str, Any], extra: dict[str, Any]) -> Any:
        asynchronous = inspect.iscoroutinefunction(self.solve) or inspect.iscoroutinefunction(type(self.solve).__call__)
        result: Any = (
            self.solve(skill, item, **extra) if asynchronous else await asyncio.to_thread(self.solve, skill, item, **extra)
        )
        return await result if inspect.isawaitable(result) else result

    @property
    def _name(self) -> str:
        return getattr(self.solve, "__qualname__", type(self.solve).__name__)

    def describe(self) -> dict[str, Any]:
        return {"agent": "callable", "callable": f"{getattr(self.solve, '__module__', '')}:{self._name}"}


def visible(item: Item) -> dict[str, Any]:
    """The item's content as an agent may see it: no gold, no hidden reference."""
    return {"id": item.id, **{name: value for name, value in item.content().items() if name not in ("answers", "reference")}}
