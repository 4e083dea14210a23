"""How skill and item are put before a model: what stays the same comes first, so that provider prompt caches hit."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from skillfit.agents.agent import AgentFailure, Calling
from skillfit.errors import InputError
from skillfit.models.protocol import Message, Model, Reply, Request, Tool
from skillfit.skill import Skill
from skillfit.tasks.item import Item


@dataclass(frozen=True)
class ModelAgent:
    """An agent that talks to a model itself, turn by turn. All its fields make it what it is."""

    recorded: ClassVar[bool] = True
    name: ClassVar[str]

    model: Model
    prompt: str  # {skill} stands for the skill's body
    max_turns: int
    max_tokens: int | None = None  # of the whole attempt: no further turn starts beyond it

    def __post_init__(self) -> None:
        if "{skill}" not in self.prompt:
            raise InputError(
                "env.prompt has no {skill}, so the agent would never see the skill.", hint="Put {skill} where it belongs."
            )

    def system(self, skill: Skill) -> Message:
        # Plain replacement: a skill or a prompt may hold any other braces.
        return Message("system", self.prompt.replace("{skill}", skill.body.strip()).strip())

    async def reply(self, messages: tuple[Message, ...], call: Calling, turn: int, tools: tuple[Tool, ...] = ()) -> Reply:
        request = Request(messages, "rollout", tools, seed=call.seed, purpose=f"{call.purpose}/turn_{turn}")
        return await self.model.complete(request)

    def describe(self) -> dict[str, Any]:
        settings = {one.name: getattr(self, one.name) for one in fields(self)}
        return {"agent": self.name, **settings, "model": self.model.id}


def item_messages(item: Item, instruction: str = "", *, inline_files: bool = True) -> tuple[Message, ...]:
    """The item's conversation, with its files (where they are not in a workspace) and the instruction after the last turn."""
    *before, last = item.messages
    files = [f"## File: {name}\n\n{_read(path)}" for name, path in item.files.items()] if inline_files else []
    return (*before, replace(last, content="\n\n".join([last.content, *files, *filter(None, [instruction])])))


def shorten(text: str, limit: int = 8000) -> str:
    """Head and tail of a long text, with a note of what was left out between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AgentFailure(f"The attached file {path} cannot be read as text: {error}.", hint="Use agent: tools or cli.") from error
