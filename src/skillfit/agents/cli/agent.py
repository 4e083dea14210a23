"""A coding-agent command line as the agent: the skill stands where the program discovers skills, the item is its prompt."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

from skillfit.agents.agent import Calling
from skillfit.agents.cli.events import Reading
from skillfit.agents.cli.process import CommandLine
from skillfit.agents.presenting import item_messages
from skillfit.agents.workspace import Workspace, new_workspace, remove_workspace
from skillfit.models.protocol import Meter, ModelError, Usage
from skillfit.tasks.attempt import Attempt
from skillfit.tasks.item import Item

if TYPE_CHECKING:
    from skillfit.skill import Skill

MOST_TOKENS = 400_000
FALLBACK_NAME = "skill-in-training"


@dataclass(frozen=True)
class CliAgent:
    """Each attempt has a fresh workspace and HOME. Model calls happen inside the program: the whole run is one journaled effect."""

    recorded: ClassVar[bool] = False

    command: CommandLine
    meter: Meter | None = field(default=None, repr=False)
    max_tokens: int = MOST_TOKENS  # set aside in the budget before each attempt: the program itself knows no such limit

    @property
    def slots(self) -> int:
        """How many may run side by side: each is a program of some hundred megabytes."""
        return int(self.command.spec.options.get("concurrency", os.cpu_count() or 1))

    async def attempt(self, skill: Skill, item: Item, call: Calling) -> Attempt:
        workspace = new_workspace(item)
        try:
            name = install(skill, workspace, self.command.description.skills)
            async with call.time_limit():
                reading = await self._run(workspace, self._prompt(item, name, call), name)
        except BaseException:
            remove_workspace(str(workspace.work))
            raise
        workspace.leave_only_work()
        steps = reading.steps
        if not self.command.spec.options.get("trace", True):
            steps = tuple(step for step in steps if step.kind == "message")[-1:]
        return Attempt(reading.answer or "", steps, str(workspace.work), reading.skill_read, reading.usage)

    async def _run(self, workspace: Workspace, prompt: str, name: str) -> Reading:
        """The program's run, paid for from the budget like any call."""
        usd = self.command.spec.options.get("max_usd")
        bound = used = Usage(calls=1, input=self.max_tokens, usd=None if usd is None else float(usd))
        reservation = await self.meter.reserve("agent", bound) if self.meter else None
        try:
            reading = await self.command.run(workspace, prompt, self.command.description.argv, skill=name)
            used = reading.usage
            return reading
        except ModelError as error:
            used = error.usage
            raise
        finally:
            if reservation:
                reservation.settle(used)

    def _prompt(self, item: Item, name: str, call: Calling) -> str:
        turns = item_messages(item, call.instruction, inline_files=False)
        text = turns[0].content if len(turns) == 1 else "\n\n".join(f"[{turn.role}]\n{turn.content}" for turn in turns)
        attached = [*(image.path.name for image in item.images), *item.files]
        listed = f"\n\nFiles in this folder: {', '.join(attached)}" if attached else ""
        mention = f"Use the skill {name}.\n\n" if self.command.spec.options.get("mention_skill", True) else ""
        return f"{mention}{text}{listed}"

    def describe(self) -> dict[str, Any]:
        spec = self.command.spec.model_dump(mode="json", exclude={"timeout", "retries", "key_env"}, exclude_defaults=True)
        return {"agent": "cli", "description": self.command.description.model_dump(mode="json"), **spec}


def install(skill: Skill, workspace: Workspace, folder: str) -> str:
    """Put the skill package at its discovery path; the name it is known by there. Front matter that discovery would not
    accept (no description, a name that is no folder name) is completed; the body stays as it is."""
    name = re.sub(r"[^a-z0-9]+", "-", skill.name.lower()).strip("-")[:64] or FALLBACK_NAME
    target = workspace.work / folder / name
    target.mkdir(parents=True)
    about = {"description": "How to do the task at hand. Use it for every task here.", **skill.frontmatter, "name": name}
    skill.save(target)
    if about != skill.frontmatter:
        head = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
        (target / "SKILL.md").write_text(f"---\n{head}---\n{skill.body}", encoding="utf-8")
    return name
