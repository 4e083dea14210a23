"""`skillfit train`, the shipped command, on benchmarks with a local model as the agent.

No optimizer model: edits are worked examples from solved training items, the only proposer that
needs none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from skillfit.run.directory import RunDirectory
from skillfit.run.events import EvaluationFinished


@dataclass(frozen=True, slots=True)
class Benchmark:
    name: str  # of its results
    tasks: str
    max_tokens: int
    rollouts: int
    settings: tuple[str, ...] = ()


BENCHMARKS = (
    Benchmark(
        "reasoning_gym",
        "reasoning_gym:chain_sum?size=60&min_terms=3&max_terms=4",
        max_tokens=200,
        rollouts=300,
        settings=(
            'env.prompt="{skill}\\n\\nPut your final answer into <answer>...</answer>."',
            "evaluation.preflight=false",
            "train.batch_size=10",
        ),
    ),
    Benchmark(
        "reasoning_gym_longer",
        "reasoning_gym:chain_sum?size=100&min_terms=3&max_terms=4",
        max_tokens=200,
        rollouts=600,
        settings=(
            'env.prompt="{skill}\\n\\nPut your final answer into <answer>...</answer>."',
            "evaluation.preflight=false",
            "train.batch_size=10",
        ),
    ),
    Benchmark(
        "spreadsheetbench",
        "spreadsheetbench:sample?mode=single",
        max_tokens=500,
        rollouts=60,
        settings=("evaluation.preflight=false",),
    ),
)


def train(folder: Path, model: Path, results: Path, benchmark: Benchmark, threads: int) -> None:
    """Run the command and keep the figures of its summary."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"{benchmark.name}.yaml"
    limits = f"temperature: 0, max_tokens: {benchmark.max_tokens}"
    limits += f", options: {{slots: 1, threads: {threads}}}"
    lines = [
        f"model: {{agent: {{id: local/{model}, {limits}}}, concurrency: 1}}",
        f'env: {{tasks: "{benchmark.tasks}"}}',
        "optimizer: {proposer: examples, use_slow_update: false, use_meta_skill: false}",
        f"budget: {{rollouts: {benchmark.rollouts}}}",
    ]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = folder / benchmark.name
    command = [sys.executable, "-m", "skillfit", "train", str(config), *benchmark.settings]
    subprocess.run([*command, "--run", str(run)], check=False)
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    view = RunDirectory.read(run)
    events = [stored.event for stored in view.events.read()]
    view.close()
    scores = [
        {"name": one.name, "split": one.split, "hard": one.hard, "scored": one.scored}
        for one in events
        if isinstance(one, EvaluationFinished)
    ]
    kept = ("finish_reason", "steps_done", "rollouts", "ship", "skill_tokens", "unproven")
    record = {
        "benchmark": benchmark.name,
        "tasks": benchmark.tasks,
        "model": model.name,
        "scores": scores,
        "seconds": summary["total_wall_time_s"],
        **{name: summary[name] for name in (*kept, "baseline_test_hard", "test_hard")},
    }
    others = json.loads(results.read_text("utf-8")) if results.is_file() else []
    others = [one for one in others if one["benchmark"] != benchmark.name]
    results.write_text(json.dumps([*others, record], indent=1) + "\n", encoding="utf-8")
