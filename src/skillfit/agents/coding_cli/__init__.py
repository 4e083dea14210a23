"""Coding-agent command lines as agents and as models, described by data."""

from skillfit.agents.coding_cli.cli_agent import CliAgent
from skillfit.agents.coding_cli.cli_process import CommandLine, command_line

__all__ = ["CliAgent", "CommandLine", "command_line"]
