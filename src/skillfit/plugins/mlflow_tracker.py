"""MLflow: settings, scores, the best skill and the report, on a server or in a local database."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from skillfit.errors import InputError
from skillfit.plugins.trackers import EventMetrics, parameters
from skillfit.run.events import RunFinished, RunStarted, Stored

_EXPERIMENT = "skillfit"
_SEQ = "skillfit.seq"  # the last event that the MLflow run has
_STATUS = {"budget": "KILLED", "infrastructure": "FAILED"}
_LONGEST = 500  # characters of a parameter


class MLflowTracker:
    """One MLflow run per run, found again by its tag on resume.

    An error of MLflow never stops a run: it ends the tracking with a warning.
    """

    def __init__(self, where: str, run: Path) -> None:
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
        self._enabled = True
        self._metrics = EventMetrics()

    def __call__(self, stored: Stored) -> None:
        numbers = self._metrics(stored.event)
        self._try(lambda: self._log(stored, numbers))

    def close(self) -> None:
        """Mark a run that was stopped before its end."""
        if self._run:
            self._try(lambda: self._client.set_terminated(self._run, "KILLED"))

    def _try(self, send: Callable[[], None]) -> None:
        if not self._enabled:
            return
        try:
            send()
        except MlflowException as error:
            self._enabled = False
            warnings.warn(
                f"MLflow tracking disabled for the rest of this run: {error}", stacklevel=1
            )

    def _log(self, stored: Stored, numbers: dict[str, float]) -> None:
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
        settings = [Param(name, value[:_LONGEST]) for name, value in parameters(event).items()]
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
