"""Copying journal.sqlite alone copies the whole finished run."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skillfit.run.directory import RunDirectory
from skillfit.run.events import Warned


async def _fill(run: RunDirectory, number: int) -> None:
    for n in range(number):
        run.journal.record(f"k{n}", "x" * 500, str)
        run.events.emit(Warned(what=str(n), message=""))


def _counts(journal: Path, folder: Path) -> tuple[int, int]:
    folder.mkdir()
    shutil.copy(journal, folder / "journal.sqlite")
    view = RunDirectory.read(folder)
    try:
        return view.journal.count(), len(list(view.events.read()))
    finally:
        view.close()


@pytest.mark.parametrize("watched", [False, True])
async def test_the_journal_file_alone_has_every_record_of_a_closed_run(
    tmp_path: Path, watched: bool
) -> None:
    run = RunDirectory.open(tmp_path / "run", {})
    view = RunDirectory.read(tmp_path / "run") if watched else None
    await _fill(run, 50)
    if view is not None:
        assert view.journal.count() == 50
    run.close()
    assert _counts(tmp_path / "run" / "journal.sqlite", tmp_path / "copy") == (50, 50)
    if view is None:
        assert not (tmp_path / "run" / "journal.sqlite-wal").exists()
    else:
        assert view.journal.count() == 50  # a reader stays a reader
        view.close()


def test_the_journal_file_is_complete_despite_a_reader_in_another_process(tmp_path: Path) -> None:
    program = (
        "import sys; from skillfit.run.directory import RunDirectory\n"
        "view = RunDirectory.read(sys.argv[1]); print(view.journal.count(), flush=True)\n"
        "sys.stdin.readline(); print(view.journal.count(), len(list(view.events.read())))"
    )
    run = RunDirectory.open(tmp_path / "run", {})
    reader = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None and reader.stdout.readline() == "0\n"
    for number in range(20):
        run.events.emit(Warned(what=str(number), message=""))
    run.close()
    assert _counts(tmp_path / "run" / "journal.sqlite", tmp_path / "copy") == (0, 20)
    out, _ = reader.communicate("\n", timeout=60)
    assert out == "0 20\n"


async def test_a_closed_run_can_be_resumed_while_a_reader_is_open(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "run", {}) as run:
        await _fill(run, 3)
    view = RunDirectory.read(tmp_path / "run")
    assert view.journal.count() == 3
    with RunDirectory.open(tmp_path / "run", {}) as run:
        await _fill(run, 6)
        assert view.journal.count() == 6
    assert view.journal.count() == 6
    view.close()
