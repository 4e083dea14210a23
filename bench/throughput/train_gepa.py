"""A whole run of gepa 0.1.4 on the items in a folder: its default adapter and engine."""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.throughput.world import settings, trained

url, seed, concurrency, folder = settings()
rollouts, _, selection = map(int, sys.argv[5:8])
os.environ |= {
    "OPENAI_API_KEY": "none",
    "OPENAI_API_BASE": url,
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}

import gepa  # noqa: E402
import litellm  # noqa: E402
from gepa.adapters.default_adapter.default_adapter import DefaultAdapter  # noqa: E402

litellm.suppress_debug_info = True


class Quiet:
    def log(self, message):
        pass


def items(split):
    rows = json.loads((folder / "items" / split / "items.json").read_text())
    return [
        {"input": row["question"], "additional_context": {}, "answer": row["answers"][0]}
        for row in rows
    ]


begun, cpu = time.perf_counter(), time.process_time()
result = gepa.optimize(
    seed_candidate={"system_prompt": (folder / "skill.md").read_text()},
    trainset=items("train"),
    valset=items("val")[:selection],
    adapter=DefaultAdapter("openai/agent", max_litellm_workers=concurrency),
    reflection_lm="openai/optimizer",
    max_metric_calls=rollouts,
    logger=Quiet(),
    seed=seed,
)
seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
# Which candidate was the best one when this many rollouts had been made.
curve, best = [], -1.0
for text, score, count in zip(
    result.candidates, result.val_aggregate_scores, result.discovery_eval_counts, strict=True
):
    if score > best:
        best = score
        curve.append((count, text["system_prompt"]))
trained(seconds, cpu, curve)
