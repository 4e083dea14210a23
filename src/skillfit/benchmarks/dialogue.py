"""Model calls of an evaluator that runs its items itself, recorded as the steps of an attempt."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.resources import files

from skillfit.errors import InputError
from skillfit.models.protocol import Message, Model, Reply, Request, Tool, Usage
from skillfit.skill import Skill
from skillfit.tasks.item import Item, Step


@dataclass
class Dialogue:
    """The calls of one rollout. `seed` differs between repeats of an item."""

    model: Model
    item: Item
    seed: int
    steps: list[Step] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    calls: int = 0

    async def ask(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> Reply:
        """The model's reply. Raises `ModelError` when there is none: a failed rollout."""
        purpose = f"{self.item.id}/{self.seed}/turn_{self.calls}"
        request = Request(messages, "rollout", tools, seed=self.seed, purpose=purpose)
        self.calls += 1
        reply = await self.model.complete(request)
        self.usage += reply.usage
        if reply.text.strip():
            self.steps.append(Step("message", reply.text))
        return reply

    def note(self, text: str) -> None:
        self.steps.append(Step("note", text, role="harness"))


def system_message(template: str, skill: Skill) -> Message:
    """The prompt with the skill in the place of {skill}."""
    return Message("system", template.replace("{skill}", skill.body.strip()).strip())


def packaged_text(package: str, name: str) -> str:
    """A text file in the folder of the code."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def required_model(model: Model | None, name: str) -> Model:
    """The agent's model; an evaluator that calls it cannot run without one."""
    if model is None:
        raise InputError(f"{name} needs the agent's model.", hint="Set model.agent.")
    return model
