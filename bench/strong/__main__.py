"""`python -m bench.strong TASK --model FILE.gguf --work DIR`: write a task and compare ways to
train on it, with a local model as the agent and `handoff` as the optimizer.

The command prints where prompts wait; whoever answers them must see nothing but the prompts. In
the way `train:agent` the folder of a session is the prompt: `by-hand` stands for a coding-agent
program.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from bench.strong.tasks import TASKS, write_task

WAYS = ("initial", "one-shot", "train:reflect", "train:corpus", "train:agent")
AGENT = "train:agent"
BY_HAND = Path(__file__).with_name("by-hand.yaml")


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
    by_hand = f"model.optimizer={{id: cli/by-hand, options: {{file: {BY_HAND}}}}}"
    as_agent = [way for way in asked.ways if way == AGENT]
    others = [way for way in asked.ways if way != AGENT]
    for name, ways, overrides in (
        ("runs", others, ()),
        # A session may take as long as a person needs.
        ("runs-agent", as_agent, (by_hand, "optimizer.agent_minutes=600")),
    ):
        if not ways:
            continue
        command = [sys.executable, "-m", "skillfit", "compare", str(config), *overrides, "--wait"]
        command += ["--run", str(folder / name), "--seeds", str(asked.seeds), "--repeats", "1"]
        command += [part for one in asked.rollouts for part in ("--rollouts", str(one))]
        command += [part for way in ways for part in ("--way", way)]
        done = subprocess.run(command, check=False)
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
