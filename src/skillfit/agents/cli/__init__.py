"""Coding-agent command lines as agents and as models, described by data."""

from skillfit.agents.cli.agent import CliAgent
from skillfit.agents.cli.process import CommandLine, command_line

__all__ = ["CliAgent", "CommandLine", "command_line"]
