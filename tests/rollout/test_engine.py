"""The engine: what runs, in which order, once; and the metering of rollouts whose model calls
skillfit does not see.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillfit.agents.agent import AgentFailure, AttemptContext, new_workspace
from skillfit.config.schema import BudgetSection, Config, EnvSection, TrainSection
from skillfit.errors import InputError
from skillfit.models.limiter import Limiter
from skillfit.models.protocol import Usage
from skillfit.rollout import RolloutRequest, Tally, requests_for
from skillfit.rollout.engine import RolloutMeter, refuse_unseen_usage
from skillfit.rollout.outcome import Arm
from skillfit.run.budget import Budget, BudgetReached
from skillfit.run.journal import Journal
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Score, ScoredAttempt
from tests.rollout.scripted_agents import SKILL, RolloutSetup, SameAnswer, Sums, items, right


async def solve(item: Item, context: AttemptContext) -> str:
    return right(item)


async def test_every_item_gets_a_scored_outcome_and_an_event_with_its_usage(
    setup: RolloutSetup,
) -> None:
    async def odd_ones(item: Item, context: AttemptContext) -> Attempt:
        answer = right(item) if int(item.id[-1]) % 2 else "no idea"
        return Attempt(answer, usage=Usage(calls=2, input=30, output=5, usd=0.25))

    outcomes = await setup.engine(odd_ones).run(
        requests_for(SKILL, items(4)), stage="baseline", series="selection"
    )
    assert [outcome.score for outcome in outcomes] == [Score(0), Score(1), Score(0), Score(1)]
    assert Tally.of(outcomes) == Tally(0.5, 0.5, 4, 4, 4)
    events = {event.item: event for event in setup.finished()}
    assert (
        events["sum-001"].hard,
        events["sum-001"].calls,
        events["sum-001"].tokens,
        events["sum-001"].usd,
    ) == (1.0, 2, 35, 0.25)
    assert {event.status for event in events.values()} == {"scored"}


@pytest.mark.parametrize(
    ("in_flight", "started"), [(1, [0, 3, 1, 4, 2, 5]), (2, [0, 3, 1, 4, 2, 5]), (3, [0, 1, 2])]
)
async def test_with_low_concurrency_rollouts_of_one_skill_run_consecutively(
    setup: RolloutSetup, in_flight: int, started: list[int]
) -> None:
    order: list[int] = []

    async def noting(item: Item, context: AttemptContext) -> str:
        order.append(int(item.id[-3:]))
        return right(item)

    skills = [Skill.from_text(f"# Sums {number}\n") for number in range(3)]
    requests = [RolloutRequest(Arm(skills[at % 3]), item) for at, item in enumerate(items(6))]
    engine = setup.engine(noting, max_in_flight=in_flight)
    outcomes = await engine.run(requests, stage="gate", series="selection")
    assert order[: len(started)] == started
    assert [outcome.item_id for outcome in outcomes] == [item.id for item in items(6)]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(6)))
def test_outcomes_are_in_planned_order_whatever_order_they_finish_in(
    tmp_path_factory: pytest.TempPathFactory, order: list[int]
) -> None:
    async def run() -> list[str]:
        setup = RolloutSetup(tmp_path_factory.mktemp("order"))
        turn = [asyncio.Event() for _ in order]
        turn[0].set()

        async def in_turn(item: Item, context: AttemptContext) -> str:
            place = order.index(int(item.id[-3:]))
            await turn[place].wait()
            if place + 1 < len(turn):
                turn[place + 1].set()
            return right(item)

        outcomes = await setup.engine(in_turn).run(
            requests_for(SKILL, items(6)), stage="rollout", series="step_1"
        )
        setup.close()
        return [outcome.item_id for outcome in outcomes]

    assert asyncio.run(run()) == [item.id for item in items(6)]


async def test_a_recorded_rollout_is_never_run_again(setup: RolloutSetup) -> None:
    ran: Counter[str] = Counter()

    async def counted(item: Item, context: AttemptContext) -> str:
        ran[item.id] += 1
        return right(item)

    first = await setup.engine(counted).run(
        requests_for(SKILL, items(5)), stage="gate", series="selection"
    )
    again = await setup.engine(counted).run(
        requests_for(SKILL, items(6)), stage="gate", series="selection"
    )
    assert again[:5] == first
    assert set(ran.values()) == {1} and len(ran) == 6


@pytest.mark.parametrize(
    "other",
    [
        {"series": "ship"},
        {"repeats": [1]},
        {"instruction": "Why?"},
        {"skill": Skill.from_text("Guess.")},
    ],
)
async def test_series_skill_repeat_and_instruction_distinguish_rollouts(
    setup: RolloutSetup, other: dict[str, Any]
) -> None:
    ran: list[str] = []

    async def noted(item: Item, context: AttemptContext) -> str:
        ran.append(context.instruction)
        return right(item)

    engine = setup.engine(noted)
    for change in ({}, other):
        requests = requests_for(
            change.get("skill", SKILL), items(1), change.get("repeats", range(1))
        )
        await engine.run(
            requests,
            stage="gate",
            series=change.get("series", "selection"),
            instruction=change.get("instruction", ""),
        )
    assert ran == ["", other.get("instruction", "")]


async def test_repeats_have_different_seeds_and_compared_skills_share_them(
    setup: RolloutSetup,
) -> None:
    seeds: list[tuple[str, int | None]] = []

    async def noted(item: Item, context: AttemptContext) -> str:
        seeds.append((context.purpose, context.seed))
        return right(item)

    for skill in (SKILL, Skill.from_text("Guess.")):
        await setup.engine(noted, config=Config(train=TrainSection(seed=7))).run(
            requests_for(skill, items(3), range(2)), stage="gate", series="selection"
        )
    assert seeds[:6] == seeds[6:]
    assert len(set(seeds)) == 6 == len({seed for _, seed in seeds})
    await setup.engine(noted, config=Config(train=TrainSection(seed=8))).run(
        requests_for(SKILL, items(3), range(2)), stage="gate", series="other"
    )
    assert len({seed for _, seed in seeds}) == 12


async def test_a_task_with_its_own_evaluator_needs_no_agent(setup: RolloutSetup) -> None:
    async def evaluate(skill: Skill, item: Item, seed: int) -> ScoredAttempt:
        return Attempt(f"{skill.name}:{seed > 0}"), Score(0.5, 0.75)

    outcomes = await setup.engine(None, Sums(None, evaluate)).run(
        requests_for(SKILL, items(2)), stage="test", series="test"
    )
    assert [outcome.score for outcome in outcomes] == [Score(0.5, 0.75)] * 2


async def test_the_window_limits_concurrency_and_a_slow_rollout_does_not_block_others(
    setup: RolloutSetup,
) -> None:
    running = most = 0
    done = asyncio.Event()
    finished: list[str] = []

    async def watched(item: Item, context: AttemptContext) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await (done.wait() if item.id == "sum-000" else asyncio.sleep(0))
        running -= 1
        finished.append(item.id)
        if len(finished) == 39:
            done.set()
        return right(item)

    tasks = setup.engine(watched, max_in_flight=4).start(
        requests_for(SKILL, items(40)), stage="rollout", series="step_1"
    )
    assert len(tasks) == 40
    await asyncio.wait(tasks)
    assert most == 4
    assert finished[-1] == "sum-000"


async def test_a_rollout_over_its_time_limit_is_killed_with_its_processes_and_is_a_timeout(
    setup: RolloutSetup,
) -> None:
    process: asyncio.subprocess.Process | None = None

    async def slow(item: Item, context: AttemptContext) -> str:
        nonlocal process
        process = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
        try:
            await process.wait()
        finally:
            process.kill()
            await process.wait()
        return "never"

    (outcome,) = await setup.engine(slow, config=Config(env=EnvSection(exec_timeout=0.2))).run(
        requests_for(SKILL, items(1)), stage="rollout", series="step_1"
    )
    assert outcome.failure is not None and outcome.failure.kind == "timeout"
    assert "env.exec_timeout" in outcome.failure.message
    assert process is not None and process.returncode is not None


async def test_waiting_for_an_endpoint_slot_does_not_count_as_rollout_time(
    setup: RolloutSetup,
) -> None:
    limiter = Limiter(ceiling=1, start=1)

    async def one_at_a_time(item: Item, context: AttemptContext) -> str:
        async with limiter.slot():
            await asyncio.sleep(0.25)
        return right(item)

    outcomes = await setup.engine(  # the last one waits 1.25 s
        one_at_a_time, config=Config(env=EnvSection(exec_timeout=1))
    ).run(requests_for(SKILL, items(6)), stage="rollout", series="step_1")
    assert {outcome.status for outcome in outcomes} == {"scored"}


async def test_the_workspace_exists_for_the_grader_and_is_removed_afterwards(
    setup: RolloutSetup,
) -> None:
    left: list[Path] = []

    async def writing(item: Item, context: AttemptContext) -> Attempt:
        workspace = new_workspace(item)
        left.append(workspace.root)
        (workspace.work / "answer.txt").write_text(right(item))
        return Attempt("see answer.txt", workspace=str(workspace.work))

    class FileGrader(SameAnswer):
        async def grade(self, item: Item, attempt: Attempt) -> Score:
            return await super().grade(
                item, Attempt(Path(attempt.workspace, "answer.txt").read_text())
            )

    outcomes = await setup.engine(writing, Sums(FileGrader())).run(
        requests_for(SKILL, items(2)), stage="rollout", series="step_1"
    )
    assert all(outcome.succeeded for outcome in outcomes)
    assert len(left) == 2 and not any(folder.exists() for folder in left)
    assert {outcome.attempt.workspace for outcome in outcomes if outcome.attempt} == {""}


async def test_after_a_stop_rollouts_in_flight_finish_and_the_rest_is_skipped(
    setup: RolloutSetup,
) -> None:
    async def stopping(item: Item, context: AttemptContext) -> str:
        if item.id == "sum-001":
            engine.stop()
        await asyncio.sleep(0.01)
        return right(item)

    engine = setup.engine(stopping, max_in_flight=3)
    outcomes = await engine.run(requests_for(SKILL, items(6)), stage="rollout", series="step_1")
    assert [outcome.status for outcome in outcomes] == ["scored"] * 3 + ["skipped"] * 3
    assert Tally.of(outcomes).coverage == 1.0
    assert len(setup.finished()) == 3
    resumed = await setup.engine(solve).run(
        requests_for(SKILL, items(6)), stage="rollout", series="step_1"
    )
    assert resumed[:3] == outcomes[:3] and {outcome.status for outcome in resumed} == {"scored"}


async def test_an_agent_error_is_a_failed_outcome_outside_the_mean(
    setup: RolloutSetup,
) -> None:
    async def broken(item: Item, context: AttemptContext) -> str:
        if item.id == "sum-000":
            raise AgentFailure("The browser did not start.", kind="sandbox", hint="Install one.")
        return right(item)

    outcomes = await setup.engine(broken).run(
        requests_for(SKILL, items(4)), stage="gate", series="selection"
    )
    assert outcomes[0].status == "failed" and outcomes[0].score is None
    assert Tally.of(outcomes) == Tally(1.0, 1.0, 3, 4, 3)
    failures = {event.item: event.failure for event in setup.finished()}
    assert "sandbox: The browser" in failures.pop("sum-000")
    assert set(failures.values()) == {""}


def billed(setup: RolloutSetup) -> float:
    return setup.journal.bill().known_usd


async def until_the_budget_is_reached(
    setup: RolloutSetup, program: object, **meter: object
) -> None:
    budget = Budget(BudgetSection(usd=1), setup.journal)
    engine = setup.engine(program, meter=RolloutMeter(budget, capped=True, **meter))
    with pytest.raises(BudgetReached):
        await engine.run(requests_for(SKILL, items(30)), stage="rollout", series="step_1")


async def test_a_rollout_is_billed_as_a_whole_and_the_cap_is_enforced(setup: RolloutSetup) -> None:
    async def program(item: Item, context: AttemptContext) -> Attempt:
        return Attempt(right(item), usage=Usage(calls=4, output=100, usd=0.1))

    await until_the_budget_is_reached(setup, program)

    assert 0.8 <= billed(setup) <= 1.0


async def test_the_first_rollouts_measure_the_cost_before_many_run_concurrently(
    setup: RolloutSetup,
) -> None:
    running, at_once = 0, []

    async def program(item: Item, context: AttemptContext) -> Attempt:
        nonlocal running
        running += 1
        at_once.append(running)
        await asyncio.sleep(0.01)
        running -= 1
        return Attempt(right(item), usage=Usage(calls=1, input=1000, usd=None))

    def price(usage: Usage) -> Usage:
        return replace(usage, usd=usage.tokens / 20_000)

    await until_the_budget_is_reached(setup, program, price=price)

    assert billed(setup) <= 1.0
    assert at_once[:2] == [1, 1] and max(at_once) > 4
    assert at_once[-1] == 1, "near the cap they run one by one"


async def test_a_program_with_its_own_limit_is_given_its_reservation(
    setup: RolloutSetup,
) -> None:
    """One rollout is far more expensive than the others. It ends at its limit and is repeated with
    a larger one.
    """
    limits: dict[str, list[float]] = {}

    async def program(item: Item, context: AttemptContext) -> Attempt:
        cost = 0.16 if item.id == "sum-003" else 0.02
        limits.setdefault(item.id, []).append(context.max_usd or 0.0)
        if cost > (context.max_usd or 0.0):
            usage = Usage(calls=1, usd=context.max_usd)
            raise AgentFailure("Reached maximum budget", kind="limit", usage=usage)
        return Attempt(right(item), usage=Usage(calls=1, output=1, usd=cost))

    budget = Budget(BudgetSection(usd=2), setup.journal)
    meter = RolloutMeter(budget, capped=True, limits_itself=True)
    outcomes = await setup.engine(program, meter=meter).run(
        requests_for(SKILL, items(8)), stage="rollout", series="step_1"
    )

    assert all(outcome.succeeded for outcome in outcomes)
    assert len(limits["sum-003"]) > 1 and sorted(limits["sum-003"]) == limits["sum-003"]
    assert limits["sum-000"][0] == pytest.approx(2 / 1.25), "the first may use all that is left"
    assert outcomes[3].usage.usd == pytest.approx(0.16 + sum(limits["sum-003"][:-1]))
    assert billed(setup) <= 2


async def test_a_limit_that_does_not_grow_is_a_failure(
    setup: RolloutSetup,
) -> None:
    async def program(item: Item, context: AttemptContext) -> Attempt:
        raise AgentFailure("Reached maximum budget", kind="limit", usage=Usage(calls=1))

    budget = Budget(BudgetSection(usd=2), setup.journal)
    meter = RolloutMeter(budget, capped=True, limits_itself=True)
    (outcome,) = await setup.engine(program, meter=meter).run(
        requests_for(SKILL, items(1)), stage="rollout", series="step_1"
    )

    assert outcome.failure is not None and outcome.failure.kind == "limit"


async def test_a_crash_before_the_cost_is_known_does_not_use_up_the_budget(
    setup: RolloutSetup,
) -> None:
    async def program(item: Item, context: AttemptContext) -> Attempt:
        if item.id == "sum-000":
            raise AgentFailure("it crashed", kind="agent")
        return Attempt(right(item), usage=Usage(calls=1, output=1, usd=0.01))

    meter = RolloutMeter(Budget(BudgetSection(usd=1), setup.journal), capped=True)
    outcomes = await setup.engine(program, meter=meter).run(
        requests_for(SKILL, items(6)), stage="rollout", series="step_1"
    )

    assert [outcome.status for outcome in outcomes] == ["failed"] + ["scored"] * 5


async def test_a_rollout_that_reports_nothing_is_one_call_of_unknown_price(
    setup: RolloutSetup,
) -> None:
    async def program(item: Item, context: AttemptContext) -> Attempt:
        return Attempt(right(item))

    meter = RolloutMeter(Budget(BudgetSection(), setup.journal))
    (outcome,) = await setup.engine(program, meter=meter).run(
        requests_for(SKILL, items(1)), stage="rollout", series="step_1"
    )

    assert (outcome.usage.calls, outcome.usage.usd) == (1, None)


@settings(max_examples=30)
@given(st.lists(st.floats(0.01, 0.05), min_size=1, max_size=40), st.integers(1, 8))
def test_costs_that_differ_by_a_factor_of_five_do_not_exceed_the_cap(
    costs: list[float], at_once: int
) -> None:
    async def spend(folder: str) -> float:
        with closing(Journal(Path(folder, "journal.db"))) as journal:
            budget = Budget(BudgetSection(usd=0.4), journal)
            meter = RolloutMeter(budget, capped=True)
            window = asyncio.Semaphore(at_once)

            async def rollout(cost: float) -> None:
                async with window, meter.reserve() as reserved:
                    await asyncio.sleep(0)
                    reserved.bill(Usage(calls=1, output=1, usd=cost))

            await asyncio.gather(*map(rollout, costs), return_exceptions=True)
            return budget.spent.usd or 0.0

    with tempfile.TemporaryDirectory() as folder:
        assert asyncio.run(spend(folder)) <= 0.4


@pytest.mark.parametrize(
    ("caps", "reports", "has_price", "figure", "refused"),
    [
        (BudgetSection(usd=1), (), False, None, True),
        (BudgetSection(usd=1), ("tokens",), False, None, True),
        (BudgetSection(usd=1), ("tokens",), True, None, False),
        (BudgetSection(usd=1), ("usd",), False, None, False),
        (BudgetSection(usd=1), (), False, 0.1, False),
        (BudgetSection(tokens=1), (), False, None, True),
        (BudgetSection(tokens=1), (), False, 0.1, True),
        (BudgetSection(tokens=1), (), False, 0.0, False),
        (BudgetSection(tokens=1), ("tokens",), False, None, False),
        (BudgetSection(calls=1, minutes=1), (), False, None, False),
    ],
)
def test_a_cap_is_refused_when_usage_is_unknown(
    caps: BudgetSection,
    reports: tuple[str, ...],
    has_price: bool,
    figure: float | None,
    refused: bool,
) -> None:
    def check() -> None:
        refuse_unseen_usage(
            caps,
            "cli/fake",
            frozenset(reports),  # type: ignore[arg-type]
            has_price=has_price,
            usd_per_rollout=figure,
        )

    if refused:
        with pytest.raises(InputError, match="cli/fake"):
            check()
    else:
        check()
