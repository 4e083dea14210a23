"""A coding-agent command line as the agent: the skill stands where the program discovers skills, the item is its prompt."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import yaml

from skillfit.agents.agent import Calling
from skillfit.agents.cli.process import CommandLine
from skillfit.agents.presenting import item_messages
from skillfit.agents.workspace import Workspace, workspace_for
from skillfit.skill import Skill
from skillfit.skill.package import folder_name
from skillfit.tasks.attempt import Attempt
from skillfit.tasks.item import Item

_HERE_ONLY = ("file", "program", "login", "concurrency")  # where and how it runs, not what it is


@dataclass(frozen=True)
class CliAgent:
    """Each attempt has a fresh workspace and HOME. Model calls happen inside the program: the whole run is one journaled effect."""

    recorded: ClassVar[bool] = False

    command: CommandLine

    @property
    def slots(self) -> int:
        """How many may run side by side: each is a program of some hundred megabytes."""
        return int(self.command.spec.options.get("concurrency", os.cpu_count() or 1))

    async def attempt(self, skill: Skill, item: Item, call: Calling) -> Attempt:
        program = self.command.description
        with workspace_for(item) as workspace:
            name = install(skill, workspace, program.skills)
            reading = await self.command.run(workspace, self._prompt(item, name, call), program.argv, skill=name)
            workspace.leave_only_work()
        steps = reading.steps
        if not self.command.spec.options.get("trace", True):
            steps = tuple(step for step in steps if step.kind == "message")[-1:]
        return Attempt(reading.answer or "", steps, str(workspace.work), reading.skill_read, reading.usage)

    def _prompt(self, item: Item, name: str, call: Calling) -> str:
        turns = item_messages(item, call.instruction, inline_files=False)
        text = turns[0].content if len(turns) == 1 else "\n\n".join(f"[{turn.role}]\n{turn.content}" for turn in turns)
        attached = [*(image.path.name for image in item.images), *item.files]
        listed = f"\n\nFiles in this folder: {', '.join(attached)}" if attached else ""
        mention = f"Use the skill {name}.\n\n" if self.command.spec.options.get("mention_skill", True) else ""
        return f"{mention}{text}{listed}"

    def describe(self) -> dict[str, Any]:
        spec = self.command.spec
        options = {name: value for name, value in spec.options.items() if name not in _HERE_ONLY}
        settings = {"id": spec.id, "base_url": spec.base_url, "effort": spec.reasoning_effort, "options": options}
        return {"agent": "cli", "description": self.command.description.model_dump(mode="json", exclude_defaults=True), **settings}


def install(skill: Skill, workspace: Workspace, folder: str) -> str:
    """Put the skill package at its discovery path; the name it is known by there. Discovery looks for SKILL.md alone, whatever the
    person's file is called. Front matter it would not accept (no description, a name that is no folder name) is completed; the
    body stays as it is."""
    name = folder_name(skill.name) or "skill-in-training"
    told = {key: value for key, value in skill.frontmatter.items() if key != "description" or value}
    about = {"description": "How to do the task at hand. Use it for every task here.", **told, "name": name}
    if about != skill.frontmatter:
        head = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
        skill = replace(skill, head=f"---\n{head}---\n")
    replace(skill, document_name="SKILL.md", bom=False).save(workspace.work / folder / name)
    return name
