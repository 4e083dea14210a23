"""Whole runs the way a person starts them: a config file, its inputs, the training, the files
that come out.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillfit.config import load_config
from skillfit.config.reading import ConfigWarning
from skillfit.errors import InputError
from skillfit.optimize.stages import edit_budget
from skillfit.run.events import RolloutFinished
from skillfit.skill import Skill, diff
from skillfit.training.inputs import read_inputs
from skillfit.training.start import TrainingResult, start
from tests.support.chat_server import Call
from tests.training.practice_project import (
    SKILL,
    TrainingProject,
    answer,
    item,
    items,
    section,
    system,
)
from tests.training.project_fixture import MakeProject

LEARNED = ("green means g.", "blue means b.", "gold means o.")
SHORT = {"train": {"num_epochs": 2, "batch_size": 8}}


def write_config(project: TrainingProject, settings: Mapping[str, Any]) -> Path:
    models = {
        name: {"id": f"openai/{name}", "base_url": project.server.url}
        for name in ("agent", "optimizer")
    }
    env = {
        "skill": "SKILL.md",
        "tasks": "tasks.jsonl",
        "grader": "exact",
        **settings.get("env", {}),
    }
    config = {
        **settings,
        "model": {**models, **settings.get("model", {})},
        "env": {k: v for k, v in env.items() if v is not None},
    }
    path = project.folder / "skillfit.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


async def train(project: TrainingProject, force: bool = False, **settings: Any) -> TrainingResult:
    inputs = read_inputs(load_config(write_config(project, settings)))
    return await start(inputs, project.folder / "run", force=force)


def scored(project: TrainingProject) -> list[RolloutFinished]:
    return [event for event in project.events(RolloutFinished) if event.status == "scored"]


@pytest.mark.parametrize("recipe", ["default", "paper", "lite"])
async def test_every_recipe_trains_a_better_skill(make_project: MakeProject, recipe: str) -> None:
    project = make_project(rows=items(8, 8, 4))
    result = await train(project, recipe=recipe, **SHORT)
    assert (result.finish_reason, int(result.exit_code)) == ("improved", 0)
    assert all(rule in project.best() for rule in LEARNED)
    assert "+- green means g." in diff(Skill.from_text(SKILL), Skill.from_text(project.best()))
    assert (project.folder / "run/preflight.json").exists() == (recipe != "paper")
    assert (project.folder / "run/ship_test.json").exists() == (recipe != "paper")
    for name in (
        "config.json",
        "history.json",
        "summary.json",
        "skills/skill_v0000.md",
        "steps/step_0001/step_record.json",
    ):
        assert (project.folder / "run" / name).exists(), name


@pytest.mark.parametrize("mode", ["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"])
async def test_every_update_mode_learns_the_same_rules(
    make_project: MakeProject, mode: str
) -> None:
    project = make_project(rows=items(8, 8, 4))
    result = await train(project, optimizer={"skill_update_mode": mode}, **SHORT)
    assert result.finish_reason == "improved"
    assert all(rule in project.best() for rule in LEARNED)


async def test_a_folder_in_skillopts_layout(make_project: MakeProject) -> None:
    project = make_project()
    for split, folder in (("train", "train"), ("selection", "val"), ("test", "test")):
        (project.folder / "data" / folder).mkdir(parents=True)
        rows = [
            {key: value for key, value in row.items() if key != "split"}
            for row in items(8, 8, 4)
            if row["split"] == split
        ]
        (project.folder / "data" / folder / "items.json").write_text(json.dumps(rows))
    result = await train(project, env={"tasks": "data"}, **SHORT)
    assert result.finish_reason == "improved"


async def test_a_csv_file_with_its_own_column_names_and_generated_splits(
    make_project: MakeProject,
) -> None:
    project = make_project()
    lines = [
        "question,gold,kind",
        *(f"{row['input']},{row['answer']},{row['type']}" for row in items(8, 8, 4)),
    ]
    (project.folder / "tasks.csv").write_text("\n".join(lines) + "\n")
    fields = {"input": "question", "answers": "gold", "type": "kind"}
    result = await train(project, env={"tasks": "tasks.csv", "fields": fields}, **SHORT)
    assert result.finish_reason in ("improved", "inconclusive")
    assert len(scored(project)) > 20


async def test_the_evals_of_a_skill_folder_graded_by_a_judge(make_project: MakeProject) -> None:
    def judge(call: Call) -> str:
        passed = "unknown" not in section(call.text, "answer")
        return json.dumps(
            {"checks": [{"evidence": "seen", "passed": passed}], "advice": "Name the letter."}
        )

    project = make_project(judge=judge)
    evals = [
        {
            "id": number,
            "prompt": row["input"],
            "expected_output": row["answer"],
            "assertions": ["The answer is a known letter."],
        }
        for number, row in enumerate(items(8, 8, 4))
    ]
    folder = project.folder / "colours"
    (folder / "evals").mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        f"---\nname: colours\ndescription: Letters of colours.\n---\n{SKILL}"
    )
    (folder / "evals" / "evals.json").write_text(
        json.dumps({"skill_name": "colours", "evals": evals})
    )
    models = {"judge": {"id": "openai/judge", "base_url": project.server.url}}
    env = {"skill": "colours", "tasks": "colours/evals/evals.json", "grader": None}
    result = await train(project, model=models, env=env, **SHORT)
    assert result.finish_reason in ("improved", "inconclusive")
    assert project.best().startswith("---\nname: colours\n")
    assert project.summary()["usage_by_role"]["judge"]["calls"] > 20
    assert not any("evals" in system(call) for call in project.asked("rollout"))


FUNCTION = """
import re

def evaluate(skill, item):
    colour = item["input"].split()[0]
    letters = re.findall(colour + r" means (\\w+)\\.", skill)
    right = bool(letters) and letters[-1] in item["answers"]
    feedback = "" if right else f"{colour} was not known"
    return {"score": float(right), "feedback": feedback, "answer": (letters or ["unknown"])[-1]}
"""


async def test_a_python_function_that_runs_and_scores(make_project: MakeProject) -> None:
    project = make_project()
    (project.folder / "colours.py").write_text(FUNCTION)
    (project.folder / "items.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in items(8, 8, 4))
    )
    result = await train(
        project,
        env={"tasks": "colours.py:evaluate", "grader": None},
        model={"agent": None},
        **SHORT,
    )
    assert result.finish_reason == "improved"
    assert all(rule in project.best() for rule in LEARNED)
    assert {call.body["model"] for call in project.calls} == {"optimizer"}


async def test_a_command_that_reads_the_item_and_prints_a_score(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project()
    program = (
        "import json, os, sys\n"
        + FUNCTION.strip()
        + (
            "\nskill = open(os.environ['SKILLFIT_SKILL']).read()\n"
            "print(json.dumps(evaluate(skill, json.load(sys.stdin))))\n"
        )
    )
    (project.folder / "grade.py").write_text(program)
    (project.folder / "items.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in items(4, 4, 0))
    )
    monkeypatch.chdir(project.folder)
    env = {"tasks": f"command: {sys.executable} -S grade.py < items.jsonl", "grader": None}
    short = {"preflight": False, "ship_test": False, "gate": "strict"}
    result = await train(
        project, env=env, model={"agent": None}, train={"num_epochs": 1}, evaluation=short
    )
    assert result.finish_reason == "improved"
    assert project.history()[0]["selection_hard"] == 1.0


async def test_an_agent_that_works_with_tools_in_a_workspace(make_project: MakeProject) -> None:
    def working(call: Call) -> Any:
        """Reads the skill file, then finishes with its content."""
        turns = call.body["messages"]
        if turns[-1]["role"] != "tool":
            return use("read", path="skill/SKILL.md")
        colour = next(turn["content"] for turn in turns if turn["role"] == "user")
        return use("finish", answer=answer(turns[-1]["content"], colour))

    def use(name: str, **arguments: str) -> dict[str, Any]:
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        }

    project = make_project(agent=working)
    short = {
        "preflight": False,
        "ship_test": False,
        "gate": "strict",
        "eval_test": False,
    }
    result = await train(project, env={"agent": "tools"}, train={"num_epochs": 1}, evaluation=short)
    assert result.finish_reason == "improved"
    [analysed] = project.asked("reflect.corpus")
    assert "[calls read]" in analysed.text


async def test_the_practice_models_need_no_key_and_no_network(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    words = {"billing": ("refund", "invoice", "charge"), "account": ("login", "password", "email")}
    rows = [
        {
            "id": name,
            "input": f"{item(name, 'red', split)['input']} {names[number % 3]}",
            "answer": label,
            "split": split,
        }
        for label, names in words.items()
        for split in ("train", "selection")
        for number in range(9)
        if (name := f"{label}-{split}-{number}")
    ]
    project = make_project(
        rows=rows,
        skill="# Triage\n\nSend the ticket to billing or account. "
        "Mentions of refund mean billing.\n",
    )
    models = {"agent": "practice/agent", "optimizer": "practice/optimizer"}
    result = await train(
        project, model=models, train={"num_epochs": 1, "batch_size": 20}, force=True
    )
    assert result.finish_reason == "improved"
    assert "label alone" in project.best()
    assert project.calls == []


async def test_a_skillopt_config_trains_unchanged(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project()
    for split in ("train", "val", "test"):
        (project.folder / "data" / split).mkdir(parents=True)
        ours = {"val": "selection"}.get(split, split)
        rows = [
            {"id": row["id"], "input": row["input"], "answer": row["answer"]}
            for row in items(8, 8, 4)
            if row["split"] == ours
        ]
        (project.folder / "data" / split / "items.json").write_text(json.dumps(rows))
    config = {
        "model": {
            "backend": "azure_openai",
            "optimizer": "optimizer",
            "target": "agent",
            "azure_openai_endpoint": project.server.url,
            "azure_openai_auth_mode": "openai_compatible",
            "reasoning_effort": "medium",
        },
        "train": {"num_epochs": 2, "train_size": 0, "batch_size": 8, "accumulation": 1, "seed": 42},
        "gradient": {
            "minibatch_size": 8,
            "merge_batch_size": 8,
            "analyst_workers": 4,
            "failure_only": False,
        },
        "optimizer": {
            "learning_rate": 4,
            "min_learning_rate": 2,
            "lr_scheduler": "cosine",
            "use_slow_update": True,
        },
        "evaluation": {
            "use_gate": True,
            "gate_metric": "hard",
            "sel_env_num": 0,
            "test_env_num": 0,
            "eval_test": True,
        },
        "env": {
            "name": "colours",
            "skill_init": "SKILL.md",
            "split_mode": "split_dir",
            "split_dir": "data",
            "out_root": "outputs",
        },
    }
    path = project.folder / "reference.yaml"
    path.write_text(yaml.safe_dump(config))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        loaded = load_config(path)
    assert loaded.recipe == "paper"
    assert "AZURE_OPENAI_API_KEY" not in os.environ
    result = await start(read_inputs(loaded), project.folder / "run")
    assert result.finish_reason == "improved"
    assert all(rule in project.best() for rule in LEARNED)
    first = project.history()[0]
    assert (first["action"], first["edit_budget"]) == (
        "accept_new_best",
        edit_budget("cosine", 1, 2, maximum=4, minimum=2),
    )
    assert project.summary()["test_hard"] == 1.0


async def test_non_ascii_text_and_long_prompts_work(make_project: MakeProject) -> None:
    long = "“quoted” — naïve 東京 text " * 2_500
    skill = f"# Farben — 色\n\nAnswer with the letter.\n\n- red means r.\n\n{long}\n"
    project = make_project(skill=skill, rows=items(4, 4, 0))
    assert len(skill.encode()) > 60_000
    short = {"preflight": False, "ship_test": False, "gate": "strict"}
    result = await train(project, train={"num_epochs": 1}, evaluation=short)
    assert result.finish_reason == "improved"
    assert project.best().startswith(skill.rstrip())
    assert long.strip() in system(project.asked("rollout")[0])


async def test_a_config_without_tasks_or_models_is_an_error_with_the_missing_key(
    make_project: MakeProject,
) -> None:
    project = make_project()
    with pytest.raises(InputError, match=r"env\.tasks is not set"):
        await train(project, env={"tasks": ""})
    with pytest.raises(InputError, match=r"model\.optimizer is required"):
        await train(project, model={"optimizer": None})
    with pytest.raises(InputError, match=r"model\.agent is required"):
        await train(project, model={"agent": None})


async def test_tasks_inside_the_skill_folder_are_refused(make_project: MakeProject) -> None:
    project = make_project()
    with pytest.raises(InputError, match="the agent would see the answers"):
        await train(project, env={"skill": "."})
