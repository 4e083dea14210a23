"""Coding-agent programs as agents and as models, with a small program that behaves like one."""

from __future__ import annotations

import asyncio
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from skillfit.agents import build_agent
from skillfit.agents.agent import AgentFailure, AttemptContext, remove_workspace
from skillfit.agents.cli_programs import DESCRIPTIONS, arguments, load_description
from skillfit.config.schema import AgentSection
from skillfit.errors import InputError
from skillfit.models import ModelSpec, Request, Usage, connect
from skillfit.models.protocol import (
    AuthFailed,
    BadRequest,
    Message,
    ModelError,
    QuotaExhausted,
    Tool,
)
from skillfit.models.wire import MAX_TOKEN_COUNT
from skillfit.sandbox.programs import best_isolation
from skillfit.skill import Skill
from skillfit.tasks.item import Item
from tests.agents.stand_in import DESCRIPTION, ITEM, PROGRAM, SKILL, StandIn, seen
from tests.sandbox.processes import is_gone, is_running


async def test_the_skill_is_discovered_and_the_event_stream_becomes_the_trajectory(
    fake: StandIn,
) -> None:
    attempt = await fake.attempt()

    assert attempt.answer == "42"
    assert attempt.skill_read is True
    assert [step.kind for step in attempt.steps] == [
        "tool_call",
        "tool_result",
        "tool_call",
        "tool_result",
        "message",
        "message",
    ]
    assert attempt.steps[1].text == SKILL.text
    assert "What is six times seven?" in attempt.steps[4].text
    assert attempt.usage == Usage(calls=1, input=30, cached=10, output=7, usd=0.25)
    assert attempt.isolation == best_isolation().name


async def test_the_program_gets_its_own_key_and_no_other_of_our_variables(fake: StandIn) -> None:
    env = seen(await fake.attempt())["env"]

    assert set(env) - {"LC_CTYPE", "PWD"} == {
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "FAKE_KEY",
        "FAKE_QUIET",
        "SKILLFIT_PROCESS",
    }
    assert "someone-else" not in json.dumps(env)


async def test_the_programs_home_is_empty_unless_a_login_is_requested(fake: StandIn) -> None:
    plain = seen(await fake.attempt())
    logged_in = seen(await fake.attempt(options={"login": True}))

    assert plain["env"]["HOME"] != str(fake.home)
    assert plain["home"] == [".fake", ".fake/config.json"], "none of the user's own skills"
    assert logged_in["home"] == [".fake", ".fake/config.json", ".fake/login.json"]


async def test_the_programs_key_is_not_in_the_trajectory(fake: StandIn) -> None:
    attempt = await fake.attempt()

    assert "key-of-the-program-itself" not in "".join(step.text for step in attempt.steps)
    assert seen(attempt)["env"]["FAKE_KEY"] == "[secret]"


async def test_only_the_workspace_is_left_on_disk_until_it_is_removed(
    fake: StandIn, scratch: Path
) -> None:
    attempt = await fake.agent().attempt(SKILL, ITEM, AttemptContext())

    work = Path(attempt.workspace)
    assert sorted(path.name for path in work.parent.iterdir()) == ["work"]
    assert (work / "left.txt").read_text() == "work"
    assert (work / ".fake/skills/answering/references/why.md").read_text() == "because"
    remove_workspace(attempt.workspace)
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    "word", ["SLEEP", "SLEEP AWAY"], ids=["in its process group", "in its own session"]
)
async def test_cancelling_ends_every_process_of_the_program(
    fake: StandIn, scratch: Path, word: str
) -> None:
    name = f"stand-in-{os.getpid()}-{word.replace(' ', '-')}"
    task = asyncio.ensure_future(fake.attempt(Item("q", {"input": f"{word} {name}"})))
    while not is_running(name):  # noqa: ASYNC110  # another process comes up; there is no event
        await asyncio.sleep(0.02)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await is_gone(name)
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("NOLOGIN", AuthFailed),
        ("BROKE", QuotaExhausted),
        ("CRASH", AgentFailure),
        ("TOOLS ONLY", AgentFailure),
    ],
    ids=["login", "quota", "crash", "no answer"],
)
async def test_an_error_of_the_program_is_never_an_answer(
    fake: StandIn, word: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await fake.attempt(Item("q", {"input": word}))


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("Attempt 3 failed with status 429. Retrying with backoff", "rate_limit"),
        ("Attempt 3 failed with status 503. Retrying with backoff", "overloaded"),
        ("thinking", "timeout"),
    ],
)
async def test_a_program_that_retries_until_the_time_limit_says_why(
    fake: StandIn, stderr: str, kind: str
) -> None:
    with pytest.raises(ModelError) as raised:
        await fake.attempt(Item("q", {"input": f"RETRY {stderr}"}), seconds=4)
    assert raised.value.kind == kind
    assert "ended at the time limit" in raised.value.message and stderr in raised.value.message
    assert ("env.exec_timeout" in raised.value.hint) == (kind == "timeout")


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("Invalid API key · Please run /login", "auth"),
        ('API Error: 401 {"type":"error","error":{"type":"authentication_error"}}', "auth"),
        ("unexpected status 401 Unauthorized: Missing bearer", "auth"),
        ("Error: Authentication required. Please run 'agent login' first", "auth"),
        ("Unauthorized", "auth"),
        ("You've hit your usage limit.", "quota"),
        ("last status: 429 Too Many Requests", "rate_limit"),
        ("API Error: 529 overloaded_error", "overloaded"),
        ("error: unknown option '--frob'", "config"),
        ("There's an issue with the selected model (big-1). It may not exist.", "config"),
        ("SyntaxError: line 401 in parser", "command"),
        ("tests/test_authentication.py failed; barcode 401, 503 rows, 429 columns", "command"),
        ("grep: unknown option -- z", "command"),
        ("open model/weights.bin: file not found", "command"),
        ("write: Disk quota exceeded", "command"),
        ("see the docs about the usage limit and the credit balance", "command"),
    ],
)
async def test_the_failure_kind_comes_from_the_programs_error_message(
    fake: StandIn, stderr: str, kind: str
) -> None:
    with pytest.raises(ModelError) as failed:
        await fake.attempt(Item("q", {"input": f"STDERR {stderr}"}))

    assert failed.value.kind == kind


async def test_without_the_trace_only_the_answer_is_kept(fake: StandIn) -> None:
    attempt = await fake.attempt(options={"trace": False})

    assert [step.text for step in attempt.steps] == ["42"]
    assert attempt.skill_read is True


async def test_long_messages_are_cut_in_the_trajectory_but_not_in_the_answer(fake: StandIn) -> None:
    attempt = await fake.attempt(Item("q", {"input": "LONG"}))

    assert len(attempt.answer) == 36_000
    assert len(attempt.steps[-1].text) < 9000 and "characters left out" in attempt.steps[-1].text


async def test_a_lone_surrogate_in_an_event_is_replaced(fake: StandIn) -> None:
    attempt = await fake.attempt(Item("q", {"input": "HALF"}))

    assert attempt.answer == "\N{REPLACEMENT CHARACTER}"


async def test_settings_reach_the_program(fake: StandIn) -> None:
    fake.environ["MY_KEY"] = "another-key-for-it"
    settings = {
        "base_url": "http://here/v1",
        "reasoning_effort": "high",
        "key_env": "MY_KEY",
        "options": {"mode": "wild", "env": ["MORE"]},
    }
    fake.environ["MORE"] = "more"
    saw = seen(await fake.attempt(model="/big", **settings))

    assert saw["env"]["FAKE_URL"] == "http://here/v1"
    assert saw["env"]["MORE"] == "more"
    attempt = await fake.attempt(model="/big", **settings)
    assert json.loads(attempt.steps[2].text)["argv"] == [
        "run",
        "--model",
        "big",
        "--effort",
        "high",
        "--mode",
        "wild",
    ]


async def test_the_prompt_can_be_passed_in_a_file(fake: StandIn) -> None:
    fake.describe(prompt="file", argv=["--file", "$prompt_file"])
    attempt = await fake.attempt(item=Item("q", {"input": "x" * 300_000}))

    assert f"I heard: Use the skill answering.\n\n{'x' * 100}" in attempt.steps[4].text


async def test_naming_the_skill_in_the_prompt_is_optional(fake: StandIn) -> None:
    attempt = await fake.attempt(options={"mention_skill": False})

    assert attempt.steps[4].text == "I heard: What is six times seven?"


async def test_item_files_are_in_the_workspace(fake: StandIn, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2")
    attempt = await fake.attempt(Item("q", {"input": "Sum.", "files": ["data.csv"]}, base=tmp_path))

    assert "data.csv" in seen(attempt)["cwd"]
    assert attempt.steps[4].text.endswith("Files in this folder: data.csv")


async def test_a_skill_without_front_matter_is_made_discoverable(fake: StandIn) -> None:
    attempt = await fake.agent().attempt(
        Skill.from_text("Answer 42.\n", name="My Notes"), ITEM, AttemptContext()
    )
    installed = Path(attempt.workspace, ".fake/skills/my-notes/SKILL.md").read_text()
    remove_workspace(attempt.workspace)

    assert Skill.from_text(installed).frontmatter["name"] == "my-notes"
    assert Skill.from_text(installed).frontmatter["description"]
    assert Skill.from_text(installed).body == "Answer 42.\n"
    assert attempt.skill_read is True


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff---\nname: notes\ndescription: d\n---\nAnswer 42.\n",
        "---\nname: notes\ndescription:\n---\nAnswer 42.\n",
        "Answer 42.\n",
    ],
    ids=["complete", "empty description", "none"],
)
async def test_a_skill_in_a_file_of_another_case_is_discovered(
    fake: StandIn, tmp_path: Path, text: str
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "skill.md").write_text(text)
    attempt = await fake.agent().attempt(Skill.load(tmp_path / "notes"), ITEM, AttemptContext())
    (installed,) = Path(attempt.workspace, ".fake/skills/notes").iterdir()
    about = Skill.from_text(installed.read_text(), name="none").frontmatter
    remove_workspace(attempt.workspace)

    assert installed.name == "SKILL.md" and about["name"] == "notes" and about["description"]
    assert attempt.skill_read is True


async def test_the_same_program_serves_as_a_model(fake: StandIn) -> None:
    model = connect(fake.spec("/big"), role="optimizer", run_id="r", environ=fake.environ)
    reply = await model.complete(
        Request((Message("system", "Be brief."), Message("user", "Six times seven?")), "merge")
    )

    assert reply.text == "42"
    assert reply.usage.input == 30
    with pytest.raises(BadRequest, match="text only"):
        await model.complete(Request((Message("user", "x"),), "merge", tools=(Tool("t", "d", {}),)))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"options": {"mod": "wild"}}, "no option mod"),
        ({"options": {"program": "no-such-program"}}, "no-such-program is not installed"),
    ],
)
def test_settings_without_effect_are_refused_at_the_start(
    fake: StandIn, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        fake.agent(**settings)


def test_a_description_with_an_unknown_key_is_refused_by_name(fake: StandIn) -> None:
    fake.describe(colour="red")
    with pytest.raises(InputError, match="colour"):
        fake.agent()


def test_the_error_for_an_unknown_program_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="claude, codex, copilot, cursor, gemini, opencode"):
        build_agent(AgentSection(agent="cli"), ModelSpec(id="cli/clawed"), None)


@pytest.mark.parametrize("path", sorted(DESCRIPTIONS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_built_in_description_is_complete_and_hides_the_prompt_from_argv(
    path: Path,
) -> None:
    description = load_description(path.stem)

    assert description.name == path.stem
    assert description.keys and description.model_argv and description.error
    assert any(pick.step == "tool_result" for pick in description.events)
    values = {**description.options, "model": "m", "effort": "", "base_url": "", "max_usd": ""}
    values |= {"usage_file": "u"}
    assert "m" in arguments(description.argv, values)
    assert not any("$" in argument for argument in arguments(description.argv, values))


@pytest.mark.parametrize(
    "command",
    [
        "printf '\\377\\376' > ../usage.json",
        "truncate -s 30G ../usage.json",
        "ln -s /proc/self/environ ../usage.json",
        "ln -s usage.json ../usage.json",
        "mkfifo ../usage.json",
        "rm -rf ../home ../tmp; touch ../home",
    ],
)
async def test_unusual_files_left_by_a_program_do_not_fail_the_attempt(
    fake: StandIn, command: str
) -> None:
    attempt = await fake.attempt(Item("q", {"input": f"RUN {command}"}))

    assert attempt.answer == "42" and attempt.usage.tokens == 37


async def test_impossible_usage_is_counted_as_a_very_large_amount(fake: StandIn) -> None:
    """It must neither end the run nor leave room in a budget."""
    fake.install(PROGRAM.replace("read=30", "read=1.7e308"), cost=1.7e308)
    fake.describe(usage=[*DESCRIPTION["usage"], *DESCRIPTION["usage"]])

    usage = (await fake.attempt()).usage

    assert usage.input == 2 * MAX_TOKEN_COUNT and usage.usd is not None and usage.usd > 10_000
    assert math.isfinite(usage.usd) and math.isfinite(usage.tokens)
