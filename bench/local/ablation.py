"""`skillfit ablate`, the shipped command, on a skill whose useless and wrong lines are known."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

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
    """The initial skill with lines of all sorts, mixed, so that place says nothing."""
    by_sort = {sort: [line.text for line in POOL if line.planted == sort] for sort in CHOSEN}
    lines = [by_sort[sort][at] for sort, places in CHOSEN.items() for at in places]
    lines.sort(key=lambda line: sha256(line.encode()).hexdigest())
    return START + "\n".join(lines) + "\n"


def ablate(folder: Path, model: Path, results: Path, rollouts: int | None, threads: int) -> None:
    """Run the command and keep what it printed, with what was planted beside every line."""
    config = write_task(folder, model, threads, planted_skill())
    command = [sys.executable, "-m", "skillfit", "ablate", str(config), OVERRIDE, "--json"]
    command += ["--run", str(folder / "ablation")]
    command += [] if rollouts is None else ["--rollouts", str(rollouts)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    planted = {line.text: line.planted for line in POOL}
    for unit in found["units"]:
        unit["planted"] = planted.get(unit["text"].strip(), "initial skill")
    for machine in ("run", "report"):
        found.pop(machine)
    found["model"] = model.name
    results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
