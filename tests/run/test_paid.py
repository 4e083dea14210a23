"""Work that proposers pay for: run once, capped, resumable, with a time limit."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from skillfit.config.schema import BudgetSection
from skillfit.errors import InputError
from skillfit.models.protocol import BadReply, Overloaded, TimedOut, Usage
from skillfit.run.budget import Budget, BudgetReached
from skillfit.run.journal import Journal
from skillfit.run.paid import Paid, PaidEffects

COST = Usage(calls=3, input=90, output=10, usd=0.2)
MOST = Usage(calls=1, input=1_000, usd=0.5)


@dataclass(frozen=True)
class Report:
    text: str
    rules: tuple[str, ...]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def effects(path: Path, **caps: float) -> PaidEffects:
    journal = Journal(path)
    return PaidEffects(journal, Budget(BudgetSection(**caps), journal))


class Work:
    """An effect that counts how often it runs."""

    def __init__(self, *results: object) -> None:
        self.results, self.times = list(results), 0

    async def __call__(self) -> Paid:
        self.times += 1
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


async def test_a_resumed_run_gets_the_recorded_result_and_its_cost(path: Path) -> None:
    counted: list[tuple[str, Usage]] = []
    work = Work(Paid(Report("ok", ("a", "b")), COST))
    for _ in range(2):
        journal = Journal(path)
        paid = PaidEffects(
            journal,
            Budget(BudgetSection(), journal),
            count=lambda stage, usage: counted.append((stage, usage)),
        )
        result = await paid.once("step 1", work, returns=Report, stage="read", model="m")
        assert result == Paid(Report("ok", ("a", "b")), COST)
        journal.close()
    assert work.times == 1
    assert counted == [("read", COST)] * 2
    rows = Journal(path).bill().rows
    assert [(row.stage, row.role, row.model, row.usage) for row in rows] == [
        ("read", "optimizer", "m", COST)
    ]


async def test_effects_with_other_names_run_separately(path: Path) -> None:
    paid, work = effects(path), Work(Paid("one", COST), Paid("two", COST))
    found = [await paid.once(f"step {n}", work, returns=str) for n in (1, 2, 1)]
    assert [one.value for one in found] == ["one", "two", "one"]


async def test_an_effect_that_may_pass_the_cap_does_not_start(path: Path) -> None:
    paid, work = effects(path, usd=0.6), Work(Paid("one", COST), Paid("two", COST))
    await paid.once("first", work, returns=str, at_most=MOST)
    assert paid.left().usd == pytest.approx(0.4)
    with pytest.raises(BudgetReached):
        await paid.once("second", work, returns=str, at_most=MOST)
    assert work.times == 1


@pytest.mark.parametrize("cap", ["usd", "tokens"])
async def test_a_cap_requires_the_most_that_an_effect_may_cost(path: Path, cap: str) -> None:
    paid, work = effects(path, **{cap: 100}), Work(Paid("one", COST))
    with pytest.raises(InputError, match=rf"budget\.{cap} is set, but 'step 1' does not say"):
        await paid.once("step 1", work, returns=str)
    assert work.times == 0


async def test_an_unknown_cost_counts_as_the_most_it_may_be(path: Path) -> None:
    paid = effects(path, usd=2, tokens=10_000)
    await paid.once("step 1", Work(Paid("one")), returns=str, at_most=MOST)
    left = paid.left()
    assert (left.usd, left.tokens) == (pytest.approx(1.5), 9_000)


async def test_an_effect_ends_at_its_time_limit_and_counts_in_full(path: Path) -> None:
    ended = asyncio.Event()

    async def endless() -> Paid[str]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    paid = effects(path, usd=1)
    with pytest.raises(TimedOut, match=r"step 1 was ended after 0\.05 s"):
        await paid.once("step 1", endless, returns=str, at_most=MOST, timeout=0.05)
    assert ended.is_set() and paid.left().usd == pytest.approx(0.5)


async def test_a_failure_is_billed_and_tried_again_until_it_is_permanent(path: Path) -> None:
    failure = Overloaded("busy", usage=Usage(calls=1, input=10, usd=0.1))
    work = Work(failure, BadReply("no rules"))
    journal = Journal(path)
    paid = PaidEffects(journal, Budget(BudgetSection(), journal))
    with pytest.raises(Overloaded):
        await paid.once("step 1", work, returns=str)
    assert journal.bill().known_usd == pytest.approx(0.1)
    with journal.decision("step_0001"), pytest.raises(BadReply):
        await paid.once("step 1", work, returns=str)
    journal.close()
    journal = Journal(path)
    paid = PaidEffects(journal, Budget(BudgetSection(), journal))
    with journal.decision("step_0001"), pytest.raises(BadReply, match="no rules"):
        await paid.once("step 1", work, returns=str)
    assert work.times == 2


async def test_a_request_to_stop_refuses_new_effects(path: Path) -> None:
    def stopped() -> None:
        raise InputError("stopped")

    journal, work = Journal(path), Work(Paid("one", COST))
    paid = PaidEffects(journal, Budget(BudgetSection(), journal), check=stopped)
    with pytest.raises(InputError, match="stopped"):
        await paid.once("step 1", work, returns=str)
    assert work.times == 0
