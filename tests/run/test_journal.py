"""A recorded effect is never run again, even after a kill."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillfit.errors import InputError
from skillfit.models.protocol import NetworkFailed, Overloaded, Usage
from skillfit.models.secrets import hide_keys_in_use, remember_secret
from skillfit.run.events import EventLog, Warned
from skillfit.run.journal import Journal
from skillfit.run.store import DamagedRun, RunNotWritable


@dataclass(frozen=True)
class Answer:
    text: str
    parts: tuple[int, ...] = ()
    extra: dict[str, float] = field(default_factory=dict)


class Effect:
    """Counts its executions, and may be slow."""

    def __init__(self, value: object = 7, seconds: float = 0.0) -> None:
        self.value, self.seconds, self.runs, self.cancelled = value, seconds, 0, 0

    async def __call__(self) -> object:
        self.runs += 1
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


async def test_a_recorded_value_keeps_its_type_in_a_new_process(
    path: Path,
) -> None:
    value = Answer("héllo", (1, 2), {"a": 0.5})
    first = Journal(path)
    assert await first.once("k", Effect(value), returns=Answer) == value
    first.close()
    again = Effect(Answer("other"))
    assert await Journal(path).once("k", again, returns=Answer) == value
    assert again.runs == 0


async def test_concurrent_callers_of_one_key_share_one_execution(path: Path) -> None:
    journal, effect = Journal(path), Effect(seconds=0.01)
    assert (
        await asyncio.gather(*(journal.once("k", effect, returns=int) for _ in range(20)))
        == [7] * 20
    )
    assert effect.runs == 1


async def test_the_effect_continues_when_its_first_caller_is_cancelled_while_others_wait(
    path: Path,
) -> None:
    journal, effect = Journal(path), Effect(seconds=0.02)
    first = asyncio.create_task(journal.once("k", effect, returns=int))
    second = asyncio.create_task(journal.once("k", effect, returns=int))
    await asyncio.sleep(0.005)
    first.cancel()
    assert await second == 7
    assert first.cancelled()
    assert (effect.runs, effect.cancelled) == (1, 0)


async def test_cancelling_a_waiter_does_not_affect_the_first_caller(path: Path) -> None:
    journal, effect = Journal(path), Effect(seconds=0.02)
    first = asyncio.create_task(journal.once("k", effect, returns=int))
    second = asyncio.create_task(journal.once("k", effect, returns=int))
    await asyncio.sleep(0.005)
    second.cancel()
    assert await first == 7
    assert effect.cancelled == 0


async def test_the_effect_is_cancelled_with_its_last_waiter_and_runs_again_for_the_next(
    path: Path,
) -> None:
    journal, effect = Journal(path), Effect(seconds=10)
    waiters = [asyncio.create_task(journal.once("k", effect, returns=int)) for _ in range(3)]
    await asyncio.sleep(0.005)
    for waiter in waiters:
        waiter.cancel()
    late = asyncio.create_task(journal.once("k", Effect(8), returns=int))
    await asyncio.gather(*waiters, return_exceptions=True)
    assert effect.cancelled == 1
    assert await late == 8


async def test_a_value_returned_despite_a_cancellation_is_recorded(path: Path) -> None:
    async def stubborn() -> int:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return 5  # the reply was already there
        return 0

    journal = Journal(path)
    caller = asyncio.create_task(journal.once("k", stubborn, returns=int))
    await asyncio.sleep(0.005)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert journal.get("k", int) == 5


async def test_a_failure_is_not_recorded_reaches_every_caller_and_is_retried(path: Path) -> None:
    async def broken() -> int:
        await asyncio.sleep(0)
        raise NetworkFailed("cut", usage=Usage(calls=2, input=10, usd=0.5))

    journal = Journal(path)
    results = await asyncio.gather(
        *(journal.once("k", broken, returns=int) for _ in range(3)), return_exceptions=True
    )
    assert [type(result) for result in results] == [NetworkFailed] * 3
    assert not journal.has("k")
    assert await journal.once("k", Effect(), returns=int) == 7


async def test_nested_effects_are_recorded_separately_and_an_inner_failure_is_billed_once(
    path: Path,
) -> None:
    async def call() -> int:
        raise NetworkFailed("cut", usage=Usage(calls=1, input=10, usd=0.5))

    journal = Journal(path)
    with pytest.raises(NetworkFailed):
        await journal.once(
            "rollout",
            lambda: journal.once("call", call, returns=int, stage="rollout", role="agent"),
            returns=int,
        )
    used = Usage(calls=1, input=10, usd=0.5, failed=1, failed_tokens=10)
    assert [row.usage for row in journal.bill().rows] == [used]


async def test_an_entry_names_its_parent_effect(path: Path) -> None:
    journal = Journal(path)

    async def rollout(name: str) -> int:
        calls = (journal.once(f"call/{name}{n}", Effect(n), returns=int) for n in range(2))
        return sum(await asyncio.gather(*calls))

    await asyncio.gather(
        *(journal.once(f"rollout/{n}", lambda n=n: rollout(n), returns=int) for n in "ab")
    )
    await journal.once("call/alone", Effect(1), returns=int)
    parents = {entry.key: entry.parent for entry in journal.entries()}
    assert parents == {
        "call/a0": "rollout/a",
        "call/a1": "rollout/a",
        "call/b0": "rollout/b",
        "call/b1": "rollout/b",
        "rollout/a": "",
        "rollout/b": "",
        "call/alone": "",
    }
    last = [entry.key for entry in journal.entries("call/", after=5)]
    assert last[-1] == "call/alone" and len(last) < 5


async def test_usage_is_summed_over_resumes_and_includes_failed_attempts(path: Path) -> None:
    journal = Journal(path)
    used = Usage(calls=1, input=100, output=20, usd=0.25)
    await journal.once(
        "a",
        Effect(1),
        returns=int,
        stage="merge",
        role="optimizer",
        model="m",
        usage=lambda _: used,
    )
    journal.close()
    journal = Journal(path)
    await journal.once("a", Effect(1), returns=int, usage=lambda _: used)
    await journal.once(
        "b", Effect(2), returns=int, stage="rank", role="optimizer", model="m", usage=lambda _: used
    )
    bill = journal.bill()
    assert [(row.stage, row.role, row.model) for row in bill.rows] == [
        ("merge", "optimizer", "m"),
        ("rank", "optimizer", "m"),
    ]
    assert bill.total == Usage(calls=2, input=200, output=40, usd=0.5)


async def test_usage_read_in_parts_equals_usage_read_at_once(path: Path) -> None:
    journal = Journal(path)

    async def spend(key: str, role: str, used: Usage) -> None:
        await journal.once(key, Effect(1), returns=int, role=role, usage=lambda _: used)

    async def fail() -> int:
        raise NetworkFailed("down", usage=Usage(calls=1, input=5, usd=0.25))

    await spend("a", "agent", Usage(calls=1, input=10, usd=0.5))
    first = journal.bill()
    await spend("b", "agent", Usage(calls=1, input=20, usd=None))
    await spend("c", "judge", Usage(calls=1, input=40, usd=1.0))
    await spend("nothing", "judge", Usage())
    with pytest.raises(NetworkFailed):
        await journal.once("d", fail, returns=int, role="judge")
    bill = journal.bill()
    assert journal.bill(first) == journal.bill(bill) == bill
    assert bill.by_role == {
        "agent": Usage(calls=2, input=30, usd=None),
        "judge": Usage(calls=2, input=45, usd=1.25, failed=1, failed_tokens=5),
    }
    total = Usage(calls=4, input=75, usd=None, failed=1, failed_tokens=5)
    assert bill.total == journal.spent() == total
    assert bill.known_usd == 1.75
    assert bill.failures == {NetworkFailed.kind: 1}


def test_another_process_can_read_entries_while_the_run_is_running(path: Path) -> None:
    journal = Journal(path)

    async def record() -> None:
        await journal.once("call/x", Effect("é"), returns=str, stage="s")
        await journal.once("rollout/x", Effect("no"), returns=str)

    asyncio.run(record())
    code = "import sys; from pathlib import Path; from skillfit.run.journal import Journal\n"
    code += "entries = Journal.open_readonly(Path(sys.argv[1])).entries('call/')\n"
    code += "print([(entry.key, entry.stage, entry.value(str)) for entry in entries])"
    read = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert read.stdout.strip() == "[('call/x', 's', 'é')]"


async def test_recording_and_emitting_continue_while_entries_are_read(path: Path) -> None:
    journal, events = Journal(path), EventLog(path)
    for n in range(3):
        await journal.once(f"k{n}", Effect(n), returns=int)
    for entry in journal.entries():
        events.emit(Warned(what=entry.key, message=""))
        await journal.once(f"seen/{entry.key}", Effect(0), returns=int)
        if entry.key.startswith("seen/"):
            break
    assert journal.has("seen/k2")


async def test_a_reader_sees_entries_added_later(path: Path) -> None:
    writer = Journal(path)
    reader = Journal.open_readonly(path)
    assert not reader.has("k")
    await writer.once("k", Effect(), returns=int)
    assert reader.has("k")
    assert reader.get("k", int) == 7
    with pytest.raises(RunNotWritable, match="opened for reading only"):
        reader.set_fact("x", 1)


@pytest.mark.timeout(60)  # takes about three seconds; minutes would be a defect
def test_opening_and_reading_back_a_hundred_thousand_entries_takes_seconds(path: Path) -> None:
    Journal(path).close()
    with sqlite3.connect(path) as db:
        rows = (
            (
                f"call/agent/rollout/{n:064x}",
                "rollout",
                "agent",
                "m",
                f'"{n}"',
                '{"calls":1}',
                0.0,
                0.0,
            )
            for n in range(100_000)
        )
        columns = "key, stage, role, model, value, usage, at, seconds"
        db.executemany(f"INSERT INTO effects ({columns}) VALUES (?,?,?,?,?,?,?,?)", rows)
    journal = Journal(path)

    async def replay() -> int:
        return sum(
            [
                len(await journal.once(f"call/agent/rollout/{n:064x}", Effect(), returns=str))
                for n in range(100_000)
            ]
        )

    assert asyncio.run(replay()) == 488_890
    assert journal.bill().total.calls == 100_000


def test_recorded_effects_survive_sigkill_and_are_not_run_again(path: Path) -> None:
    program = textwrap.dedent("""
        import asyncio, os, signal, sys
        from pathlib import Path
        from skillfit.run.journal import Journal

        async def main(path, stop):
            journal = Journal(Path(path))
            async def effect(n):
                print("ran", n, flush=True)
                if n == stop:
                    os.kill(os.getpid(), signal.SIGKILL)
                return n
            values = []
            for n in range(10):
                values.append(await journal.once(f"k{n}", lambda: effect(n), returns=int))
            print(sum(values))

        asyncio.run(main(sys.argv[1], int(sys.argv[2])))
    """)
    ran: list[str] = []
    for stop in (3, 7, 99):
        done = subprocess.run(
            [sys.executable, "-c", program, str(path), str(stop)], capture_output=True, text=True
        )
        ran += [line for line in done.stdout.splitlines() if line.startswith("ran")]
        assert done.returncode == (0 if stop == 99 else -signal.SIGKILL)
    assert done.stdout.splitlines()[-1] == "45"
    assert ran == [
        f"ran {n}" for n in (0, 1, 2, 3, 3, 4, 5, 6, 7, 7, 8, 9)
    ]  # only what was in flight ran twice


async def test_a_secret_in_a_value_is_redacted_for_the_run_and_for_a_resume(
    path: Path,
) -> None:
    secret = remember_secret("zz-planted-in-a-reply-1")
    journal = Journal(path, redact=hide_keys_in_use)
    live = await journal.once("k", Effect(f"your key is {secret}"), returns=str)
    assert live == journal.get("k", str) == "your key is [secret]"


async def test_a_full_disk_is_reported_and_leaves_the_journal_intact(path: Path) -> None:
    journal = Journal(path)
    await journal.once("small", Effect("x"), returns=str)
    (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
    journal._db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(InputError, match="No room left on the disk"):
        await journal.once("big", Effect("x" * 1_000_000), returns=str)
    journal.close()
    journal = Journal(path)
    assert journal.get("small", str) == "x"
    assert not journal.has("big")
    assert journal._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_damaged_journal_is_an_error_with_a_message(path: Path) -> None:
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    with pytest.raises(InputError, match="is damaged"):
        Journal(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_finished_run_in_a_read_only_folder_can_be_read(path: Path) -> None:
    journal = Journal(path)
    await journal.once("k", Effect(), returns=int)
    journal.close()
    path.parent.chmod(0o500)
    try:
        assert Journal.open_readonly(path).get("k", int) == 7
    finally:
        path.parent.chmod(0o700)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1, max_size=12
    ),
    st.lists(st.integers(0, 11), max_size=6),
)
def test_any_interleaving_of_callers_and_cancellations_records_each_key_at_most_once(
    tmp_path_factory: pytest.TempPathFactory,
    calls: list[tuple[int, int, bool]],
    cancellations: list[int],
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.sqlite"
    finished: list[int] = []

    async def effect(key: int, turns: int, fails: bool) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        if fails:
            raise NetworkFailed("cut")
        finished.append(key)
        return key

    async def main() -> None:
        journal = Journal(path)
        tasks = []
        for key, turns, fails in calls:
            tasks.append(
                asyncio.create_task(
                    journal.once(f"k{key}", lambda a=(key, turns, fails): effect(*a), returns=int)
                )
            )
            await asyncio.sleep(0)
        for index in cancellations:
            if index < len(tasks):
                tasks[index].cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for (key, _, _), result in zip(calls, results, strict=True):
            assert result == key or isinstance(result, (NetworkFailed, asyncio.CancelledError))
        for key in finished:
            assert journal.get(f"k{key}", int) == key
        assert not journal._running
        journal.close()

    asyncio.run(main())
    assert len(finished) == len(set(finished))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE effects SET stage = x'00ff'",
        "UPDATE effects SET role = x'ff'",
        "UPDATE effects SET model = x'ff'",
        "UPDATE effects SET usage = x'ff'",
        "UPDATE effects SET at = 'soon'",
        "UPDATE losses SET stage = x'ff'",
        "UPDATE losses SET kind = x'ff'",
    ],
)
async def test_a_record_of_another_type_is_a_damaged_run(path: Path, damage: str) -> None:
    async def fail() -> int:
        raise Overloaded("busy", usage=Usage(calls=1))

    journal = Journal(path)
    journal.record("a", 1, int, stage="rollout")
    with pytest.raises(Overloaded):
        await journal.once("b", fail, returns=int)
    journal.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(damage)
        db.commit()
    with closing(Journal.open_readonly(path)) as reader, pytest.raises(DamagedRun):
        list(reader.entries())
        reader.bill()
