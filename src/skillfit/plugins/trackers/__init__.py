"""Trackers: listeners that send the events of a run to an experiment tracker or a file.

A run that is resumed reports its recorded events again, in order and with the same numbers. Each
tracker leaves out, or writes in the same place, what it already has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from skillfit.errors import InputError
from skillfit.extensions import find_extension
from skillfit.run.events import Stored

_TRACKERS = {
    "jsonl": "skillfit.plugins.trackers.jsonl_tracker:JsonlTracker",
    "mlflow": "skillfit.plugins.trackers.mlflow_tracker:MLflowTracker",
    "otel": "skillfit.plugins.trackers.otel_tracker:OpenTelemetryTracker",
    "tensorboard": "skillfit.plugins.trackers.tensorboard_tracker:TensorBoardTracker",
    "wandb": "skillfit.plugins.trackers.wandb_tracker:WandbTracker",
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
