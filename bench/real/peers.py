"""A whole run of gepa or skillopt in a world, with its own defaults, in its own environment.

The best skill so far is known at every number of rollouts. So one long run of gepa tells what it
would hand back at each smaller budget; its course does not depend on the budget. The schedules of
skillopt do, so it makes a run for each of the larger budgets. No rollouts are spent on a test.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.parity import reference
from bench.real.play import Players
from bench.real.run import Job, Run
from bench.real.server import serving
from bench.real.world import Split, World
from bench.throughput.__main__ import python_of

ROOT = Path(__file__).resolve().parents[2]
PEERS = ("gepa", "skillopt")
CONCURRENCY = 8
SMALL = 300  # rollouts; one run of skillopt serves all budgets below
LONGEST = 1800  # seconds
_SPLITS: dict[str, Split] = {"train": "train", "val": "selection"}


def ready(peer: str) -> None:
    """Install what is missing."""
    if peer == "skillopt":
        reference.ready()
    python_of(peer)


def share_a_run(one: Job, other: Job) -> bool:
    """Whether one run tells what both jobs ask."""
    same = (one.system, one.world, one.optimizer, one.seed)
    if same != (other.system, other.world, other.optimizer, other.seed):
        return False
    return one.system == "gepa" or max(one.budget, other.budget) < SMALL


def train(jobs: Sequence[Job], players: Players) -> list[Run]:
    """One run for jobs that differ in their budgets only."""
    first, longest = jobs[0], max(job.budget for job in jobs)
    size = _size(first.system, longest)
    world = players.world
    with tempfile.TemporaryDirectory(prefix="bench-real-") as scratch, serving(players) as url:
        write_items(world, Path(scratch))
        script = ROOT / "bench" / "throughput" / f"train_{first.system}.py"
        line = [python_of(first.system), str(script), url, str(first.seed), str(CONCURRENCY)]
        line += [scratch, *map(str, (longest, size, size))]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
    if done.returncode:
        raise RuntimeError(f"{first}: {done.stderr.strip()[-2000:]}")
    said = json.loads(done.stdout.strip().splitlines()[-1])
    runs = []
    for job in jobs:
        skill = [text for count, text in said["curve"] if count <= job.budget or count == 0]
        best = skill[-1] if skill else world.start
        runs.append(Run.of(job, players, best, "", said["cpu_seconds"]))
    return runs


def _size(system: str, rollouts: int) -> int:
    """Selection items, and of skillopt training items per step too. 20 and 40 were tried with the
    seeds for tuning; with these they did best.
    """
    return 40 if system == "skillopt" and rollouts >= 600 else 20


def write_items(world: World, folder: Path) -> None:
    """The initial skill and the items, as `bench.throughput.training_world.write` writes them."""
    (folder / "skill.md").write_text(world.start.rstrip() + "\n", encoding="utf-8")
    for name, split in _SPLITS.items():
        rows = [
            {"id": item.id, "question": item.ask, "context": "", "answers": [item.gold]}
            for item in world.given(split)
        ]
        (folder / "items" / name).mkdir(parents=True)
        (folder / "items" / name / "items.json").write_text(json.dumps(rows), encoding="utf-8")
