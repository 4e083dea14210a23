"""Programs end with skillfit, and the next start removes what an earlier one left."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from skillfit.sandbox.isolation import (
    MARK,
    Launch,
    SandboxNotStarted,
    new_folder,
    remove_abandoned,
    remove_folder,
    run_process,
)
from tests.sandbox.processes import is_gone, is_running, leaving_a_child, wait_for
from tests.sandbox.test_isolation import AVAILABLE

DRIVER = """
import asyncio, sys
from skillfit.sandbox.isolation import ISOLATIONS, run_untrusted
from skillfit.sandbox.isolation import new_folder

async def main(name, code):
    isolation = next(each for each in ISOLATIONS if each.name == name)
    await run_untrusted([sys.executable, "-c", code], cwd=new_folder("work"), timeout=600,
                        isolation=isolation)

asyncio.run(main(sys.argv[2], sys.argv[1]))
"""


def start_driver(folder: Path, isolation: str, word: str) -> subprocess.Popen[bytes]:
    """Start a process that runs a program, which has a child with `word` as its last argument."""
    environment = {
        **os.environ,
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    code = leaving_a_child(word, "time.sleep(600)")
    return subprocess.Popen([sys.executable, "-c", DRIVER, code, isolation], env=environment)


@pytest.mark.parametrize("isolation", [isolation.name for isolation in AVAILABLE])
async def test_no_process_outlives_a_killed_skillfit(tmp_path: Path, isolation: str) -> None:
    word = f"skillfit-orphan-{os.getpid()}-{isolation}"
    driver = start_driver(tmp_path, isolation, word)
    try:
        wait_for(word)
    finally:
        driver.kill()
        driver.wait()

    assert await is_gone(word)


async def test_no_process_outlives_a_supervisor_that_gets_many_signals(tmp_path: Path) -> None:
    """The kernel sends the parent-death signal once for every thread of skillfit that ends."""
    word = f"skillfit-signals-{os.getpid()}"
    program = [sys.executable, "-S", "-c", leaving_a_child(word, "time.sleep(600)")]
    supervised = Launch().command(program, status=-1)
    for _ in range(30):
        supervisor = subprocess.Popen(supervised, cwd=tmp_path)  # noqa: ASYNC220
        wait_for(word)
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while not os.waitid(os.P_PID, supervisor.pid, ended):  # noqa: ASYNC222
            os.kill(supervisor.pid, signal.SIGTERM)

        assert supervisor.wait() == 128 + signal.SIGTERM
        assert await is_gone(word)


async def test_the_next_start_removes_folders_and_processes_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = f"skillfit-abandoned-{os.getpid()}"
    driver = start_driver(tmp_path, "none", word)
    wait_for(word)
    (root,) = tmp_path.glob("skillfit-*")
    driver.kill()
    driver.wait()
    assert await is_gone(word)
    left = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", "import time; time.sleep(600)", word],
        env={MARK: f"{root.name}/0123"},
        start_new_session=True,
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    remove_abandoned()

    assert left.wait(timeout=30) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


async def test_folders_of_a_living_process_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = f"skillfit-living-{os.getpid()}"
    driver = start_driver(tmp_path, "none", word)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    try:
        wait_for(word)
        remove_abandoned()
        assert len(list(tmp_path.glob("skillfit-*/work-*"))) == 1
        assert is_running(word)
    finally:
        driver.terminate()
        driver.wait()
    assert await is_gone(word)


def test_nothing_is_left_when_the_last_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = new_folder("one"), new_folder("two")
    (first / "locked").mkdir(mode=0o000)

    remove_folder(first)
    assert second.is_dir() and not first.exists()
    remove_folder(second)
    remove_folder(tmp_path)

    assert tmp_path.is_dir() and list(tmp_path.iterdir()) == []


async def test_a_program_that_is_not_there_is_an_error_of_the_infrastructure(
    tmp_path: Path,
) -> None:
    with pytest.raises(SandboxNotStarted, match="/no/such/program"):
        await run_process(["/no/such/program"], cwd=tmp_path, timeout=20, env={})


async def test_a_program_that_does_not_read_its_input_is_no_problem(tmp_path: Path) -> None:
    done = await run_process(
        ["/bin/sh", "-c", "exit 3"], cwd=tmp_path, timeout=20, env={}, stdin=b"x" * 1_000_000
    )

    assert done.code == 3


async def test_a_closed_pipe_ends_a_program_as_usual(tmp_path: Path) -> None:
    """Python ignores SIGPIPE; the programs it starts must not inherit that."""
    done = await run_process(
        ["/bin/sh", "-c", "yes | head -n 1"],
        cwd=tmp_path,
        timeout=20,
        env={"PATH": "/usr/bin:/bin"},
    )

    assert (done.code, done.stdout, done.stderr) == (0, "y\n", "")


def test_a_link_in_the_temporary_folder_leads_the_clean_up_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody may write there. A link to a folder of ours is not a folder that we made."""
    scratch, mine = tmp_path / "tmp", tmp_path / "mine"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    mine.mkdir()
    (mine / ".owner").touch()
    (mine / "kept").mkdir(mode=0o500)
    (scratch / "skillfit-planted").symlink_to(mine)
    remove_abandoned()
    assert (mine / "kept").is_dir() and stat.S_IMODE((mine / "kept").stat().st_mode) == 0o500
