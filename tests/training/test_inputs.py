"""Mistakes in the inputs are reported when they are read, before anything is opened or spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skillfit.config import load_config
from skillfit.errors import InputError
from skillfit.tasks import Task
from skillfit.training.inputs import Inputs, read_inputs
from tests.training.practice_project import items
from tests.training.project_fixture import MakeProject

ROWS = items(8, 8, 4)
MODELS = {"model": {"agent": "openai/agent", "optimizer": "openai/optimizer"}}


def from_python(task: Any, *settings: str, **given: Any) -> Inputs:
    return read_inputs(load_config(MODELS, list(settings)), task=task, **given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["evaluation.must_pass=[nowhere]"], "not in the selection split: nowhere"),
        (["evaluation.must_pass=[train-00]"], "not in the selection split: train-00"),
        (
            ["evaluation.must_pass=[selection-00]", "evaluation.gate=strict"],
            "not check must-pass",
        ),
        (["evaluation.must_pass=[selection-00]", "evaluation.use_gate=false"], "must_pass: needs"),
        (["evaluation.ship_grader=exact", "evaluation.ship_test=false"], "ship_grader: needs"),
        (["evaluation.ship_grader={rubric: Short.}"], "ship_grader: .* needs a judge"),
        (["evaluation.ship_grader={regex: (}"], "evaluation.ship_grader.regex.pattern: regex"),
        (["env.skill_as=file"], "skill_as"),
    ],
)
def test_a_setting_without_effect_is_refused(
    make_project: MakeProject, settings: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make_project(rows=ROWS).inputs(*settings)


def test_more_training_items_than_there_are_cannot_be_used(make_project: MakeProject) -> None:
    project = make_project(rows=ROWS)
    with pytest.raises(InputError, match=r"train\.train_size is 9, and .* has 8 training items\."):
        project.inputs("train.train_size=9")
    assert len(project.inputs("train.train_size=8").task.train) == 8
    assert len(project.inputs("train.train_size=9", "env.limit=4").task.train) == 4


def test_the_second_grader_gets_the_items_that_the_first_one_gets(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=items(8, 40, 0))
    inputs = project.inputs("evaluation.ship_grader=exact", "evaluation.sel_env_num=20")
    assert inputs.ship_task is not None
    assert len(inputs.task.selection) == 20
    assert inputs.ship_task.selection == inputs.task.selection


def test_a_second_grader_is_refused_when_the_task_has_its_own_scores(
    tmp_path: Path, make_project: MakeProject
) -> None:
    script = tmp_path / "own.py"
    script.write_text(f"items = {ROWS!r}\ndef evaluate(skill, item):\n    return 1.0\n")
    project = make_project()
    for tasks in (f"{script}:evaluate", f"'command: true < {project.folder / 'tasks.jsonl'}'"):
        with pytest.raises(InputError, match="ship_grader: this task scores itself"):
            project.inputs(f"env.tasks={tasks}", "env.grader=null", "evaluation.ship_grader=exact")


@pytest.mark.parametrize(
    "setting",
    [
        "env.agent=tools",
        "env.prompt='{skill}'",
        "env.max_turns=3",
        "env.max_rollout_tokens=9",
        "env.network=off",
        "env.sandbox=require",
    ],
)
def test_settings_of_an_unused_agent_are_refused(setting: str) -> None:
    with pytest.raises(InputError, match=f"^{setting.partition('=')[0]}: this task or agent"):
        from_python(Task(ROWS, evaluate=lambda skill, item: 1.0), "model.agent=null", setting)


def test_an_unused_model_is_refused(tmp_path: Path, make_project: MakeProject) -> None:
    script = tmp_path / "own.py"
    script.write_text(f"items = {ROWS!r}\ndef evaluate(skill, item):\n    return 1.0\n")
    project = make_project()
    for tasks in (f"{script}:evaluate", f"'command: true < {project.folder / 'tasks.jsonl'}'"):
        with pytest.raises(
            InputError, match=r"model\.agent: this task or agent runs items in its own way"
        ):
            project.inputs(f"env.tasks={tasks}", "env.grader=null")
        assert (
            project.inputs(
                f"env.tasks={tasks}", "env.grader=null", "model.agent=null"
            ).task.evaluator
            is not None
        )


def test_an_agent_is_refused_for_a_task_that_runs_itself() -> None:
    with pytest.raises(InputError, match="agent was given"):
        from_python(Task(ROWS, evaluate=lambda skill, item: 1.0), agent=object())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("env.skill_as=file", "skill_as"),
        ("env.grader=exact", "own scores"),
        ("env.fields={input: question}", "env.fields"),
    ],
)
def test_a_task_from_python_refuses_settings_that_it_would_ignore(
    setting: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        from_python(Task(ROWS), setting)


def test_a_task_from_python_is_split_as_configured() -> None:
    inputs = from_python(Task(ROWS), "env.split_mode=ratio", "env.split_ratio=1:1:0")
    assert (len(inputs.task.train), len(inputs.task.selection), len(inputs.task.test)) == (
        10,
        10,
        0,
    )
    assert len(from_python(Task(ROWS), "evaluation.sel_env_num=5").task.selection) == 5


def test_rows_from_python_are_read_like_rows_of_a_file() -> None:
    rows = [
        {"question": row["input"], "split": row["split"], "reference": "A letter."} for row in ROWS
    ]
    settings = (
        "env.fields={input: question}",
        "env.grader={rubric: Short.}",
        "model.judge=openai/judge",
    )
    assert from_python(rows, *settings).task.items[0].input == rows[0]["question"]


def test_an_inspect_task_needs_the_agents_model(tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai")
    file = tmp_path / "asked.py"
    file.write_text(
        "from inspect_ai import Task, task\nfrom inspect_ai.dataset import MemoryDataset, Sample\n"
        "from inspect_ai.scorer import exact\n"
        "@task\ndef letters():\n"
        "    samples = [Sample(input=f'{w} {w}', target=w) for w in 'abcdefghijklmnop']\n"
        "    return Task(dataset=MemoryDataset(samples), scorer=exact())\n"
    )
    with pytest.raises(InputError, match=r"model\.agent is required"):
        read_inputs(
            load_config(
                {"model": {"optimizer": "openai/o"}, "env": {"tasks": f"inspect:{file}@letters"}},
                [],
            )
        )


def test_a_skill_with_broken_frontmatter_is_refused_with_its_line(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=ROWS, skill="---\nname: x\ndescription: a: b\n---\nred means r.\n")
    with pytest.raises(InputError, match=r"skill[^:]*:3: the frontmatter is not YAML"):
        project.inputs()


def test_other_parts_of_a_lone_document_are_refused(tmp_path: Path) -> None:
    lone, folder = tmp_path / "rules.md", tmp_path / "rules"
    lone.write_text("# Rules\n")
    folder.mkdir()
    (folder / "SKILL.md").write_text("# Rules\n")
    parts = ("optimizer.parts=[references]", "env.agent=tools")
    with pytest.raises(InputError, match=r"the skill .*rules\.md is one file"):
        from_python(ROWS, f"env.skill={lone}", *parts, grader="exact")
    for skill in (folder, folder / "SKILL.md"):
        from_python(ROWS, f"env.skill={skill}", *parts, grader="exact")
