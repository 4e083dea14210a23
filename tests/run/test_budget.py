"""The budget is checked before each call: no cap is ever exceeded, not even across kills and
resumes.
"""

import asyncio
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillfit.config.schema import BudgetSection
from skillfit.errors import Exit, InputError, SkillfitError, TaskFailure
from skillfit.models.protocol import AuthFailed, Usage
from skillfit.run.budget import (
    Amounts,
    Budget,
    BudgetReached,
    refuse_unpriced,
)
from skillfit.run.control import Interrupted
from skillfit.run.journal import Journal

CALL = Usage(calls=1, input=60, output=40, usd=0.1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


async def spend(budget: Budget, bound: Usage = CALL, used: Usage = CALL) -> None:
    (await budget.reserve("agent", bound)).settle(used)


@pytest.mark.parametrize(
    ("caps", "cap"),
    [
        (BudgetSection(usd=0.3), "usd"),
        (BudgetSection(tokens=300), "tokens"),
        (BudgetSection(calls=3), "calls"),
    ],
)
async def test_the_last_call_that_fits_is_sent_and_the_next_is_refused_with_the_cap(
    path: Path, caps: BudgetSection, cap: str
) -> None:
    budget = Budget(caps, Journal(path))
    for _ in range(3):
        await spend(budget)
    with pytest.raises(BudgetReached) as raised:
        await budget.reserve("agent", CALL)
    assert raised.value.cap == cap
    assert f"budget.{cap}" in raised.value.hint
    assert raised.value.exit_code is Exit.BUDGET


async def test_unused_reservations_are_available_to_later_calls(path: Path) -> None:
    budget = Budget(BudgetSection(tokens=1000), Journal(path))
    for _ in range(10):
        await spend(budget, Usage(calls=1, input=900), Usage(calls=1, input=10))
    assert budget.spent.tokens == 100


async def test_a_reservation_waits_for_attempts_in_flight(path: Path) -> None:
    budget = Budget(BudgetSection(tokens=1000), Journal(path))
    first = await budget.reserve("agent", Usage(calls=1, input=900))
    waiting = asyncio.create_task(budget.reserve("agent", Usage(calls=1, input=900)))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    first.settle(Usage(calls=1, input=100))
    (await waiting).settle(Usage())


async def test_a_waiting_reservation_is_refused_when_the_rest_is_used_up(path: Path) -> None:
    budget = Budget(BudgetSection(tokens=1000), Journal(path))
    first = await budget.reserve("agent", Usage(calls=1, input=900))
    waiting = asyncio.create_task(budget.reserve("agent", Usage(calls=1, input=900)))
    await asyncio.sleep(0)
    first.settle(Usage(calls=1, input=900))
    with pytest.raises(BudgetReached):
        await waiting


async def test_settling_twice_counts_once(path: Path) -> None:
    budget = Budget(BudgetSection(calls=5), Journal(path))
    reserved = await budget.reserve("agent", CALL)
    reserved.settle(CALL)
    reserved.settle(CALL)
    assert budget.spent.calls == 1


async def test_without_caps_every_call_fits_and_prices_may_be_unknown(path: Path) -> None:
    budget = Budget(BudgetSection(), Journal(path))
    for _ in range(100):
        await spend(budget, Usage(calls=1, usd=None), Usage(calls=1, usd=None))
    assert budget.spent.calls == 100


async def test_spending_of_earlier_processes_counts(path: Path) -> None:
    async def effect() -> int:
        return 1

    journal = Journal(path)
    for n in range(2):
        await journal.once(f"k{n}", effect, returns=int, usage=lambda _: CALL)
    budget = Budget(BudgetSection(calls=3), journal)
    await spend(budget)
    with pytest.raises(BudgetReached):
        await budget.reserve("agent", CALL)


async def test_minutes_are_counted_over_all_processes_and_end_waiting(path: Path) -> None:
    now = [0.0]
    first = Budget(BudgetSection(minutes=10), Journal(path), clock=lambda: now[0])
    now[0] = 6 * 60
    await spend(first)
    now[0] = 1000.0
    second = Budget(BudgetSection(minutes=10), Journal(path), clock=lambda: now[0])
    assert second.seconds_left() == pytest.approx(4 * 60)
    await spend(second)
    now[0] += 4 * 60
    with pytest.raises(BudgetReached) as raised:
        await second.reserve("agent", CALL)
    assert raised.value.cap == "minutes"


async def test_warnings_at_50_and_80_percent_are_not_repeated_after_a_resume(
    path: Path,
) -> None:
    warnings: list[tuple[str, int, str]] = []

    def warn(cap: str, percent: int, message: str) -> None:
        warnings.append((cap, percent, message))

    budget = Budget(BudgetSection(calls=10), Journal(path), on_warning=warn)
    for _ in range(7):
        await spend(budget)
    assert warnings == [("calls", 50, "50 % of the budget of 10 calls is used (5 calls).")]
    resumed = Budget(BudgetSection(calls=10), Journal(path), on_warning=warn)
    for _ in range(3):
        await spend(resumed)
    assert [percent for _, percent, _ in warnings] == [50, 80]


async def test_a_dollar_cap_refuses_models_without_a_price_before_anything_is_spent(
    path: Path,
) -> None:
    with pytest.raises(InputError, match="no price is known for openai/new") as raised:
        refuse_unpriced(BudgetSection(usd=1), ["openai/new"])
    assert "model.prices" in raised.value.hint
    refuse_unpriced(BudgetSection(usd=1), [])
    refuse_unpriced(BudgetSection(tokens=1), ["openai/new"])
    with pytest.raises(InputError, match="no price is known"):
        await Budget(BudgetSection(usd=1), Journal(path)).reserve("judge", Usage(calls=1, usd=None))


def test_attempts_in_flight_at_a_kill_are_charged_in_full_on_resume(path: Path) -> None:
    program = textwrap.dedent("""
        import asyncio, os, signal, sys
        from pathlib import Path
        from skillfit.models.protocol import Usage
        from skillfit.config.schema import BudgetSection
        from skillfit.run.budget import Budget, BudgetReached
        from skillfit.run.journal import Journal

        async def main():
            budget = Budget(BudgetSection(calls=10), Journal(Path(sys.argv[1])))
            sent = 0
            try:
                for n in range(20):
                    reserved = await budget.reserve("agent", Usage(calls=1))
                    print("sent", flush=True)
                    if n == 3:
                        await budget.reserve("agent", Usage(calls=1))
                        print("sent", flush=True)
                        os.kill(os.getpid(), signal.SIGKILL)
                    reserved.settle(Usage(calls=1))
            except BudgetReached:
                pass

        asyncio.run(main())
    """)
    sent = 0
    for code in (-signal.SIGKILL, -signal.SIGKILL, 0):
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (code, "")
        sent += done.stdout.count("sent")
    assert sent == 10


async def test_runs_of_one_command_share_one_cap(tmp_path: Path) -> None:
    together: list[Budget] = []
    sent = 0
    for number in range(3):
        budget = Budget(
            BudgetSection(calls=5), Journal(tmp_path / f"{number}.sqlite"), together=together
        )
        try:
            for _ in range(4):
                await spend(budget)
                sent += 1
        except BudgetReached as error:
            assert error.cap == "calls"
        budget.close()
    assert sent == 5


async def test_a_waiting_run_continues_when_another_run_of_the_command_settles(
    tmp_path: Path,
) -> None:
    together: list[Budget] = []
    caps = BudgetSection(tokens=1000)
    first = Budget(caps, Journal(tmp_path / "a.sqlite"), together=together)
    second = Budget(caps, Journal(tmp_path / "b.sqlite"), together=together)
    reserved = await first.reserve("agent", Usage(calls=1, input=900))
    waiting = asyncio.create_task(second.reserve("agent", Usage(calls=1, input=900)))
    await asyncio.sleep(0)
    reserved.settle(Usage(calls=1, input=50))
    (await waiting).settle(Usage())


async def test_a_run_that_a_command_opens_twice_is_counted_once(path: Path) -> None:
    together: list[Budget] = []
    for _ in range(2):
        journal = Journal(path)
        budget = Budget(BudgetSection(calls=3), journal, together=together)
        await spend(budget)
        budget.close()
        journal.close()
    assert together[0].spent.calls == 2


async def test_measurements_in_separate_event_loops_share_one_budget(
    tmp_path: Path,
) -> None:
    together: list[Budget] = []

    async def look(name: str) -> None:
        budget = Budget(BudgetSection(calls=10), Journal(tmp_path / name), together=together)
        await asyncio.gather(*(spend(budget) for _ in range(4)))

    await asyncio.to_thread(asyncio.run, look("a.sqlite"))
    await asyncio.to_thread(asyncio.run, look("b.sqlite"))
    assert together[0].spent.calls == 8


NAN = float("nan")
WRONG = [
    Usage(calls=1, input=-1_000_000, output=5, usd=-3.0),
    Usage(calls=-1, input=10, output=10, usd=0.01),
    Usage(calls=1, input=10, output=10, usd=NAN),
    Usage(calls=1, input=NAN, output=10, usd=0.01),  # type: ignore[arg-type]
    Usage(calls=1, input=10, output=10, usd=float("inf")),
    Usage(calls=1, input=10, output=10, usd=None),
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(
    "caps", [BudgetSection(usd=0.5), BudgetSection(tokens=500), BudgetSection(calls=5)]
)
async def test_an_invalid_usage_report_frees_no_budget_and_blocks_no_call(
    path: Path, caps: BudgetSection, wrong: Usage
) -> None:
    budget = Budget(caps, Journal(path))
    sent = 0
    with pytest.raises(BudgetReached):
        async with asyncio.timeout(10):
            for _ in range(100):
                await spend(budget, CALL, wrong)
                sent += 1
    assert 5 <= sent <= 50  # five upper bounds fit; a plausible number may be below its bound
    assert all(amount >= 0 for amount in (budget.spent.calls, budget.spent.tokens))


async def test_an_upper_bound_that_is_not_a_number_is_refused(path: Path) -> None:
    budget = Budget(BudgetSection(usd=1), Journal(path))
    with pytest.raises(InputError, match="not a number"):
        await budget.reserve("agent", Usage(calls=1, usd=NAN))


async def test_rollouts_are_counted_before_they_start_and_across_resumes(path: Path) -> None:
    started = 0
    for _ in range(2):
        journal = Journal(path)
        budget = Budget(BudgetSection(rollouts=5), journal)

        async def rollout(budget: Budget = budget, journal: Journal = journal) -> None:
            nonlocal started
            async with budget.rollout():
                started += 1
                await asyncio.sleep(0)
            journal.record(f"rollout/{started}/{asyncio.current_task()}", 1, int)

        results = await asyncio.gather(*(rollout() for _ in range(4)), return_exceptions=True)
        journal.close()
    assert started == 5
    assert [type(result) for result in results if result] == [BudgetReached] * 3


async def test_a_rollout_that_fails_counts_and_recorded_ones_do_too(path: Path) -> None:
    journal = Journal(path)
    journal.record("rollout/a", 1, int)
    budget = Budget(BudgetSection(rollouts=2), journal)
    with pytest.raises(ZeroDivisionError):
        async with budget.rollout():
            raise ZeroDivisionError
    with pytest.raises(BudgetReached, match="2 rollouts"):
        async with budget.rollout():
            pass


async def test_a_rollout_that_a_resumed_run_makes_again_counts_once(path: Path) -> None:
    """It was stopped, cancelled or killed, or ended by an error that ends every other one too."""
    caps = BudgetSection(rollouts=3)

    async def interrupted(budget: Budget, error: BaseException) -> None:
        with pytest.raises(type(error)):
            async with budget.rollout():
                raise error

    budget = Budget(caps, Journal(path))
    for error in (AuthFailed("wrong key"), BudgetReached("usd", 1, 1), asyncio.CancelledError()):
        await interrupted(budget, error)
    hanging = budget.rollout()
    await hanging.__aenter__()  # in flight when the process is killed
    budget = Budget(caps, Journal(path))
    assert budget.spent.rollouts == 0
    await interrupted(budget, TaskFailure("grader", "it failed"))
    assert Budget(caps, Journal(path)).spent.rollouts == 1


async def test_a_rollout_interrupted_by_a_stop_does_not_count(path: Path) -> None:
    budget = Budget(BudgetSection(rollouts=1), Journal(path))
    with pytest.raises(Interrupted):
        async with budget.rollout(), budget.waiting():
            budget.stop(Interrupted())
            await asyncio.sleep(10)
    assert Budget(BudgetSection(rollouts=1), Journal(path)).spent.rollouts == 0


async def test_a_rollout_killed_before_it_is_recorded_counts_once(
    path: Path,
) -> None:
    journal = Journal(path)
    async with Budget(BudgetSection(rollouts=3), journal).rollout():
        pass
    assert Budget(BudgetSection(rollouts=3), journal).spent.rollouts == 0  # not yet recorded
    journal.record("rollout/a", 1, int)
    assert Budget(BudgetSection(rollouts=3), journal).spent.rollouts == 1


async def test_budget_reserved_for_the_ship_test_is_available_to_it(path: Path) -> None:
    budget = Budget(BudgetSection(calls=10), Journal(path))
    budget.hold_back(Amounts(calls=4))
    with pytest.raises(BudgetReached, match="4 calls kept for the end of the run"):
        for _ in range(10):
            await spend(budget)
    assert budget.spent.calls == 6
    budget.release_held()
    for _ in range(4):
        await spend(budget)
    with pytest.raises(BudgetReached):
        await spend(budget)


async def test_minutes_can_be_reserved_for_the_ship_test(path: Path) -> None:
    now = [0.0]
    budget = Budget(BudgetSection(minutes=10), Journal(path), clock=lambda: now[0])
    budget.hold_back(Amounts(), minutes=4)
    now[0] = 5.9 * 60
    await spend(budget)
    now[0] = 6.1 * 60
    with pytest.raises(BudgetReached, match=r"6.1 min used, 4.0 min kept for the end"):
        await spend(budget)
    async with budget.sending():  # what is in flight may finish
        pass
    budget.release_held()
    await spend(budget)


async def test_a_reached_dollar_cap_reports_the_maximum_cost_of_the_next_call(path: Path) -> None:
    budget = Budget(BudgetSection(usd=0.02), Journal(path))
    with pytest.raises(BudgetReached, match=r"\$0.00 used, the next call may take up to \$0.0655"):
        await budget.reserve("optimizer", Usage(calls=1, usd=0.0655))


@pytest.mark.parametrize("phase", ["waiting", "sending", "rollout"])
async def test_the_cap_in_minutes_ends_waiting_sending_and_rollouts(path: Path, phase: str) -> None:
    budget = Budget(BudgetSection(minutes=0.1 / 60), Journal(path))
    with pytest.raises(BudgetReached) as raised:
        async with getattr(budget, phase)():
            await asyncio.sleep(3600)
    assert raised.value.cap == "minutes"
    with pytest.raises(BudgetReached):
        await budget.reserve("agent", CALL)


async def test_a_timeout_inside_the_block_is_not_reported_as_the_budget(path: Path) -> None:
    budget = Budget(BudgetSection(minutes=10), Journal(path))
    with pytest.raises(TimeoutError):
        async with budget.sending(), asyncio.timeout(0):
            await asyncio.sleep(3600)


async def test_a_stop_ends_every_wait_and_calls_in_flight_finish(path: Path) -> None:
    budget, reason = Budget(BudgetSection(tokens=100), Journal(path)), SkillfitError("stopped")
    finish = asyncio.Event()

    async def wait() -> None:
        async with budget.waiting():
            await asyncio.sleep(3600)

    async def send() -> str:
        reserved = await budget.reserve("agent", Usage(calls=1, input=100))
        async with budget.sending():
            await finish.wait()
        reserved.settle(Usage(calls=1, input=100))
        return "sent"

    sending = asyncio.create_task(send())
    await asyncio.sleep(0)
    waits = [asyncio.create_task(wait()) for _ in range(3)]
    waits.append(asyncio.create_task(spend(budget)))  # for tokens that are in flight
    await asyncio.sleep(0)
    budget.stop(reason)
    results = await asyncio.gather(*waits, return_exceptions=True)
    assert results == [reason] * 4
    finish.set()
    assert await sending == "sent"


async def test_a_failed_journal_ends_waits_and_refuses_new_reservations(path: Path) -> None:
    journal, full = Journal(path), SkillfitError("disk full")
    budget = Budget(BudgetSection(), journal)

    async def wait() -> None:
        async with budget.waiting():
            await asyncio.sleep(3600)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    journal.fail(full)
    with pytest.raises(SkillfitError, match="disk full"):
        await waiting
    with pytest.raises(SkillfitError, match="disk full"):
        await budget.reserve("agent", CALL)


class Server:
    """Bills the requests that arrive, and keeps the total."""

    def __init__(self) -> None:
        self.calls = self.tokens = 0
        self.usd = 0.0

    async def answer(self, usage: Usage, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        self.calls += usage.calls
        self.tokens += usage.tokens
        self.usd += usage.usd or 0.0


ATTEMPTS = st.tuples(st.integers(1, 50), st.integers(0, 100), st.integers(0, 4), st.booleans())


@pytest.mark.slow
@settings(max_examples=80)
@given(
    st.lists(ATTEMPTS, min_size=1, max_size=25),
    st.one_of(st.none(), st.integers(1, 15)),
    st.one_of(st.none(), st.integers(1, 400)),
    st.one_of(st.none(), st.floats(0.01, 2.0)),
    st.integers(0, 25),
)
def test_no_interleaving_of_attempts_failures_and_resumes_exceeds_a_cap(
    tmp_path_factory: pytest.TempPathFactory,
    attempts: list[tuple[int, int, int, bool]],
    calls: int | None,
    tokens: int | None,
    usd: float | None,
    resumed_at: int,
) -> None:
    path = tmp_path_factory.mktemp("budget") / "journal.sqlite"
    caps, server = BudgetSection(usd=usd, tokens=tokens, calls=calls), Server()
    refused: list[BudgetReached] = []

    async def attempt(budget: Budget, bound: int, share: int, turns: int, cancelled: bool) -> None:
        upper = Usage(calls=1, input=bound, usd=bound / 100)
        try:
            reserved = await budget.reserve("agent", upper)
        except BudgetReached as error:
            refused.append(error)
            return
        used = Usage(calls=1, input=bound * share // 100, usd=bound * share / 10_000)
        await server.answer(used, turns)
        reserved.settle(upper if cancelled else used)

    async def process(some: list[tuple[int, int, int, bool]]) -> None:
        journal = Journal(path)
        budget = Budget(caps, journal)
        async with asyncio.timeout(10):  # no reservation waits forever
            await asyncio.gather(*(attempt(budget, *one) for one in some))
        journal.close()

    for some in (attempts[:resumed_at], attempts[resumed_at:]):
        asyncio.run(process(some))
        assert calls is None or server.calls <= calls
        assert tokens is None or server.tokens <= tokens
        assert usd is None or server.usd <= usd + 1e-6
    if caps == BudgetSection():
        assert not refused


async def test_a_call_and_its_rollout_both_end_with_the_time_budget(
    path: Path,
) -> None:
    journal = Journal(path)
    budget = Budget(BudgetSection(minutes=1 / 60), journal)  # the calls begin before it is over

    async def call() -> int:
        reserved = await budget.reserve("agent", CALL)
        try:
            async with budget.sending():
                await asyncio.sleep(3600)
        finally:
            reserved.settle(CALL)
        return 1

    async def rollout() -> int:
        async with budget.rollout():
            return await journal.once("call", call, returns=int)

    async with asyncio.timeout(30):
        results = await asyncio.gather(
            *(journal.once(f"rollout/{n}", rollout, returns=int) for n in range(3)),
            return_exceptions=True,
        )
    assert [type(result) for result in results] == [BudgetReached] * 3
    assert budget.spent.calls == 1
