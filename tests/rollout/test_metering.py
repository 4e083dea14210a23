"""Rollouts whose model calls skillfit does not see are metered as a whole, and hold the cap."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillfit.agents import AgentFailure, AttemptContext
from skillfit.config.schema import BudgetSection
from skillfit.errors import InputError
from skillfit.models.protocol import Usage
from skillfit.rollout import requests_for
from skillfit.rollout.engine import RolloutMeter, refuse_unseen_usage
from skillfit.run.budget import Budget, BudgetReached
from skillfit.run.journal import Journal
from skillfit.tasks.item import Attempt, Item
from tests.rollout.scripted_agents import SKILL, RolloutSetup, items, right


def billed(setup: RolloutSetup) -> float:
    return setup.journal.bill().known_usd


async def until_the_budget_is_reached(
    setup: RolloutSetup, program: object, **meter: object
) -> None:
    budget = Budget(BudgetSection(usd=1), setup.journal)
    engine = setup.engine(program, meter=RolloutMeter(budget, capped=True, **meter))
    with pytest.raises(BudgetReached):
        await engine.run(requests_for(SKILL, items(30)), phase="rollout", series="step_1")


async def test_a_rollout_is_billed_as_a_whole_and_the_cap_is_held(setup: RolloutSetup) -> None:
    async def program(item: Item, context: AttemptContext) -> Attempt:
        return Attempt(right(item), usage=Usage(calls=4, output=100, usd=0.1))

    await until_the_budget_is_reached(setup, program)

    assert 0.8 <= billed(setup) <= 1.0


async def test_the_first_rollouts_show_the_cost_before_many_run_at_the_same_time(
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
    a larger one."""
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
        requests_for(SKILL, items(8)), phase="rollout", series="step_1"
    )

    assert all(outcome.succeeded for outcome in outcomes)
    assert len(limits["sum-003"]) > 1 and sorted(limits["sum-003"]) == limits["sum-003"]
    assert limits["sum-000"][0] == pytest.approx(2 / 1.25), "the first may use all that is left"
    assert outcomes[3].usage.usd == pytest.approx(0.16 + sum(limits["sum-003"][:-1]))
    assert billed(setup) <= 2


async def test_a_limit_that_does_not_grow_is_a_failure_and_no_endless_loop(
    setup: RolloutSetup,
) -> None:
    async def program(item: Item, context: AttemptContext) -> Attempt:
        raise AgentFailure("Reached maximum budget", kind="limit", usage=Usage(calls=1))

    budget = Budget(BudgetSection(usd=2), setup.journal)
    meter = RolloutMeter(budget, capped=True, limits_itself=True)
    (outcome,) = await setup.engine(program, meter=meter).run(
        requests_for(SKILL, items(1)), phase="rollout", series="step_1"
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
        requests_for(SKILL, items(6)), phase="rollout", series="step_1"
    )

    assert [outcome.status for outcome in outcomes] == ["failed"] + ["scored"] * 5


async def test_a_rollout_that_reports_nothing_is_one_call_of_unknown_price(
    setup: RolloutSetup,
) -> None:
    async def program(item: Item, context: AttemptContext) -> Attempt:
        return Attempt(right(item))

    meter = RolloutMeter(Budget(BudgetSection(), setup.journal))
    (outcome,) = await setup.engine(program, meter=meter).run(
        requests_for(SKILL, items(1)), phase="rollout", series="step_1"
    )

    assert (outcome.usage.calls, outcome.usage.usd) == (1, None)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.01, 0.05), min_size=1, max_size=40), st.integers(1, 8))
def test_costs_that_differ_by_a_factor_of_five_do_not_pass_the_cap(
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
def test_a_cap_is_refused_where_the_use_cannot_be_seen(
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
