"""The sandbox keeps what its label promises, under every isolation this machine has."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from skillfit.sandbox.isolation import Isolation, best_isolation, run_isolated, works
from skillfit.sandbox.process import Result, run_process

WANTED: tuple[Isolation, ...] = ("bubblewrap", "unshare", "landlock", "rlimits")
AVAILABLE = [isolation for isolation in WANTED if works(isolation)]

each = pytest.mark.parametrize("isolation", AVAILABLE)


async def python(
    code: str, cwd: Path, isolation: Isolation, timeout: float = 20, **options: object
) -> Result:
    return await run_isolated(
        [sys.executable, "-c", code], cwd=cwd, timeout=timeout, isolation=isolation, **options
    )  # type: ignore[arg-type]


def is_running(mark: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in entry.read_bytes():
                return True
        except OSError:
            continue
    return False


async def gone(mark: str) -> bool:
    for _ in range(200):
        if not is_running(mark):
            return True
        await asyncio.sleep(0.02)
    return False


@each
async def test_it_runs_in_its_folder_and_says_which_isolation_it_got(
    tmp_path: Path, isolation: Isolation
) -> None:
    done = await python(
        "import os,sys; open('out','w').write(sys.stdin.read()); print(os.getcwd())",
        tmp_path,
        isolation,
        stdin=b"hi",
    )
    assert (done.code, done.stdout.strip(), done.isolation) == (0, str(tmp_path), isolation)
    assert (tmp_path / "out").read_text() == "hi"


@each
async def test_the_parents_environment_stays_out(
    tmp_path: Path, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    done = await python("import os; print(dict(os.environ))", tmp_path, isolation)
    assert "sk-secret" not in done.stdout
    assert f"'HOME': '{tmp_path}'" in done.stdout


@each
async def test_the_network_is_cut_exactly_where_the_label_says_so(
    tmp_path: Path, isolation: Isolation
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reach = (
            f"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('reached')"
        )
        done = await python(reach, tmp_path, isolation)
    assert ("reached" in done.stdout) == (isolation in ("landlock", "rlimits"))


@each
async def test_the_keys_of_other_processes_are_hidden_exactly_where_the_label_says_so(
    tmp_path: Path, isolation: Isolation
) -> None:
    look = """
import pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try:
        print(*(line for line in path.read_text().split(chr(0)) if line.startswith("A_KEY_OF_OURS=")))
    except OSError:
        pass
"""
    other = await asyncio.create_subprocess_exec("sleep", "600", env={"A_KEY_OF_OURS": "sesame"})
    try:
        done = await python(look, tmp_path, isolation)
    finally:
        other.kill()
        await other.wait()
    assert done.code == 0
    assert ("sesame" in done.stdout) == (isolation == "rlimits")


@each
async def test_files_may_be_moved_between_folders(tmp_path: Path, isolation: Isolation) -> None:
    done = await python(
        "import os; os.mkdir('d'); open('f', 'w').close(); os.rename('f', 'd/f')",
        tmp_path,
        isolation,
    )
    assert (done.code, done.stderr) == (0, "") and (tmp_path / "d" / "f").exists()


def test_the_best_isolation_is_the_first_that_works() -> None:
    assert best_isolation() == AVAILABLE[0]


@pytest.mark.skipif(
    "bubblewrap" not in AVAILABLE, reason="bubblewrap does not work on this machine"
)
async def test_bubblewrap_shows_neither_home_nor_other_folders_and_lets_only_its_own_be_written(
    tmp_path: Path,
) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("sesame")
    look = await python(f"print(open({str(outside / 'secret')!r}).read())", inside, "bubblewrap")
    assert "sesame" not in look.stdout and "FileNotFoundError" in look.stderr
    write = await python("open('/usr/skillfit-was-here', 'w')", inside, "bubblewrap")
    assert write.code != 0 and not Path("/usr/skillfit-was-here").exists()


def leaving_a_child(mark: str, then: str) -> str:
    """A program whose child has a session of its own."""
    child = f"[sys.executable, '-c', 'import time; time.sleep(600)', '{mark}']"
    return f"import subprocess, sys, time; subprocess.Popen({child}, start_new_session=True); print('up', flush=True); {then}"


@each
async def test_the_time_limit_kills_children_of_children_even_in_their_own_session(
    tmp_path: Path, isolation: Isolation
) -> None:
    mark = f"skillfit-mark-{os.getpid()}-{isolation}"
    done = await python(leaving_a_child(mark, "time.sleep(600)"), tmp_path, isolation, timeout=2)
    assert done.timed_out and done.stdout.strip() == "up"
    assert await gone(mark)


@each
async def test_whoever_is_left_after_a_normal_end_is_killed(
    tmp_path: Path, isolation: Isolation
) -> None:
    mark = f"skillfit-left-{os.getpid()}-{isolation}"
    done = await python(leaving_a_child(mark, "pass"), tmp_path, isolation)
    assert (done.code, done.stdout.strip()) == (0, "up")
    assert await gone(mark)


@each
async def test_cancelling_ends_the_work(tmp_path: Path, isolation: Isolation) -> None:
    mark = f"skillfit-cancel-{os.getpid()}-{isolation}"
    running = asyncio.ensure_future(
        run_isolated(
            [sys.executable, "-c", "import time; time.sleep(600)", mark],
            cwd=tmp_path,
            timeout=600,
            isolation=isolation,
        )
    )
    while not is_running(mark):  # noqa: ASYNC110  # another process comes up; there is no event to wait for
        await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await gone(mark)


@each
async def test_memory_is_limited(tmp_path: Path, isolation: Isolation) -> None:
    done = await python(
        "x = bytearray(800 << 20); print('got it')", tmp_path, isolation, memory=512 << 20
    )
    assert done.code != 0 and "MemoryError" in done.stderr


@each
async def test_output_is_capped_and_the_program_is_not_blocked(
    tmp_path: Path, isolation: Isolation
) -> None:
    done = await python(
        "import sys; print('x' * 3_000_000); print('y' * 3_000_000, file=sys.stderr)",
        tmp_path,
        isolation,
        max_output=1000,
    )
    assert (done.code, len(done.stdout), len(done.stderr)) == (0, 1000, 1000)


async def test_a_program_that_is_not_there_is_an_error_of_the_machinery(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await run_process(["/no/such/program"], cwd=tmp_path, timeout=5, env={})


async def test_a_program_that_does_not_read_its_input_is_no_problem(tmp_path: Path) -> None:
    done = await run_process(
        ["/bin/sh", "-c", "exit 3"], cwd=tmp_path, timeout=20, env={}, stdin=b"x" * 1_000_000
    )
    assert done.code == 3


@each
async def test_cancelling_while_it_starts_leaves_nobody_behind(
    tmp_path: Path, isolation: Isolation
) -> None:
    mark = f"skillfit-early-{os.getpid()}-{isolation}"
    for milliseconds in range(0, 30, 2):
        argv = [sys.executable, "-c", "import time; time.sleep(600)", mark]
        running = asyncio.ensure_future(
            run_isolated(argv, cwd=tmp_path, timeout=600, isolation=isolation)
        )
        await asyncio.sleep(milliseconds / 1000)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await gone(mark)
