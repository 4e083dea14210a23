"""The numbers and settings in events, as trackers want them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillfit.run.events import (
    EvaluationFinished,
    Event,
    GateDecided,
    RunFinished,
    RunStarted,
    ShipTested,
    StepFinished,
)


class EventMetrics:
    """The metrics of each event. `step` is the step that they belong to."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self, event: Event) -> dict[str, float]:
        self.step = getattr(event, "step", 0) or self.step
        return {name: float(value) for name, value in _numbers(event).items() if value is not None}


def _numbers(event: Event) -> Mapping[str, Any]:
    if isinstance(event, EvaluationFinished):
        place = "selection" if event.split == "selection" else event.name
        return {
            f"{place}/hard": event.hard,
            f"{place}/soft": event.soft,
            f"{place}/scored": event.scored,
        }
    if isinstance(event, GateDecided):
        found = event.evidence
        return {
            "gate/accepted": event.decision == "accept",
            "gate/fixed": len(found.fixed),
            "gate/broken": len(found.broken),
            "gate/difference": found.difference,
            "gate/probability": found.probability,
            "gate/rollouts": found.rollouts,
        }
    if isinstance(event, StepFinished):
        used = event.record.tokens.values()
        standings = event.record.standings
        return {
            "score/current": standings.current_score,
            "score/best": standings.best_score,
            "usage/calls": sum(stage.calls for stage in used),
            "usage/prompt_tokens": sum(stage.prompt_tokens for stage in used),
            "usage/completion_tokens": sum(stage.completion_tokens for stage in used),
        }
    if isinstance(event, ShipTested):
        low, high = event.interval
        return {
            "ship/difference": event.difference,
            "ship/low": low,
            "ship/high": high,
            "ship/probability": event.evidence.probability,
        }
    if isinstance(event, RunFinished):
        total = event.summary.usage
        return {
            "total/calls": total.calls,
            "total/tokens": total.tokens,
            "total/usd": total.usd,
        }
    return {}


def parameters(started: RunStarted) -> dict[str, str]:
    """The settings with dotted names (`train.batch_size`), without those that are not set."""
    return {
        "skillfit.version": started.version,
        "skill.hash": started.skill_hash,
        **_flat(started.config),
    }


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif value not in (None, "", (), []):
            found[prefix + name] = str(value)
    return found
