from __future__ import annotations

import pytest

from skillfit.config.schema import BudgetSection
from skillfit.models.protocol import Role, Usage
from skillfit.models.registry import ModelSpec
from skillfit.training.forecast import (
    FINISH_SAFETY,
    EstimateRow,
    Forecast,
    RolloutCost,
    forecast,
    small_caps,
)
from skillfit.training.schedule import FEWEST_PAIRS, Range
from tests.support.chat_server import Call
from tests.training.practice_project import TrainingProject, items
from tests.training.project_fixture import MakeProject


def of(project: TrainingProject, *settings: str) -> Forecast:
    inputs = project.inputs(*settings)
    return forecast(inputs.config, inputs.task, inputs.skill, inputs.schedule())


def calls_of(found: Forecast, role: Role) -> tuple[float, float]:
    rows = [row.calls for row in found.rows if row.role == role]
    return sum(row.low for row in rows), sum(row.high for row in rows)


EVERYTHING = (
    "train.num_epochs=3",
    "train.batch_size=4",
    "gradient.minibatch_size=2",
    "gradient.merge=true",
    "gradient.merge_batch_size=2",
    "gradient.deep_reflection=true",
    "optimizer.use_skill_aware_reflection=true",
    "optimizer.learning_rate=1",
    "optimizer.min_learning_rate=1",
    "optimizer.use_slow_update=true",
    "optimizer.use_meta_skill=true",
    "optimizer.longitudinal_pair_policy=changed",
)


@pytest.mark.parametrize(
    "settings",
    [
        ("evaluation.preflight=true",),
        ("recipe=paper", "train.num_epochs=2"),
        ("recipe=lite",),
        EVERYTHING,
        (
            "optimizer.skill_update_mode=rewrite_from_suggestions",
            "optimizer.lr_control_mode=autonomous",
        ),
        ("optimizer.proposer=examples", "train.num_epochs=4"),
        ("optimizer.proposer=examples", "train.num_epochs=3", "evaluation.gate=strict"),
    ],
    ids=["default", "paper", "lite", "everything", "rewrite", "examples", "strict examples"],
)
async def test_the_calls_of_a_real_run_are_within_its_estimate(
    make_project: MakeProject, settings: tuple[str, ...]
) -> None:
    project = make_project(*settings, rows=items(8, 8, 4))
    found = of(project)
    await project.train(force=True)
    for role in ("agent", "optimizer"):
        low, high = calls_of(found, role)
        used = sum(call.body["model"] == role and call.stage != "probe" for call in project.calls)
        assert low <= used <= high, role
        assert high <= 30 * used, role  # a very wide range would be useless as an estimate


async def test_dollars_are_unknown_without_a_price_and_a_range_with_one(
    make_project: MakeProject,
) -> None:
    project = make_project()
    assert of(project).total.usd is None
    prices = "model.prices={agent: {input: 1, output: 2}, optimizer: {input: 3, output: 4}}"
    priced = of(project, prices).total.usd
    assert priced is not None
    assert 0 < priced.low < priced.high


async def test_a_judge_is_part_of_the_estimate(make_project: MakeProject) -> None:
    def passing(call: Call) -> str:
        return '{"reason": "fine", "score": 0.2}'

    project = make_project(rows=items(4, 4, 0), judge=passing)
    judge = f"model.judge={{id: openai/judge, base_url: '{project.server.url}'}}"
    settings = (
        judge,
        "env.grader={rubric: {rubric: 'Names the letter.'}}",
        "evaluation.preflight=false",
    )
    low, high = calls_of(of(project, *settings), "judge")
    await project.train(*settings)
    used = sum(call.body["model"] == "judge" and call.stage != "probe" for call in project.calls)
    assert low <= used <= high
    assert used


async def test_every_finalist_of_the_ship_test_is_part_of_the_estimate(
    make_project: MakeProject,
) -> None:
    def shipped(*settings: str) -> float:
        return next(row.calls.high for row in of(project, *settings).rows if row.stage == "ship")

    project = make_project(rows=items(4, 8, 0))
    inputs = project.inputs()
    pairs = inputs.schedule().pairs
    assert shipped() == 2 * pairs > 0  # the initial skill and the best one
    assert shipped("evaluation.finalists=3") == 4 * pairs


@pytest.mark.parametrize("cap", [100, 150, 240])
async def test_no_estimate_is_above_a_cap_in_rollouts(make_project: MakeProject, cap: int) -> None:
    project = make_project(rows=items(8, 8, 8))
    found = of(project, f"budget.rollouts={cap}")
    assert found.rollouts.low <= found.rollouts.typical <= found.rollouts.high <= cap
    agent = found.total.calls.high - calls_of(found, "optimizer")[1]
    assert agent <= cap
    assert sum(row.calls.high for row in found.rows if row.role == "agent") >= agent


async def test_other_caps_limit_the_total_and_report_a_shortened_plan(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=items(8, 8, 8))
    free = of(project)
    low, high = int(free.total.calls.typical) - 1, int(free.total.calls.high) - 1
    for cap, early in ((low, True), (high, False)):
        budget = BudgetSection(calls=cap)
        (reached,) = free.reached(budget)
        assert (reached.name, reached.ends_early) == ("calls", early)
        assert free.within(budget).total.calls.high == cap
    assert free.reached(BudgetSection(calls=high + 2)) == []


async def test_the_minutes_of_a_local_model_are_those_of_its_few_slots(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=items(20, 20, 4))
    cost = RolloutCost(24, Usage(calls=1, input=100), seconds=4.0)

    without_optimizer = ("model.optimizer=null", "optimizer.proposer=examples")

    def minutes(*settings: str) -> float:
        inputs = project.inputs(*without_optimizer, *settings)
        schedule = inputs.schedule()
        return forecast(inputs.config, inputs.task, inputs.skill, schedule, cost).minutes.typical

    one = "model.agent={id: local/m.gguf, options: {slots: 1}}"
    assert minutes(one) > 4 * minutes("model.concurrency=32")
    assert minutes(one) == pytest.approx(minutes(one, "model.concurrency=1"))


async def test_a_coding_agent_is_one_call_per_rollout_with_its_own_prompt(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=items(8, 8, 8))
    inputs = project.inputs()
    spec = ModelSpec(id="cli/claude/claude-sonnet-4-5")
    model = inputs.config.model.model_copy(update={"agent": spec, "optimizer": None})
    config = inputs.config.model_copy(update={"model": model})
    plan = inputs.schedule()
    assumed = forecast(config, inputs.task, inputs.skill, plan)
    assert assumed.total.calls == assumed.rollouts
    assert assumed.total.tokens.typical > 10_000 * assumed.rollouts.typical
    assert assumed.total.usd is not None
    used = Usage(calls=30, input=30 * 24_000, usd=30 * 0.05)
    measured = forecast(config, inputs.task, inputs.skill, plan, RolloutCost.mean(30, used)).total
    assert measured.usd is not None
    assert measured.usd.typical == pytest.approx(0.05 * assumed.rollouts.typical)
    assert assumed.total.usd.low < measured.usd.typical < assumed.total.usd.high


def test_a_session_of_an_agent_is_one_call_of_a_program_and_many_of_a_model(
    make_project: MakeProject,
) -> None:
    project = make_project("optimizer.proposer=agent", rows=items(8, 8, 4))

    def reflect(*settings: str) -> tuple[Forecast, EstimateRow]:
        inputs = project.inputs(*settings)
        found = forecast(inputs.config, inputs.task, inputs.skill, inputs.schedule())
        return found, next(row for row in found.rows if row.stage == "reflect")

    program = ("model.optimizer.id=cli/claude/claude-sonnet-4-5", "model.optimizer.base_url=null")
    steps = project.inputs().schedule().total_steps
    by_program, session = reflect(*program)
    _, turns = reflect("model.optimizer.id=openai/gpt-5-mini")
    assert session.calls == Range(0, steps, steps)
    assert turns.calls.typical > 5 * steps
    assert session.tokens.typical > 100_000 * steps and session.usd is not None
    _, one_call = reflect("optimizer.proposer=corpus")
    assert session.tokens.typical > one_call.tokens.typical
    quick, _ = reflect(*program, "optimizer.agent_minutes=6")
    assert quick.minutes.high < by_program.minutes.high


@pytest.mark.parametrize("gate", ["strict", "screening"])
def test_the_least_that_a_run_takes_has_room_for_a_short_ship_test(
    make_project: MakeProject, gate: str
) -> None:
    project = make_project(f"evaluation.gate={gate}", rows=items(8, 8, 4))
    inputs = project.inputs("evaluation.preflight=false")

    def fewest_calls(ship_test: bool) -> float:
        settings = [f"evaluation.ship_test={str(ship_test).lower()}", "budget.calls=1"]
        planned = project.inputs("evaluation.preflight=false", *settings)
        (small,) = small_caps(planned.config, inputs.task, inputs.skill, planned.schedule())
        return small.least

    kept = 2 * FEWEST_PAIRS * FINISH_SAFETY  # of the initial skill and of the finalist
    assert fewest_calls(True) - fewest_calls(False) == pytest.approx(kept, abs=1)


def test_only_a_gate_with_a_pool_needs_rollouts_after_the_last_step(
    make_project: MakeProject,
) -> None:
    def stages(gate: str) -> set[str]:
        settings = (f"evaluation.gate={gate}", "train.batch_size=4")
        return {row.stage for row in of(project, *settings).rows}

    project = make_project(rows=items(8, 8, 4))
    assert stages("screening") - stages("strict") == {"prune"}
    assert stages("strict") - stages("screening") == {"baseline"}
