"""Who uses the skill: chat, a tool loop in a sandbox, coding-agent CLIs, any callable."""

from skillfit.agents.agent import Agent, AgentFailure, Calling
from skillfit.agents.callable import CallableAgent
from skillfit.agents.chat import ChatAgent

__all__ = ["Agent", "AgentFailure", "CallableAgent", "Calling", "ChatAgent"]
