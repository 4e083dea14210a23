"""A run can be read from threads: closing during a read ends that read, not the process."""

import asyncio
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skillfit.run.directory import RunDirectory
from skillfit.run.events import Warned
from skillfit.run.store import RunClosed
from skillfit.run.view import RunView

EVENTS = 3000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("threads") / "run"
    with RunDirectory.open(path, {}) as opened:
        for number in range(EVENTS):
            opened.events.emit(Warned(what=str(number), message="m" * 100))
    return path


def read_all(view: RunView) -> int | RunClosed:
    try:
        return sum(1 for _ in view.events.read())
    except RunClosed as closed:
        return closed


def test_a_view_closed_while_threads_read_ends_their_reads_cleanly(run: Path) -> None:
    """In a separate process: the defect this guards against ended the process."""
    program = textwrap.dedent("""
        import sys, threading
        from pathlib import Path
        from tests.run.test_threads import read_all
        from skillfit.run.directory import RunDirectory
        for _ in range(60):
            view = RunDirectory.read(sys.argv[1])
            reading = threading.Barrier(5)
            def read():
                reading.wait()
                read_all(view)
            threads = [threading.Thread(target=read) for _ in range(4)]
            for thread in threads:
                thread.start()
            reading.wait()
            view.close()
            for thread in threads:
                thread.join()
        print("alive")
    """)
    done = subprocess.run([sys.executable, "-c", program, str(run)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_threads_that_share_a_view_each_read_everything(run: Path) -> None:
    view = RunDirectory.read(run)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: read_all(view), range(8))) == [EVENTS] * 8
    view.close()


def test_reading_after_close_is_an_ordinary_error_and_closing_twice_is_allowed(run: Path) -> None:
    view = RunDirectory.read(run)
    view.close()
    view.close()
    with pytest.raises(RunClosed, match="was closed"):
        list(view.events.read())


async def test_the_thread_of_a_cancelled_stream_ends_cleanly(run: Path) -> None:
    """As a server does it: the reader runs in a thread while its request is cancelled."""
    view, begun, ended = RunDirectory.read(run), threading.Event(), threading.Event()
    results: list[int | RunClosed] = []

    def look() -> None:
        begun.set()
        for _ in range(50):
            results.append(read_all(view))
        ended.set()

    stream = asyncio.create_task(asyncio.to_thread(look))
    await asyncio.to_thread(begun.wait)
    stream.cancel()
    view.close()
    assert await asyncio.to_thread(ended.wait, 60)
    assert {type(result) for result in results} <= {int, RunClosed}
    assert isinstance(results[-1], RunClosed)


def test_a_reader_in_another_thread_sees_the_usage_of_a_running_writer(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "run", {}) as opened:
        view = RunDirectory.read(tmp_path / "run")

        def poll() -> int:
            return [view.journal.spent().calls for _ in range(200)][-1]

        with ThreadPoolExecutor(2) as threads:
            polls = [threads.submit(poll) for _ in range(2)]
            for number in range(200):
                opened.events.emit(Warned(what=str(number), message=""))
            assert [each.result() for each in polls] == [0, 0]
        view.close()
