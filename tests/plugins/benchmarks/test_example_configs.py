"""The configs of examples/benchmarks train, with scripted models in the place of real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import skillfit
from skillfit.config.schema import EnvSection
from skillfit.tasks import load_task
from tests.plugins.benchmarks.agents import solver, wrong
from tests.plugins.benchmarks.sample_training import LESSON, Lab, Solve, by_question, user

FOLDER = Path(__file__).parents[3] / "examples" / "benchmarks"


def sorting_agent() -> Solve:
    options = {"size": 60, "seed": 1}
    tasks = EnvSection(tasks="reasoning_gym:word_sorting", task_args=options)
    answers = by_question(load_task(tasks))
    return lambda call: f"<answer>{answers[user(call)]}</answer>"


def note_agent() -> Solve:
    package = pytest.importorskip("inspect_evals")
    file = Path(package.__file__).parent / "agent_threat_bench" / "data" / "memory_poison.json"
    answers = {row["input"]: row["expected_answer"] for row in json.loads(file.read_text())}
    return lambda call: f"It says: {answers[user(call)]}."


async def trained(name: str, lab: Lab, run: Path) -> skillfit.Run:
    settings: dict[str, Any] = {
        "recipe": "paper",
        "train.num_epochs": 1,
        "optimizer.use_slow_update": False,
        "optimizer.use_meta_skill": False,
        "budget.usd": None,
    }
    for role in ("agent", "optimizer"):
        settings |= {f"model.{role}.id": f"openai/{role}", f"model.{role}.base_url": lab.server.url}
    return await skillfit.train_async(config=FOLDER / name, settings=settings, run=run)


async def test_reasoning_gym(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    lab = make_lab(solve=sorting_agent())
    run = await trained("reasoning_gym.yaml", lab, tmp_path / "run")
    assert LESSON in run.best_skill.text


async def test_spreadsheetbench(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    lab = make_lab(solve=solver("spreadsheetbench"), wrong=wrong("spreadsheetbench"))
    run = await trained("spreadsheetbench.yaml", lab, tmp_path / "run")
    assert LESSON in run.best_skill.text


async def test_an_inspect_eval(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai")
    lab = make_lab(solve=note_agent())
    run = await trained("inspect_eval.yaml", lab, tmp_path / "run")
    assert LESSON in run.best_skill.text


def test_the_folder_has_no_other_config() -> None:
    configs = {"reasoning_gym.yaml", "spreadsheetbench.yaml", "inspect_eval.yaml"}
    assert {path.name for path in FOLDER.glob("*.yaml")} == configs
