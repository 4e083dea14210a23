"""`skillfit ablate`, the shipped command, on a skill whose useless and wrong lines are known."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.local.house_style import START, write_task
from bench.local.pool import POOL

# Every line that the skill of this test has, by its place in the pool's order.
HELPFUL = (0, 8, 9, 10, 11, 12, 14, 15, 16)
OVERLAPPING = (1, 3)
USELESS = (0, 1, 2, 4, 7, 9)
WRONG = (0, 1, 3, 4)
OVERRIDE = "model.agent.max_tokens=48"  # an explanation is not cut off, so it is graded
CHOSEN = {"helpful": HELPFUL, "overlapping": OVERLAPPING, "useless": USELESS, "wrong": WRONG}


def planted_skill() -> str:
    """The initial skill with lines of all sorts, mixed, so that their order means nothing."""
    by_sort = {sort: [line.text for line in POOL if line.planted == sort] for sort in CHOSEN}
    lines = [by_sort[sort][at] for sort, places in CHOSEN.items() for at in places]
    lines.sort(key=lambda line: sha256(line.encode()).hexdigest())
    return START + "\n".join(lines) + "\n"


def ablate(folder: Path, model: Path, results: Path, rollouts: int | None, threads: int) -> None:
    """Run the command and keep what it printed, with what was planted beside every line, and the
    score of the whole skill on every item.
    """
    config = write_task(folder, model, threads, planted_skill())
    options = [] if rollouts is None else ["--rollouts", str(rollouts)]
    found = _printed("ablate", config, folder / "ablation", *options)
    planted = {line.text: line.planted for line in POOL}
    for unit in found["units"]:
        unit["planted"] = planted.get(unit["text"].strip(), "initial skill")
    for machine in ("run", "report"):
        found.pop(machine)
    found["model"] = model.name
    found["measured_score"] = _measured_score(config, folder / "whole")
    results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _measured_score(config: Path, run: Path) -> float:
    """Of the whole skill, once on each item. The model answers at temperature 0, so repeats would
    not differ.
    """
    splits = [
        _printed("eval", config, run, "--split", split)[0] for split in ("train", "selection")
    ]
    scored = sum(split["scored"] for split in splits)
    return sum(split["hard"] * split["scored"] for split in splits) / scored


def _printed(name: str, config: Path, run: Path, *options: str) -> Any:
    """What a command prints with --json."""
    command = [sys.executable, "-m", "skillfit", name, str(config), OVERRIDE, "--json"]
    command += ["--run", str(run), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)
