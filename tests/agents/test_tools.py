from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.agents import AttemptContext, remove_workspace
from skillfit.agents.tools import ToolsAgent
from skillfit.agents.workspace import Outside, Workspace
from skillfit.models import Reply, ScriptedModel, ToolCall, Usage
from skillfit.models.protocol import RateLimited
from skillfit.sandbox.isolation import best_isolation
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item

SKILL = Skill.from_text("Work with care.", files={"references/units.md": b"1 inch = 2.54 cm"})
ITEM = Item("i1", {"input": "Convert."})


def use(tool: str, **arguments: str) -> Reply:
    return Reply(
        "",
        (ToolCall("c1", tool, json.dumps(arguments)),),
        "tool_calls",
        Usage(calls=1, input=50, output=10),
    )


async def run(
    *replies: Reply | str, item: Item = ITEM, **settings: int
) -> tuple[Attempt, ScriptedModel]:
    model = ScriptedModel(replies)
    return await ToolsAgent(model, **settings).attempt(
        SKILL, item, AttemptContext(purpose="i1/repeat_0")
    ), model


def result(attempt: Attempt, number: int = 0) -> str:
    return [step.text for step in attempt.steps if step.kind == "tool_result"][number]


async def test_it_reads_item_and_skill_files_writes_and_finishes(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("ten inches")
    item = Item("i1", {"input": "Convert.", "files": ["in.txt"]}, base=tmp_path)

    attempt, model = await run(
        use("read", path="in.txt"),
        use("search", text="INCH", path="skill"),
        use("write", path="out/result.txt", content="25.4"),
        use("list"),
        use("finish", answer="25.4 cm"),
        item=item,
    )

    assert attempt.answer == "25.4 cm"
    assert result(attempt, 0) == "ten inches"
    assert result(attempt, 1) == "skill/references/units.md:1: 1 inch = 2.54 cm"
    assert result(attempt, 3).split() == [
        "in.txt",
        "out/result.txt",
        "skill/SKILL.md",
        "skill/references/units.md",
    ]
    assert (Path(attempt.workspace) / "out" / "result.txt").read_text() == "25.4", (
        "graders find what the agent left"
    )
    assert len({request.messages[0] for request in model.requests}) == 1, "the prefix never changes"
    assert len({request.purpose for request in model.requests}) == 5
    remove_workspace(attempt.workspace)
    assert not Path(attempt.workspace).parent.exists()


async def test_a_message_without_tool_calls_is_the_answer() -> None:
    attempt, _ = await run("It is 4.")
    remove_workspace(attempt.workspace)

    assert attempt.answer == "It is 4."


@pytest.mark.parametrize(
    "path", ["../secret.txt", "/etc/passwd", "a/../../secret.txt", "link/passwd", "link"]
)
async def test_no_path_leads_out_of_the_workspace(path: str) -> None:
    attempt, _ = await run(
        use("run_command", command="ln -s /etc link"),
        use("read", path=path),
        use("write", path=path, content="x"),
        "done",
    )
    remove_workspace(attempt.workspace)

    assert "outside the workspace" in result(attempt, 1)
    assert "outside the workspace" in result(attempt, 2)


@given(st.lists(st.sampled_from(["..", ".", "a", "b.txt", "/", "out", "etc", "~", ""]), max_size=6))
def test_whatever_name_is_asked_for_it_is_inside_or_refused(parts: list[str]) -> None:
    with TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder))
        workspace.work.mkdir()
        (workspace.work / "out").symlink_to("/")
        try:
            path = workspace.inside("/".join(parts))
        except Outside:
            return
        assert path.resolve().is_relative_to(workspace.work.resolve())


async def test_commands_run_isolated_without_our_environment_and_the_trajectory_says_how(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-parent")
    attempt, _ = await run(
        use("run_command", command="env; echo made > made.txt"),
        use("run_command", command="exit 3"),
        "done",
    )

    assert "sk-of-the-parent" not in result(attempt, 0)
    assert (Path(attempt.workspace) / "made.txt").read_text() == "made\n"
    assert "[exit code 3]" in result(attempt, 1)
    notes = [step.text for step in attempt.steps if step.kind == "note"]
    assert notes == [f"Commands run isolated by: {best_isolation().name}."]
    remove_workspace(attempt.workspace)


async def test_a_command_that_does_not_end_is_ended_and_the_agent_goes_on() -> None:
    model = ScriptedModel([use("run_command", command="sleep 60"), "gave up"])
    attempt = await ToolsAgent(model, command_timeout=0.3).attempt(SKILL, ITEM, AttemptContext())
    remove_workspace(attempt.workspace)

    assert "ended after 0.3 s" in result(attempt)
    assert attempt.answer == "gave up"


async def test_misuse_is_told_to_the_model_and_ends_nothing() -> None:
    broken = Reply("", (ToolCall("c1", "read", "{not json"),))
    attempt, model = await run(
        broken, use("fly"), use("write", path="x"), use("read", path="missing"), "done"
    )
    remove_workspace(attempt.workspace)

    assert attempt.answer == "done"
    assert all(result(attempt, number).startswith("error: ") for number in range(4))
    assert attempt.workspace not in model.requests[-1].messages[-1].content, (
        "no path of this machine"
    )


async def test_an_optional_argument_may_be_null_and_half_an_emoji_is_replaced() -> None:
    calls = [
        ToolCall("c1", "list", '{"path": null}'),
        ToolCall("c2", "finish", '{"answer": "done \\ud83d"}'),
    ]
    attempt, _ = await run(*(Reply("", (call,)) for call in calls))
    remove_workspace(attempt.workspace)

    assert "skill/SKILL.md" in result(attempt, 0)
    assert attempt.answer == "done \N{REPLACEMENT CHARACTER}", (
        "what could not be written to a file would end the run"
    )


async def test_a_pipe_left_by_a_command_holds_nothing_up() -> None:
    attempt, _ = await run(
        use("run_command", command="mkfifo pipe; mkdir locked; chmod 000 locked"),
        use("read", path="pipe"),
        use("write", path="pipe", content="x"),
        use("search", text="x"),
        "done",
    )
    remove_workspace(attempt.workspace)

    assert "there is no file" in result(attempt, 1)
    assert "is not a file" in result(attempt, 2)
    assert not Path(attempt.workspace).exists()


async def test_rounds_and_tokens_are_limited_and_the_limit_is_said() -> None:
    rounds, _ = await run(*[use("list") for _ in range(9)], max_turns=3)
    tokens, _ = await run(*[use("list") for _ in range(9)], max_tokens=100)
    for attempt in (rounds, tokens):
        remove_workspace(attempt.workspace)

    assert rounds.steps[-1].text == "Ended after 3 rounds of tool calls."
    assert tokens.steps[-1].text == "Ended at the limit of 100 tokens."
    assert (rounds.usage.calls, tokens.usage.calls) == (3, 2)


async def test_long_output_is_cut_with_a_note() -> None:
    attempt, _ = await run(
        use("run_command", command="head -c 30000 /dev/zero | tr '\\0' x"), "done"
    )
    remove_workspace(attempt.workspace)

    assert len(result(attempt)) < 9000 and "characters left out" in result(attempt)


async def test_nothing_stays_on_disk_when_the_model_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RateLimited):
        await ToolsAgent(ScriptedModel([use("list"), RateLimited("slow down")])).attempt(
            SKILL, ITEM, AttemptContext()
        )

    assert list(tmp_path.iterdir()) == []
