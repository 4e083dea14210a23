"""The real programs, against a loopback server that speaks their API. `make cli-agents` puts them
into .bench/cli-agents.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from skillfit.agents import build_agent
from skillfit.agents.agent import AttemptContext, remove_workspace
from skillfit.config.schema import AgentSection
from skillfit.models import ModelSpec, Request, connect
from skillfit.models.protocol import AuthFailed, Message
from skillfit.skill import Skill
from skillfit.tasks.item import Item
from tests.agents.agent_api import AgentApi, Refuse, Say, Seen, Use
from tests.optimize.agent_bench import Bench
from tests.optimize.scripted_optimizer import scripted

pytestmark = pytest.mark.slow

PROGRAMS = Path(
    os.environ.get("SKILLFIT_CLI_AGENTS") or Path(__file__).parents[2] / ".bench" / "cli-agents"
)
SKILL = Skill.from_text(
    "---\nname: answering\ndescription: How to answer every question.\n---\n"
    "# Answering\n\nAlways answer 42.\n"
)
ITEM = Item("q1", {"input": "What is six times seven?"})
KEY = "sk-test-of-the-agent-itself"


@dataclass(frozen=True)
class Program:
    name: str
    key: str
    model: str
    path: str  # what its base URL ends with
    read_skill: Use


PROGRAM_LIST = [
    Program("claude", "ANTHROPIC_API_KEY", "scripted", "", Use("Skill", {"skill": "answering"})),
    Program(
        "codex",
        "OPENAI_API_KEY",
        "gpt-5",
        "/v1",
        Use("exec_command", {"cmd": "cat .agents/skills/answering/SKILL.md"}),
    ),
    Program("opencode", "OPENAI_API_KEY", "scripted", "/v1", Use("skill", {"name": "answering"})),
    Program(
        "gemini",
        "GEMINI_API_KEY",
        "gemini-2.5-pro",
        "",
        Use("activate_skill", {"name": "answering"}),
    ),
    Program(
        "copilot", "COPILOT_PROVIDER_API_KEY", "gpt-5", "/v1", Use("skill", {"skill": "answering"})
    ),
]


@pytest.fixture(params=PROGRAM_LIST, ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    found: Program = request.param
    if not (PROGRAMS / "node_modules" / ".bin" / found.name).exists():
        pytest.skip(f"{found.name} is not in {PROGRAMS.name}: `make cli-agents` installs it")
    return found


@pytest.fixture
def user_home(tmp_path: Path) -> Path:
    """A user with their own skills and instructions, none of which may reach the agent."""
    home = tmp_path / "user"
    for folder in (
        ".claude/skills/private",
        ".agents/skills/private",
        ".codex/skills/private",
        ".config/opencode/skills/private",
    ):
        (home / folder).mkdir(parents=True)
        (home / folder / "SKILL.md").write_text(
            "---\nname: private\ndescription: PRIVATE-SKILL\n---\nPRIVATE-SKILL"
        )
    (home / ".claude" / "CLAUDE.md").write_text("PRIVATE-SKILL")
    return home


def environment(program: Program, home: Path) -> dict[str, str]:
    modules = PROGRAMS / "node_modules"
    ripgrep = modules.glob(
        "@openai/codex-*/vendor/*/codex-path"
    )  # opencode's skill tool needs one and would download it
    path = os.pathsep.join(map(str, [modules / ".bin", *ripgrep, os.environ["PATH"]]))
    return {
        "PATH": path,
        "HOME": str(home),
        program.key: KEY,
        "SOMEONE_ELSES_KEY": "sk-another-secret-key-here",
    }


def spec(program: Program, api: AgentApi, **options: object) -> ModelSpec:
    return ModelSpec(
        id=f"cli/{program.name}/{program.model}",
        base_url=f"{api.url}{program.path}",
        options=options,
    )


@pytest.fixture
def api(program: Program) -> Iterator[AgentApi]:
    """Makes the program read the skill, then answer."""

    def script(seen: Seen) -> Say | Use:
        return (
            Say("The answer is 42.")
            if seen.answers_a_tool or program.read_skill.tool not in seen.tools
            else program.read_skill
        )

    with AgentApi(script) as server:
        yield server


async def test_the_program_discovers_reads_and_follows_the_skill(
    program: Program, api: AgentApi, user_home: Path
) -> None:
    agent = build_agent(
        AgentSection(agent="cli"), spec(program, api), None, environ=environment(program, user_home)
    )

    attempt = await agent.attempt(SKILL, ITEM, AttemptContext())

    try:
        assert attempt.answer == "The answer is 42."
        assert attempt.skill_read is True
        assert [step.kind for step in attempt.steps] == ["tool_call", "tool_result", "message"]
        assert any("six times seven" in seen.text for seen in api.seen)
        assert any("How to answer every question." in seen.text for seen in api.seen), (
            "the skill was not discovered"
        )
        assert any("Always answer 42." in seen.text for seen in api.seen), (
            "the skill's body never reached the model"
        )
        assert not any("PRIVATE-SKILL" in seen.text for seen in api.seen), (
            "the user's own skills leaked in"
        )
        used = attempt.usage
        assert (used.input, used.cached, used.output) in {(50, 10, 14), (40, 10, 14)}
        assert used.usd is None or used.usd > 0, "unknown is not free"
    finally:
        remove_workspace(attempt.workspace)
    assert not Path(attempt.workspace).parent.exists()


def in_shell(program: Program, command: str) -> Use:
    """The use of the program's own shell that runs a command."""
    uses = {
        "claude": Use("Bash", {"command": command}),
        "codex": Use("exec_command", {"cmd": command}),
        "gemini": Use("run_shell_command", {"command": command}),
    }
    return uses.get(program.name, Use("bash", {"command": command, "description": "look"}))


async def shell(program: Program, user_home: Path, command: str) -> tuple[str, AgentApi]:
    """What a command prints in the program's own shell."""
    use = in_shell(program, command)

    def script(seen: Seen) -> Say | Use:
        return Say("done") if seen.answers_a_tool or use.tool not in seen.tools else use

    with AgentApi(script) as api:
        agent = build_agent(
            AgentSection(agent="cli"),
            spec(program, api),
            None,
            environ=environment(program, user_home),
        )
        attempt = await agent.attempt(SKILL, ITEM, AttemptContext())
    remove_workspace(attempt.workspace)
    return "\n".join(step.text for step in attempt.steps), api


async def test_the_programs_shell_sees_neither_other_processes_nor_the_users_files(
    program: Program, user_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text("gold-answers")
    other = subprocess.Popen(["sleep", "600"], env={"OTHER": "sesame"})  # noqa: ASYNC220
    try:
        command = f"cat /proc/[0-9]*/environ {tmp_path}/tasks.jsonl; find {user_home}; echo over"
        shown, _ = await shell(program, user_home, command)
    finally:
        other.kill()
        other.wait()

    assert "over" in shown, "the command did not run"
    assert "sesame" not in shown and "gold-answers" not in shown and "private" not in shown


async def test_a_command_may_name_folders_of_the_system(program: Program, user_home: Path) -> None:
    command = "ls -d /usr/bin /etc /tmp && cd /usr && printf 'comp%s' lete"
    shown, _ = await shell(program, user_home, command)
    assert "complete" in shown, shown


async def test_every_request_of_the_program_is_counted(program: Program, user_home: Path) -> None:
    with AgentApi(lambda seen: Say("42")) as api:
        await attempt_once(program, api, user_home)
    assert len(api.seen) == 1, [seen.path for seen in api.seen]


async def test_the_program_sends_its_own_key_and_gets_no_other(
    program: Program, user_home: Path
) -> None:
    shown, api = await shell(program, user_home, "env")

    assert "PATH=" in shown, "the command did not run"
    assert "another-secret" not in shown
    assert KEY not in shown
    assert str(user_home) not in shown.replace(os.environ["PATH"], "")
    assert any(KEY in value for seen in api.seen for value in seen.headers.values())


async def test_the_program_serves_as_a_model_without_tools(
    program: Program, user_home: Path
) -> None:
    with AgentApi(lambda seen: Say('{"edits": []}')) as api:
        model = connect(
            spec(program, api),
            role="optimizer",
            run_id="r",
            environ=environment(program, user_home),
        )
        messages = (Message("system", "You improve skills."), Message("user", "Propose edits."))
        reply = await model.complete(Request(messages, "merge", schema={"type": "object"}))

    assert reply.text == '{"edits": []}'
    assert any(
        "You improve skills." in seen.text and '{\\"type\\": \\"object\\"}' in seen.text
        for seen in api.seen
    )
    powers = {
        "Bash",
        "Write",
        "Edit",
        "bash",
        "write",
        "edit",
        "exec_command",
        "shell_command",
        "run_shell_command",
        "write_file",
    }
    assert not {tool for seen in api.seen for tool in seen.tools} & powers


async def test_the_program_improves_a_skill_in_a_folder_of_rollouts(
    program: Program, user_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(program, user_home).items():
        monkeypatch.setenv(name, value)
    use = in_shell(
        program,
        "grep -c failed rollouts/index.csv && echo '- blue means b.' >> skill/SKILL.md && "
        "echo '- `- blue means b.` | kinds: blue | purpose: name blue' > changes.md && "
        "echo 'Blue was unknown.' > notes/seen.md",
    )

    def script(seen: Seen) -> Say | Use:
        done = seen.answers_a_tool or use.tool not in seen.tools
        return Say("Named blue; 6 of 9 rollouts failed.") if done else use

    with AgentApi(script) as api:
        optimizer = scripted(lambda _: "").optimizer
        bench = Bench(tmp_path, spec(program, api), optimizer)
        [patch] = (await bench.propose()).patches
    assert [proposal.edit.content for proposal in patch.proposals if proposal.edit] == [
        "- blue means b."
    ]
    assert patch.proposals[0].items == ("blue0", "blue1", "blue2")
    assert patch.reasoning == "Named blue; 6 of 9 rollouts failed."
    assert any("rollouts/index.csv" in seen.text for seen in api.seen)
    [row] = bench.journal.bill().rows
    assert row.usage.input and row.usage.output


@pytest.mark.parametrize("program", PROGRAM_LIST[:1], indirect=True, ids=["claude"])
async def test_claude_thinks_with_the_tokens_it_may_use(program: Program, user_home: Path) -> None:
    thinker = replace(program, model="claude-haiku-4-5")  # newer models have no such number
    with AgentApi(lambda seen: Say("done")) as api:
        await attempt_once(thinker, api, user_home, max_thinking_tokens=2048)
    assert {seen.body["thinking"]["budget_tokens"] for seen in api.seen} == {2048}


@pytest.mark.parametrize("program", PROGRAM_LIST[1:2], indirect=True, ids=["codex"])
@pytest.mark.parametrize("options", [{}, {"web_search": "live", "network_access": True}])
async def test_codex_may_use_the_network_when_it_is_told_so(
    program: Program, user_home: Path, options: dict[str, object]
) -> None:
    with AgentApi(lambda seen: Say("done")) as api:
        await attempt_once(program, api, user_home, sandbox="workspace-write", **options)
    (seen,) = api.seen
    kinds = {tool["type"] for tool in seen.body["tools"]}
    assert ("web_search" in kinds) == bool(options)
    assert ("etwork access is enabled" in seen.text) == bool(options)


async def attempt_once(program: Program, api: AgentApi, user_home: Path, **options: object) -> None:
    """One attempt with these options."""
    agent = build_agent(
        AgentSection(agent="cli"),
        spec(program, api, **options),
        None,
        environ=environment(program, user_home),
    )
    attempt = await agent.attempt(SKILL, ITEM, AttemptContext())
    remove_workspace(attempt.workspace)


async def test_a_rejected_key_is_an_auth_failure_and_not_an_answer(
    program: Program, user_home: Path
) -> None:
    with AgentApi(lambda seen: Refuse(401, "invalid x-api-key")) as api:
        options = {"retries": "1"} if program.name == "claude" else {}
        agent = build_agent(
            AgentSection(agent="cli"),
            spec(program, api, **options),
            None,
            environ=environment(program, user_home),
        )
        with pytest.raises(AuthFailed):
            await agent.attempt(SKILL, ITEM, AttemptContext())
