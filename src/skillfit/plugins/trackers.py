"""Trackers: listeners that send the events of a run to an experiment tracker or a file. This module
has the numbers that all of them send, and the tracker that writes JSON lines.

A run that is resumed reports its recorded events again, in order and with the same numbers. Each
tracker leaves out, or writes in the same place, what it already has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from skillfit.errors import InputError
from skillfit.extensions import find_extension
from skillfit.run.events import (
    EvaluationFinished,
    Event,
    GateDecided,
    RunFinished,
    RunStarted,
    ShipTested,
    StepFinished,
    Stored,
    as_json,
)

_TRACKERS = {
    "jsonl": "skillfit.plugins.trackers:JsonlTracker",
    "mlflow": "skillfit.plugins.mlflow_tracker:MLflowTracker",
    "otel": "skillfit.plugins.otel_tracker:OpenTelemetryTracker",
    "tensorboard": "skillfit.plugins.tensorboard_tracker:TensorBoardTracker",
    "wandb": "skillfit.plugins.wandb_tracker:WandbTracker",
}


class Tracker(Protocol):
    """Called with every event of a run; `close` is called when the command ends."""

    def __call__(self, stored: Stored) -> None: ...

    def close(self) -> None: ...


def make_tracker(spec: str, run: Path) -> Tracker:
    """The tracker for `mlflow[:URI]`, `wandb[:PROJECT]`, `tensorboard[:FOLDER]`,
    `otel[:ENDPOINT]`, `jsonl:FILE`, or the entry point of another package (group
    `skillfit.trackers`). `run` is the run's directory. Without a part behind the colon the
    tracker's own environment variables and defaults apply.
    """
    name, _, where = spec.partition(":")
    kind = find_extension("tracker", name, _TRACKERS)
    try:
        tracker: Tracker = kind(where, run)
    except ModuleNotFoundError as error:
        raise InputError(
            f"The tracker {name} needs the package {error.name!r}.",
            hint=f"pip install 'skillfit[{name}]'",
        ) from error
    except OSError as error:
        raise InputError(
            f"The tracker {name} cannot write to {where}: {error.strerror}.", hint="Check the path."
        ) from error
    return tracker


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
            "gate/higher": found.higher,
            "gate/lower": found.lower,
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


_LINE_START = b'{"seq": '


class JsonlTracker:
    """Appends each event of one run once. Events that are in the file already, from before a
    resume, are not written again.
    """

    def __init__(self, where: str, run: Path) -> None:
        if not where:
            raise InputError(
                "The tracker jsonl needs a file.", hint="For example --track jsonl:events.jsonl"
            )
        self._path = path = Path(where)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        if any(line[: len(_LINE_START)] != _LINE_START[: len(line)] for line in lines):
            raise InputError(
                f"{path} holds other things than events.", hint="Give another file after jsonl:."
            )
        complete = [line for line in lines if line.endswith(b"\n")]  # a kill can leave half a line
        self._known: set[int] = set()
        self._run = ""
        for line in complete:
            event = json.loads(line)
            self._known.add(event["seq"])
            if event["kind"] == RunStarted.__name__:
                self._run = event["run"]
        self._file = path.open("r+b" if path.is_file() else "w+b")
        self._file.truncate(sum(map(len, complete)))
        self._file.seek(0, os.SEEK_END)

    def __call__(self, stored: Stored) -> None:
        if isinstance(stored.event, RunStarted):
            self._run = self._run or stored.event.run
            if self._run != stored.event.run:
                raise InputError(
                    f"{self._path} holds the events of another run ({self._run}).",
                    hint="Give each run its own file.",
                )
        if stored.seq not in self._known:
            self._known.add(stored.seq)
            self._file.write(json.dumps(as_json(stored), ensure_ascii=False).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()
