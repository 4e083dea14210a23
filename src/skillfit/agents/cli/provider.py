"""The same command lines as plain models (`cli/claude` as the optimizer): the prompt on stdin, text back, no tools."""

from __future__ import annotations

import json
from dataclasses import dataclass

from skillfit.agents.cli.process import CommandLine, command_line
from skillfit.agents.workspace import Workspace
from skillfit.errors import InputError
from skillfit.models.protocol import BadRequest, Message, Reply, Request
from skillfit.models.provider import Setup


@dataclass
class CliProvider:
    """One attempt is one run of the program in an empty folder with a HOME of its own."""

    command: CommandLine
    endpoint: str
    slots: int | None

    async def send(self, request: Request) -> Reply:
        if request.tools or any(message.images for message in request.messages):
            raise BadRequest(
                f"{self.endpoint} takes text only: no tools, no images.", hint="Use a provider with an API for this role."
            )
        workspace = Workspace.create()
        try:
            argv = self.command.description.model_argv
            reading = await self.command.run(workspace, as_prompt(request), argv, effort=request.reasoning_effort or "")
        finally:
            workspace.remove()
        return Reply(reading.answer or "", usage=reading.usage, model=self.command.model or self.command.description.name)

    async def close(self) -> None:
        return None


def as_prompt(request: Request) -> str:
    """The messages as one text, with the asked-for form last."""
    parts = [_said(message) for message in request.messages]
    if request.schema is not None:
        schema = json.dumps(request.schema, ensure_ascii=False)
        parts.append(f"Reply with one JSON value that follows this JSON schema, and with nothing else:\n{schema}")
    return "\n\n".join(parts)


def make_provider(setup: Setup) -> CliProvider:
    """For the models room's register of providers."""
    command = command_line(setup.spec, setup.environ)
    if not command.description.model_argv:
        raise InputError(f"{setup.spec.id} cannot serve as a model.", hint="Its description has no model_argv.")
    command.program()
    return CliProvider(command, f"cli/{command.description.name}", int(setup.spec.options.get("concurrency", 4)))


def _said(message: Message) -> str:
    return f"[assistant said]\n{message.content}" if message.role == "assistant" else message.content
