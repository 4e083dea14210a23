"""`python -m bench.throughput`: the same work through skillfit and its peers, side by side, with
the ideal schedule for comparison. `--faults`: whole training runs on a fast server that fails.
`--training`: whole training runs of all systems.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.parity import reference
from bench.throughput import training
from bench.throughput.server import FAST, FAULTS
from bench.throughput.world import answer, gold, ideal_seconds, latency

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PEERS = {"skillopt": ["skillopt==0.2.0"], "gepa": ["gepa==0.1.4", "litellm>=1.83,<1.92"]}
PARTS = [*(regime.name for regime in training.REGIMES), "score"]  # of TRAINING.md
LONGEST = 900  # seconds before a contestant is given up


@dataclass(frozen=True)
class Measured:
    """One contestant's run: its report, or why there is none."""

    name: str
    report: dict[str, Any] | None
    problem: str = ""

    @property
    def seconds(self) -> float:
        return float(self.report["seconds"]) if self.report else float("nan")

    def wrong(self, count: int) -> int:
        """Items whose score is not what the model's answer deserves."""
        true = [float(gold(number) in answer(number)) for number in range(count)]
        return (
            sum(score != right for score, right in zip(self.report["scores"], true, strict=True))
            if self.report
            else count
        )


def python_of(peer: str) -> str:
    """The interpreter of the peer's own environment under .bench/, made when it is not there."""
    folder = ROOT / ".bench" / peer
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"installing {' '.join(PEERS[peer])} in {folder.relative_to(ROOT)}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PEERS[peer]], check=True)
    return str(python)


def measure(
    name: str, command: list[str], port: int, mode: str, count: int, concurrency: int
) -> Measured:
    print(f"{name}, {mode} …", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        url = f"http://127.0.0.1:{port}/{name}-{os.urandom(4).hex()}/{mode}/v1"
        try:
            done = subprocess.run(
                [*command, url, str(count), str(concurrency), folder],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=LONGEST,
            )
        except subprocess.TimeoutExpired:
            return Measured(name, None, f"not done after {LONGEST} s")
    if done.returncode:
        return Measured(name, None, done.stderr.strip().splitlines()[-1][:200])
    return Measured(name, json.loads(done.stdout.strip().splitlines()[-1]))


def row(measured: Measured, clean: Measured, ideal: float, mode: str, count: int) -> str:
    if measured.report is None:
        return f"| {measured.name} | {mode} | stopped: {measured.problem} | | | | | |"
    cells = [
        measured.name,
        mode,
        f"{measured.seconds:.2f}",
        f"{measured.seconds / ideal:.2f}",
        f"{measured.seconds / clean.seconds:.2f}" if clean.report else "",
        f"{1000 * measured.report['cpu_seconds'] / count:.2f}",
        f"{measured.report['megabytes']:.0f}",
        f"{measured.wrong(count)}",
    ]
    return f"| {' | '.join(cells)} |"


def results(runs: list[tuple[Measured, Measured]], count: int, concurrency: int) -> str:
    ideal = ideal_seconds(count, concurrency)
    latencies = [latency(number) for number in range(count)]
    lines = [
        f"{count} items at concurrency {concurrency}: {sum(latencies):.0f} s of latency "
        f"(longest {max(latencies):.1f} s), ideal schedule {ideal:.2f} s. "
        f"{FAULTS:.0%} of requests fail where it says faulty.",
        machine(),
        "",
        "| through | server | seconds | to ideal | to its own fault-free time "
        "| CPU ms per rollout | MB | wrong scores |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for clean, faulty in runs:
        lines += [
            row(clean, clean, ideal, "clean", count),
            row(faulty, clean, ideal, "faulty", count),
        ]
    ours = runs[0][0].report
    if ours:
        lines += ["", f"The same skillfit run again, from its journal: {ours['resumed']:.2f} s."]
    return "\n".join(lines) + "\n"


def faults_table(port: int, shares: list[float], repeats: int) -> str:
    """Wall time of whole training runs while a share of all requests fails."""
    command = [sys.executable, "-m", "bench.throughput.whole_run"]
    lines = [
        f"Whole training runs of the demo project with practice models (about {FAST * 1000:.0f} ms "
        f"per call) while a share of the requests fails (429, 500, cut). Median of {repeats}.",
        machine(),
        "",
        "| failing requests | seconds | to the fault-free time | CPU seconds | ended |",
        "|---|---|---|---|---|",
    ]
    clean = 0.0
    for share in [0.0, *shares]:
        runs = [
            measure("whole-run", command, port, f"practice-{share:g}", 0, 0) for _ in range(repeats)
        ]
        reports = [run.report for run in runs if run.report]
        if len(reports) < repeats:
            lines.append(f"| {share:.0%} | stopped: {runs[-1].problem} | | | |")
            continue
        seconds = statistics.median(report["seconds"] for report in reports)
        cpu = statistics.median(report["cpu_seconds"] for report in reports)
        clean = clean or seconds
        lines.append(
            f"| {share:.0%} | {seconds:.2f} | {seconds / clean:.2f} | {cpu:.2f} "
            f"| {reports[0]['reason']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.throughput", description=__doc__)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=24)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--faults", nargs="*", type=float, help="shares of failing requests; default 0.1 0.3 0.6"
    )
    parser.add_argument("--repeats", type=int, default=3, help="of each run with --faults")
    parser.add_argument(
        "--training", nargs="*", choices=PARTS, help="whole training runs; default: all parts"
    )
    parser.add_argument("--seeds", type=int, help="of the runs with --training")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time that are not timed")
    asked = parser.parse_args()
    if asked.training is not None:
        compare_training(asked)
        return
    only_faults = asked.faults is not None
    output = asked.output or HERE / ("FAULTS.md" if only_faults else "RESULTS.md")
    commands = {"skillfit": [sys.executable, "-m", "bench.throughput.ours"]}
    for peer in [] if only_faults else asked.peers:
        commands[peer] = [python_of(peer), str(HERE / f"through_{peer}.py")]
    with serving() as port:
        if only_faults:
            text = faults_table(port, asked.faults or [0.1, 0.3, 0.6], asked.repeats)
        else:
            text = peers_table(commands, port, asked.items, asked.concurrency)
    output.write_text(text)
    print(text)


@contextmanager
def serving() -> Iterator[int]:
    """The model server in a separate process; its port."""
    command = [sys.executable, "-m", "bench.throughput.server"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.terminate()


def compare_training(asked: argparse.Namespace) -> None:
    """Write TRAINING.md, or replace one of its parts."""
    if "skillopt" in asked.peers:
        reference.ready()
    output = asked.output or HERE / "TRAINING.md"
    parts = dict(re.findall(r"<!-- (\w+) -->\n(.*?)(?=<!-- |\Z)", _read(output), re.DOTALL))
    wanted = asked.training or PARTS
    with serving() as port:
        bench = training.Bench(port, {peer: python_of(peer) for peer in asked.peers})
        for regime in training.REGIMES:
            if regime.name in wanted:
                seeds = training.TIMED[: asked.seeds]
                table = training.timed(bench, regime, seeds)
                parts[regime.name] = f"{table}\n\nMedian of {len(seeds)} runs. {machine()}"
        if "score" in wanted:
            parts["score"] = training.scored(bench, training.SCORED[: asked.seeds], asked.workers)
    text = "\n\n".join(f"<!-- {name} -->\n{parts[name].strip()}" for name in PARTS if name in parts)
    output.write_text(text + "\n")
    print(text)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def machine() -> str:
    load = os.getloadavg()[0]
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}."


def peers_table(commands: dict[str, list[str]], port: int, items: int, concurrency: int) -> str:
    runs = []
    for name, command in commands.items():
        clean, faulty = (
            measure(name, command, port, mode, items, concurrency) for mode in ("clean", "faulty")
        )
        runs.append((clean, faulty))
    return results(runs, items, concurrency)


if __name__ == "__main__":
    main()
