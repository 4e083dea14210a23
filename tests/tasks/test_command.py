"""Tasks graded by a program."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError, TaskFailure
from skillfit.models.failures import is_infrastructure
from skillfit.skill import Skill
from skillfit.tasks import Task, load_task
from skillfit.tasks.item import Score, ScoredAttempt

SKILL = Skill.from_text("---\nname: s\n---\nAlways say yes.\n", files={"references/a.md": b"more"})


def command_task(
    folder: Path,
    script: str,
    tasks: str = "command: ./grade.sh --strict < rows.jsonl",
    timeout: float = 20,
) -> Task:
    (folder / "grade.sh").write_text("#!/bin/sh\n" + script)
    (folder / "grade.sh").chmod(0o755)
    rows = [
        {"id": str(number), "input": f"question {number}", "answer": "yes"} for number in range(12)
    ]
    for name in ("rows.jsonl", "items.jsonl"):
        (folder / name).write_text("\n".join(map(json.dumps, rows)))
    return load_task(EnvSection(tasks=tasks, folder=str(folder), exec_timeout=timeout))


async def run(task: Task, seed: int = 0) -> ScoredAttempt:
    assert task.evaluator is not None
    return await task.evaluator(SKILL, task.items[3], seed)


async def test_a_program_that_cannot_be_started_is_an_infrastructure_failure(
    tmp_path: Path,
) -> None:
    task = command_task(tmp_path, "echo 1")
    (tmp_path / "grade.sh").unlink()
    with pytest.raises(TaskFailure, match="could not be started") as raised:
        await run(task)
    assert raised.value.kind == "sandbox" and is_infrastructure(raised.value.kind)


async def test_the_program_gets_item_skill_and_seed_and_returns_a_score(
    tmp_path: Path,
) -> None:
    script = 'cat > got.json; cd "$(dirname "$SKILLFIT_SKILL")"\n'
    script += 'cat "$SKILLFIT_SKILL" references/a.md > "$OLDPWD/skill"; cd "$OLDPWD"\n'
    script += 'echo "$1 $SKILLFIT_SEED" > args\n'
    task = command_task(
        tmp_path,
        script
        + 'echo talking; echo \'{"score": 0.5, "soft": 0.7, "feedback": "half", "answer": "a"}\'',
    )
    attempt, score = await run(task, seed=7)
    assert (attempt.answer, score) == ("a", Score(0.5, 0.7, "half"))
    assert json.loads((tmp_path / "got.json").read_text()) == {
        "id": "3",
        "input": "question 3",
        "answers": ["yes"],
    }
    assert (tmp_path / "skill").read_text() == "---\nname: s\n---\nAlways say yes.\nmore"
    assert (tmp_path / "args").read_text() == "--strict 7\n"


async def test_a_number_is_a_score_and_items_may_be_in_another_file(tmp_path: Path) -> None:
    _, score = await run(command_task(tmp_path, "echo 1", tasks="command:./grade.sh"))
    assert score.hard == 1


async def test_the_last_line_of_a_long_output_is_read(tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 40 ]; do head -c 60000 /dev/zero | tr '\\0' x; i=$((i+1)); done"
    script += "; echo; echo 0.25"
    _, score = await run(command_task(tmp_path, script))
    assert score.hard == 0.25


async def test_a_lone_surrogate_in_the_output_is_replaced(tmp_path: Path) -> None:
    attempt, _ = await run(
        command_task(tmp_path, """printf '%s' '{"score": 1, "answer": "ok \\ud83d"}'""")
    )
    assert attempt.answer == "ok \N{REPLACEMENT CHARACTER}"


async def test_no_key_reaches_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    await run(command_task(tmp_path, "env > environment; echo 1"))
    seen = (tmp_path / "environment").read_text()
    assert "sk-secret" not in seen and f"PATH={os.environ['PATH']}" in seen


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        (
            "echo broken pipe dream >&2; exit 3",
            "command",
            r"item 3: exit code 3: broken pipe dream",
        ),
        ("echo done", "command", "no JSON score on stdout, but 'done'"),
        ("echo 7", "grader", "not a score"),
        ('echo "{}"', "grader", "not a score"),
    ],
)
async def test_errors_of_the_program_are_typed_failures(
    tmp_path: Path, script: str, kind: str, message: str
) -> None:
    with pytest.raises(TaskFailure, match=message) as failed:
        await run(command_task(tmp_path, script))
    assert failed.value.kind == kind


@pytest.mark.parametrize(
    "start", ["", "setsid "], ids=["in its process group", "in its own session"]
)
async def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path, start: str) -> None:
    task = command_task(
        tmp_path, f"{start}sh -c 'echo $$ > child; exec sleep 600' & wait", timeout=1
    )
    with pytest.raises(TaskFailure, match="killed") as failed:
        await run(task)
    assert failed.value.kind == "timeout"
    state = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_missing_program_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text('{"input": "q"}')
    with pytest.raises(InputError, match=r"'\./gone\.sh' is not a program"):
        load_task(EnvSection(tasks="command: ./gone.sh", folder=str(tmp_path)))


def test_an_unclosed_quote_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text('{"input": "q"}')
    with pytest.raises(InputError, match=r"is not a valid command line: No closing quotation"):
        load_task(EnvSection(tasks="command: sh -c 'echo 1", folder=str(tmp_path)))


def test_a_grader_beside_a_command_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a command brings its own scores"):
        load_task(EnvSection(tasks="command: true", folder=str(tmp_path), grader="exact"))


def test_a_changed_program_changes_the_task_identity(tmp_path: Path) -> None:
    before = command_task(tmp_path, "echo 1").identity()
    assert command_task(tmp_path, "echo 1").identity() == before
    assert command_task(tmp_path, "echo 0").identity() != before
