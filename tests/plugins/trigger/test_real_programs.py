"""The real programs choose between skills, against a loopback server that speaks their API."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from skillfit.agents.agent import AttemptContext, remove_workspace
from skillfit.config.schema import EnvSection
from skillfit.plugins.trigger.agents import build_trigger_agent
from skillfit.skill import Skill
from skillfit.tasks.item import Item
from tests.agents.agent_api import AgentApi, Say, Seen, Use
from tests.agents.test_real_clis import (
    PROGRAM_LIST,
    SKILL,
    Program,
    environment,
    program,
    spec,
    user_home,
)

__all__ = ["program", "user_home"]  # fixtures
pytestmark = pytest.mark.slow
NEIGHBOUR = Skill.from_text(
    "---\nname: counting\ndescription: How to count things.\n---\n# Counting\n\nStart with one.\n"
)
DESCRIPTION = Skill.from_text("Answers questions.\n- Use it for sums.\n")


def reads(program: Program, skill: str) -> Use:
    """The tool use with which a program reads a skill."""
    own = program.read_skill
    named = {key: str(text).replace("answering", skill) for key, text in own.arguments.items()}
    return replace(own, arguments=named)


@pytest.mark.parametrize("read", ["answering", "counting", "none"])
async def test_it_is_seen_which_skill_a_program_reads_by_itself(
    program: Program, user_home: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    for name, value in environment(program, user_home).items():
        monkeypatch.setenv(name, value)

    def script(seen: Seen) -> Say | Use:
        done = read == "none" or seen.answers_a_tool or program.read_skill.tool not in seen.tools
        return Say("done") if done else reads(program, read)

    with AgentApi(script) as api:
        agent = build_trigger_agent(SKILL, (NEIGHBOUR,), EnvSection(), spec(program, api), None)
        item = Item("q1", {"input": "What is six times seven?"})
        attempt = await agent.attempt(DESCRIPTION, item, AttemptContext(seconds=60))
    remove_workspace(attempt.workspace)

    assert attempt.answer == read
    assert any("Answers questions. Use it for sums." in seen.text for seen in api.seen)
    assert any("How to count things." in seen.text for seen in api.seen)
    assert not any("How to answer every question." in seen.text for seen in api.seen)
    assert not any("Use the skill answering" in seen.text for seen in api.seen)


@pytest.mark.parametrize("program", PROGRAM_LIST[:1], indirect=True, ids=["claude"])
async def test_claude_may_be_ended_at_its_limit_in_dollars(
    program: Program, user_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(program, user_home).items():
        monkeypatch.setenv(name, value)
    priced = replace(program, model="claude-opus-4-1")

    def script(seen: Seen) -> Say | Use:
        return (
            Use("Bash", {"command": "true"}) if seen.answers_a_tool else reads(program, "counting")
        )

    with AgentApi(script) as api:
        limited = spec(priced, api, max_usd=0.0001)
        agent = build_trigger_agent(SKILL, (NEIGHBOUR,), EnvSection(), limited, None)
        item = Item("q1", {"input": "What is six times seven?"})
        attempt = await agent.attempt(DESCRIPTION, item, AttemptContext(seconds=60))
    remove_workspace(attempt.workspace)
    assert attempt.answer == "counting"
    assert attempt.usage.usd, "what it cost is known"
