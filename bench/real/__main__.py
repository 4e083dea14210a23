"""`python -m bench.real`: skillfit against its peers on the outcomes of a real model, at the same
number of rollouts in all. See README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from bench.real import peers, skillfit_run
from bench.real.optimizer import QUALITIES
from bench.real.play import players
from bench.real.report import aa_table, markdown
from bench.real.run import Job, Run
from bench.real.world import WORLDS, world_named

BUDGETS = (60, 100, 150, 300, 600, 1200)
AA_BUDGETS = (100, 150, 300)
SYSTEMS = ("skillfit", *peers.PEERS)
SEEDS, AA_SEEDS = 16, 200
REPORTED, TUNED = 101, 1  # the first seed


def main() -> None:
    asked = _arguments()
    budgets = asked.budgets or (AA_BUDGETS if asked.aa else BUDGETS)
    world = "null" if asked.aa else asked.world
    optimizers = asked.optimizers or (["ordinary"] if asked.aa else list(QUALITIES))
    systems = ["skillfit"] if asked.aa else asked.systems or list(SYSTEMS)
    first = TUNED if asked.tuning else REPORTED
    seeds = range(first, first + (asked.seeds or (AA_SEEDS if asked.aa else SEEDS)))
    jobs = [
        Job(system, world, optimizer, budget, seed)
        for optimizer, system, budget, seed in product(optimizers, systems, budgets, seeds)
    ]
    runs = make(jobs, _settings(asked.set), asked.jobs, asked.keep)
    print(aa_table(runs) if asked.aa else markdown(runs))


def make(jobs: list[Job], settings: dict[str, Any], processes: int, keep: Path | None) -> list[Run]:
    """Return all runs, in the order of their jobs. Those in the file `keep` are not made again."""
    found = {run.job: run for run in _kept(keep)} if keep else {}
    missing = [job for job in jobs if job not in found]
    for peer in {job.system for job in missing}.intersection(peers.PEERS):
        peers.ready(peer)
    with ProcessPoolExecutor(processes) as pool:
        groups = [pool.submit(play, shared, settings) for shared in _shared(missing)]
        for made in as_completed(groups):
            runs = made.result()
            found |= {run.job: run for run in runs}
            if keep:
                with keep.open("a") as file:
                    file.writelines(json.dumps(asdict(run)) + "\n" for run in runs)
            print(f"\r{len(found)} of {len(jobs)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [found[job] for job in jobs]


def _kept(file: Path) -> list[Run]:
    lines = file.read_text().splitlines() if file.is_file() else []
    rows = [json.loads(line) for line in lines]
    return [Run(**{**row, "job": Job(**row["job"])}) for row in rows]


def _shared(jobs: list[Job]) -> list[list[Job]]:
    """Return the jobs in groups that one run answers."""
    groups: list[list[Job]] = []
    for job in jobs:
        group = next((group for group in groups if peers.share_a_run(group[0], job)), None)
        if group is not None and job.system in peers.PEERS:
            group.append(job)
        else:
            groups.append([job])
    return groups


def play(jobs: list[Job], settings: dict[str, Any]) -> list[Run]:
    job = jobs[0]
    models = players(world_named(job.world, job.seed), job.optimizer, job.seed)
    if job.system in peers.PEERS:
        return peers.train(jobs, models)
    return [skillfit_run.train(job, models, settings)]


def _settings(assignments: Iterable[str]) -> dict[str, Any]:
    """`key=value`, as for `skillfit train --set`."""
    pairs = (assignment.partition("=") for assignment in assignments)
    return {key: yaml.safe_load(value) for key, _, value in pairs}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.real", description=__doc__)
    parser.add_argument("--budgets", type=_numbers, help="rollouts in all: 150,300")
    parser.add_argument("--optimizers", type=_names(QUALITIES), help="weak,ordinary,strong")
    parser.add_argument("--systems", type=_names(SYSTEMS), help=",".join(SYSTEMS))
    parser.add_argument("--world", choices=WORLDS, default="style")
    parser.add_argument("--seeds", type=int, help=f"runs of each kind; default {SEEDS}")
    parser.add_argument("--tuning", action="store_true", help=f"seeds from {TUNED} on")
    parser.add_argument("--aa", action="store_true", help="no line has an effect: A/A")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="for skillfit")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--keep", type=Path, help="a file of runs that are not made again")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return found

    return names


if __name__ == "__main__":
    main()
