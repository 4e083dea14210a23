"""A coding-agent command line as the agent: the skill stands where the program discovers skills,
the item is its prompt.

The same command lines as plain models (`cli/claude` as the optimizer): the prompt on stdin, text
back, no tools.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import yaml

from skillfit.agents.agent import AttemptContext
from skillfit.agents.chat import item_messages
from skillfit.agents.coding_cli.cli_process import CommandLine, command_line
from skillfit.agents.workspace import Workspace, workspace_for
from skillfit.errors import InputError
from skillfit.models.protocol import BadRequest, Message, Reply, Request
from skillfit.models.provider import Setup
from skillfit.skill import Skill
from skillfit.skill.document import folder_name
from skillfit.tasks.item import Attempt, Item

_HERE_ONLY = ("file", "program", "login", "concurrency")  # where and how it runs, not what it is


@dataclass(frozen=True)
class CliAgent:
    """Each attempt has a fresh workspace and HOME. Model calls happen inside the program: the whole
    run is one journaled effect.
    """

    recorded: ClassVar[bool] = False

    command: CommandLine

    @property
    def slots(self) -> int:
        """How many may run side by side: each is a program of some hundred megabytes."""
        return int(self.command.spec.options.get("concurrency", os.cpu_count() or 1))

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        program = self.command.description
        with workspace_for(item) as workspace:
            name = install(skill, workspace, program.skills)
            reading = await self.command.run(
                workspace, self._prompt(item, name, context), program.argv, skill=name
            )
            workspace.leave_only_work()
        steps = reading.steps
        if not self.command.spec.options.get("trace", True):
            steps = tuple(step for step in steps if step.kind == "message")[-1:]
        return Attempt(
            reading.answer or "", steps, str(workspace.work), reading.skill_read, reading.usage
        )

    def _prompt(self, item: Item, name: str, context: AttemptContext) -> str:
        turns = item_messages(item, context.instruction, inline_files=False)
        text = (
            turns[0].content
            if len(turns) == 1
            else "\n\n".join(f"[{turn.role}]\n{turn.content}" for turn in turns)
        )
        attached = [*(image.path.name for image in item.images), *item.files]
        listed = f"\n\nFiles in this folder: {', '.join(attached)}" if attached else ""
        mention = (
            f"Use the skill {name}.\n\n"
            if self.command.spec.options.get("mention_skill", True)
            else ""
        )
        return f"{mention}{text}{listed}"

    def describe(self) -> dict[str, Any]:
        spec = self.command.spec
        options = {name: value for name, value in spec.options.items() if name not in _HERE_ONLY}
        settings = {
            "id": spec.id,
            "base_url": spec.base_url,
            "effort": spec.reasoning_effort,
            "options": options,
        }
        return {
            "agent": "cli",
            "description": self.command.description.model_dump(mode="json", exclude_defaults=True),
            **settings,
        }


def install(skill: Skill, workspace: Workspace, folder: str) -> str:
    """Put the skill package at its discovery path; the name it is known by there. Discovery looks
    for SKILL.md alone, whatever the person's file is called. Front matter it would not accept (no
    description, a name that is no folder name) is completed; the body stays as it is.
    """
    name = folder_name(skill.name) or "skill-in-training"
    told = {key: value for key, value in skill.frontmatter.items() if key != "description" or value}
    about = {
        "description": "How to do the task at hand. Use it for every task here.",
        **told,
        "name": name,
    }
    if about != skill.frontmatter:
        head = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
        skill = replace(skill, head=f"---\n{head}---\n")
    replace(skill, document_name="SKILL.md", bom=False).save(workspace.work / folder / name)
    return name


@dataclass
class CliProvider:
    """One attempt is one run of the program in an empty folder with a HOME of its own."""

    command: CommandLine
    endpoint: str
    slots: int | None

    async def send(self, request: Request) -> Reply:
        if request.tools or any(message.images for message in request.messages):
            raise BadRequest(
                f"{self.endpoint} takes text only: no tools, no images.",
                hint="Use a provider with an API for this role.",
            )
        workspace = Workspace.create()
        try:
            argv = self.command.description.model_argv
            reading = await self.command.run(
                workspace, as_prompt(request), argv, effort=request.reasoning_effort or ""
            )
        finally:
            workspace.remove()
        return Reply(
            reading.answer or "",
            usage=reading.usage,
            model=self.command.model or self.command.description.name,
        )

    async def close(self) -> None:
        return None


def as_prompt(request: Request) -> str:
    """The messages as one text, with the asked-for form last."""
    parts = [_said(message) for message in request.messages]
    if request.schema is not None:
        schema = json.dumps(request.schema, ensure_ascii=False)
        parts.append(
            f"Reply with one JSON value that follows this JSON schema, and with nothing else:\n{schema}"
        )
    return "\n\n".join(parts)


def make_provider(setup: Setup) -> CliProvider:
    """For the models room's register of providers."""
    command = command_line(setup.spec, setup.environ)
    if not command.description.model_argv:
        raise InputError(
            f"{setup.spec.id} cannot serve as a model.", hint="Its description has no model_argv."
        )
    command.program()
    return CliProvider(
        command, f"cli/{command.description.name}", int(setup.spec.options.get("concurrency", 4))
    )


def _said(message: Message) -> str:
    return (
        f"[assistant said]\n{message.content}" if message.role == "assistant" else message.content
    )
