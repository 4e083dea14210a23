"""What an agent is: it gets a skill and an item, and makes an attempt at the item.

Skill and item are put into a prompt in the same way for all agents: what stays the same for all
items (the skill) comes first, so that prompt caches of providers work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import Message, ModelError, Usage
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

    def describe(self) -> JsonObject:
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


def system_message(template: str, skill: Skill) -> Message:
    """The template with the skill's body in place of {skill}. Other braces stay as they are."""
    return Message("system", template.replace("{skill}", skill.body.strip()).strip())


def item_messages(
    item: Item, instruction: str = "", *, inline_files: bool = True
) -> tuple[Message, ...]:
    """The item's conversation. The last turn also holds its files (with `inline_files`: for agents
    without a workspace) and the instruction.
    """
    *before, last = item.messages
    parts = [last.content]
    if inline_files:
        parts += [f"## File: {name}\n\n{_read_text(path)}" for name, path in item.files.items()]
    if instruction:
        parts.append(instruction)
    return (*before, replace(last, content="\n\n".join(parts)))


def shorten(text: str, limit: int = 8000) -> str:
    """The beginning and the end of a long text, with a note about what was left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AgentFailure(
            f"The attached file {path} cannot be read as text: {error}.",
            hint="Use env.agent: tools or cli, which give the agent the file itself.",
        ) from error
