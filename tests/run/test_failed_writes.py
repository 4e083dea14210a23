"""After the first failed write nothing new is sent: its result could not be kept."""

import asyncio
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from skillfit.config.schema import BudgetSection
from skillfit.errors import InputError
from skillfit.models.protocol import Usage
from skillfit.run.budget import Budget
from skillfit.run.directory import RunDirectory
from skillfit.run.events import Warned
from skillfit.run.journal import Journal
from skillfit.run.store import DamagedRun, RunNotWritable
from tests.support.small_disk import needs_small_disk, on_small_disk

PROGRAM = textwrap.dedent("""
    import asyncio, sys
    from skillfit.errors import InputError
    from skillfit.run.directory import RunDirectory

    async def main():
        run = RunDirectory.open(sys.argv[1], {})
        started = 0
        failures = []  # effects started until each failure, and why
        slots = asyncio.Semaphore(8)

        async def effect():
            nonlocal started
            started += 1
            await asyncio.sleep(0)
            return "x" * 20_000

        async def once(n):
            async with slots:
                try:
                    await run.journal.once(f"k{n}", effect, returns=str)
                except InputError as error:
                    failures.append((started, error.message))

        await asyncio.gather(*(once(n) for n in range(300)))
        recorded = run.journal.count()
        run.close()
        print(started, failures[0][0], recorded, failures[0][1])

    asyncio.run(main())
""")


@needs_small_disk
def test_on_a_full_disk_effects_in_flight_finish_and_no_new_ones_start(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "disk" / "run")]
    done = subprocess.run(
        on_small_disk(tmp_path / "disk", 600, command), capture_output=True, text=True
    )
    assert done.stderr == ""
    started, at_failure, recorded, message = done.stdout.split(maxsplit=3)
    assert "No room left on the disk" in message
    assert int(started) == int(at_failure)
    assert int(recorded) >= int(started) - 8
    with RunDirectory.open(tmp_path / "disk.after" / "run", {}) as run:  # the journal is whole
        assert run.journal.count() == int(recorded) > 5


async def test_every_writer_of_a_run_stops_at_the_first_failed_write(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path / "run", {})
    budget = Budget(BudgetSection(), run.journal)
    run.events.emit(Warned(what="first", message=""))
    run.journal.fail(RunNotWritable("No room left."))

    async def effect() -> int:
        raise AssertionError("was started")

    with pytest.raises(RunNotWritable, match="No room left"):
        await run.journal.once("k", effect, returns=int)
    with pytest.raises(RunNotWritable, match="No room left"):
        await budget.reserve("agent", Usage(calls=1))
    with pytest.raises(RunNotWritable, match="No room left"):
        run.events.emit(Warned(what="second", message=""))
    with pytest.raises(RunNotWritable, match="No room left"):
        run.write_text("file.txt", "text")
    budget.close()
    run.close()
    with RunDirectory.open(tmp_path / "run", {}) as again:
        assert [stored.event.key for stored in again.events.read()] == ["Warned/first"]


async def test_a_file_that_cannot_be_written_stops_the_journal_too(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "run", {}) as run:
        run.events.emit(Warned(what="first", message=""))
        (tmp_path / "run" / "steps").write_text("in the way")
        with pytest.raises(InputError, match="Cannot write"):
            run.write_text("steps/a.json", "{}")
        with pytest.raises(InputError, match="Cannot write"):
            run.journal.record("k", 1, int)


@pytest.mark.parametrize("how", ["deleted", "moved"])
async def test_a_deleted_or_moved_run_directory_stops_the_run(tmp_path: Path, how: str) -> None:
    path = tmp_path / "run"
    run = RunDirectory.open(path, {})
    started = 0

    async def effect() -> int:
        nonlocal started
        started += 1
        return 1

    await run.journal.once("before", effect, returns=int)
    if how == "deleted":
        shutil.rmtree(path)
    else:
        path.rename(tmp_path / "elsewhere")
    with pytest.raises(RunNotWritable, match="was deleted or moved"):
        await run.journal.once("after", effect, returns=int)
    with pytest.raises(RunNotWritable, match="was deleted or moved"):
        run.events.emit(Warned(what="w", message=""))
    with pytest.raises(RunNotWritable, match="was deleted or moved"):
        run.write_text("steps/a.json", "{}")
    assert started == 1
    run.close()
    assert not path.exists()


@pytest.mark.parametrize("cut", ["journal.sqlite", "journal.sqlite-wal"])
async def test_a_journal_that_is_cut_off_during_the_run_stops_it(tmp_path: Path, cut: str) -> None:
    run, started = RunDirectory.open(tmp_path / "run", {}), 0
    for number in range(500):  # so that some of it was moved from the WAL to the database
        run.journal.record(f"before/{number}", "x" * 10_000, str)

    async def effect() -> int:
        nonlocal started
        started += 1
        return 1

    os.truncate(tmp_path / "run" / cut, 4096)
    with pytest.raises(DamagedRun, match="cut it off during the run"):
        await run.journal.once("after", effect, returns=int)
    assert started == 0
    run.close()


def test_a_run_directory_that_became_a_file_stops_the_run(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path / "run", {})
    run.journal.record("before", 1, int)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RunNotWritable, match="was deleted or moved"):
        run.journal.record("after", 1, int)
    run.close()
    assert (tmp_path / "run").read_text() == "a file"


async def test_effects_in_flight_when_the_directory_is_deleted_are_not_recorded(
    tmp_path: Path,
) -> None:
    run, gone = RunDirectory.open(tmp_path / "run", {}), asyncio.Event()

    async def effect() -> int:
        await gone.wait()
        return 1

    pending = asyncio.create_task(run.journal.once("k", effect, returns=int))
    await asyncio.sleep(0)
    shutil.rmtree(tmp_path / "run")
    gone.set()
    with pytest.raises(RunNotWritable, match="was deleted or moved"):
        await pending
    run.close()


@needs_small_disk
def test_a_run_on_a_read_only_disk_is_refused(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import subprocess, sys
        from pathlib import Path
        from skillfit.errors import InputError
        from skillfit.run.directory import RunDirectory
        disk = Path(sys.argv[1])
        RunDirectory.open(disk / "run", {}).write_text("a.txt", "a")
        def readonly(path):
            try:
                RunDirectory.open(path, {})
            except InputError as error:
                print(error.message)
        subprocess.run(["mount", "-o", "bind,ro", str(disk / "run"), str(disk / "run")], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk / "run")], check=True)
        readonly(disk / "run")
    """)
    command = [sys.executable, "-c", program, str(tmp_path / "disk")]
    done = subprocess.run(
        on_small_disk(tmp_path / "disk", 600, command), capture_output=True, text=True
    )
    assert "No permission to write" in done.stdout and "run" in done.stdout, done.stderr


def test_closing_a_failed_journal_twice_does_not_raise(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.fail(RunNotWritable("No room left."))
    journal.close()
    journal.close()
