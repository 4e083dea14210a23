"""How long large things take: `python -m bench.scale` measures them and writes results.md.

- start: `skillfit train` with 100,000 items, from the command to the first recorded rollout;
- resume: `skillfit resume` of a finished run with 100,000 records, until it prints the result;
- ls: `skillfit ls` over 1,000 runs, and the same without starting Python;
- studio: the first and the second request for the studio's list of 1,000 runs.

Wall seconds depend on what else the machine does, so the table has the processor seconds of the
measured process too, and the load.
"""

from __future__ import annotations

import argparse
import http.cookiejar
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bench.scale.project import write_project
from skillfit.errors import InputError
from skillfit.run.directory import JOURNAL, RunDirectory
from skillfit.run.listing import list_runs

_COMMAND = [sys.executable, "-m", "skillfit"]
_RESULTS = Path(__file__).parent / "results.md"
_QUICK = "evaluation: {preflight: false}\n"
# The strict gate measures every selection item in each step, which makes many records.
_LONG = """\
train: {num_epochs: 50, batch_size: 40}
evaluation: {preflight: false, gate: strict}
optimizer: {use_slow_update: false, use_meta_skill: false}
"""


@dataclass(frozen=True)
class Measure:
    what: str
    wall: float
    cpu: float | None  # of the measured process
    target: float | None  # seconds of wall time

    def row(self) -> str:
        cpu = "" if self.cpu is None else f"{self.cpu:.2f}"
        target = "" if self.target is None else f"< {self.target:g}"
        return f"| {self.what} | {self.wall:.2f} | {cpu} | {target} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--folder", type=Path, help="keep the runs here, and use those that are")
    wanted = parser.parse_args()
    folder = wanted.folder or Path(tempfile.mkdtemp(prefix="skillfit-scale-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        measures = [
            *measure_start(folder / "start", wanted.items),
            *measure_resume(folder / "resume", wanted.records),
            *measure_lists(folder / "lists", wanted.runs),
        ]
    finally:
        if wanted.folder is None:
            shutil.rmtree(folder)
    table = ["| | wall s | CPU s | target |", "|---|---|---|---|", *(one.row() for one in measures)]
    machine = (
        f"Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f} at the end."
    )
    text = "\n".join([*table, "", machine, ""])
    print(text)
    _RESULTS.write_text(text)


def measure_start(folder: Path, items: int) -> list[Measure]:
    shutil.rmtree(folder, ignore_errors=True)
    config = write_project(folder, {"": items}, _QUICK)
    begun, before = time.perf_counter(), _cpu_of_children()
    process = subprocess.Popen(
        [*_COMMAND, "train", config, "--run", folder / "run", "--plain"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not _rollouts(folder / "run"):
        if process.poll() is not None:
            raise SystemExit(f"skillfit train ended with {process.returncode} before any rollout.")
        time.sleep(0.02)
    wall = time.perf_counter() - begun
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    cpu = _cpu_of_children() - before
    return [Measure(f"train with {items:,} items until its first rollout", wall, cpu, 4)]


def _rollouts(run: Path) -> int:
    try:
        with closing(RunDirectory.read(run)) as view:
            return view.journal.count("rollout/")
    except InputError:  # not there yet
        return 0


def measure_resume(folder: Path, records: int) -> list[Measure]:
    run = folder / "run"
    if not run.is_dir():
        items = records // 46  # a selection item has about 23 rollouts of two records each
        config = write_project(folder, {"train": 40, "selection": items}, _LONG)
        _run("train", config, "--run", run, "--plain")
    with closing(RunDirectory.read(run)) as view:
        recorded = view.journal.count()
    wall, cpu = _run("resume", run, "--plain")
    return [Measure(f"resume of a run with {recorded:,} records", wall, cpu, 8)]


def measure_lists(folder: Path, runs: int) -> list[Measure]:
    first = folder / "runs" / "run-0000"
    if not first.is_dir():
        config = write_project(folder, {"train": 12, "selection": 12}, _QUICK)
        _run("train", config, "--run", first, "--plain")
    for number in range(1, runs):
        _copy(first, folder / "runs" / f"run-{number:04d}")
    ls = _run("ls", folder / "runs", "--json")
    alone = _timed(lambda: list_runs(folder / "runs"))
    return [
        Measure(f"ls over {runs:,} runs", *ls, 1),
        Measure("the same in a process that is already running", *alone, None),
        *_measure_studio(folder / "runs", runs),
    ]


def _copy(run: Path, copy: Path) -> None:
    """A copy with a journal of its own; the other files are shared."""
    if not copy.exists():
        shutil.copytree(run, copy, copy_function=os.link)
        (copy / JOURNAL).unlink()
        shutil.copy(run / JOURNAL, copy / JOURNAL)


def _measure_studio(folder: Path, runs: int) -> list[Measure]:
    process = subprocess.Popen(
        [*_COMMAND, "studio", folder, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        browser = urllib.request.build_opener(cookies)

        def index() -> None:
            with browser.open(address.partition("?")[0], timeout=60) as answer:
                answer.read()

        begun = time.perf_counter()
        with browser.open(address, timeout=60) as answer:  # signs in, and is led to the list
            answer.read()
        wall = time.perf_counter() - begun
        again = _timed(index)
    finally:
        process.terminate()
        process.wait()
    return [
        Measure(f"the studio's list of {runs:,} runs, first request", wall, None, 1),
        Measure("and the next", again[0], None, 1),
    ]


def _run(*arguments: object) -> tuple[float, float]:
    """Wall and processor seconds of a skillfit command. Any end but a crash will do."""
    begun, before = time.perf_counter(), _cpu_of_children()
    line = [*_COMMAND, *map(str, arguments)]
    done = subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wall = time.perf_counter() - begun
    if done.returncode in (1, 2):
        raise SystemExit(f"{' '.join(line)} failed:\n{done.stderr}")
    return wall, _cpu_of_children() - before


def _cpu_of_children() -> float:
    """Processor seconds of all processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _timed(function: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
