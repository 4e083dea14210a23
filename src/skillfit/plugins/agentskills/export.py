"""Write what an evaluation with and without a skill measured, as agentskills.io describes.

`benchmark.json` has a summary of both configurations and every run; beside it each answer has a
folder `eval-ITEM/with_skill/run-N` or `without_skill` with `grading.json`, `timing.json` and
`outputs/answer.txt`. An item is one assertion: its grader is satisfied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, stdev
from typing import Literal

from skillfit.atomic_write import write_whole
from skillfit.rollout import Outcome
from skillfit.training.measure import Measured

Configuration = Literal["with_skill", "without_skill"]
JsonValue = object


def write_benchmark(folder: Path, agent: str, *, without: Measured, with_skill: Measured) -> None:
    """Write the files of a comparison. Rollouts without a score are in no number but `errors`."""
    runs: list[dict[str, JsonValue]] = []
    sides: tuple[tuple[Configuration, Measured], ...] = (
        ("with_skill", with_skill),
        ("without_skill", without),
    )
    for configuration, measured in sides:
        for outcome in measured.outcomes:
            runs.append(_run(configuration, outcome))
            if outcome.score is not None:
                _write_answer(folder, configuration, outcome)
    summaries = {name: _summary(measured) for name, measured in sides}
    metadata = {
        "skill_name": with_skill.skill.name,
        "executor_model": agent,
        "timestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "evals_run": [item.id for item in with_skill.items],
        "runs_per_configuration": len(with_skill.outcomes) // max(1, len(with_skill.items)),
    }
    delta = {
        name: summaries["with_skill"][name]["mean"] - summaries["without_skill"][name]["mean"]
        for name in summaries["with_skill"]
        if name in summaries["without_skill"]
    }
    summary: Mapping[str, JsonValue] = {"delta": delta, **{str(k): v for k, v in summaries.items()}}
    _write(folder / "benchmark.json", {"metadata": metadata, "runs": runs, "run_summary": summary})


def _run(configuration: Configuration, outcome: Outcome) -> dict[str, JsonValue]:
    passed = int(outcome.succeeded)
    scored = int(outcome.score is not None)
    return {
        "eval_id": outcome.item_id,
        "eval_name": outcome.item_id,
        "configuration": configuration,
        "run_number": outcome.repeat + 1,
        "result": {
            "pass_rate": outcome.hard,
            "passed": passed,
            "failed": scored - passed,
            "total": scored,
            "time_seconds": outcome.seconds,
            "tokens": outcome.usage.tokens,
            "errors": 1 - scored,
        },
        "expectations": [_assertion(outcome)] if scored else [],
    }


def _assertion(outcome: Outcome) -> dict[str, JsonValue]:
    assert outcome.score is not None
    evidence = outcome.score.feedback or f"score {outcome.score.hard:g}"
    text = "The grader of the task is satisfied"
    return {"text": text, "passed": outcome.succeeded, "evidence": evidence}


def _write_answer(folder: Path, configuration: Configuration, outcome: Outcome) -> None:
    name = re.sub(r"[^\w.-]+", "-", outcome.item_id).strip(".") or "item"
    place = folder / f"eval-{name}" / configuration / f"run-{outcome.repeat + 1}"
    passed = int(outcome.succeeded)
    grading = {
        "assertion_results": [_assertion(outcome)],
        "expectations": [_assertion(outcome)],  # as skill-creator calls them
        "summary": {
            "passed": passed,
            "failed": 1 - passed,
            "total": 1,
            "pass_rate": outcome.hard,
        },
    }
    _write(place / "grading.json", grading)
    timing = {"total_tokens": outcome.usage.tokens, "duration_ms": round(outcome.seconds * 1000)}
    _write(place / "timing.json", timing)
    answer = outcome.attempt.answer if outcome.attempt else ""
    _write_text(place / "outputs" / "answer.txt", answer)


def _summary(measured: Measured) -> dict[str, dict[str, float]]:
    scored = [one for one in measured.outcomes if one.hard is not None]
    columns = {
        "pass_rate": [one.hard or 0.0 for one in scored],
        "time_seconds": [one.seconds for one in scored],
        "tokens": [float(one.usage.tokens) for one in scored],
    }
    return {name: _spread(values) for name, values in columns.items() if values}


def _spread(values: Sequence[float]) -> dict[str, float]:
    deviation = stdev(values) if len(values) > 1 else 0.0
    return {"mean": mean(values), "stddev": deviation, "min": min(values), "max": max(values)}


def _write(path: Path, value: JsonValue) -> None:
    _write_text(path, json.dumps(value, indent=1) + "\n")


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode("utf-8", "replace"))
