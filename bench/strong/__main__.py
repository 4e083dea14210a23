"""`python -m bench.strong TASK --model FILE.gguf --work DIR`: write a task and compare ways to
train on it, with a local model as the agent and `handoff` as the optimizer.

The command prints where prompts wait; whoever answers them must see nothing but the prompts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from bench.strong.tasks import TASKS, write_task

WAYS = ("initial", "one-shot", "train:reflect", "train:corpus", "train:agent")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.strong", description=__doc__)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--model", type=Path, required=True, help="the GGUF file")
    parser.add_argument("--work", type=Path, required=True, help="a folder for tasks and runs")
    parser.add_argument("--rollouts", type=int, nargs="+", default=[60, 150, 300])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    parser.add_argument("--no-kinds", action="store_true", help="items do not name their kinds")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    asked = parser.parse_args()
    folder = asked.work / (asked.task + ("-no-kinds" if asked.no_kinds else ""))
    task, model = TASKS[asked.task], asked.model.resolve()
    config = write_task(folder, task, model, asked.threads, kinds=not asked.no_kinds)
    command = [sys.executable, "-m", "skillfit", "compare", str(config), "--wait"]
    command += ["--run", str(folder / "runs"), "--seeds", str(asked.seeds), "--repeats", "1"]
    for rollouts in asked.rollouts:
        command += ["--rollouts", str(rollouts)]
    for way in asked.ways:
        command += ["--way", way]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
