"""A failure of the infrastructure is not a score. A failure that stops a run stops it
before more is spent.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from skillfit.agents.agent import AgentFailure, AttemptContext
from skillfit.config.schema import BudgetSection
from skillfit.errors import InfrastructureError, SkillfitError, TaskFailure
from skillfit.models.protocol import (
    AnswerPending,
    AuthFailed,
    BadReply,
    BadRequest,
    ContextTooLong,
    ModelError,
    NetworkFailed,
    QuotaExhausted,
    RateLimited,
    Refused,
    Usage,
)
from skillfit.rollout import requests_for
from skillfit.rollout.engine import WorkerLost
from skillfit.rollout.outcome import Failure, Outcome
from skillfit.run.budget import Budget, BudgetReached
from skillfit.tasks.item import Item
from tests.rollout.scripted_agents import SKILL, RolloutSetup, items, right


class Faulty:
    """Fails by script: `faults(item id, number of earlier tries)` gives the error, or None."""

    def __init__(self, faults: Callable[[str, int], SkillfitError | None]) -> None:
        self.tried: Counter[str] = Counter()
        self._faults = faults

    async def __call__(self, item: Item, context: AttemptContext) -> str:
        before = self.tried[item.id]
        self.tried[item.id] += 1
        await asyncio.sleep(0)
        fault = self._faults(item.id, before)
        if fault is not None:
            raise fault
        return right(item)


@pytest.mark.parametrize(
    "error",
    [
        *(NetworkFailed("reset"), RateLimited("slow down"), BadReply("empty")),
        *(WorkerLost("killed"), TaskFailure("docker", "busy"), TaskFailure("search", "busy")),
    ],
)
async def test_a_transient_failure_is_retried(setup: RolloutSetup, error: SkillfitError) -> None:
    agent = Faulty(lambda _, before: error if before == 0 else None)
    outcomes = await setup.engine(agent).run(
        requests_for(SKILL, items(3)), stage="gate", series="selection"
    )
    assert {outcome.status for outcome in outcomes} == {"scored"}
    assert set(agent.tried.values()) == {2}


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (NetworkFailed("reset"), 2),
        (WorkerLost("killed"), 4),
        (Refused("no"), 1),
        (ContextTooLong("long"), 1),
    ],
)
async def test_retries_are_limited_by_the_kind_of_error(
    setup: RolloutSetup, error: ModelError, tries: int
) -> None:
    agent = Faulty(lambda *_: error)
    (outcome,) = await setup.engine(agent).run(
        requests_for(SKILL, items(1)), stage="gate", series="selection"
    )
    assert outcome.failure is not None and outcome.failure.kind == error.kind
    assert agent.tried["sum-000"] == tries


async def test_a_broken_grader_or_program_is_a_failed_rollout_of_its_kind(
    setup: RolloutSetup,
) -> None:
    agent = Faulty(
        lambda item, _: TaskFailure("grader", "check.py:3: KeyError") if item == "sum-000" else None
    )
    outcome, *others = await setup.engine(agent).run(
        requests_for(SKILL, items(3)), stage="gate", series="selection"
    )
    assert outcome.failure == Failure("grader", "check.py:3: KeyError") and all(
        other.succeeded for other in others
    )


async def test_each_failed_attempt_is_billed_once(setup: RolloutSetup) -> None:
    agent = Faulty(
        lambda *_: AgentFailure("gone", kind="command", usage=Usage(calls=1, output=7, usd=0.5))
    )
    await setup.engine(agent).run(requests_for(SKILL, items(1)), stage="gate", series="selection")
    assert setup.losses() == agent.tried["sum-000"] == 2
    assert setup.journal.bill().total.output == 14


@pytest.mark.parametrize(
    "error", [AuthFailed("bad key"), QuotaExhausted("no credit"), BadRequest("no such model")]
)
async def test_fatal_errors_stop_the_run_before_it_spends(
    setup: RolloutSetup, error: ModelError
) -> None:
    agent = Faulty(lambda item, _: error if item == "sum-002" else None)
    with pytest.raises(type(error)):
        await setup.engine(agent, max_in_flight=4).run(
            requests_for(SKILL, items(50)), stage="rollout", series="step_1"
        )
    assert len(agent.tried) <= 6  # those in flight, and those that got a free slot before the error
    assert len(setup.finished()) == len(agent.tried) - 1  # and each of them is kept


async def test_a_reached_budget_stops_the_run_and_keeps_the_paid_results(
    setup: RolloutSetup,
) -> None:
    budget = Budget(BudgetSection(calls=5), setup.journal)
    paid = 0

    async def paying(item: Item, context: AttemptContext) -> str:
        nonlocal paid
        reservation = await budget.reserve("agent", Usage(calls=1))
        paid += 1
        await asyncio.sleep(0)
        reservation.settle(Usage(calls=1))
        return right(item)

    with pytest.raises(BudgetReached):
        await setup.engine(paying, max_in_flight=3).run(
            requests_for(SKILL, items(20)), stage="rollout", series="step_1"
        )
    assert paid == 5 == len(setup.finished())


async def test_all_handoff_prompts_are_written_before_the_run_stops(setup: RolloutSetup) -> None:
    agent = Faulty(lambda item, _: AnswerPending(f"{item} waits"))
    with pytest.raises(AnswerPending, match="sum-000"):
        await setup.engine(agent, max_in_flight=2).run(
            requests_for(SKILL, items(12)), stage="rollout", series="step_1"
        )
    assert len(agent.tried) == 12


async def test_recorded_rollouts_are_returned_after_the_run_was_stopped(
    setup: RolloutSetup,
) -> None:
    await setup.engine(Faulty(lambda *_: None)).run(
        requests_for(SKILL, items(3)), stage="gate", series="selection"
    )
    engine = setup.engine(Faulty(lambda *_: AuthFailed("bad key")))
    with pytest.raises(AuthFailed):
        await engine.run(requests_for(SKILL, items(4)), stage="gate", series="selection")
    assert (
        len(await engine.run(requests_for(SKILL, items(3)), stage="gate", series="selection")) == 3
    )


async def test_a_run_whose_first_rollouts_all_fail_alike_stops_with_their_error(
    setup: RolloutSetup,
) -> None:
    agent = Faulty(lambda *_: NetworkFailed("Connection refused: 127.0.0.1:9"))
    with pytest.raises(
        InfrastructureError, match=r"first 5 rollouts all failed.*Connection refused"
    ):
        await setup.engine(agent, max_in_flight=4).run(
            requests_for(SKILL, items(200)), stage="baseline", series="selection"
        )
    assert len(agent.tried) <= 12


async def test_a_run_that_can_no_longer_reach_its_coverage_stops(setup: RolloutSetup) -> None:
    agent = Faulty(lambda item, _: NetworkFailed("reset") if int(item[-3:]) % 2 else None)
    with pytest.raises(
        InfrastructureError,
        match=r"9 of 20 planned rollouts failed: a coverage of 60% cannot be reached",
    ):
        await setup.engine(agent, max_in_flight=1).run(
            requests_for(SKILL, items(20)), stage="gate", series="selection"
        )
    assert len(agent.tried) == 18


async def test_a_candidate_whose_rollouts_fail_does_not_stop_a_working_run(
    setup: RolloutSetup,
) -> None:
    agent = Faulty(lambda *_: None)
    engine = setup.engine(agent)
    await engine.run(requests_for(SKILL, items(8)), stage="baseline", series="selection")
    agent._faults = lambda *_: ContextTooLong("The skill is too long.")
    outcomes = await engine.run(
        requests_for(SKILL.with_body("long " * 99), items(8)),
        stage="gate",
        step=1,
        series="selection",
    )
    assert {outcome.status for outcome in outcomes} == {"failed"}


async def test_a_setup_that_never_worked_stops_the_run_for_any_kind_of_failure(
    setup: RolloutSetup,
) -> None:
    agent = Faulty(lambda *_: AgentFailure("solve.py: No such file", kind="command"))
    with pytest.raises(InfrastructureError, match="No such file"):
        await setup.engine(agent).run(
            requests_for(SKILL, items(8)), stage="baseline", series="selection"
        )


async def select(setup: RolloutSetup, agent: Faulty, decision: str, count: int) -> list[Outcome]:
    with setup.journal.decision(decision):
        return await setup.engine(agent).run(
            requests_for(SKILL, items(count)), stage="gate", step=1, series="selection"
        )


@pytest.mark.parametrize("count", [5, 2])  # enough coverage, and too little
async def test_an_accepted_failure_is_replayed_and_retried_only_for_another_decision(
    setup: RolloutSetup, count: int
) -> None:
    once = Faulty(lambda item, _: Refused("no") if item == "sum-001" else None)
    first = await select(setup, once, "step 1", count)
    well = Faulty(lambda *_: None)
    assert await select(setup, well, "step 1", count) == first and not well.tried
    later = await select(setup, well, "step 2", count)
    assert later[1].status == "scored" and list(well.tried) == ["sum-001"]
    assert await select(setup, well, "step 1", count) == first


async def test_failures_below_the_coverage_floor_are_retried_by_the_next_run(
    setup: RolloutSetup,
) -> None:
    await setup.engine(Faulty(lambda item, _: Refused("no") if item > "sum-000" else None)).run(
        requests_for(SKILL, items(4)), stage="gate", step=1, series="selection"
    )
    well = Faulty(lambda *_: None)
    outcomes = await setup.engine(well).run(
        requests_for(SKILL, items(4)), stage="gate", step=1, series="selection"
    )
    assert {outcome.status for outcome in outcomes} == {"scored"} and len(well.tried) == 3
    assert {event.status for event in setup.finished()} == {"scored"}
