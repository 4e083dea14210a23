"""The agents that use a skill: chat, a loop of tool calls, coding-agent programs, any Python code.

`build_agent` makes the agent that the settings ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from skillfit.agents.agent import (
    AGENTS,
    Agent,
    BaseAgent,
    CallableAgent,
    ChatAgent,
    as_agent,
    load_agent,
)
from skillfit.agents.cli_agent import CliAgent, configured_program
from skillfit.agents.tools import ToolsAgent
from skillfit.config.schema import AgentSection, agent_kind
from skillfit.errors import InputError
from skillfit.models.protocol import Model
from skillfit.models.registry import ModelSpec
from skillfit.sandbox.programs import SandboxMode


def build_agent(
    env: AgentSection,
    spec: ModelSpec,
    model: Model | None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Agent:
    """Make the agent of a run. `cli/…` models imply cli, which needs no `model`."""
    corpus = Path(env.corpus) if env.corpus else None
    if corpus is not None and not corpus.is_dir():
        raise InputError(f"env.corpus: {corpus} is not a folder.")
    kind = agent_kind(env.agent, spec.id)
    if kind == "cli":
        return _cli_agent(spec, corpus, env.sandbox, environ)
    if model is None:
        raise InputError(f"The {kind} agent needs a model.", hint="Set model.agent.")
    if kind == "tools":
        return ToolsAgent(
            model,
            env.prompt or ToolsAgent.prompt,
            env.max_turns or ToolsAgent.max_turns,
            env.max_rollout_tokens,
            corpus=corpus,
            network=env.network == "on",
            sandbox=env.sandbox,
        )
    return ChatAgent(
        model,
        env.prompt or ChatAgent.prompt,
        env.max_turns or ChatAgent.max_turns,
        env.max_rollout_tokens,
    )


def _cli_agent(
    spec: ModelSpec,
    corpus: Path | None,
    sandbox: SandboxMode,
    environ: Mapping[str, str] | None,
) -> CliAgent:
    if not spec.is_cli:
        raise InputError(
            f"env.agent is cli, but the agent's model is {spec.id}.",
            hint="Name the program: cli/claude, cli/codex, …",
        )
    command = configured_program(spec, environ, sandbox)
    command.check()
    return CliAgent(command, corpus)


__all__ = [
    "AGENTS",
    "Agent",
    "BaseAgent",
    "CallableAgent",
    "ChatAgent",
    "as_agent",
    "build_agent",
    "load_agent",
]
