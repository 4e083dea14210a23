"""`python -m bench.throughput`: the same work through skillfit and its peers, side by side, and the
ideal schedule beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.throughput.server import FAULTS
from bench.throughput.world import answer, gold, ideal_seconds, latency

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PEERS = {"skillopt": ["skillopt==0.2.0"], "gepa": ["gepa==0.1.4", "litellm>=1.83,<1.92"]}
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
    against = f"{measured.seconds / clean.seconds:.2f}" if clean.report else ""
    cpu = 1000 * measured.report["cpu_seconds"] / count
    return (
        f"| {measured.name} | {mode} | {measured.seconds:.2f} | {measured.seconds / ideal:.2f} | {against} "
        f"| {cpu:.2f} | {measured.report['megabytes']:.0f} | {measured.wrong(count)} |"
    )


def results(runs: list[tuple[Measured, Measured]], count: int, concurrency: int) -> str:
    ideal = ideal_seconds(count, concurrency)
    work = sum(latency(number) for number in range(count))
    lines = [
        f"{count} items at concurrency {concurrency}: {work:.0f} s of latency (longest {max(map(latency, range(count))):.1f} s), "
        f"ideal schedule {ideal:.2f} s. {FAULTS:.0%} of requests fail where it says faulty.",
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end.",
        "",
        "| through | server | seconds | to ideal | to its own fault-free time | CPU ms per rollout | MB | wrong scores |",
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.throughput", description=__doc__)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=24)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--output", type=Path, default=HERE / "RESULTS.md")
    asked = parser.parse_args()
    commands = {"skillfit": [sys.executable, "-m", "bench.throughput.ours"]}
    commands |= {peer: [python_of(peer), str(HERE / f"through_{peer}.py")] for peer in asked.peers}
    server = subprocess.Popen(
        [sys.executable, "-m", "bench.throughput.server"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        runs = []
        for name, command in commands.items():
            clean, faulty = (
                measure(name, command, port, mode, asked.items, asked.concurrency)
                for mode in ("clean", "faulty")
            )
            runs.append((clean, faulty))
    finally:
        server.terminate()
        server.wait()
    text = results(runs, asked.items, asked.concurrency)
    asked.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
