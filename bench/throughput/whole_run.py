"""A whole training run of the demo project against a server at the given address, in seconds."""

import os
import shutil
import time
from importlib.resources import as_file, files

os.environ["OPENAI_API_KEY"] = "none"

import skillfit
from bench.throughput.world import report, settings

SMALL = {"train.num_epochs": 1, "evaluation.ship_test": False}


def train(url, folder, name, more=None):
    with as_file(files("skillfit.cli") / "demo_data" / "triage") as project:
        shutil.copytree(project, folder / name)
    models = {
        f"model.{role}": {"id": f"openai/{role}", "base_url": url}
        for role in ("agent", "optimizer")
    }
    return skillfit.train(
        config=folder / name / "skillfit.yaml",
        settings=models | (more or {}),
        run=folder / name / "run",
        force=True,
    )


url, _, _, folder = settings()
# First a short run without faults at another address, so that imports are not counted.
train(url.rpartition("/practice-")[0] + "-warm/practice-0/v1", folder, "warm", SMALL)
begun, cpu = time.perf_counter(), time.process_time()
run = train(url, folder, "run")
seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
report(seconds, cpu, 0, [], reason=run.finish_reason)
