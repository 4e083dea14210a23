"""A whole run of skillfit in the training world: `skillfit.train` with its own config."""

import json
import os
import sys
import time

os.environ["OPENAI_API_KEY"] = "none"

import skillfit
from bench.throughput.world import settings, trained


def train(url, seed, concurrency, folder, more):
    roles = {role: {"id": f"openai/{role}", "base_url": url} for role in ("agent", "optimizer")}
    config = {
        "model": {**roles, "concurrency": concurrency},
        "env": {
            "skill": str(folder / "skill.md"),
            "tasks": str(folder / "items"),
            "grader": {"normalized": {"extract": "tag"}},
        },
        "train": {"seed": seed},
    }
    return skillfit.train(config=config, settings=more, run=folder / "run", force=True)


url, seed, concurrency, folder = settings()
begun, cpu = time.perf_counter(), time.process_time()
run = train(url, seed, concurrency, folder, json.loads(sys.argv[5]))
seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
trained(seconds, cpu, [(0, (folder / "run" / "best_skill.md").read_text())])
