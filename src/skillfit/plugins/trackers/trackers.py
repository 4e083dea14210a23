"""Trackers: listeners that send the events of a run to an experiment tracker or a file.

A run that is resumed reports its recorded events again, in order and with the same numbers. Each
tracker leaves out, or writes in the same place, what it already has. The package of a tracker is
imported when the tracker is made.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, cast

from skillfit.errors import InputError, SkillfitError
from skillfit.extensions import (
    JsonValue,
    call_factory,
    can_be_called_with,
    find_extension,
    name_of,
)
from skillfit.plain_text import shorten
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
from skillfit.run.records import RunFinishReason

_TRACKERS = {
    "jsonl": "skillfit.plugins.trackers.trackers:JsonlTracker",
    "mlflow": "skillfit.plugins.trackers.trackers:MLflowTracker",
    "otel": "skillfit.plugins.trackers.otel:OpenTelemetryTracker",
    "tensorboard": "skillfit.plugins.trackers.trackers:TensorBoardTracker",
    "wandb": "skillfit.plugins.trackers.trackers:WandbTracker",
}


class Tracker(Protocol):
    """Called with every event of a run; `close` is called when the command ends."""

    def __call__(self, stored: Stored) -> None: ...

    def close(self) -> None: ...


def make_tracker(spec: str | Callable[..., Any], run: Path) -> Tracker:
    """Create the tracker for `mlflow[:URI]`, `wandb[:PROJECT]`, `tensorboard[:FOLDER]`,
    `otel[:ENDPOINT]`, `jsonl:FILE`, `file.py:name[:TEXT]`, or the entry point of another package
    (group `skillfit.trackers`). `run` is the run's directory. Without a part behind the colon the
    tracker's own environment variables and defaults apply.

    Instead of a name, `spec` may be what it stands for: a class that is made with the text behind
    the colon and the run's directory, an object that is called with events, or a function.
    """
    name, where = _divided(spec) if isinstance(spec, str) else (name_of(spec), "")
    found = spec
    if isinstance(spec, str):
        found = find_extension("tracker", name, _TRACKERS, setting="--track")
    try:
        return _MayFail(_tracker(found, name, where, run), name)
    except ModuleNotFoundError as error:
        install = f"pip install 'skillfit[{name}]'" if name in _TRACKERS else ""
        raise InputError(
            f"The tracker {name} needs the package {error.name!r}.",
            hint=install or "Install it in this environment.",
        ) from error
    except OSError as error:
        path = where or error.filename
        if path is None:
            raise InputError(f"The tracker {name} cannot be started: {error}.") from error
        raise InputError(
            f"The tracker {name} cannot write to {path}: {error.strerror or error}.",
            hint="Check the path.",
        ) from error


def _divided(spec: str) -> tuple[str, str]:
    """Split the name of a tracker from the text behind it. The name may be file.py:name."""
    if match := re.match(r"(?P<name>.+?\.py:\w+)(?::(?P<text>.*))?$", spec):
        return match["name"], match["text"] or ""
    name, _, where = spec.partition(":")
    return name, where


def _tracker(found: object, name: str, where: str, run: Path) -> Tracker:
    """Return what is called with events: `found` itself, or what the class or function makes."""
    if isinstance(found, type) or (callable(found) and can_be_called_with(found, where, run)):
        found = call_factory("tracker", found, (where, run), name)
    if not callable(found):
        raise InputError(
            f"The tracker {name} is {type(found).__name__}, which cannot be called with events.",
            hint="Give it a method __call__(self, stored).",
        )
    return cast(Tracker, found) if hasattr(found, "close") else FunctionTracker(found)


class _MayFail:
    """A tracker whose error does not stop a run: it ends the tracking with a warning."""

    def __init__(self, tracker: Tracker, name: str) -> None:
        self._tracker, self._name = tracker, name
        self._failed = False

    def __call__(self, stored: Stored) -> None:
        self._try(lambda: self._tracker(stored))

    def close(self) -> None:
        self._try(self._tracker.close)

    def _try(self, call: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            call()
        except SkillfitError:
            raise  # what the user must fix, for example a file that holds another run
        except Exception as error:  # noqa: BLE001, of any tracking service or user's code
            self._failed = True
            message = f"The tracker {self._name} is off for the rest of this run: {error!r}"
            warnings.warn(message, stacklevel=1)


class FunctionTracker:
    """A function of events, or an object without `close`, as a tracker."""

    def __init__(self, function: Callable[[Stored], None]) -> None:
        self._function = function

    def __call__(self, stored: Stored) -> None:
        self._function(stored)

    def close(self) -> None:
        return None


class EventMetrics:
    """The metrics of each event. `step` is the step that they belong to."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self, event: Event) -> dict[str, float]:
        self.step = getattr(event, "step", 0) or self.step
        return {name: float(value) for name, value in _numbers(event).items() if value is not None}


def _numbers(event: Event) -> Mapping[str, float | None]:
    if isinstance(event, EvaluationFinished):
        place = "selection" if event.split == "selection" else event.name
        return {
            f"{place}/hard": event.hard if event.has_score else None,
            f"{place}/soft": event.soft if event.has_score else None,
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
        low, high = event.interval or (None, None)
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
    """Return the settings with dotted names (`train.batch_size`), without those that are not
    set.
    """
    return {
        "skillfit.version": started.version,
        "skill.hash": started.skill_hash,
        **_flat(started.config.root),
    }


def _flat(settings: Mapping[str, JsonValue], prefix: str = "") -> dict[str, str]:
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
                f"{path} holds other lines than events.", hint="Give another file after jsonl:."
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


_EXPERIMENT = "skillfit"
_SEQ = "skillfit.seq"  # the last event that the MLflow run has
_STATUS: Mapping[RunFinishReason, str] = {"budget": "KILLED", "infrastructure": "FAILED"}
_LONGEST = 500  # characters of a parameter


class MLflowTracker:
    """MLflow: settings, scores, the best skill and the report, on a server or in a local database.

    One MLflow run per run, found again by its tag on resume.
    """

    def __init__(self, where: str, run: Path) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        # MLflow's own default would let the run wait four minutes for a server that is gone.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        try:
            self._client = MlflowClient(where or None)
        except MlflowException as error:
            raise InputError(
                f"MLflow cannot be used: {error}",
                hint="Give a server or a database: --track mlflow:http://HOST:5000 or "
                "--track mlflow:sqlite:///mlflow.db (pip install 'skillfit[mlflow]'), or set "
                "MLFLOW_TRACKING_URI.",
            ) from error
        self._directory = run
        self._run = ""  # MLflow's id
        self._last_seq = 0
        self._metrics = EventMetrics()

    def __call__(self, stored: Stored) -> None:
        numbers = self._metrics(stored.event)
        self._log(stored, numbers)

    def close(self) -> None:
        """Mark a run that was stopped before its end."""
        if self._run:
            self._client.set_terminated(self._run, "KILLED")

    def _log(self, stored: Stored, numbers: dict[str, float]) -> None:
        from mlflow.entities import Metric, RunTag

        event, at = stored.event, int(stored.at * 1000)
        if isinstance(event, RunStarted) and not self._run:
            self._open(event)
        if not self._run or stored.seq <= self._last_seq:
            return
        if numbers:
            step = self._metrics.step
            metrics = [Metric(name, number, at, step) for name, number in numbers.items()]
            self._client.log_batch(self._run, metrics=metrics, tags=[RunTag(_SEQ, str(stored.seq))])
        if isinstance(event, RunFinished):
            self._finish(event, at)

    def _open(self, event: RunStarted) -> None:
        from mlflow.entities import Param

        client = self._client
        experiment = client.get_experiment_by_name(_EXPERIMENT)
        number = experiment.experiment_id if experiment else client.create_experiment(_EXPERIMENT)
        found = client.search_runs([number], f"tags.`skillfit.run` = '{event.run}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._last_seq = int(found[0].data.tags.get(_SEQ, 0))
            client.set_terminated(self._run, "RUNNING")
            return
        tags = {"skillfit.run": event.run}
        self._run = client.create_run(number, tags=tags, run_name=event.run).info.run_id
        settings = [
            Param(name, shorten(value, _LONGEST)) for name, value in parameters(event).items()
        ]
        client.log_batch(self._run, params=settings)

    def _finish(self, event: RunFinished, at: int) -> None:
        from skillfit.report import write_report

        self._client.log_text(self._run, event.best_skill, "best_skill.md")
        with TemporaryDirectory(prefix="skillfit-") as folder:
            report = write_report(self._directory, Path(folder) / "report.html")
            self._client.log_artifact(self._run, str(report))
        self._client.set_tag(self._run, "skillfit.finish_reason", event.finish_reason)
        self._client.set_terminated(self._run, _STATUS.get(event.finish_reason, "FINISHED"), at)
        self._run = ""


class TensorBoardTracker:
    """TensorBoard event files: one folder per run below the given one (default: tensorboard).

    What a resumed run reports again has its old step and time, so its points replace the old ones.
    """

    def __init__(self, where: str, run: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = Path(where or "tensorboard")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._open = EventFileWriter
        self._writer: EventFileWriter | None = None
        self._metrics = EventMetrics()

    def __call__(self, stored: Stored) -> None:
        if isinstance(stored.event, RunStarted):
            self._writer = self._open(str(self._folder / stored.event.run))
        if self._writer is None:
            return
        numbers = self._metrics(stored.event)
        if numbers:
            self._writer.add_event(_tensorboard_event(numbers, self._metrics.step, stored.at))
        if isinstance(stored.event, RunFinished):
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _tensorboard_event(numbers: dict[str, float], step: int, at: float) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event as Record
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]
    return Record(wall_time=at, step=step, summary=Summary(value=values))


_PROJECT = "skillfit"


class WandbTracker:
    """Weights & Biases: scores, settings, the best skill and the report.

    One W&B run per run, found again by its id on resume. The step of W&B is the number of the
    event, so W&B itself drops what a resumed run reports again.
    """

    def __init__(self, where: str, run: Path) -> None:
        import wandb

        self._wandb = wandb
        self._project = where or _PROJECT
        self._directory = run
        self._run: Any = None
        self._metrics = EventMetrics()

    def __call__(self, stored: Stored) -> None:
        event, numbers = stored.event, self._metrics(stored.event)
        if isinstance(event, RunStarted) and self._run is None:
            self._run = self._wandb.init(
                project=self._project, id=event.run, resume="allow", config=parameters(event)
            )
        if self._run is None or stored.seq < self._run.step:
            return
        if numbers:
            self._run.log({**numbers, "step": self._metrics.step}, step=stored.seq)
        if isinstance(event, RunFinished):
            self._finish(event)

    def _finish(self, event: RunFinished) -> None:
        from skillfit.report import write_report

        with TemporaryDirectory(prefix="skillfit-") as folder:
            skill = Path(folder) / "best_skill.md"
            skill.write_text(event.best_skill, encoding="utf-8")
            report = write_report(self._directory, Path(folder) / "report.html")
            for name, kind, file in (("best_skill", "skill", skill), ("report", "report", report)):
                artifact = self._wandb.Artifact(name, type=kind)
                artifact.add_file(str(file))
                self._run.log_artifact(artifact)
            self._run.summary["finish_reason"] = event.finish_reason
            self._run.finish()
        self._run = None

    def close(self) -> None:
        if self._run is not None:  # stopped before its end
            self._run.finish(exit_code=1)
