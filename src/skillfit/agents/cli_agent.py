"""A coding-agent program as the agent (it discovers the skill, and the item is its prompt) and as a
plain model, for example `model.optimizer: cli/claude` (the messages become one prompt, the
program's answer is the reply, and it has no tools).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import yaml

from skillfit.agents.agent import (
    CORPUS,
    AttemptContext,
    BaseAgent,
    Workspace,
    item_messages,
    workspace_for,
)
from skillfit.agents.cli_command import CommandLine, command_line, described_program
from skillfit.errors import InputError
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import BadRequest, Message, Provider, Reply, Request, Setup
from skillfit.models.wire import schema_in_prompt
from skillfit.skill import Skill
from skillfit.skill.document import folder_name
from skillfit.tasks.item import Attempt, Item
from skillfit.tasks.user_code import Reported

# Options that say where and how the program runs on this machine, not what it does.
_OF_THE_MACHINE = ("file", "program", "login", "readable", "isolation", "concurrency")
_SLOTS = 4  # programs running at the same time


@dataclass(frozen=True)
class CliAgent(BaseAgent):
    """Runs the program once per attempt, in a fresh workspace with a HOME of its own.

    Its model calls happen inside the program, so the whole run is one journaled effect.
    """

    recorded: ClassVar[bool] = False

    command: CommandLine
    corpus: Path | None = None

    @property
    def reports(self) -> frozenset[Reported]:
        return self.command.description.reports

    @property
    def limits_itself(self) -> bool:
        """Whether the program accepts a limit in dollars that the user has not set already."""
        chosen = self.command.spec.options.get("max_usd")
        return self.command.description.uses("max_usd") and not chosen

    def slots(self, cores: int) -> int:
        """How many may run at the same time: one per core, unless the user chose otherwise. Each is
        a program of some hundred megabytes.
        """
        return int(self.command.spec.options.get("concurrency", cores))

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        program = self.command.description
        with workspace_for(item, self.corpus) as workspace:
            name = install(skill, workspace, program.skills)
            done = await self.command.run(
                workspace,
                self._prompt(item, name, context),
                program.argv,
                skill=name,
                max_usd=context.max_usd,
            )
            workspace.leave_only_work()
        reading = done.reading
        steps = reading.steps
        if not self.command.spec.options.get("trace", True):
            steps = tuple(step for step in steps if step.kind == "message")[-1:]
        return Attempt(
            reading.answer or "",
            steps,
            str(workspace.work),
            reading.skill_read,
            reading.usage,
            isolation=done.isolation,
        )

    def _prompt(self, item: Item, name: str, context: AttemptContext) -> str:
        turns = item_messages(item, context.instruction, inline_files=False)
        text = turns[0].content
        if len(turns) > 1:
            text = "\n\n".join(f"[{turn.role}]\n{turn.content}" for turn in turns)
        parts = [text]
        if self.command.spec.options.get("mention_skill", True):
            parts.insert(0, f"Use the skill {name}.")
        if attached := [*(image.path.name for image in item.images), *item.files]:
            parts.append(f"Files in this folder: {', '.join(attached)}")
        if self.corpus is not None:
            parts.append(f"The documents to work with are in the folder {CORPUS} (read-only).")
        return "\n\n".join(parts)

    def describe(self) -> JsonObject:
        spec = self.command.spec
        options = {
            name: value for name, value in spec.options.items() if name not in _OF_THE_MACHINE
        }
        return {
            "agent": "cli",
            "description": described_program(spec),
            "id": spec.id,
            "base_url": spec.base_url,
            "effort": spec.reasoning_effort,
            "options": options,
        }


def install(skill: Skill, workspace: Workspace, folder: str) -> str:
    """Put the skill where the program discovers skills; returns the name it has there.

    Programs look for a file named SKILL.md, whatever the user's file is called. Front matter they
    would not accept (no description, a name that is no folder name) is completed. The body stays
    as it is.
    """
    name = folder_name(skill.name) or "skill-in-training"
    given = {
        key: value for key, value in skill.frontmatter.items() if key != "description" or value
    }
    frontmatter = {
        "description": "How to do the task at hand. Use it for every task here.",
        **given,
        "name": name,
    }
    if frontmatter != skill.frontmatter:
        head = yaml.safe_dump(frontmatter, sort_keys=False, allow_unicode=True)
        skill = replace(skill, head=f"---\n{head}---\n")
    replace(skill, document_name="SKILL.md", bom=False).save(workspace.work / folder / name)
    return name


@dataclass
class CliProvider:
    """Each request is one run of the program in an empty folder with a HOME of its own."""

    command: CommandLine
    endpoint: str
    slots: int | None
    context_window: int | None = None  # known from the model's name, or not at all

    async def send(self, request: Request) -> Reply:
        if request.tools or any(message.images for message in request.messages):
            raise BadRequest(
                f"{self.endpoint} takes text only: no tools, no images.",
                hint="Use a provider with an API for this role.",
            )
        workspace = Workspace.create()
        try:
            done = await self.command.run(
                workspace,
                as_prompt(request),
                self.command.description.model_argv,
                effort=request.reasoning_effort or "",
            )
        finally:
            workspace.remove()
        return Reply(
            done.reading.answer or "",
            usage=done.reading.usage,
            model=self.command.model or self.command.description.name,
        )

    async def close(self) -> None:
        return None


def as_prompt(request: Request) -> str:
    """The messages as one text, with the required form of the reply at the end."""
    return "\n\n".join(_as_text(message) for message in schema_in_prompt(request).messages)


def _as_text(message: Message) -> str:
    if message.role == "assistant":
        return f"[assistant said]\n{message.content}"
    return message.content


def make_provider(setup: Setup) -> Provider:
    """The provider of `cli/…` models."""
    command = command_line(setup.spec, setup.environ)
    if not command.description.model_argv:
        raise InputError(
            f"{setup.spec.id} cannot serve as a model.", hint="Its description has no model_argv."
        )
    command.check()
    slots = int(setup.spec.options.get("concurrency", _SLOTS))
    return CliProvider(command, f"cli/{command.description.name}", slots)
