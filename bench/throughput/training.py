"""`python -m bench.throughput --training`: whole training runs of skillfit, SkillOpt and GEPA in
one world on one server. How long they take compared with the ideal schedule, and the true score
they reach with a number of rollouts.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.throughput import training_world
from bench.throughput.training_world import SKILL, true_score

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CONCURRENCY = 8
LONGEST = 1800  # seconds before a run is given up
TIMED = range(111, 114)  # seeds of the timed runs; 101 to 103 were used for tuning
SCORED = range(201, 209)  # seeds of the runs whose score is compared
COUNTS = (300, 600, 1200)  # rollouts at which scores are compared
_NO_SHIP = {"evaluation.ship_test": False}  # the peers make no such test


@dataclass(frozen=True)
class Regime:
    name: str
    text: str
    batch: int
    selection: int
    epochs: int
    agent: float  # mean latencies
    optimizer: float
    bound: float

    @property
    def steps(self) -> int:
        return self.epochs * math.ceil(160 / self.batch)

    @property
    def rollouts(self) -> int:
        """About what a run of the peers should spend: as many as skillfit plans."""
        return self.selection + self.steps * (self.batch + self.selection)

    @property
    def step_seconds(self) -> float:
        """A step's rollouts on a perfect schedule."""
        return (self.batch + self.selection) * self.agent / CONCURRENCY


REGIMES = (
    Regime(
        "balanced",
        "A step's rollouts take about as long as its chain of optimizer calls",
        *(40, 40, 4),
        *(1.0, 1.6),
        1.3,
    ),
    Regime(
        "slow",
        "Small steps with a slow optimizer",
        *(20, 20, 2),
        *(0.6, 3.0),
        2.5,
    ),
)


@dataclass(frozen=True)
class Call:
    """One call as the server saw it."""

    by_agent: bool
    begun: float
    seconds: float


@dataclass(frozen=True)
class Run:
    name: str
    seconds: float
    calls: tuple[Call, ...]
    curve: tuple[tuple[int, str], ...]  # the best skill from each number of rollouts on
    problem: str = ""

    @property
    def rollouts(self) -> int:
        return sum(call.by_agent for call in self.calls)

    @property
    def ideal(self) -> float:
        """Busy time / concurrency."""
        return sum(call.seconds for call in self.calls) / CONCURRENCY

    def optimizer_alone(self) -> float:
        """Seconds in which optimizer calls ran and no rollout did."""
        steps = []
        for call in self.calls:
            steps += [
                (call.begun, call.by_agent, 1),
                (call.begun + call.seconds, call.by_agent, -1),
            ]
        alone, running, last = 0.0, {True: 0, False: 0}, 0.0
        for moment, by_agent, change in sorted(steps):
            if running[False] and not running[True]:
                alone += moment - last
            running[by_agent] += change
            last = moment
        return alone

    def best_at(self, rollouts: int) -> str:
        return [skill for count, skill in self.curve if count <= rollouts][-1]


@dataclass(frozen=True)
class Bench:
    port: int
    peers: dict[str, str]  # interpreters

    def run(self, name: str, seed: int, agent: float, optimizer: float, *more: object) -> Run:
        key = f"{name}-{seed}-{agent:g}-{abs(hash((optimizer, *more))):x}"
        url = f"http://127.0.0.1:{self.port}/{key}/train-{seed}-{agent:g}-{optimizer:g}/v1"
        command = [sys.executable, "-m", "bench.throughput.train_skillfit"]
        if name in self.peers:
            command = [self.peers[name], str(HERE / f"train_{name}.py")]
        print(f"{name} {seed} {more}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            training_world.write(Path(folder))
            line = [*command, url, str(seed), str(CONCURRENCY), folder, *map(str, more)]
            try:
                done = subprocess.run(
                    line, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST
                )
            except subprocess.TimeoutExpired:
                return Run(name, math.nan, (), (), f"not done after {LONGEST} s")
        if done.returncode:
            return Run(name, math.nan, (), (), done.stderr.strip().splitlines()[-1][:200])
        said = json.loads(done.stdout.strip().splitlines()[-1])
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{key}/used") as answer:
            calls = tuple(Call(*entry) for entry in json.load(answer))
        return Run(name, said["seconds"], calls, tuple(map(tuple, said["curve"])))


def timed(bench: Bench, regime: Regime, seeds: Sequence[int]) -> str:
    latencies = (regime.agent, regime.optimizer)
    settings = _NO_SHIP | {
        "train.batch_size": regime.batch,
        "train.num_epochs": regime.epochs,
        "evaluation.sel_env_num": regime.selection,
    }
    jobs: dict[str, tuple[object, ...]] = {}  # what is measured -> arguments of its run
    jobs["skillfit"] = (json.dumps(settings),)
    for name in bench.peers:
        jobs[name] = (regime.rollouts, regime.batch, regime.selection)
    # Runs wait nearly all the time, so they run side by side.
    with ThreadPoolExecutor(len(jobs) * len(seeds)) as pool:
        running = {
            label: [
                pool.submit(bench.run, label.partition(",")[0], seed, *latencies, *more)
                for seed in seeds
            ]
            for label, more in jobs.items()
        }
    runs = {label: [run.result() for run in made] for label, made in running.items()}
    return _time_table(regime, runs)


def _time_table(regime: Regime, runs: dict[str, list[Run]]) -> str:
    first = [
        run.optimizer_alone() / regime.steps for run in next(iter(runs.values())) if not run.problem
    ]
    chain = statistics.median(first) if first else math.nan
    lines = [
        f"### {regime.text}",
        "",
        f"{regime.batch} training and {regime.selection} selection rollouts per step, "
        f"{regime.steps} steps. Mean latency {regime.agent:g} s (agent) and {regime.optimizer:g} s "
        f"(optimizer). The rollouts of a step take {regime.step_seconds:.1f} s on a perfect "
        "schedule; in skillfit "
        f"the optimizer works for {chain:.1f} s per step. "
        f"Goal: at most {regime.bound:g} times the ideal schedule.",
        "",
        "| system | rollouts | optimizer calls | wall s | ideal s | wall / ideal | range |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, made in runs.items():
        good = [run for run in made if not run.problem]
        if len(good) < len(made):
            problem = next(run.problem for run in made if run.problem)
            lines.append(f"| {label} | stopped: {problem} | | | | | |")
            continue
        ratios = sorted(run.seconds / run.ideal for run in good)
        middle = sorted(good, key=lambda run: run.seconds / run.ideal)[len(good) // 2]
        asked = len(middle.calls) - middle.rollouts
        lines.append(
            f"| {label} | {middle.rollouts} | {asked} | {middle.seconds:.0f} | {middle.ideal:.0f} "
            f"| **{middle.seconds / middle.ideal:.2f}** | {ratios[0]:.2f} to {ratios[-1]:.2f} |"
        )
    return "\n".join(lines)


def scored(bench: Bench, seeds: Sequence[int], workers: int) -> str:
    """True scores at several numbers of rollouts, all systems in the same worlds."""
    planned = {f"{count}": {"budget.rollouts": count} for count in COUNTS}
    jobs: list[tuple[str, str, int, tuple[object, ...]]] = []
    for seed in seeds:
        for count, settings in planned.items():
            jobs.append(("skillfit", count, seed, (json.dumps(settings | _NO_SHIP),)))
            jobs.append(("skillfit, ship test", count, seed, (json.dumps(settings),)))
        jobs += [(name, "all", seed, (max(COUNTS), 40, 40)) for name in bench.peers]

    def score(job: tuple[str, str, int, tuple[object, ...]]) -> Run:
        label, _, seed, more = job
        return bench.run(label.partition(",")[0], seed, 0, 0, *more)

    found: dict[tuple[str, int], list[float]] = {}
    with ThreadPoolExecutor(workers) as pool:
        for (label, count, seed, _), run in zip(jobs, pool.map(score, jobs), strict=True):
            if run.problem:
                print(f"{label}, seed {seed} is left out: {run.problem}", file=sys.stderr)
                continue
            for at in COUNTS if count == "all" else (int(count),):
                value = true_score(str(seed), run.best_at(at))
                found.setdefault((label, at), []).append(value)
    start = statistics.mean(true_score(str(seed), SKILL) for seed in seeds)
    return _score_table(found, start, len(seeds))


def _score_table(found: dict[tuple[str, int], list[float]], start: float, seeds: int) -> str:
    lines = [
        "### True score by rollouts",
        "",
        f"Mean chance of success on unseen items of the skill that is handed back, over {seeds} "
        f"seeds with the standard error; the initial skill has {start:.3f}. All rollouts count, "
        "also those of baseline and ship test.",
        "",
        "| system | " + " | ".join(f"{count} rollouts" for count in COUNTS) + " |",
        "|---" * (1 + len(COUNTS)) + "|",
    ]
    for label in dict.fromkeys(label for label, _ in found):
        cells = []
        for count in COUNTS:
            values = found[label, count]
            error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.3f} ± {error:.3f}")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
