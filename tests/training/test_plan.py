from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.config import load_config
from skillfit.config.schema import Config, TrainSection
from skillfit.errors import InputError
from skillfit.run.control import Control, Interrupted
from skillfit.run.events import RunStarted, StepFinished, Stored
from skillfit.tasks.item import Item
from skillfit.training.estimate import estimate
from skillfit.training.inputs import Inputs
from skillfit.training.plan import (
    BalancedBatches,
    ShuffledBatches,
    SplitSizes,
    earlier_plan,
    plan_rollouts,
    refuse_endless_plan,
    selection_passes,
    ship_repeats,
)
from skillfit.training.start import start
from tests.training.practice_project import items
from tests.training.project_fixture import MakeProject


def some(count: int) -> list[Item]:
    return [
        Item(f"item-{number}", {"input": str(number)}, split="train") for number in range(count)
    ]


def test_an_epoch_uses_skillopts_shuffle_and_batch_seeds() -> None:
    items = some(10)
    plan = ShuffledBatches().plan(
        items, TrainSection(num_epochs=2, batch_size=4, accumulation=1, seed=42)
    )
    for epoch in plan.epochs:
        expected = list(items)
        random.Random(42 + epoch.number * 1000).shuffle(expected)
        assert [
            item for step in epoch.steps for batch in step.batches for item in batch.items
        ] == expected
        assert [batch.seed for step in epoch.steps for batch in step.batches] == [
            42 + epoch.number * 1000 + n for n in (1, 2, 3)
        ]
        assert [len(step.batches[0].items) for step in epoch.steps] == [4, 4, 2]


def test_the_slow_update_samples_in_skillopts_order() -> None:
    items = some(7)
    plan = ShuffledBatches().plan(
        items, TrainSection(num_epochs=3, batch_size=7, accumulation=1, seed=5)
    )
    expected = list(items)
    random.Random(5 + 3 * 2000).shuffle(expected)
    assert plan.epochs[2].slow_order == tuple(expected)


def test_a_batch_without_remaining_items_gets_a_reshuffle_of_the_epoch() -> None:
    items = some(5)
    [step] = (
        ShuffledBatches()
        .plan(items, TrainSection(num_epochs=1, batch_size=4, accumulation=3, seed=1))
        .epochs[0]
        .steps
    )
    order = [item for batch in step.batches[:2] for item in batch.items]
    reshuffled = list(order)
    random.Random(step.batches[2].seed).shuffle(reshuffled)
    assert [len(batch.items) for batch in step.batches] == [4, 1, 4]
    assert list(step.batches[2].items) == reshuffled[:4]


@given(
    count=st.integers(1, 60),
    epochs=st.integers(1, 4),
    batch=st.integers(1, 20),
    accumulation=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_every_item_is_used_once_per_epoch_unless_a_batch_was_refilled(
    count: int, epochs: int, batch: int, accumulation: int, seed: int
) -> None:
    items = some(count)
    plan = ShuffledBatches().plan(
        items,
        TrainSection(num_epochs=epochs, batch_size=batch, accumulation=accumulation, seed=seed),
    )
    for epoch in plan.epochs:
        batches = [batch for step in epoch.steps for batch in step.batches]
        met = Counter(item.id for batch in batches for item in batch.items)
        assert set(met) == {item.id for item in items}
        planned = batches[: -(-count // batch)]
        assert Counter(item.id for one in planned for item in one.items) == Counter(
            item.id for item in items
        )
        assert all(0 < len(one.items) <= batch for one in batches)
    steps = [step.step for epoch in plan.epochs for step in epoch.steps]
    assert steps == list(range(1, plan.total_steps + 1))
    assert len(steps) == epochs * max(1, -(-count // (batch * accumulation)))


@given(seed=st.integers(0, 10**6))
def test_the_same_seed_plans_the_same_run(seed: int) -> None:
    one, other = (
        ShuffledBatches().plan(
            some(9), TrainSection(num_epochs=2, batch_size=4, accumulation=2, seed=seed)
        )
        for _ in range(2)
    )
    assert one == other


def test_balanced_batches_spread_every_type_over_the_epoch() -> None:
    items = [
        Item(f"{kind}-{n}", {"input": f"{kind} {n}"}, type=kind)
        for kind, count in (("rare", 4), ("common", 12))
        for n in range(count)
    ]
    plan = BalancedBatches().plan(items, TrainSection(num_epochs=1, batch_size=4))
    for step in plan.epochs[0].steps:
        assert sum(item.type == "rare" for item in step.items) == 1
    assert {item.id for step in plan.epochs[0].steps for item in step.items} == {
        item.id for item in items
    }


class TestRolloutBudget:
    SIZES = SplitSizes(train=80, selection=40, test=20)

    @pytest.mark.parametrize("rollouts", [300, 600, 1_200, 5_000])
    @pytest.mark.parametrize("pools_edits", [True, False])
    def test_most_of_the_rollout_budget_is_used_and_it_is_never_exceeded(
        self, rollouts: int, pools_edits: bool
    ) -> None:
        plan = plan_rollouts(Config(), self.SIZES, rollouts, pools_edits)
        assert 0.75 * rollouts <= plan.total <= rollouts
        assert plan.steps >= 3 and 8 <= plan.selection <= 40

    def test_more_rollouts_never_plan_fewer_steps_or_items(self) -> None:
        plans = [plan_rollouts(Config(), self.SIZES, total) for total in range(250, 3_000, 50)]
        worth = [plan.steps * (40 + plan.selection) for plan in plans]
        assert worth[-1] > 4 * worth[0]

    def test_a_budget_too_small_for_one_step_is_refused_with_the_minimum(self) -> None:
        with pytest.raises(InputError, match="too small") as refused:
            plan_rollouts(Config(), self.SIZES, 60)
        least = int(re.findall(r"at least (\d+)", refused.value.hint)[0])
        assert plan_rollouts(Config(), self.SIZES, least).steps == 1

    def test_few_items_get_several_passes(self) -> None:
        assert [selection_passes(items) for items in (4, 8, 20, 40, 200)] == [4, 4, 2, 1, 1]

    def test_a_gate_that_needs_fewer_rollouts_gets_more_steps(self) -> None:
        few = SplitSizes(train=24, selection=12, test=0)
        pooled, strict = (plan_rollouts(Config(), few, 600, pools) for pools in (True, False))
        assert strict.steps > pooled.steps and strict.selection >= pooled.selection

    @given(rollouts=st.integers(150, 5_000), look_back=st.integers(1, 60))
    def test_the_plan_has_the_most_steps_that_fit(self, rollouts: int, look_back: int) -> None:
        settings = {
            "model": {"optimizer": "practice/optimizer"},
            "optimizer": {"slow_update_samples": look_back},
            "env": {"tasks": "tasks.jsonl"},
        }
        config = load_config(settings)
        small = SplitSizes(train=20, selection=8, test=0)
        plan = plan_rollouts(config, small, rollouts)
        step = 20 + 4 * 8
        looks = max(0, plan.steps + 1 - 2) * 2 * min(look_back, 20)
        fixed = plan.total - plan.steps * step - max(0, plan.steps - 2) * 2 * min(look_back, 20)
        assert plan.total <= rollouts < fixed + (plan.steps + 1) * step + looks

    def test_a_huge_number_is_planned_quickly_and_refused(self) -> None:
        settings = {"model": {"optimizer": "practice/optimizer"}, "env": {"tasks": "tasks.jsonl"}}
        config = load_config({**settings, "budget": {"rollouts": 10**14}})
        plan = plan_rollouts(config, self.SIZES, 10**14)
        assert 10**14 - 1_000 < plan.total <= 10**14
        with pytest.raises(InputError, match=r"budget.rollouts: 100,000,000,000,000 gives a plan"):
            refuse_endless_plan(config, self.SIZES.train, plan)


HUGE = 99_999_999_999


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"num_epochs": HUGE}, r"train.num_epochs: 99,999,999,999 .* 299,999,999,997 steps.*"),
        ({"num_epochs": 10**4000}, r"train.num_epochs: more than 10\^15 .*"),
        (
            {"num_epochs": 33_334},
            r".* 100,002 steps\. At most 100,000 are possible\. .*budget.usd.*",
        ),
        ({"num_epochs": 30_000, "rollouts_per_item": 9}, r".* 32,400,000 training rollouts\. .*"),
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
    settings = {"train": {"num_epochs": 33_333}, "env": {"tasks": "tasks.jsonl"}}
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
    monkeypatch.setattr("skillfit.training.plan.MOST_STEPS", 1)
    with pytest.raises(InputError, match="At most 1 are possible"):
        await start(project.inputs(), project.folder / "other", force=True)
    assert not (project.folder / "other").exists()
    result = await start(project.inputs(), path, force=True)
    assert result.finish_reason != "infrastructure" and len(project.history()) > 1


@pytest.mark.parametrize(
    ("steps", "settings"),
    [
        (2, ("train.num_epochs=2", "train.batch_size=8")),
        (1, ("train.num_epochs=1", "train.batch_size=8")),
        (4, ("train.num_epochs=2", "train.batch_size=4")),
    ],
)
async def test_a_lag_that_lets_no_edit_join_is_refused_before_anything_is_spent(
    make_project: MakeProject, steps: int, settings: tuple[str, ...]
) -> None:
    project = make_project(*settings)
    for lag in (steps, 999):
        with pytest.raises(InputError, match=rf"train.lag: {lag} .* {steps} steps?: no edit"):
            await start(project.inputs(f"train.lag={lag}"), project.folder / "run", force=True)
    assert not project.server.calls and not (project.folder / "run").exists()
    project.inputs(f"train.lag={steps - 1}").refuse_useless_plan()


async def test_a_recorded_run_whose_lag_lets_no_edit_join_resumes(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project("train.num_epochs=2", "train.batch_size=8", "train.lag=2")
    path = project.folder / "run"
    with monkeypatch.context() as earlier:
        earlier.setattr(Inputs, "refuse_useless_plan", lambda inputs: None)
        await start(project.inputs(), path, force=True)
    calls = len(project.server.calls)
    result = await start(project.inputs(), path, force=True)
    assert result.finish_reason == "no_improvement" and len(project.server.calls) == calls


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
def test_the_estimate_of_a_plan_equals_its_total(
    make_project: MakeProject, gate: str, settings: tuple[str, ...]
) -> None:
    project = make_project("evaluation.eval_test=false", rows=items(24, 12, 0))
    budget = ("budget.rollouts=1200", f"evaluation.gate={gate}", "train.batch_size=6")
    inputs = project.inputs(*budget, *settings)
    bought = inputs.rollout_plan
    assert bought is not None
    found = estimate(
        inputs.config,
        inputs.task,
        inputs.skill,
        inputs.plan(),
        ship_repeats=bought.ship_repeats,
        abilities=inputs.abilities,
    )
    assert sum(row.calls.high for row in found.rows if row.role == "agent") == bought.total


@pytest.mark.parametrize(
    ("settings", "rollouts", "sizes", "planned"),
    [
        ({}, 300, (80, 40, 20), (3, 20, 12, 1, 298)),
        ({"evaluation": {"gate": "strict"}}, 300, (24, 12, 0), (4, 20, 9, 1, 299)),
        ({"recipe": "paper"}, 2_000, (80, 40, 20), (27, 20, 40, 4, 1980)),
        ({"gradient": {"deep_reflection": True}}, 1_200, (24, 12, 0), (13, 20, 12, 4, 1142)),
        ({"train": {"accumulation": 2}}, 2_000, (24, 12, 0), (19, 20, 12, 4, 1926)),
        (
            {"optimizer": {"skill_update_mode": "rewrite_from_suggestions"}},
            600,
            (400, 100, 100),
            (6, 20, 8, 2, 598),
        ),
    ],
)
def test_the_plan_of_an_earlier_version_is_reproduced(
    settings: dict[str, Any],
    rollouts: int,
    sizes: tuple[int, int, int],
    planned: tuple[int, int, int, int, int],
) -> None:
    config = load_config({**settings, "env": {"tasks": "tasks.jsonl"}})
    assert astuple(earlier_plan(config, SplitSizes(*sizes), rollouts)) == planned


async def test_a_run_of_an_earlier_version_resumes_with_its_plan(make_project: MakeProject) -> None:
    settings = ("evaluation.gate=strict", "budget.rollouts=300", "evaluation.preflight=true")
    project = make_project(*settings, "train.batch_size=20", rows=items(24, 12, 0))
    now, control = project.inputs(), Control()
    then = earlier_plan(now.config, now.available, 300)
    assert now.rollout_plan is not None and then.steps < now.rollout_plan.steps
    fewer = {**now.task.caps, "selection": then.selection}
    task = now.task.with_splits(now.task.split_settings, fewer)

    def stop(stored: Stored) -> None:
        if isinstance(stored.event, StepFinished):
            control.stop()

    earlier = replace(now, task=task, rollout_plan=then)
    path = project.folder / "run"
    with pytest.raises(Interrupted):
        await start(earlier, path, listeners=[stop], control=control, force=True)
    forget_plan(path)
    await project.train(force=True)
    (started,) = project.events(RunStarted)
    assert (started.planned_steps, started.splits["selection"]) == (then.steps, then.selection)
    assert started.rollout_plan == then
    assert len(project.history()) == then.steps


def forget_plan(run: Path) -> None:
    """Earlier versions did not record it."""
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal:
        journal.execute("UPDATE events SET data = json_remove(data, '$.rollout_plan')")
        journal.commit()


def test_the_ship_test_gets_the_rollouts_of_a_skipped_comparison() -> None:
    assert ship_repeats(1, 1, compared=True) == 1
    assert ship_repeats(1, 1, compared=False) == 2
    assert ship_repeats(1, 2, compared=False) == 1  # two passes are too few for three skills
    assert ship_repeats(4, 1, compared=False) == 4  # never more than the ship test needs
