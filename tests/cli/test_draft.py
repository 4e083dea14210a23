"""`skillfit tasks draft`: the first tasks, written by a model and reviewed by a person."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillfit.optimize.draft_tasks import DraftTask, fitting_grader, problems
from skillfit.skill import Skill
from tests.cli.cli_project import COMMAND, Shell, process
from tests.support.chat_server import Call, ChatServer
from tests.support.signals import default_signals

SKILL = """---
name: convert
description: Convert amounts.
---
Convert what is asked. One foot is 30.48 centimetres. Answer with the number and the unit.
"""


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    folder = tmp_path / "convert"
    folder.mkdir()
    (folder / "SKILL.md").write_text(SKILL)
    return folder


def drafted(*inputs: str) -> str:
    tasks = [
        {"reasoning": "2.54 each", "input": text, "answer": f"{2.54 * at:.2f} cm", "type": "length"}
        for at, text in enumerate(inputs, 7)
    ]
    return json.dumps({"check": "exact", "tasks": tasks})


INPUTS = ("A shelf is seven inches deep: how many cm?", "Eight inches of rain, in cm, please.")
MODEL = "{{id: openai/gpt-5-mini, base_url: '{url}'}}"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Reviewer:
    """A person at a terminal: types each answer when the question is on the screen."""

    def __init__(self, *arguments: object, cwd: Path, **environ: str) -> None:
        self._master, slave = pty.openpty()
        line = [*COMMAND, "tasks", "draft", *(str(argument) for argument in arguments)]
        self.process = subprocess.Popen(
            line,
            cwd=cwd,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "OPENAI_API_KEY": "test", **environ},
            start_new_session=True,
            preexec_fn=default_signals,
        )
        os.close(slave)
        self.screen = ""
        self._interrupted = False

    def answers(self, *keys: str) -> str:
        """Type the keys, one per question, and read to the end."""
        waiting = list(keys)
        asked = 0
        for chunk in self._chunks():
            self.screen += chunk
            while waiting and self.screen.count("[q]uit") > asked:
                asked += 1
                key = waiting.pop(0)
                if key == "ctrl-c":
                    self._interrupted = True
                    self.process.send_signal(signal.SIGINT)
                else:
                    os.write(self._master, f"{key}\n".encode())
        self.process.wait()
        os.close(self._master)
        return self.screen

    def _chunks(self) -> Iterator[str]:
        while True:
            # Python misses a signal that comes right before `input` starts to wait for a key. A
            # user who sees no reaction presses again.
            while self._interrupted and not select.select([self._master], [], [], 20)[0]:
                self.process.send_signal(signal.SIGINT)
            try:
                data = os.read(self._master, 4096)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            yield data.decode(errors="replace")


def test_tasks_drafted_by_the_practice_model_train(shell: Shell, config: Path) -> None:
    skill = config.parent / "triage-tickets"
    result = shell("tasks", "draft", skill, "--model", "practice/optimizer", "--yes", "--count", 30)
    assert result.code == 0, result.err
    assert "Wrote 30 tasks to tasks.jsonl" in result.out
    drafts = rows(Path("tasks.jsonl"))
    assert len({row["input"] for row in drafts}) == 30
    assert all(row["reviewed"] is False for row in drafts), "--yes marks them as unread"
    (init,) = re.findall(r"skillfit (init .*)", result.out)
    models = ("--agent", "practice/agent", "--optimizer", "practice/optimizer")
    started = shell(*init.split(), *models)
    assert started.code == 0 and "30 items were drafted by a model and not reviewed" in started.out
    checked = shell("check", "skillfit.yaml", "--json")
    notes = [check for check in checked.json["checks"] if check["name"] == "tasks"]
    assert "not reviewed" in notes[0]["message"] and notes[0]["verdict"] == "warn"
    trained = shell("train", "skillfit.yaml", "--rollouts", 200, "--force", "--json")
    assert trained.json["selection"]["baseline"] is not None, trained.err


def test_drafts_edited_into_the_same_task_are_not_counted_as_skipped(
    tmp_path: Path, skill: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor.sh"
    same = json.dumps({"input": "Ten inches in cm?", "answer": "25.40 cm", "type": "length"})
    editor.write_text(f"#!/bin/sh\necho '{same}' > \"$1\"\n")
    editor.chmod(0o755)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    with ChatServer(lambda call: drafted(*INPUTS, "Nine inches in cm?")) as server:
        command = (skill, "--model", MODEL.format(url=server.url), "--count", 3)
        reviewer = Reviewer(*command, cwd=tmp_path, EDITOR=str(editor))
        reviewer.answers("e", "a", "e", "a", "q")
        result = shell("tasks", "draft", *command, "--yes", "--json").json
    assert (result["written"], result["skipped"], result["unreviewed"]) == (2, 0, 1)


def test_the_command_for_more_tasks_names_the_same_model(shell: Shell, config: Path) -> None:
    skill = config.parent / "triage-tickets"
    options = ("--config", config, "--about", "two words", "--yes", "--count", 2)
    result = shell("tasks", "draft", skill, *options)
    (more,) = re.findall(r"skillfit (tasks draft .*)", result.out)
    assert shlex.split(more)[3:7] == ["--config", str(config), "--about", "two words"]
    assert shell(*shlex.split(more), "--yes", "--count", 2).code == 0
    assert len(rows(Path("more.jsonl"))) == 2


def test_a_review_can_accept_edit_skip_quit_and_be_resumed(tmp_path: Path, skill: Path) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nsed -i "s/shelf/board/" "$1"\n')
    editor.chmod(0o755)
    inputs = (*INPUTS, "Nine inches in cm?", "What is a foot and a half in centimetres?")
    with ChatServer(lambda call: drafted(*inputs)) as server:
        command = (skill, "--model", MODEL.format(url=server.url), "--count", 4)
        first = Reviewer(*command, cwd=tmp_path, EDITOR=str(editor)).answers("e", "a", "s", "q")
        assert "7" in first and "because: 2.54 each" in first
        assert "Stopped after 2 of 4 tasks" in first
        assert not (tmp_path / "tasks.jsonl").exists()
        second = Reviewer(*command, cwd=tmp_path).answers("a", "ctrl-c")
        assert "Stopped after 3 of 4 tasks" in second and "Traceback" not in second
        third = Reviewer(*command, cwd=tmp_path).answers("a")
        assert "Task 4 of 4" in third and "Task 3 of 4" not in third
        assert len(server.calls) == 1, "the reply is paid for once"
    kept = rows(tmp_path / "tasks.jsonl")
    assert [row["input"] for row in kept] == [
        "A board is seven inches deep: how many cm?",
        *inputs[2:],
    ]
    assert all("reviewed" not in row for row in kept)
    assert "skillfit init --skill" in third and "--grader exact" in third


def test_accepting_the_rest_unread_marks_only_those(tmp_path: Path, skill: Path) -> None:
    with ChatServer(lambda call: drafted(*INPUTS)) as server:
        model = MODEL.format(url=server.url)
        Reviewer(skill, "--model", model, "--count", 2, cwd=tmp_path).answers("a", "r")
    assert ["reviewed" in row for row in rows(tmp_path / "tasks.jsonl")] == [False, True]


def test_drafts_overwrite_nothing_and_need_a_terminal_for_review(
    shell: Shell, tmp_path: Path, skill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    with ChatServer(lambda call: drafted(*INPUTS)) as server:
        command = ("tasks", "draft", skill, "--model", MODEL.format(url=server.url), "--count", 2)
        result = shell(*command)
        assert result.code == 2 and "2 drafted tasks must be reviewed" in result.err
        assert shell(*command, "--yes", "--json").json["written"] == 2
        before = (tmp_path / "tasks.jsonl").read_bytes()
        again = shell(*command, "--yes")
        assert again.code == 2 and "never overwrites" in again.err
        assert (tmp_path / "tasks.jsonl").read_bytes() == before
        assert len(server.calls) == 1


def test_existing_tasks_are_shown_to_the_model_and_not_drafted_again(
    shell: Shell, tmp_path: Path, skill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    (tmp_path / "old.csv").write_text(f'question,gold\n"{INPUTS[0]}",x\n')

    def script(call: Call) -> str:
        assert INPUTS[0] in call.text
        return drafted(*INPUTS)

    with ChatServer(script) as server:
        command = ("tasks", "draft", skill, "--model", MODEL.format(url=server.url), "--yes")
        result = shell(*command, "--besides", "old.csv", "--count", 5, "--out", "new.jsonl")
        assert result.code == 0, result.err
        assert len(server.calls) == 2, "the second round brought nothing new"
    assert [row["input"] for row in rows(tmp_path / "new.jsonl")] == [INPUTS[1]]


def test_handoff_waits_for_an_answer_and_reports_what_is_wrong_with_it(
    shell: Shell, tmp_path: Path, skill: Path
) -> None:
    command = ("tasks", "draft", skill, "--model", "handoff", "--count", 2, "--yes")
    assert shell(*command).code == 7
    (answer,) = (tmp_path / "tasks.jsonl.draft/handoff").glob("*.answer.json")
    assert json.loads(answer.read_text())["tasks"][0]["input"] == "", "the form is pre-filled"
    answer.write_text('{"check": "exact", "tasks": [{"input": "How long?"}]}')
    wrong = shell(*command)
    assert wrong.code == 7 and "`answer` is missing" in wrong.err
    answer.write_text(drafted(*INPUTS))
    assert shell(*command).code == 0 and len(rows(tmp_path / "tasks.jsonl")) == 2


def test_ctrl_c_while_the_model_writes_keeps_the_reply(tmp_path: Path, skill: Path) -> None:
    asked, answer = threading.Event(), threading.Event()

    async def slowly() -> str:
        import asyncio

        await asyncio.to_thread(answer.wait)
        return drafted(*INPUTS)

    def script(call: Call) -> Any:
        asked.set()
        return slowly()

    with ChatServer(script) as server:
        command = ("tasks", "draft", skill, "--model", MODEL.format(url=server.url), "--yes")
        first = process(*command, "--count", 2, cwd=tmp_path, OPENAI_API_KEY="test")
        assert asked.wait(60)
        first.send_signal(signal.SIGINT)
        assert first.stderr is not None
        while "saving work in flight" not in first.stderr.readline():
            pass
        answer.set()
        _, err = first.communicate(timeout=60)
        assert "Traceback" not in err
        second = process(*command, "--count", 2, cwd=tmp_path, OPENAI_API_KEY="test")
        _, err = second.communicate(timeout=60)
        assert first.returncode in (0, 130)
        assert len(server.calls) == 1, err
    assert len(rows(tmp_path / "tasks.jsonl")) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "--model handoff"),
        (("--model", "opena/gpt-5"), 2, "Unknown provider 'opena'"),
        (("--model", "openai/gpt-5", "--usd", 0.0001), 5, "The budget of $0.0001"),
        (("--model", "openai/nobody-knows"), 2, "no price is known"),
        (("--model", "handoff", "--usd", "inf"), 2, "--usd inf is not valid"),
        (("--model", "{id: 3}"), 2, "--model: id"),
        (("--config", "nowhere.yaml"), 2, "nowhere.yaml"),
        (("--besides", "nowhere.jsonl", "--model", "handoff"), 2, "nowhere.jsonl"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_spent(
    arguments: tuple[object, ...],
    code: int,
    words: str,
    shell: Shell,
    skill: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    result = shell("tasks", "draft", skill, *arguments)
    assert result.code == code and words in result.err, result.err


def test_duplicates_and_answers_in_the_skill_are_shown_to_the_reviewer() -> None:
    skill = Skill.from_text(
        "Triage as billing or delivery. A lost parcel is refunded after 14 working days.\n"
    )
    tasks = [
        DraftTask(input="The parcel number 5 never arrived at my door", answer="delivery"),
        DraftTask(input="The parcel number 6 never arrived at my door", answer="delivery"),
        DraftTask(input="When do I get money for a lost box?", answer="after 14 working days"),
        DraftTask(input="My invoice shows the wrong name", answer="billing"),
    ]
    found = problems(tasks, skill)
    assert found[0] == () and "nearly the same as task 1" in found[1]
    assert "the answer is in the skill" in found[2][0]
    assert found[3] == (), "labels that the skill names are no leak"


@pytest.mark.parametrize(
    ("check", "answers", "grader"),
    [
        ("exact", ("blue", "red", "blue"), "exact"),
        ("numeric", ("one", "two", "three"), "normalized"),
        ("json_fields", ('{"a": 1}', '{"a": 2}', '{"a": 3}'), "json_fields"),
    ],
)
async def test_a_grader_that_does_not_fit_the_answers_is_replaced(
    check: Any, answers: tuple[str, ...], grader: str
) -> None:
    tasks = [DraftTask(input=f"question {at}", answer=text) for at, text in enumerate(answers)]
    assert await fitting_grader(check, tasks) == grader


def test_fewer_tasks_than_requested_are_reported(
    shell: Shell, tmp_path: Path, skill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    with ChatServer(lambda call: drafted(*INPUTS)) as server:
        model = MODEL.format(url=server.url)
        result = shell("tasks", "draft", skill, "--model", model, "--count", 5, "--yes")
    assert f"only {len(INPUTS)} different tasks of 5" in result.err
