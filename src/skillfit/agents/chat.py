"""The plainest agent: the skill is the system prompt, the item the user's message; one turn, or a few to refine the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from skillfit.agents.agent import Calling
from skillfit.agents.presenting import DEFAULT_PROMPT, check_template, item_messages, system_message
from skillfit.models.protocol import Message, Model, Request, Usage
from skillfit.tasks.attempt import Attempt, Step
from skillfit.tasks.item import Item

if TYPE_CHECKING:
    from skillfit.skill import Skill

REFINE = "Check your answer against the task above and correct it where needed. Then give the whole final answer."
_FINAL = re.compile(r"<(answer|final_answer)>.*</\1>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class ChatAgent:
    """Later turns keep everything said before and end early at a final answer tag or when the answer no longer changes."""

    recorded: ClassVar[bool] = True

    model: Model
    prompt: str = DEFAULT_PROMPT
    max_turns: int = 1
    max_tokens: int | None = None  # of the whole attempt: no further turn starts beyond it

    def __post_init__(self) -> None:
        check_template(self.prompt)

    async def attempt(self, skill: Skill, item: Item, call: Calling) -> Attempt:
        messages = (system_message(self.prompt, skill), *item_messages(item, call.instruction))
        steps: list[Step] = []
        usage, answer = Usage(), ""
        async with call.time_limit():
            for turn in range(self.max_turns):
                request = Request(messages, call.stage, seed=call.seed, purpose=call.turn(turn))
                reply = await self.model.complete(request)
                usage += reply.usage
                steps.append(Step("message", reply.text))
                settled = reply.text.strip() == answer.strip() or _FINAL.search(reply.text) is not None
                answer = reply.text
                if settled:
                    break
                if self.max_tokens and usage.tokens >= self.max_tokens and turn + 1 < self.max_turns:
                    steps.append(Step("note", f"Ended at the limit of {self.max_tokens} tokens.", role="harness"))
                    break
                messages = (*messages, Message("assistant", answer), Message("user", REFINE))
        return Attempt(answer, tuple(steps), usage=usage)

    def describe(self) -> dict[str, Any]:
        return {
            "agent": "chat",
            "model": self.model.id,
            "prompt": self.prompt,
            "max_turns": self.max_turns,
            "max_tokens": self.max_tokens,
        }
