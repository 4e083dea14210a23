"""The chat agent: the skill is the system prompt, the item the user's message.

One turn, or several in which the model may correct its answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import ClassVar

from skillfit.agents.agent import AttemptContext, item_messages, system_message
from skillfit.errors import InputError
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import Message, Model, Reply, Request, Tool, Usage
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Step
from skillfit.tasks.user_code import Reported

REFINE = (
    "Check your answer against the task above and correct it where needed. "
    "Then give the whole final answer."
)
_FINAL_ANSWER = re.compile(r"<(answer|final_answer)>.*</\1>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class ModelAgent:
    """An agent that calls a model itself, turn by turn. `describe` lists all its fields."""

    recorded: ClassVar[bool] = True
    reports: ClassVar[frozenset[Reported]] = frozenset({"tokens", "usd"})
    name: ClassVar[str]

    model: Model
    prompt: str  # the system prompt; {skill} stands for the skill's body
    max_turns: int
    max_tokens: int | None = None  # of the whole attempt: no further turn starts beyond it

    def __post_init__(self) -> None:
        if "{skill}" not in self.prompt:
            raise InputError(
                "env.prompt does not contain {skill}, so the agent would never see the skill.",
                hint="Put {skill} where the skill belongs.",
            )

    async def reply(
        self,
        messages: tuple[Message, ...],
        context: AttemptContext,
        turn: int,
        tools: tuple[Tool, ...] = (),
    ) -> Reply:
        """The model's reply to these messages, in this turn of the attempt."""
        purpose = f"{context.purpose}/turn_{turn}"
        request = Request(messages, "rollout", tools, seed=context.seed, purpose=purpose)
        return await self.model.complete(request)

    def token_limit_note(self, usage: Usage) -> Step | None:
        """The note to end with when the attempt has reached its token limit."""
        if not self.max_tokens or usage.tokens < self.max_tokens:
            return None
        return Step("note", f"Ended at the limit of {self.max_tokens} tokens.", role="harness")

    def describe(self) -> JsonObject:
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"agent": self.name, **settings, "model": self.model.id}


@dataclass(frozen=True)
class ChatAgent(ModelAgent):
    """Asks the model for an answer, and in later turns to check it.

    It ends early when the answer has a final answer tag or does not change any more.
    """

    name: ClassVar[str] = "chat"

    prompt: str = "Follow this skill.\n\n{skill}"
    max_turns: int = 1

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        messages = (
            system_message(self.prompt, skill),
            *item_messages(item, context.instruction),
        )
        steps: list[Step] = []
        usage, answer = Usage(), ""
        for turn in range(self.max_turns):
            if note := self.token_limit_note(usage):
                steps.append(note)
                break
            reply = await self.reply(messages, context, turn)
            usage += reply.usage
            steps.append(Step("message", reply.text))
            unchanged = reply.text.strip() == answer.strip()
            answer = reply.text
            if unchanged or _FINAL_ANSWER.search(answer):
                break
            messages = (*messages, Message("assistant", answer), Message("user", REFINE))
        return Attempt(answer, tuple(steps), usage=usage)
