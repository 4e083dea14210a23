"""What a run does and when, and what a number of rollouts buys."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.config import load_config
from skillfit.config.schema import Config
from skillfit.errors import InputError
from skillfit.gate import BaseGate, GateSettings, ScreeningGate, StrictGate
from skillfit.rollout import Outcome
from skillfit.run.control import Control, Interrupted
from skillfit.run.events import RunStarted, StepFinished, Stored
from skillfit.tasks.item import Item
from skillfit.training.forecast import forecast
from skillfit.training.schedule import SplitSizes, buy, refuse_endless_plan
from skillfit.training.start import start
from tests.training.practice_project import items
from tests.training.project_fixture import MakeProject

SIZES = SplitSizes(train=80, selection=40, test=20)
DEFAULTS = Config.model_validate({"model": {"optimizer": "practice/optimizer"}})


async def no_rollouts(*arguments: Any, **named: Any) -> list[Outcome]:
    raise AssertionError("A schedule makes no rollouts.")


def gate_of(
    config: Config = DEFAULTS,
    sizes: SplitSizes = SIZES,
    kind: type[BaseGate] = ScreeningGate,
) -> BaseGate:
    selection = [Item(f"s{number}", {"input": "x"}) for number in range(sizes.selection)]
    return kind(no_rollouts, selection, GateSettings(config))


class TestRolloutBudget:
    @pytest.mark.parametrize("rollouts", [150, 300, 600, 1_200, 5_000])
    @pytest.mark.parametrize("kind", [ScreeningGate, StrictGate])
    def test_the_rollout_budget_is_never_exceeded(
        self, rollouts: int, kind: type[BaseGate]
    ) -> None:
        plan = buy(DEFAULTS, SIZES, gate_of(kind=kind), rollouts)
        assert plan.total <= rollouts and plan.steps >= 1
        if kind is ScreeningGate and rollouts >= 300:
            assert plan.total >= 0.8 * rollouts

    def test_more_rollouts_never_plan_fewer_training_rollouts(self) -> None:
        plans = [buy(DEFAULTS, SIZES, gate_of(), total) for total in range(250, 3_000, 50)]
        worth = [plan.steps * plan.batch_size for plan in plans]
        assert worth[-1] > 4 * worth[0]

    def test_a_budget_too_small_for_one_step_is_refused_with_the_minimum(self) -> None:
        with pytest.raises(InputError, match="too small") as refused:
            buy(DEFAULTS, SIZES, gate_of(), 5)
        assert refused.value.hint
        least = int(re.findall(r"at least (\d+)", refused.value.hint)[0])
        assert buy(DEFAULTS, SIZES, gate_of(), least).steps == 1
        with pytest.raises(InputError, match="too small"):
            buy(DEFAULTS, SIZES, gate_of(), least - 1)

    @given(rollouts=st.integers(150, 5_000), look_back=st.integers(1, 60))
    def test_the_plan_has_the_most_steps_that_fit(self, rollouts: int, look_back: int) -> None:
        settings = {
            "model": {"optimizer": "practice/optimizer"},
            "optimizer": {"slow_update_samples": look_back},
            "env": {"tasks": "tasks.jsonl"},
        }
        config = load_config(settings)
        small = SplitSizes(train=20, selection=8, test=0)
        gate = gate_of(config, small)
        plan = buy(config, small, gate, rollouts)
        step, looks = plan.batch_size + plan.selection, 2 * min(look_back, 20)
        assert plan.total <= rollouts < plan.total + step + looks + 2 * plan.batch_size

    def test_a_huge_number_is_planned_quickly_and_refused(self) -> None:
        settings = {"model": {"optimizer": "practice/optimizer"}, "env": {"tasks": "tasks.jsonl"}}
        config = load_config({**settings, "budget": {"rollouts": 10**14}})
        plan = buy(config, SIZES, gate_of(config), 10**14)
        assert 10**14 - 1_000 < plan.total <= 10**14
        with pytest.raises(InputError, match=r"budget.rollouts: 100,000,000,000,000 gives a plan"):
            refuse_endless_plan(config, SIZES.train, plan)


HUGE = 99_999_999_999


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"num_epochs": HUGE}, r"train.num_epochs: 99,999,999,999 .* 499,999,999,995 steps.*"),
        ({"num_epochs": 10**4000}, r"train.num_epochs: more than 10\^15 .*"),
        (
            {"num_epochs": 20_001},
            r".* 100,005 steps\. At most 100,000 are possible\. .*budget.usd.*",
        ),
        ({"num_epochs": 20_000, "rollouts_per_item": 9}, r".* 18,000,000 training rollouts\. .*"),
        ({"accumulation": HUGE}, r"train.accumulation: 99,999,999,999 .* in one step\. .*"),
        ({"rollouts_per_item": HUGE}, r".*gradient.rollouts_per_item: 99,999,999,999 .*"),
    ],
)
def test_an_unreasonably_large_plan_is_refused_before_it_is_built(
    settings: dict[str, int], problem: str
) -> None:
    repeats = settings.pop("rollouts_per_item", 1)
    config = load_config(
        {
            "train": settings,
            "gradient": {"rollouts_per_item": repeats},
            "env": {"tasks": "tasks.jsonl"},
        }
    )
    with pytest.raises(InputError) as refused:
        refuse_endless_plan(config, 100, None)
    assert re.fullmatch(problem, str(refused.value))


def test_a_large_plan_is_not_refused() -> None:
    settings = {"train": {"num_epochs": 25_000}, "env": {"tasks": "tasks.jsonl"}}
    refuse_endless_plan(load_config(settings), 80, None)
    huge_batches = {"train": {"batch_size": HUGE}, "env": {"tasks": "tasks.jsonl"}}
    refuse_endless_plan(load_config(huge_batches), 80, None)


async def test_a_run_that_was_started_with_a_larger_plan_resumes(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, control = make_project("train.num_epochs=3", rows=items(8, 8, 0)), Control()

    def stop(stored: Stored) -> None:
        if isinstance(stored.event, StepFinished):
            control.stop()

    path = project.folder / "run"
    with pytest.raises(Interrupted):
        await start(project.inputs(), path, listeners=[stop], control=control, force=True)
    monkeypatch.setattr("skillfit.training.schedule.MOST_STEPS", 1)
    with pytest.raises(InputError, match="At most 1 are possible"):
        await start(project.inputs(), project.folder / "other", force=True)
    assert not (project.folder / "other").exists()
    result = await start(project.inputs(), path, force=True)
    assert result.finish_reason != "infrastructure" and len(project.history()) > 1


async def test_a_resumed_run_keeps_the_plan_that_it_was_started_with(
    make_project: MakeProject,
) -> None:
    project = make_project("budget.rollouts=150", rows=items(24, 12, 0))
    now, control = project.inputs(), Control()
    assert now.rollout_plan is not None

    def stop(stored: Stored) -> None:
        if isinstance(stored.event, StepFinished):
            control.stop()

    then = replace(now.rollout_plan, steps=2)
    path = project.folder / "run"
    with pytest.raises(Interrupted):
        await start(
            replace(now, rollout_plan=then), path, listeners=[stop], control=control, force=True
        )
    await project.train(force=True)
    (started,) = project.events(RunStarted)
    assert started.rollout_plan == then
    assert len(project.history()) == 2


@pytest.mark.parametrize("gate", ["screening", "strict"])
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("optimizer.skill_update_mode=rewrite_from_suggestions",),
        ("gradient.deep_reflection=true", "optimizer.slow_update_gate_with_selection=false"),
        ("optimizer.use_skill_aware_reflection=true", "optimizer.use_slow_update=false"),
        ("train.accumulation=2", "optimizer.longitudinal_pair_policy=changed"),
        ("model.optimizer=null", "optimizer.proposer=examples"),
    ],
)
def test_the_forecast_counts_the_rollouts_of_the_schedule(
    make_project: MakeProject, gate: str, settings: tuple[str, ...]
) -> None:
    project = make_project("evaluation.eval_test=false", rows=items(24, 12, 0))
    budget = ("budget.rollouts=1200", f"evaluation.gate={gate}", "train.batch_size=6")
    inputs = project.inputs(*budget, *settings)
    bought = inputs.rollout_plan
    assert bought is not None
    schedule = inputs.schedule()
    found = forecast(inputs.config, inputs.task, inputs.skill, schedule)
    agent = sum(row.calls.high for row in found.rows if row.role == "agent")
    assert agent == sum(count.high for count in schedule.rollouts.values()) <= bought.total


def test_every_step_has_a_phase_and_every_phase_a_reason(make_project: MakeProject) -> None:
    project = make_project("budget.rollouts=300", rows=items(40, 20, 20))
    for proposer, shares in (("corpus", {0.85}), ("reflect", {0.5})):
        schedule = project.inputs(f"optimizer.proposer={proposer}").schedule()
        assert [one.phase for one in schedule.phases] == ["grow", "prune", "prove"]
        assert all(one.reason and one.rounds for one in schedule.phases)
        assert {step.round.share for step in schedule.steps} == shares
        assert {at.share for at in schedule.prune} == {0.5}
        in_phases = sum(one.rollouts for one in schedule.phases)
        before = schedule.rollouts["preflight"].high + schedule.rollouts["slow_update"].high
        assert in_phases + before == sum(count.high for count in schedule.rollouts.values())


def test_edits_of_a_small_optimizer_are_pruned_from_the_second_step_on(
    make_project: MakeProject,
) -> None:
    project = make_project("budget.rollouts=300", rows=items(40, 20, 20))
    weak = project.inputs("optimizer.proposer=reflect").schedule()
    assert [step.phase for step in weak.steps][:2] == ["grow", "prune"]
    capable = project.inputs("optimizer.proposer=corpus").schedule()
    assert {step.phase for step in capable.steps} == {"grow"}
