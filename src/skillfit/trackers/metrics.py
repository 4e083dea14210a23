"""Events as the numbers and settings that trackers know."""

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


class Meter:
    """Says each event's metrics, and the step they belong to."""

    step = 0

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
        counts = {f"gate/{name}": len(found.get(name, ())) for name in ("fixed", "broken")}
        measured = {
            f"gate/{name}": found.get(name) for name in ("difference", "probability", "rollouts")
        }
        return {"gate/accepted": event.decision == "accept", **counts, **measured}
    if isinstance(event, StepFinished):
        used = event.record.get("tokens", {}).values()
        tokens = {
            name: sum(stage.get(name, 0) for stage in used)
            for name in ("calls", "prompt_tokens", "completion_tokens")
        }
        scores = {
            f"score/{name}": event.record.get(f"{name}_score") for name in ("current", "best")
        }
        return scores | {f"usage/{name}": value for name, value in tokens.items()}
    if isinstance(event, ShipTested):
        low, high = event.interval
        return {
            "ship/difference": event.difference,
            "ship/low": low,
            "ship/high": high,
            "ship/probability": event.probability,
        }
    if isinstance(event, RunFinished):
        return {
            f"total/{name}": event.summary.get("usage", {}).get(name)
            for name in ("calls", "tokens", "usd")
        }
    return {}


def parameters(started: RunStarted) -> dict[str, str]:
    """The config, flat: `train.batch_size` and so on; what is not set is left out."""
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
