"""SkillOpt's config files with `env.name: searchqa` and so on choose the benchmark here, with its
grader and agent, and run.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import skillfit
from skillfit.api import prepare
from skillfit.config.reading import ConfigWarning
from skillfit.errors import InputError
from skillfit.plugins.benchmarks.benchmark import find_benchmark
from skillfit.plugins.benchmarks.games import GameEvaluator
from skillfit.plugins.benchmarks.match_or_judge import MatchOrJudge
from skillfit.plugins.benchmarks.officeqa import OfficeAnswer
from skillfit.plugins.benchmarks.prepare import make
from skillfit.plugins.benchmarks.spreadsheetbench import CodeRounds
from skillfit.plugins.benchmarks.swebench import PatchGrader
from skillfit.tasks.graders.built_in import Anls, Choice, Normalized
from tests.plugins.benchmarks.agents import solver, wrong
from tests.plugins.benchmarks.sample_training import LESSON, Lab, sample_task

# What SkillOpt's own files set under `env` beside name and skill_init. Six of the benchmarks are in
# its latest state, all of them in its first release.
RATIO = {"split_mode": "ratio", "split_ratio": "2:1:7", "split_dir": "", "data_path": ""}
SPLIT = {**RATIO, "split_mode": "split_dir", "split_dir": "data/published_split"}
JUDGE = {"judge_model": "gpt-5.4", "judge_max_completion_tokens": 256, "judge_retries": 5}
LATEST: dict[str, dict[str, Any]] = {
    "searchqa": {
        **SPLIT, "max_turns": 1, "max_completion_tokens": 16384, "workers": 24, "limit": 0,
    },
    "livemathematicianbench": {
        **SPLIT, "max_turns": 1, "max_completion_tokens": 16384, "exec_timeout": 300,
        "workers": 64, "limit": 0, "shuffle_choices": True, "use_theorem": False,
        "use_sketch": False,
    },
    "docvqa": {
        **SPLIT, "max_turns": 1, "max_completion_tokens": 16384, "workers": 16,
        "image_detail": "auto", "limit": 0,
    },
    "officeqa": {
        **SPLIT, "data_dirs": ["data/officeqa_docs_official"], "workers": 4,
        "max_tool_turns": 24, "max_completion_tokens": 16384, "search_mode": "offline",
        "max_queries_per_turn": 4, "search_api_url": "https://search.example",
        "search_auth_env": "OFFICEQA_CUSTOM_SEARCH_AUTH", "search_provider": "duckduckgo",
        "search_max_num_results": 4, "search_timeout_seconds": 20, "limit": 0,
    },
    "spreadsheetbench": {
        **SPLIT, "data_root": "data/spreadsheetbench_verified_400", "mode": "multi",
        "max_turns": 30, "max_completion_tokens": 16384, "exec_timeout": 600, "workers": 24,
    },
    "alfworld": {
        **SPLIT, "max_steps": 50, "max_completion_tokens": 16384, "workers": 8,
        "max_api_workers": 8, "limit": 0,
    },
}  # fmt: skip
FIRST: dict[str, dict[str, Any]] = {
    **{
        name: {key: value for key, value in env.items() if key != "max_completion_tokens"}
        for name, env in LATEST.items()
    },
    "babyvision": {
        **RATIO, "max_turns": 1, "workers": 16, "limit": 0, "image_detail": "auto", **JUDGE,
    },
    "mathverse": {
        "split_dir": "", "data_root": "data/MathVerse", "problem_version": "Text Lite",
        "use_text_dominant_reference": False, "max_turns": 1, "workers": 16, "limit": 0,
        "image_detail": "auto", **JUDGE,
    },
    "mmrb": {**RATIO, "max_turns": 1, "workers": 16, "limit": 0, "image_detail": "auto"},
    "sealqa": {"split_dir": "data/published_split", "workers": 4, "max_tool_turns": 12, "limit": 0},
    "swebench": {
        **RATIO, "dataset_name": "lite", "hf_split": "test", "workers": 8, "eval_workers": 8,
        "step_limit": 50, "cost_limit": 3.0, "timeout_per_instance": 600, "limit": 0,
    },
}  # fmt: skip
RELEASES = {"latest": LATEST, "first": FIRST}
FILES = [(release, name) for release, envs in RELEASES.items() for name in envs]
SAMPLE = {"split_mode": "split_dir", "split_dir": "sample"}
WORDS = {"latest": ("optimizer", "target"), "first": ("teacher", "student")}
NEEDS = {"alfworld": ["alfworld"], "spreadsheetbench": ["openpyxl"]}
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


def write_config(folder: Path, release: str, name: str, **over: Any) -> Path:
    """The config of a benchmark with the defaults file it inherits, in the layout of SkillOpt's
    repository. `over` are other values under `env`.
    """
    optimizer, target = WORDS[release]
    defaults = {
        "model": {
            "backend": "azure_openai",
            optimizer: "gpt-5.5",
            target: "gpt-5.5",
            f"{optimizer}_backend": "openai_chat",
            f"{target}_backend": "openai_chat",
            "reasoning_effort": "medium",
            f"codex_trace_to_{optimizer}": True,
        },
        "train": {"num_epochs": 4, "train_size": 0, "batch_size": 40, "seed": 42},
        "gradient": {"minibatch_size": 8, "merge_batch_size": 8, "max_analyst_rounds": 3},
        "optimizer": {"learning_rate": 4, "lr_scheduler": "cosine", "use_slow_update": True},
        "evaluation": {"use_gate": True, "sel_env_num": 0, "test_env_num": 0, "eval_test": True},
        "env": {"name": "", "skill_init": "", "split_seed": 42, "exec_timeout": 120},
    }
    config = {
        "_base_": "../_base_/default.yaml",
        "train": {"batch_size": 6},
        "env": {
            "name": name,
            "skill_init": f"skillopt/envs/{name}/skills/initial.md",
            **RELEASES[release][name],
            **over,
        },
    }
    for part, values in (("_base_", defaults), (name, config)):
        path = folder / "configs" / part / "default.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(values))
    return path


def copy_sample(name: str, folder: Path) -> Path:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    sample = find_benchmark(name).folder / "sample"
    return Path(shutil.copytree(sample, folder / "sample"))


@pytest.mark.filterwarnings("ignore::skillfit.config.ConfigWarning")
@pytest.mark.parametrize(("release", "name"), FILES)
def test_the_name_chooses_benchmark_grader_and_agent(
    release: str, name: str, tmp_path: Path
) -> None:
    data = copy_sample(name, tmp_path)
    inputs = prepare(config=write_config(tmp_path, release, name, **SAMPLE))
    agent, kind = GRADED_BY[name]
    assert inputs.config.env.tasks == f"{name}:{data}"
    assert inputs.config.env.agent == agent
    assert isinstance(inputs.task.evaluator or inputs.task.grader, kind)
    turns = {"officeqa": 24, "swebench": 50, "sealqa": 12}
    assert (inputs.config.env.max_turns or 1) == turns.get(name, 1)
    assert len(inputs.task.train) == len(sample_task(name).train)
    assert inputs.config.recipe == "paper"
    assert Path(inputs.config.env.skill) == find_benchmark(name).folder / f"{name}.md"


@pytest.mark.parametrize(("release", "name"), FILES)
def test_a_file_as_published_uses_the_prepared_data(
    release: str, name: str, tmp_path: Path
) -> None:
    """The paths in the published files lead nowhere on another machine, or are empty."""
    make(name, copy_sample(name, tmp_path / "elsewhere"))
    path = write_config(tmp_path, release, name)
    with pytest.warns(ConfigWarning) as warned:
        inputs = prepare(config=path)
    messages = [str(warning.message) for warning in warned]
    assert inputs.config.env.tasks == name and len(inputs.task.items) >= 10
    assert any(f"the initial skill of {name} is used" in message for message in messages)
    named = bool(RELEASES[release][name].get("split_dir"))
    assert any(f"`skillfit data get {name}` is used" in text for text in messages) == named
    assert any("needs a judge" in message for message in messages) == (name == "sealqa")


@pytest.mark.filterwarnings("ignore::skillfit.config.ConfigWarning")
@pytest.mark.parametrize("name", FIRST)
async def test_a_skillopt_config_runs(
    name: str, tmp_path: Path, make_lab: Callable[..., Lab]
) -> None:
    """Rollouts, grading, reflection and gate, end to end on the sample."""
    copy_sample(name, tmp_path)
    release = "latest" if name in LATEST else "first"
    no = json.dumps({"reason": "no answer", "verdict": "not_attempted"})
    lab = make_lab(solve=solver(name), wrong=wrong(name), judge=lambda call: no)
    settings: dict[str, Any] = {
        "train.num_epochs": 1,
        "optimizer.use_slow_update": False,
        "optimizer.use_meta_skill": False,
    }
    for role in ("agent", "optimizer", "judge"):
        settings |= {f"model.{role}.id": f"openai/{role}", f"model.{role}.base_url": lab.server.url}
    if name == "alfworld":
        settings["env.task_args.max_steps"] = 10
    path = write_config(tmp_path, release, name, **SAMPLE)
    run = await skillfit.train_async(config=path, settings=settings, run=tmp_path / "run")
    assert [verdict.decision for verdict in run.verdicts] == ["accept"]
    assert LESSON in run.best_skill.text


def test_a_config_without_a_benchmark_is_an_error_with_the_missing_key(tmp_path: Path) -> None:
    """As the defaults alone, and the file that turns on a memory service."""
    base = write_config(tmp_path, "latest", "searchqa").parents[1] / "_base_" / "default.yaml"
    memory = tmp_path / "memory.yaml"
    memory.write_text(f"_base_: {base}\ntrain: {{mem0_enabled: true, mem0_retrieval_limit: 5}}\n")
    for path, ignored in ((base, 0), (memory, 2)):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", ConfigWarning)
            with pytest.raises(InputError, match=r"env\.tasks"):
                prepare(config=path)
        assert sum("mem0" in str(warning.message) for warning in warned) == ignored
