"""Records with every required field filled, for tests that only care about some of them."""

from __future__ import annotations

from typing import Any

from skillfit.run.events import RunStarted, ShipTested
from skillfit.run.records import CurrentAndBest, Evidence, RecordedConfig, RunSummary, StepRecord


def standings(**fields: Any) -> CurrentAndBest:
    given = {
        "current_score": 0.0,
        "current_origin": "initial",
        "best_score": 0.0,
        "best_step": 0,
        "best_origin": "initial",
    }
    return CurrentAndBest(**{**given, **fields})


def step_record(step: int = 1, **fields: Any) -> StepRecord:
    given: dict[str, Any] = {
        "step": step,
        "epoch": 1,
        "step_in_epoch": step,
        "action": "accept",
        "lr_control_mode": "fixed",
        "gate_metric": "hard",
        "standings": standings(),
        "skill_len": 0,
        "timing": {},
        "tokens": {},
        "wall_time_s": 0.0,
    }
    return StepRecord(**{**given, **fields})


def run_summary(**fields: Any) -> RunSummary:
    given: dict[str, Any] = {
        "version": "skillfit-0",
        "finish_reason": "improved",
        "diagnosis": "",
        "config": RecordedConfig({}),
        "total_steps": 1,
        "steps_done": 1,
        "total_accepts": 1,
        "total_rejects": 0,
        "total_skips": 0,
        "edits_blocked": 0,
    }
    return RunSummary(**{**given, **fields})


def run_started(**fields: Any) -> RunStarted:
    given: dict[str, Any] = {
        "run": "x",
        "config": {},
        "version": "1",
        "skill": "# S\n",
        "skill_hash": "h",
        "splits": {},
        "total_epochs": 1,
        "steps_per_epoch": 1,
    }
    given |= fields
    return RunStarted(**{**given, "config": RecordedConfig(given["config"])})


def ship_tested(**fields: Any) -> ShipTested:
    given: dict[str, Any] = {
        "verdict": "improved",
        "reason": "",
        "difference": 0.2,
        "interval": (0.1, 0.3),
        "p_value": 0.01,
        "pairs": 2,
        "skill_hash": "h",
        "evidence": Evidence(),
    }
    return ShipTested(**{**given, **fields})
