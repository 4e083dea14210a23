"""Where else a run is told: small listeners that write its events to an experiment tracker or a
file.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from skillfit.errors import InputError
from skillfit.run.events import Stored

Tracker = Callable[[Stored], None]

_KINDS = {
    "jsonl": "JsonLines",
    "mlflow": "MLflow",
    "otel": "OpenTelemetry",
    "tensorboard": "TensorBoard",
    "wandb": "WandB",
}


def make(spec: str) -> Tracker:
    """A listener for `mlflow[:URI]`, `wandb[:PROJECT]`, `tensorboard[:FOLDER]`, `otel[:ENDPOINT]`
    or `jsonl:FILE`. What comes after the colon may be left out where the tracker's own environment
    variables say it.
    """
    name, _, where = spec.partition(":")
    if name not in _KINDS:
        raise InputError(f"There is no tracker {name!r}.", hint=f"Known are {', '.join(_KINDS)}.")
    try:
        tracker: Tracker = getattr(import_module(f"skillfit.trackers.{name}"), _KINDS[name])(where)
    except ModuleNotFoundError as error:
        raise InputError(
            f"The tracker {name} needs {error.name}.", hint=f"pip install 'skillfit[{name}]'"
        ) from error
    except OSError as error:
        raise InputError(
            f"The tracker {name} cannot write to {where}: {error.strerror}.", hint="Check the path."
        ) from error
    return tracker
