"""Who uses the skill: chat, a loop of tool calls, coding-agent programs, any Python code."""

from skillfit.agents.agent import (
    Agent,
    AgentFailure,
    AttemptContext,
    CallableAgent,
    ChatAgent,
    is_agent_reference,
    load_agent,
    remove_workspace,
)
from skillfit.agents.build import build_agent
from skillfit.models.connect import register_provider

__all__ = [
    "Agent",
    "AgentFailure",
    "AttemptContext",
    "CallableAgent",
    "ChatAgent",
    "build_agent",
    "is_agent_reference",
    "load_agent",
    "remove_workspace",
]

register_provider(
    "cli",
    "skillfit.agents.cli_agent:make_provider",
    about="a coding agent's command line",
    check="skillfit.agents.cli_programs:readiness",
)
