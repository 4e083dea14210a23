"""Who uses the skill: chat, a tool loop in a sandbox, coding-agent CLIs, any callable."""

from skillfit.agents.agent import Agent, AgentFailure, AttemptContext, CallableAgent
from skillfit.agents.build import build_agent
from skillfit.agents.chat import ChatAgent
from skillfit.agents.workspace import remove_workspace
from skillfit.models.connect import register_provider

__all__ = [
    "Agent",
    "AgentFailure",
    "AttemptContext",
    "CallableAgent",
    "ChatAgent",
    "build_agent",
    "remove_workspace",
]

register_provider(
    "cli",
    "skillfit.agents.coding_cli.cli_agent:make_provider",
    about="a coding agent's command line",
    check="skillfit.agents.coding_cli.description:readiness",
)
