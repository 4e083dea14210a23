"""A coding-agent program as a plain model, for example `model.optimizer: cli/claude`.

The messages become one prompt and the program's answer is the reply. It has no tools.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from skillfit.agents.coding_cli.command_line import CommandLine, command_line
from skillfit.agents.workspace import Workspace
from skillfit.errors import InputError
from skillfit.models.protocol import BadRequest, Message, Reply, Request
from skillfit.models.provider import Provider, Setup

_SLOTS = 4  # programs running at the same time


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
    parts = [_as_text(message) for message in request.messages]
    if request.schema is not None:
        schema = json.dumps(request.schema, ensure_ascii=False)
        parts.append(
            "Reply with one JSON value that follows this JSON schema, and with nothing else:\n"
            + schema
        )
    return "\n\n".join(parts)


def make_provider(setup: Setup) -> Provider:
    """The factory that the models room knows by name."""
    command = command_line(setup.spec, setup.environ)
    if not command.description.model_argv:
        raise InputError(
            f"{setup.spec.id} cannot serve as a model.", hint="Its description has no model_argv."
        )
    command.check()
    slots = int(setup.spec.options.get("concurrency", _SLOTS))
    return CliProvider(command, f"cli/{command.description.name}", slots)


def _as_text(message: Message) -> str:
    if message.role == "assistant":
        return f"[assistant said]\n{message.content}"
    return message.content
