from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.agents.agent import (
    AgentFailure,
    AttemptContext,
    OutsideWorkspace,
    Workspace,
    new_workspace,
    remove_workspace,
)
from skillfit.agents.tools import FileTools, ToolsAgent
from skillfit.models import Reply, Usage
from skillfit.models.failures import policy
from skillfit.models.protocol import RateLimited, ToolCall
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.sandbox.programs import ISOLATIONS, Isolation, best_isolation, works
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


async def test_the_agent_reads_item_and_skill_files_writes_and_finishes(tmp_path: Path) -> None:
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
async def test_paths_outside_the_workspace_are_refused(path: str) -> None:
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
def test_any_requested_path_is_inside_the_workspace_or_refused(parts: list[str]) -> None:
    with TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder))
        workspace.work.mkdir()
        (workspace.work / "out").symlink_to("/")
        try:
            path = workspace.inside("/".join(parts))
        except OutsideWorkspace:
            return
        assert path.resolve().is_relative_to(workspace.work.resolve())


async def test_commands_run_isolated_without_our_environment_and_the_isolation_is_recorded(
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


async def test_a_command_over_its_time_limit_is_killed_and_the_agent_continues() -> None:
    model = ScriptedModel([use("run_command", command="sleep 60"), "gave up"])
    attempt = await ToolsAgent(model, command_timeout=0.3).attempt(SKILL, ITEM, AttemptContext())
    remove_workspace(attempt.workspace)

    assert "ended after 0.3 s" in result(attempt)
    assert attempt.answer == "gave up"


async def test_tool_misuse_is_reported_to_the_model_and_does_not_end_the_rollout() -> None:
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


async def test_an_optional_argument_may_be_null_and_a_lone_surrogate_is_replaced() -> None:
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


async def test_a_named_pipe_left_by_a_command_does_not_block() -> None:
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


async def test_rounds_and_tokens_are_limited_and_the_limit_is_recorded() -> None:
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


async def test_search_finds_text_far_into_a_large_file(tmp_path: Path) -> None:
    (tmp_path / "big.log").write_text("nothing\n" * 300_000 + "the NEEDLE is here\n")
    item = Item("i1", {"input": "Find it.", "files": ["big.log"]}, base=tmp_path)
    attempt, _ = await run(use("search", text="needle"), "done", item=item)
    remove_workspace(attempt.workspace)

    assert result(attempt) == "big.log:300001: the NEEDLE is here"


async def test_a_long_line_in_search_results_is_cut_with_an_ellipsis(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text("needle " + "x" * 600)
    item = Item("i1", {"input": "Find it.", "files": ["data.json"]}, base=tmp_path)
    attempt, _ = await run(use("search", text="needle"), "done", item=item)
    remove_workspace(attempt.workspace)

    assert result(attempt).startswith("data.json:1: needle xxx")
    assert result(attempt).endswith("xxx…")


async def test_a_long_file_is_read_page_by_page(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(1, 5001)]
    (tmp_path / "long.txt").write_text("\n".join(lines))
    item = Item("i1", {"input": "Read it.", "files": ["long.txt"]}, base=tmp_path)
    workspace = new_workspace(item)
    files, read, offset = FileTools(workspace), "", 1
    for _ in range(20):
        page, _, note = files.read("long.txt", offset).partition("\n[more follows: read on with ")
        read += page
        if not note:
            break
        offset = int(note.removeprefix("offset ").removesuffix("]"))
    workspace.remove()

    assert read.splitlines() == lines and offset > 1


async def test_reading_begins_at_the_requested_offset(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("one\ntwo\nthree\n")
    item = Item("i1", {"input": "Read it.", "files": ["notes.txt"]}, base=tmp_path)
    with_number = ToolCall("c1", "read", '{"path": "notes.txt", "offset": 2}')
    attempt, _ = await run(
        Reply("", (with_number,)),
        use("read", path="notes.txt", offset="3"),
        use("read", path="notes.txt", offset="9"),
        use("read", path="notes.txt", offset="second"),
        "done",
        item=item,
    )
    remove_workspace(attempt.workspace)

    assert [result(attempt, number) for number in range(4)] == [
        "two\nthree\n",
        "three\n",
        "error: notes.txt has only 3 lines",
        "error: offset is a line number, 1 or more",
    ]


async def test_a_line_longer_than_a_page_is_cut_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "wide.txt").write_text("x" * 70_000 + "\nend\n")
    item = Item("i1", {"input": "Read it.", "files": ["wide.txt"]}, base=tmp_path)
    workspace = new_workspace(item)
    text = FileTools(workspace).read("wide.txt", 1)
    workspace.remove()

    assert "[… 50001 more characters in line 1]" in text and "read on with offset 2" in text


async def test_a_folder_of_an_item_is_copied_with_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "a.txt").write_text("A")
    (tmp_path / "data" / "deep" / "b.txt").write_text("B")
    item = Item("i1", {"input": "Look.", "files": ["data"]}, base=tmp_path)
    attempt, _ = await run(use("list", path="data"), "done", item=item)
    remove_workspace(attempt.workspace)

    assert result(attempt).split() == ["data/a.txt", "data/deep/b.txt"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    (folder / "law").mkdir(parents=True)
    (folder / "law" / "one.txt").write_text("article one\n")
    return folder


async def test_a_corpus_is_read_listed_and_searched_but_never_written_or_copied(
    corpus: Path,
) -> None:
    model = ScriptedModel(
        [
            use("list"),
            use("list", path="corpus"),
            use("read", path="corpus/law/one.txt"),
            use("search", text="ARTICLE"),
            use("write", path="corpus/law/two.txt", content="x"),
            use("run_command", command="cat corpus/law/one.txt; echo x > corpus/law/two.txt"),
            use("read", path="corpus/../../../etc/passwd"),
            "done",
        ]
    )
    attempt = await ToolsAgent(model, corpus=corpus).attempt(SKILL, ITEM, AttemptContext())

    assert "corpus/ (read-only documents" in result(attempt, 0)
    assert result(attempt, 1) == "corpus/law/one.txt"
    assert result(attempt, 2) == "article one\n"
    assert result(attempt, 3) == "corpus/law/one.txt:1: article one"
    assert result(attempt, 4) == "error: corpus/ cannot be written to"
    assert result(attempt, 5).startswith("article one\n")
    assert "outside the workspace" in result(attempt, 6)
    assert [path.name for path in corpus.rglob("*.txt")] == ["one.txt"]
    assert sorted(path.name for path in Path(attempt.workspace).iterdir()) == ["skill"]
    assert "under corpus/; they are read-only" in model.requests[0].messages[0].content
    remove_workspace(attempt.workspace)


async def test_an_item_may_not_have_files_of_the_corpus_name(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    item = Item("i1", {"input": "x", "files": {"corpus/x.txt": "x.txt"}}, base=tmp_path)

    with pytest.raises(AgentFailure, match=r"where env\.corpus is shown"):
        await ToolsAgent(ScriptedModel(["x"]), corpus=corpus).attempt(SKILL, item, AttemptContext())


async def test_a_sandbox_that_does_not_start_ends_the_attempt_as_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("skillfit.sandbox.programs.best_isolation", lambda: ISOLATIONS[0])

    with pytest.raises(AgentFailure) as failed:
        await run(use("run_command", command="true"), "never asked")

    assert failed.value.kind == "sandbox" and policy("sandbox").rollout_retries


@pytest.mark.parametrize(
    "command", ["ln -s a a", "ln -s b a; ln -s a b", "touch $(printf '\\377'); ln -s / a"]
)
async def test_circular_links_and_undecodable_names_do_not_block(command: str) -> None:
    attempt, _ = await run(
        use("run_command", command=command),
        use("read", path="a"),
        use("write", path="a/x", content="1"),
        use("list"),
        use("list", path="a"),
        use("search", text="x"),
        use("finish", answer="done"),
    )
    remove_workspace(attempt.workspace)

    assert attempt.answer == "done"
    assert all(step.text.encode() for step in attempt.steps), "each can be sent and recorded"


async def test_a_command_that_is_too_long_to_be_run_is_an_error_for_the_model() -> None:
    attempt, _ = await run(
        use("run_command", command=f"echo {'x' * 200_000}"), use("finish", answer="done")
    )
    remove_workspace(attempt.workspace)

    (result,) = (s.text for s in attempt.steps if s.kind == "tool_result" and s.name != "finish")
    assert "longer than 100,000 bytes" in result and attempt.answer == "done"


@pytest.mark.parametrize(
    "isolation", [each for each in ISOLATIONS if works(each)], ids=lambda each: each.name
)
async def test_temporary_files_stay_for_the_rollout_and_no_longer(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillfit.agents.tools.choose_isolation", lambda mode, setting: isolation)
    attempt, _ = await run(
        use("run_command", command="echo sesame > $TMPDIR/note"),
        use("run_command", command="cat $TMPDIR/note"),
        use("finish", answer="done"),
    )
    other, _ = await run(use("run_command", command="ls $TMPDIR"), use("finish", answer="done"))
    for each in (attempt, other):
        remove_workspace(each.workspace)

    assert "sesame" in attempt.steps[-3].text
    assert "note" not in "".join(step.text for step in other.steps)


def test_a_very_long_line_does_not_exhaust_memory() -> None:
    workspace = Workspace.create()
    try:
        with (workspace.work / "endless").open("wb") as file:
            file.write(b"Needle" + b"\0" * 10 + b"\nshort needle\n")
            file.truncate(64 << 20)
        tracemalloc.start()
        found = FileTools(workspace).search("NEEDLE", ".")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        workspace.remove()
    assert found.splitlines()[1] == "endless:2: short needle"
    assert peak < 8 << 20


@pytest.mark.parametrize(
    "isolation", [each for each in ISOLATIONS if works(each)], ids=lambda each: each.name
)
async def test_a_folder_that_replaces_the_corpus_does_not_block(
    corpus: Path, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillfit.agents.tools.choose_isolation", lambda mode, setting: isolation)
    attempt, _ = await run(
        use(
            "run_command", command="rm -rf corpus; mkdir corpus; touch corpus/mine; chmod 0 corpus"
        ),
        use("finish", answer="done"),
        corpus=corpus,
    )
    assert attempt.answer == "done" and corpus.is_dir() and any(corpus.iterdir())
    remove_workspace(attempt.workspace)
