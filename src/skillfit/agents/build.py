"""From plain settings to an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from skillfit.agents.agent import Agent
from skillfit.agents.chat import ChatAgent
from skillfit.agents.coding_cli import CliAgent, command_line
from skillfit.agents.tools import ToolsAgent
from skillfit.errors import InputError
from skillfit.models.protocol import Model
from skillfit.models.spec import ModelSpec


def build_agent(
    kind: Literal["chat", "tools", "cli"],
    spec: ModelSpec,
    model: Model | None,
    *,
    prompt: str | None = None,
    max_turns: int | None = None,
    max_tokens: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Agent:
    """The agent of a run. `cli/…` models imply cli, which needs no `model`. A setting that means
    nothing to a kind is refused.
    """
    if kind == "cli" or spec.id.startswith("cli/"):
        given = {
            "prompt": prompt is not None,
            "max_turns": (max_turns or 1) > 1,
            "max_rollout_tokens": max_tokens is not None,
        }
        if refused := [f"env.{name}" for name, so in given.items() if so]:
            raise InputError(
                f"{', '.join(refused)} means nothing to a command-line agent.", hint="Leave it out."
            )
        if not spec.id.startswith("cli/"):
            raise InputError(
                f"env.agent is cli, but the agent's model is {spec.id}.",
                hint="Name the program: cli/claude, cli/codex, …",
            )
        command = command_line(spec, environ)
        command.program()
        return CliAgent(command)
    if model is None:
        raise InputError(f"The {kind} agent needs a model.", hint="Set model.agent.")
    agent = ToolsAgent if kind == "tools" else ChatAgent
    return agent(model, prompt or agent.prompt, max_turns or agent.max_turns, max_tokens)
