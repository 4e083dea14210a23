"""The plainest agent: the skill is the system prompt, the item the user's message; one turn, or a few to refine the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from skillfit.agents.agent import Calling
from skillfit.agents.presenting import ModelAgent, item_messages
from skillfit.models.protocol import Message, Usage
from skillfit.skill import Skill
from skillfit.tasks.attempt import Attempt, Step
from skillfit.tasks.item import Item

REFINE = "Check your answer against the task above and correct it where needed. Then give the whole final answer."
_FINAL = re.compile(r"<(answer|final_answer)>.*</\1>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class ChatAgent(ModelAgent):
    """Later turns keep everything said before and end early at a final answer tag or when the answer no longer changes."""

    name: ClassVar[str] = "chat"

    prompt: str = "Follow this skill.\n\n{skill}"
    max_turns: int = 1

    async def attempt(self, skill: Skill, item: Item, call: Calling) -> Attempt:
        messages = (self.system(skill), *item_messages(item, call.instruction))
        steps: list[Step] = []
        usage, answer = Usage(), ""
        for turn in range(self.max_turns):
            if self.max_tokens and usage.tokens >= self.max_tokens:
                steps.append(Step("note", f"Ended at the limit of {self.max_tokens} tokens.", role="harness"))
                break
            reply = await self.reply(messages, call, turn)
            usage += reply.usage
            steps.append(Step("message", reply.text))
            settled = reply.text.strip() == answer.strip() or _FINAL.search(reply.text) is not None
            answer = reply.text
            if settled:
                break
            messages = (*messages, Message("assistant", answer), Message("user", REFINE))
        return Attempt(answer, tuple(steps), usage=usage)
