"""How skill and item are put before a model: what stays the same comes first, so that provider
prompt caches hit.

The plainest agent: the skill is the system prompt, the item the user's message; one turn, or a few
to refine the answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from skillfit.agents.agent import AgentFailure, AttemptContext
from skillfit.errors import InputError
from skillfit.models.protocol import Message, Model, Reply, Request, Tool, Usage
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Step


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
                "env.prompt has no {skill}, so the agent would never see the skill.",
                hint="Put {skill} where it belongs.",
            )

    def system(self, skill: Skill) -> Message:
        # Plain replacement: a skill or a prompt may hold any other braces.
        return Message("system", self.prompt.replace("{skill}", skill.body.strip()).strip())

    async def reply(
        self,
        messages: tuple[Message, ...],
        context: AttemptContext,
        turn: int,
        tools: tuple[Tool, ...] = (),
    ) -> Reply:
        request = Request(
            messages, "rollout", tools, seed=context.seed, purpose=f"{context.purpose}/turn_{turn}"
        )
        return await self.model.complete(request)

    def describe(self) -> dict[str, Any]:
        settings = {one.name: getattr(self, one.name) for one in fields(self)}
        return {"agent": self.name, **settings, "model": self.model.id}


def item_messages(
    item: Item, instruction: str = "", *, inline_files: bool = True
) -> tuple[Message, ...]:
    """The item's conversation, with its files (where they are not in a workspace) and the
    instruction after the last turn.
    """
    *before, last = item.messages
    files = (
        [f"## File: {name}\n\n{_read(path)}" for name, path in item.files.items()]
        if inline_files
        else []
    )
    return (
        *before,
        replace(last, content="\n\n".join([last.content, *files, *filter(None, [instruction])])),
    )


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
        raise AgentFailure(
            f"The attached file {path} cannot be read as text: {error}.",
            hint="Use agent: tools or cli.",
        ) from error


REFINE = "Check your answer against the task above and correct it where needed. Then give the whole final answer."
_FINAL = re.compile(r"<(answer|final_answer)>.*</\1>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class ChatAgent(ModelAgent):
    """Later turns keep everything said before and end early at a final answer tag or when the
    answer no longer changes.
    """

    name: ClassVar[str] = "chat"

    prompt: str = "Follow this skill.\n\n{skill}"
    max_turns: int = 1

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        messages = (self.system(skill), *item_messages(item, context.instruction))
        steps: list[Step] = []
        usage, answer = Usage(), ""
        for turn in range(self.max_turns):
            if self.max_tokens and usage.tokens >= self.max_tokens:
                steps.append(
                    Step("note", f"Ended at the limit of {self.max_tokens} tokens.", role="harness")
                )
                break
            reply = await self.reply(messages, context, turn)
            usage += reply.usage
            steps.append(Step("message", reply.text))
            settled = reply.text.strip() == answer.strip() or _FINAL.search(reply.text) is not None
            answer = reply.text
            if settled:
                break
            messages = (*messages, Message("assistant", answer), Message("user", REFINE))
        return Attempt(answer, tuple(steps), usage=usage)
