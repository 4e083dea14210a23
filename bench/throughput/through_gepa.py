"""The work through gepa 0.1.4: its default adapter over LiteLLM. Runs in that package's own
environment.
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

url, count, concurrency, _ = settings()
os.environ |= {
    "OPENAI_API_KEY": "none",
    "OPENAI_API_BASE": url,
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}

import litellm  # noqa: E402
from gepa.adapters.default_adapter.default_adapter import DefaultAdapter  # noqa: E402

litellm.suppress_debug_info = True
adapter = DefaultAdapter("openai/bench", max_litellm_workers=concurrency)


def evaluate(numbers):
    batch = [
        {
            "input": f"## Context\n{CONTEXT}\n\n## Question\n{question(n)}",
            "additional_context": {},
            "answer": gold(n),
        }
        for n in numbers
    ]
    return adapter.evaluate(batch, {"system_prompt": SKILL}).scores


evaluate(range(count, count + concurrency))
begun, cpu = time.perf_counter(), time.process_time()
scores = evaluate(range(count))
seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
report(seconds, cpu, peak_megabytes(), scores)
