"""Every setting has an effect: each is read by the code that runs, and a changed value changes the
requests or files of a run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import skillfit
from skillfit.config import describe_keys
from skillfit.config.schema import Section
from skillfit.errors import InputError
from skillfit.models.registry import ModelSpec
from skillfit.run.control import Control
from skillfit.sandbox.programs import ISOLATIONS
from skillfit.training.forecast import forecast
from skillfit.training.start import check_run, start
from tests.support.chat_server import Call
from tests.training.practice_project import Script, analyse, append, fingerprint, items, readable
from tests.training.project_fixture import MakeProject

SRC = Path(skillfit.__file__).parent
# A recipe fills the other settings (test_recipes); where a window would not act it is refused
# (below); `run` is read before the run is opened (test_api); `rollout_usd` is for agents whose
# calls skillfit does not see (tests/rollout); `allow_duplicates` is read when items are
# near-duplicates (tests/tasks/test_splits); `sandbox` is for agents that run programs (below), as
# is `network` (tests/agents); config/ itself reads `exec_timeout` (tests/rollout/test_engine);
# the last three are for Inspect's tasks (tests/plugins/inspect).
ELSEWHERE = {
    "recipe",
    "evaluation.margin",
    "optimizer.script_check",
    "model.agents",
    "run",
    "model.agent.context_window",
    "model.judge.context_window",
    "env.rollout_usd",
    "env.allow_duplicates",
    "env.sandbox",
    "env.network",
    "env.exec_timeout",
    "env.model_roles",
    "env.score_range",
    "env.skill_as",
    "optimizer.agent_minutes",  # test_agent_run.py
}
EPOCHS = ("train.num_epochs=3",)
STEPS = (
    "train.batch_size=2",
    "gradient.minibatch_size=1",
    "optimizer.learning_rate=3",
    "optimizer.min_learning_rate=1",
)
REWRITING = ("optimizer.skill_update_mode=rewrite_from_suggestions",)
AWARE = ("optimizer.use_skill_aware_reflection=true",)
DEEP = ("gradient.deep_reflection=true",)
PARTLY = ("env.grader=f1",)
STRICT = ("evaluation.gate=strict",)
LESSONS = (*EPOCHS, *STRICT, "optimizer.use_slow_update=true")
FALLING = ("optimizer.lr_scheduler=linear", "optimizer.learning_rate=4")
PRICES = "model.prices={agent: {input: 1, output: 1}, optimizer: {input: 1, output: 1}}"
# Key -> a change of it that shows in requests or files, and the settings beneath that give it
# something to do.
ACTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "model.prices": (PRICES, ()),
    "model.agent.temperature": ("model.agent.temperature=0.5", ()),
    "model.agent.max_tokens": ("model.agent.max_tokens=99", ()),
    "model.agent.reasoning_effort": ("model.agent.reasoning_effort=low", ()),
    "model.optimizer.max_tokens": ("model.optimizer.max_tokens=99", ()),
    "model.optimizer.context_window": ("model.optimizer.context_window=9000", ()),
    "train.num_epochs": ("train.num_epochs=2", ()),
    "train.batch_size": ("train.batch_size=4", ()),
    "train.accumulation": ("train.accumulation=2", STEPS),
    "train.train_size": ("train.train_size=4", ()),
    "train.seed": ("train.seed=7", ()),
    "gradient.minibatch_size": ("gradient.minibatch_size=2", ()),
    "gradient.merge_batch_size": (
        "gradient.merge_batch_size=2",
        ("gradient.minibatch_size=2", "gradient.merge=true"),
    ),
    "gradient.failure_only": ("gradient.failure_only=true", ()),
    "gradient.rollouts_per_item": ("gradient.rollouts_per_item=2", ()),
    "gradient.deep_reflection": ("gradient.deep_reflection=true", ()),
    "gradient.deep_reflection_items": ("gradient.deep_reflection_items=1", DEEP),
    "optimizer.learning_rate": ("optimizer.learning_rate=1", ()),
    "optimizer.min_learning_rate": ("optimizer.min_learning_rate=4", (*STEPS, *FALLING)),
    "optimizer.lr_scheduler": ("optimizer.lr_scheduler=constant", (*STEPS, *FALLING)),
    "optimizer.lr_control_mode": ("optimizer.lr_control_mode=autonomous", ()),
    "optimizer.skill_update_mode": ("optimizer.skill_update_mode=rewrite_from_suggestions", ()),
    "optimizer.proposer": ("optimizer.proposer=both", ()),
    "optimizer.max_skill_tokens": ("optimizer.max_skill_tokens=25", ()),
    "optimizer.prune_initial": ("optimizer.prune_initial=true", ()),
    "evaluation.objective": ("evaluation.objective=cheaper", ()),
    "optimizer.use_slow_update": ("optimizer.use_slow_update=true", EPOCHS),
    "optimizer.slow_update_samples": ("optimizer.slow_update_samples=2", LESSONS),
    "optimizer.slow_update_gate_with_selection": (
        "optimizer.slow_update_gate_with_selection=false",
        LESSONS,
    ),
    "optimizer.longitudinal_pair_policy": ("optimizer.longitudinal_pair_policy=changed", LESSONS),
    "optimizer.use_meta_skill": ("optimizer.use_meta_skill=true", EPOCHS),
    "optimizer.use_skill_aware_reflection": ("optimizer.use_skill_aware_reflection=true", ()),
    "optimizer.skill_aware_appendix_source": (
        "optimizer.skill_aware_appendix_source=failure_only",
        AWARE,
    ),
    "optimizer.skill_aware_consolidate_threshold": (
        "optimizer.skill_aware_consolidate_threshold=1",
        (*AWARE, *STRICT),
    ),
    "optimizer.rewrite_reasoning_effort": ("optimizer.rewrite_reasoning_effort=high", REWRITING),
    "optimizer.rewrite_max_completion_tokens": (
        "optimizer.rewrite_max_completion_tokens=999",
        REWRITING,
    ),
    "evaluation.gate": ("evaluation.gate=strict", ()),
    "evaluation.use_gate": ("evaluation.use_gate=false", STRICT),
    "evaluation.gate_metric": ("evaluation.gate_metric=soft", PARTLY),
    "evaluation.gate_mixed_weight": (
        "evaluation.gate_mixed_weight=0.1",
        (*PARTLY, "evaluation.gate_metric=mixed"),
    ),
    "evaluation.sel_env_num": ("evaluation.sel_env_num=4", ()),
    "evaluation.test_env_num": ("evaluation.test_env_num=1", ()),
    "evaluation.eval_test": ("evaluation.eval_test=false", ()),
    "evaluation.ship_test": ("evaluation.ship_test=false", ()),
    "evaluation.ship_grader": ("evaluation.ship_grader=contains", STRICT),
    "evaluation.preflight": ("evaluation.preflight=true", ()),
    "env.prompt": ("env.prompt='Do: {skill}'", ()),
    "env.grader": ("env.grader={regex: never}", ()),
    "env.split_mode": ("env.split_mode=ratio", ()),
    "env.split_ratio": ("env.split_ratio=1:1:1", ("env.split_mode=ratio",)),
    "env.split_method": ("env.split_method=shuffle", ("env.split_mode=ratio",)),
    "env.split_seed": ("env.split_seed=7", ("env.split_mode=ratio",)),
    "env.limit": ("env.limit=6", ()),
    "evaluation.finalists": ("evaluation.finalists=2", ("train.num_epochs=6",)),
    "budget.usd": ("budget.usd=0.001", (PRICES,)),
    "budget.tokens": ("budget.tokens=9000", ()),
    "budget.calls": ("budget.calls=9", ()),
    "budget.minutes": ("budget.minutes=0.00001", ()),
}
LABELS = ("config", "gate_metric", "lr_control_mode")  # fields that only repeat a setting
# Answers to blue items are half right, so that soft scores differ from hard ones.
ROWS = [{**row, "answer": "b indeed"} if row["type"] == "blue" else row for row in items(8, 5, 2)]
Observed = tuple[list[str], dict[str, Any]]
UNCHANGED: dict[tuple[str, ...], Observed] = {}  # runs that several changes are compared with


def noting(call: Call) -> str:
    return json.dumps(
        {
            **analyse(call),
            "appendix_notes": ["Look at the first word.", "Read every line of the task twice."],
        }
    )


def praising(call: Call) -> str:
    return json.dumps({**append(), "appendix_notes": ["Say the letter alone, and nothing else."]})


async def observe(make_project: MakeProject, name: str, *settings: str) -> Observed:
    """The requests of a run, and its files without what only repeats the settings."""
    project = make_project(
        rows=ROWS, optimizer={"reflect.failure": noting, "reflect.success": praising}, name=name
    )
    await project.train(*settings, force=True)
    files = readable(project.folder / "run")
    del files["config.json"]
    return sorted(map(fingerprint, project.calls)), _unlabelled(files)


def _unlabelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unlabelled(inner) for name, inner in value.items() if name not in LABELS}
    return [_unlabelled(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("key", ACTS)
async def test_a_changed_setting_changes_requests_or_files_of_a_run(
    make_project: MakeProject, key: str
) -> None:
    change, beneath = ACTS[key]
    if beneath not in UNCHANGED:
        UNCHANGED[beneath] = await observe(make_project, "unchanged", *beneath)
    assert await observe(make_project, "changed", *beneath, change) != UNCHANGED[beneath]


async def test_two_runs_with_equal_settings_have_the_same_requests_and_files(
    make_project: MakeProject,
) -> None:
    one, other = [await observe(make_project, name, *EPOCHS, *STEPS) for name in ("one", "other")]
    assert one == other


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, str]]:
    """What skillfit reads from settings, by object and name, anywhere but in the config
    package.
    """
    seen: set[tuple[int, str]] = set()

    def spy(self: BaseModel, name: str) -> Any:
        reader = Path(sys._getframe(1).f_code.co_filename)
        if SRC in reader.parents and SRC / "config" not in reader.parents:
            seen.add((id(self), name))
        return object.__getattribute__(self, name)

    for kind in (Section, ModelSpec):
        monkeypatch.setattr(kind, "__getattribute__", spy, raising=False)
    return seen


def sections(settings: BaseModel, prefix: str = "") -> Iterator[tuple[str, BaseModel]]:
    yield prefix, settings
    for name in type(settings).model_fields:
        if isinstance(value := getattr(settings, name), BaseModel):
            yield from sections(value, f"{prefix}{name}.")


async def test_every_setting_is_read_by_a_run(
    make_project: MakeProject, reads: set[tuple[int, str]]
) -> None:
    def empty_at_first(call: Call) -> Any:
        """Each model's first reply is nothing, so that it is asked again."""
        first = call.body["model"] not in asked
        asked.add(call.body["model"])
        return "" if first else script(call)

    asked: set[str] = set()
    script = Script(judge=json.dumps({"reason": "r", "score": 1, "advice": ""}))
    grader = "env.grader={mean: [exact, {rubric: Short.}]}"
    project = make_project(
        *EPOCHS, *DEEP, *AWARE, grader, "evaluation.preflight=true", script=empty_at_first
    )
    inputs = project.inputs(f"model.judge={{id: openai/judge, base_url: '{project.server.url}'}}")
    await start(inputs, project.folder / "run", force=True)
    forecast(inputs.config, inputs.task, inputs.skill, inputs.schedule())
    names = {id(section): prefix for prefix, section in sections(inputs.config)}
    read = {f"{names[owner]}{name}" for owner, name in reads if owner in names}
    assert {described.key for described in describe_keys()} - read - set(ACTS) - ELSEWHERE == set()


@pytest.mark.parametrize(
    "setting",
    ["model.agent.context_window=9000", "model.judge={id: openai/judge, context_window: 9000}"],
)
async def test_a_context_window_without_effect_is_refused(
    make_project: MakeProject, setting: str
) -> None:
    project = make_project()
    with pytest.raises(InputError, match=r"context_window has no effect"):
        await project.train(setting)
    assert not project.calls


async def test_a_missing_required_sandbox_stops_a_run_of_the_tools_agent(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = next(isolation for isolation in ISOLATIONS if not isolation.full)
    monkeypatch.setattr("skillfit.sandbox.programs.best_isolation", lambda: weak)
    project = make_project("env.agent=tools", "evaluation.preflight=true")
    with pytest.raises(InputError, match="no full isolation"):
        await project.train("env.sandbox=require")
    assert project.calls == []


async def test_the_check_reports_the_isolation_that_the_options_of_a_program_choose(
    make_project: MakeProject,
) -> None:
    project = make_project("evaluation.preflight=true")
    program = project.folder / "agent.sh"
    program.write_text("#!/bin/sh\necho an answer\n")
    program.chmod(0o755)
    described = project.folder / "agent.yaml"
    described.write_text("{name: own, program: ./agent.sh, argv: [], skills: .agents/skills}\n")
    options = {"file": str(described), "isolation": "off"}
    agent = {"id": "cli/own", "base_url": None, "options": options}
    inputs = project.inputs(f"model.agent={json.dumps(agent)}")
    report = await check_run(inputs, project.folder / "run", control=Control())
    (isolation,) = [found for found in report.checks if found.name == "isolation"]
    assert isolation.verdict == "warn" and "not fully isolated (none)" in isolation.message


@pytest.mark.parametrize("setting", ["env.sandbox=require", "env.sandbox=off", "env.network=off"])
async def test_a_sandbox_setting_is_refused_for_an_agent_without_programs(
    make_project: MakeProject, setting: str
) -> None:
    project = make_project()
    key = setting.partition("=")[0]
    with pytest.raises(InputError, match=f"{key}: not supported by the chat agent") as refused:
        await project.train(setting)
    assert ("{code: {sandbox: …}}" in refused.value.hint) == (key == "env.sandbox")
    assert not project.calls
