"""Where else a run is told: small listeners that write its events to an experiment tracker or a file."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from skillfit.errors import InputError
from skillfit.run.events import Stored

Tracker = Callable[[Stored], None]

_PLACES = {
    "jsonl": ("skillfit.trackers.jsonl", "JsonLines"),
    "mlflow": ("skillfit.trackers.mlflow", "MLflow"),
    "otel": ("skillfit.trackers.otel", "OpenTelemetry"),
    "tensorboard": ("skillfit.trackers.tensorboard", "TensorBoard"),
    "wandb": ("skillfit.trackers.wandb", "WandB"),
}


def make(spec: str) -> Tracker:
    """A listener for `mlflow[:URI]`, `wandb[:PROJECT]`, `tensorboard[:FOLDER]`, `otel[:ENDPOINT]` or `jsonl:FILE`. What comes after
    the colon may be left out where the tracker's own environment variables say it."""
    name, _, where = spec.partition(":")
    if name not in _PLACES:
        raise InputError(f"There is no tracker {name!r}.", hint=f"Known are {', '.join(_PLACES)}.")
    module, kind = _PLACES[name]
    try:
        tracker: Tracker = getattr(import_module(module), kind)(where)
    except ModuleNotFoundError as error:
        raise InputError(f"The tracker {name} needs {error.name}.", hint=f"pip install 'skillfit[{name}]'") from error
    return tracker
