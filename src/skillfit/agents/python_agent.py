"""Python code of the user as an agent: `def solve(skill: str, item: dict) -> str | Attempt`.

It is given from Python (`agent=solve`) or named in the config (`env.agent: file.py:solve`). It may
be async, and may take `seed` and `instruction` by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from skillfit.agents.agent import Agent, AgentFailure, AttemptContext
from skillfit.errors import InputError
from skillfit.models.json_text import JsonObject
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Step, TaskFailure, stable_hash
from skillfit.tasks.user_code import Reported, call, load_object, plain, reported_by

Solve = Callable[..., str | Attempt | Awaitable[str | Attempt]]

_OPTIONAL_PARAMETERS = ("seed", "instruction")
_HIDDEN_FIELDS = ("answers", "reference")


@dataclass(frozen=True)
class CallableAgent:
    """Calls a function with the skill's text and the item's fields, without the gold answers.

    A function that is not async runs in a thread. Its usage is what the `Attempt` it returns says.
    A function that returns text reports no usage; annotate it with `-> Attempt` if it reports.
    """

    recorded: ClassVar[bool] = False

    solve: Solve
    source: dict[str, str] = field(default_factory=dict)
    """Reference and content hash, for a function that was named in the config."""

    @property
    def reports(self) -> frozenset[Reported]:
        return reported_by(self.solve)

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        parameters = inspect.signature(self.solve).parameters
        extra = {
            name: getattr(context, name) for name in _OPTIONAL_PARAMETERS if name in parameters
        }
        where = f"{self._name} on item {item.id}"
        try:
            result = await call(
                self.solve, skill.text, visible_fields(item), kind="agent", where=where, **extra
            )
        except TaskFailure as failure:
            raise AgentFailure(failure.message) from failure
        if isinstance(result, str):
            return Attempt(result, (Step("message", result),))
        if not isinstance(result, Attempt):
            raise AgentFailure(
                f"{self._name} returned {type(result).__name__} on item {item.id}.",
                hint="Return a str or an Attempt.",
            )
        return result

    @property
    def _name(self) -> str:
        return getattr(self.solve, "__qualname__", type(self.solve).__name__)

    def describe(self) -> JsonObject:
        name = f"{getattr(self.solve, '__module__', '')}:{self._name}"
        return {"agent": "callable", **(self.source or {"callable": name})}


def visible_fields(item: Item) -> JsonObject:
    """The item's fields that an agent may see: no gold answers and no hidden reference."""
    fields = plain(item)
    return {name: value for name, value in fields.items() if name not in _HIDDEN_FIELDS}


def is_agent_reference(value: str) -> bool:
    """Whether a value of `env.agent` names Python code: `file.py:name`."""
    return value.rpartition(":")[0].endswith(".py")


def load_agent(reference: str, base: Path = Path()) -> Agent:
    """The agent that `file.py:name` names: a function, or an object with an `attempt` method."""
    found = load_object(reference, base)
    if isinstance(found, type):
        found = found()
    if hasattr(found, "attempt") and hasattr(found, "describe"):
        agent: Agent = found
        return agent
    if not callable(found):
        raise InputError(
            f"env.agent: {reference} is {type(found).__name__}, which cannot be called.",
            hint="Name a function (skill, item) -> answer, or an Agent object.",
        )
    file, _, name = reference.rpartition(":")
    content = (base / file).read_text(encoding="utf-8")
    return CallableAgent(found, {"python": name, "source": stable_hash(content)})
