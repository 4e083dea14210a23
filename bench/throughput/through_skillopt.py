"""The work through skillopt 0.2.0: its SearchQA rollout. Runs in that package's own environment.

Its wheel comes without the prompt files; the one this needs is put in its place in memory, in our
own words.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.throughput.world import (
    CONTEXT,
    SKILL,
    gold,
    peak_megabytes,
    question,
    report,
    settings,
)

url, count, concurrency, folder = settings()
os.environ |= {
    "AZURE_OPENAI_AUTH_MODE": "openai_compatible",
    "AZURE_OPENAI_ENDPOINT": url,
    "AZURE_OPENAI_API_KEY": "none",
    "TARGET_DEPLOYMENT": "bench",
}

from skillopt import prompts  # noqa: E402
from skillopt.envs.searchqa.rollout import run_batch  # noqa: E402

place = Path(prompts._REFLACT_DIR, "envs", "searchqa", "prompts", "rollout_system.md")
prompts._cache[str(place)] = (
    "You answer questions from the context you are given.\n\n"
    "{skill_section}End with <answer>…</answer>."
)


def items(numbers):
    return [
        {"id": f"{n:05d}", "question": question(n), "context": CONTEXT, "answers": [gold(n)]}
        for n in numbers
    ]


run_batch(
    items(range(count, count + concurrency)), str(folder / "warm"), SKILL, workers=concurrency
)
begun, cpu = time.perf_counter(), time.process_time()
rows = run_batch(items(range(count)), str(folder / "run"), SKILL, workers=concurrency)
seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
hard = {row["id"]: float(row["hard"]) for row in rows}
megabytes = peak_megabytes()
report(seconds, cpu, megabytes, [hard[item["id"]] for item in items(range(count))])
