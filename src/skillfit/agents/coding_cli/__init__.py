"""Coding-agent programs as agents and as models, each described by a YAML file."""

from skillfit.agents.coding_cli.cli_agent import CliAgent
from skillfit.agents.coding_cli.command_line import (
    CommandLine,
    command_line,
    described_program,
)

__all__ = ["CliAgent", "CommandLine", "command_line", "described_program"]
