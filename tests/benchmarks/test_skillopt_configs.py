"""SkillOpt's config files with `env.name: searchqa` and so on choose the benchmark here, with its
grader and agent, and run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import skillfit
from skillfit.api import prepare
from skillfit.benchmarks.benchmark import find_benchmark
from skillfit.benchmarks.games.game_player import GameEvaluator
from skillfit.benchmarks.officeqa.officeqa import OfficeAnswer
from skillfit.benchmarks.questions import MatchOrJudge
from skillfit.benchmarks.spreadsheetbench.spreadsheetbench import CodeRounds
from skillfit.benchmarks.swebench.patch_grader import PatchGrader
from skillfit.tasks.graders.answers import Anls, Choice, Normalized
from tests.benchmarks.lab import LESSON, Lab, by_question, sample_task, user

# What SkillOpt's own files set under `env` beside name, skill_init and split_dir: at its latest
# state for six benchmarks, in its first release for the other five.
SETTINGS: dict[str, dict[str, Any]] = {
    "searchqa": {"max_turns": 1, "max_completion_tokens": 16384, "workers": 24, "limit": 0},
    "livemathematicianbench": {
        "max_turns": 1, "exec_timeout": 300, "workers": 64, "shuffle_choices": True,
        "use_theorem": False, "use_sketch": False,
    },
    "docvqa": {"max_turns": 1, "workers": 16, "image_detail": "auto", "limit": 0},
    "officeqa": {"workers": 4, "max_tool_turns": 24, "search_mode": "offline", "limit": 0},
    "spreadsheetbench": {"mode": "multi", "max_turns": 30, "exec_timeout": 600, "workers": 24},
    "alfworld": {"max_steps": 50, "workers": 8, "max_api_workers": 8, "limit": 0},
    "babyvision": {"image_detail": "auto", "judge_model": "gpt-5.4", "judge_retries": 5},
    "mathverse": {
        "problem_version": "Text Lite", "use_text_dominant_reference": False, "max_turns": 1,
        "image_detail": "auto", "judge_model": "gpt-5.4",
    },
    "mmrb": {"max_turns": 1, "workers": 16, "image_detail": "auto"},
    "sealqa": {"workers": 4, "max_tool_turns": 12, "judge_model": "gpt-5.4"},
    "swebench": {
        "dataset_name": "lite", "hf_split": "test", "workers": 8, "eval_workers": 8,
        "step_limit": 50, "cost_limit": 3.0, "timeout_per_instance": 600,
    },
}  # fmt: skip
GRADED_BY: dict[str, tuple[str, type]] = {
    "searchqa": ("chat", Normalized),
    "livemathematicianbench": ("chat", Choice),
    "docvqa": ("chat", Anls),
    "officeqa": ("tools", OfficeAnswer),
    "spreadsheetbench": ("chat", CodeRounds),
    "alfworld": ("chat", GameEvaluator),
    "babyvision": ("chat", MatchOrJudge),
    "mathverse": ("chat", MatchOrJudge),
    "mmrb": ("chat", MatchOrJudge),
    "sealqa": ("chat", MatchOrJudge),
    "swebench": ("tools", PatchGrader),
}


def write_config(folder: Path, name: str, words: tuple[str, str], **env: Any) -> Path:
    """A config of SkillOpt with the sample as its data. `words`: how it names the two roles."""
    shutil.copytree(find_benchmark(name).folder / "sample", folder / "data", dirs_exist_ok=True)
    optimizer, target = words
    config = {
        "model": {
            optimizer: "gpt-5.5",
            target: "gpt-5.5",
            f"{optimizer}_backend": "openai_chat",
            f"{target}_backend": "openai_chat",
        },
        "train": {"num_epochs": 1, "batch_size": 6, "seed": 42},
        "optimizer": {"use_slow_update": False, "use_meta_skill": False},
        "env": {
            "name": name,
            "skill_init": f"skillopt/envs/{name}/skills/initial.md",
            "split_mode": "split_dir",
            "split_dir": "data",
            **SETTINGS[name],
            **env,
        },
    }
    path = folder / "default.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.filterwarnings("ignore::skillfit.config.ConfigWarning")
@pytest.mark.parametrize("words", [("optimizer", "target"), ("teacher", "student")])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_name_chooses_benchmark_grader_and_agent(
    name: str, words: tuple[str, str], tmp_path: Path
) -> None:
    if name == "alfworld":
        pytest.importorskip("alfworld")
    if name == "spreadsheetbench":
        pytest.importorskip("openpyxl")
    inputs = prepare(config=write_config(tmp_path, name, words))
    agent, kind = GRADED_BY[name]
    assert inputs.config.env.tasks == f"{name}:{tmp_path / 'data'}"
    assert inputs.config.env.agent == agent
    assert isinstance(inputs.task.evaluator or inputs.task.grader, kind)
    turns = {"officeqa": 24, "swebench": 50, "sealqa": 12}
    assert (inputs.config.env.max_turns or 1) == turns.get(name, 1)
    assert len(inputs.task.train) == len(sample_task(name).train)
    assert inputs.config.recipe == "paper"
    assert Path(inputs.config.env.skill) == find_benchmark(name).folder / f"{name}.md"


@pytest.mark.filterwarnings("ignore::skillfit.config.ConfigWarning")
async def test_such_a_config_runs(tmp_path: Path, make_lab: Callable[..., Lab]) -> None:
    answers = by_question(sample_task("searchqa"))
    lab = make_lab(solve=lambda call: f"<answer>{answers[user(call)]}</answer>")
    path = write_config(tmp_path, "searchqa", ("optimizer", "target"))
    models: dict[str, str] = {}
    for role in ("agent", "optimizer"):
        models |= {f"model.{role}.id": f"openai/{role}", f"model.{role}.base_url": lab.server.url}
    run = await skillfit.train_async(config=path, settings=models, run=tmp_path / "run")
    assert LESSON in run.best_skill.text
