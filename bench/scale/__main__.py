"""How long large things take: `python -m bench.scale` measures them and writes results.md.

- start: `skillfit train` with 100,000 items, from the command to the first recorded rollout;
- resume: `skillfit resume` of a finished run with 100,000 records, until it prints the result;
- ls: `skillfit ls` over 1,000 runs, and the same without starting Python;
- studio: the first and the second request for the studio's list of 1,000 runs;
- a large run in the studio: the first and the second request for the page of a run with 200 steps
  and 100,000 rollouts, the first for the map of all its rollouts, and the share of a core that its
  live updates take while it runs.

The package is compiled first, as it is after an installation.

Wall seconds depend on what else the machine does, so the table has the processor seconds of the
measured process too, and the load. With `--only`, the other rows stay as they were.
"""

from __future__ import annotations

import argparse
import compileall
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
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import skillfit
from bench.scale.project import write_project
from skillfit.errors import InputError
from skillfit.record.lists import list_runs
from skillfit.run.directory import RunDirectory
from skillfit.run.store import JOURNAL

_COMMAND = [sys.executable, "-m", "skillfit"]
_RESULTS = Path(__file__).parent / "results.md"
_QUICK = "evaluation: {preflight: false}\n"
# The strict gate measures every selection item in each step, which makes many records.
_LONG = """\
train: {num_epochs: 50, batch_size: 40}
evaluation: {preflight: false, gate: strict}
optimizer: {use_slow_update: false, use_meta_skill: false}
"""


_LARGE = """\
train: {num_epochs: 200, batch_size: 470}
gradient: {minibatch_size: 470, failure_only: true}
evaluation: {preflight: false, gate: strict, ship_test: false}
optimizer: {use_slow_update: false, use_meta_skill: false}
"""
_WATCHED = 60  # seconds for which live updates are measured
_HEAD = ["| | wall s | CPU s | target |", "|---|---|---|---|"]


@dataclass(frozen=True)
class Measure:
    what: str
    wall: float | None
    cpu: float | None  # of the measured process
    target: str = ""

    def row(self) -> str:
        wall, cpu = ("" if value is None else f"{value:.2f}" for value in (self.wall, self.cpu))
        return f"| {self.what} | {wall} | {cpu} | {self.target} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--only", nargs="*", choices=["start", "resume", "lists", "large"])
    parser.add_argument("--folder", type=Path, help="keep the runs here, and use those that are")
    wanted = parser.parse_args()
    folder = wanted.folder or Path(tempfile.mkdtemp(prefix="skillfit-scale-"))
    folder.mkdir(parents=True, exist_ok=True)
    _compile()
    measuring: dict[str, Callable[[], list[Measure]]] = {
        "start": lambda: measure_start(folder / "start", wanted.items),
        "resume": lambda: measure_resume(folder / "resume", wanted.records),
        "lists": lambda: measure_lists(folder / "lists", wanted.runs),
        "large": lambda: measure_large(folder / "large"),
    }
    try:
        for name in wanted.only or measuring:
            _write(name, measuring[name](), list(measuring))
    finally:
        if wanted.folder is None:
            shutil.rmtree(folder)
    print(_RESULTS.read_text())


def _compile() -> None:
    """Compile the package, and let the measured processes use that."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(Path(skillfit.__file__).parent, quiet=2)


def _write(name: str, measures: list[Measure], order: list[str]) -> None:
    """Replace one part of the table; the others stay."""
    parts: dict[str, list[str]] = {}
    for line in _RESULTS.read_text().splitlines() if _RESULTS.exists() else []:
        part = line.partition("| ")[2].partition(":")[0]
        if part in order:
            parts.setdefault(part, []).append(line)
    load = os.getloadavg()[0]
    parts[name] = [replace(one, what=f"{name}: {one.what}").row() for one in measures]
    parts[name][-1] = parts[name][-1].replace(" | ", f" (load {load:.1f}) | ", 1)
    rows = [row for part in order for row in parts.get(part, [])]
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores."
    _RESULTS.write_text("\n".join([*_HEAD, *rows, "", machine, ""]))


def measure_start(folder: Path, items: int) -> list[Measure]:
    shutil.rmtree(folder, ignore_errors=True)
    config = write_project(folder, {"": items}, _QUICK)
    begun, before = time.perf_counter(), _cpu_of_children()
    process = subprocess.Popen(
        [*_COMMAND, "train", config, "--run", folder / "run", "--plain"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    while not _rollouts(folder / "run"):
        if process.poll() is not None:
            raise SystemExit(f"skillfit train ended with {process.returncode} before any rollout.")
        time.sleep(0.1)
    wall = time.perf_counter() - begun
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    cpu = _cpu_of_children() - before
    return [Measure(f"train with {items:,} items until its first rollout", wall, cpu, "< 4 s")]


def _rollouts(run: Path) -> int:
    try:
        with closing(RunDirectory.read(run)) as view:
            return view.journal.count("rollout/")
    except InputError:  # not there yet
        return 0


def measure_resume(folder: Path, records: int) -> list[Measure]:
    run = folder / "run"
    if not run.is_dir():
        items = records // 86  # a selection item has about 43 rollouts of two records each
        config = write_project(folder, {"train": 40, "selection": items}, _LONG)
        _run("train", config, "--run", run, "--plain")
    with closing(RunDirectory.read(run)) as view:
        recorded = view.journal.count()
    wall, cpu = _run("resume", run, "--plain")
    target = f"< {8 * recorded / 100_000:.1f} s (8 s for 100,000)"
    return [Measure(f"resume of a run with {recorded:,} records", wall, cpu, target)]


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
        Measure(f"ls over {runs:,} runs", *ls, "< 1 s"),
        Measure("the same in a process that is already running", *alone),
        *_measure_studio(folder / "runs", runs),
    ]


def _copy(run: Path, copy: Path) -> None:
    """A copy with its own journal; the other files are shared."""
    if not copy.exists():
        shutil.copytree(run, copy, copy_function=os.link)
        (copy / JOURNAL).unlink()
        shutil.copy(run / JOURNAL, copy / JOURNAL)


class Browser:
    """The studio in a separate process, and a client that is signed in."""

    def __init__(self, folder: Path) -> None:
        line = [*_COMMAND, "studio", folder, "--port", "0", "--json"]
        self._process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._address = json.loads(self._process.stdout.readline())["address"]
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(cookies)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def sign_in(self) -> tuple[float, float]:
        """Open the list of runs, to which signing in leads."""
        return self._read(self._address)

    def open(self, path: str) -> tuple[float, float]:
        """Wall and processor seconds until a page is there."""
        return self._read(self._address.partition("?")[0].rstrip("/") + path)

    def _read(self, address: str) -> tuple[float, float]:
        begun, before = time.perf_counter(), self.cpu()
        with self._opener.open(address, timeout=120) as answer:
            answer.read()
        return time.perf_counter() - begun, self.cpu() - before

    def watch(self, path: str, seconds: float) -> float:
        """Processor seconds that the studio uses while a page is watched."""
        address = self._address.partition("?")[0].rstrip("/") + path
        with self._opener.open(address, timeout=120) as stream:
            stream.readline()  # the first parts are there
            before, begun = self.cpu(), time.perf_counter()
            reader = threading.Thread(target=_drain, args=(stream,), daemon=True)
            reader.start()
            time.sleep(seconds)
            return (self.cpu() - before) / (time.perf_counter() - begun) * seconds

    def cpu(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _drain(stream: Any) -> None:
    with suppress(OSError, ValueError, AttributeError):  # closed by the other thread
        while stream.readline():
            pass


def _measure_studio(folder: Path, runs: int) -> list[Measure]:
    with Browser(folder) as browser:
        first, again = browser.sign_in(), browser.open("/")
    return [
        Measure(f"the studio's list of {runs:,} runs, first request", *first, "< 1 s"),
        Measure("and the next", *again, "< 1 s"),
    ]


def measure_large(folder: Path) -> list[Measure]:
    """A large run in the studio. Its live updates are measured while it is made."""
    run, live = folder / "runs" / "large", folder / "live.json"
    if not live.exists():
        shutil.rmtree(folder, ignore_errors=True)
        config = write_project(folder, {"train": 470, "selection": 100}, _LARGE, evaluator=True)
        line = [*_COMMAND, "train", config, "--run", run, "--plain"]
        with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process, ExitStack() as closing:
            while _rollouts(run) < 80_000:
                if process.poll() is not None:
                    raise SystemExit(f"skillfit train ended with {process.returncode} too early.")
                time.sleep(1)
            browser = closing.enter_context(Browser(run.parent))
            browser.sign_in()
            used = browser.watch("/live/large", _WATCHED)
            if process.poll() is not None:
                raise SystemExit("The run ended while it was watched.")
            live.write_text(json.dumps(used))
    rollouts, steps = _rollouts(run), len(json.loads((run / "history.json").read_text()))
    with Browser(run.parent) as browser:
        browser.sign_in()
        first, again = browser.open("/run/large"), browser.open("/run/large")
    with Browser(run.parent) as browser:
        browser.sign_in()
        mapped = browser.open("/items/large?view=map")
    used = json.loads(live.read_text())
    share = 100 * used / _WATCHED
    page = f"the studio's page of a run with {steps} steps and {rollouts:,} rollouts, first request"
    text = f"its live updates while it runs, {_WATCHED} s: {share:.1f} % of a core"
    return [
        Measure(page, *first, "< 1 s"),
        Measure("and the next", *again, "< 1 s"),
        Measure("its map of all rollouts, first request", *mapped, "< 1 s"),
        Measure(text, None, used, "< 2 %"),
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
