"""MLflow: one MLflow run per run, found again by its id when the run goes on."""

from __future__ import annotations

import warnings

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from skillfit.errors import InputError
from skillfit.run.events import RunFinished, RunStarted, Stored
from skillfit.trackers.metrics import EventMetrics, parameters

_EXPERIMENT = "skillfit"
# how far the MLflow run has heard: what a resumed run tells again is not logged again
_SEQ = "skillfit.seq"
_STATUS = {"budget": "KILLED", "infrastructure": "FAILED"}


class MLflow:
    def __init__(self, where: str) -> None:
        try:
            self._client = MlflowClient(where or None)
        except MlflowException as error:
            hint = "Give a server's address: --track mlflow:http://…, or set MLFLOW_TRACKING_URI."
            raise InputError(f"MLflow cannot be used: {error}", hint=hint) from error
        self._run = ""
        self._heard = 0
        self._meter = EventMetrics()

    def __call__(self, stored: Stored) -> None:
        try:
            self._tell(stored)
        except MlflowException as error:  # training is worth more than its tracking
            warnings.warn(
                f"MLflow could not be written to, and is told no more of this run: {error}",
                stacklevel=1,
            )
            self._run, self._heard = "", 1 << 62

    def _tell(self, stored: Stored) -> None:
        event, numbers = stored.event, self._meter(stored.event)
        if isinstance(event, RunStarted) and not self._heard:
            self._open(event)
        if not self._run or stored.seq <= self._heard:
            return
        at = int(stored.at * 1000)
        if numbers:
            metrics = [
                Metric(name, number, at, self._meter.step) for name, number in numbers.items()
            ]
            self._client.log_batch(self._run, metrics=metrics, tags=[RunTag(_SEQ, str(stored.seq))])
        if isinstance(event, RunFinished):
            self._client.log_text(self._run, event.best_skill, "best_skill.md")
            self._client.set_tag(self._run, "skillfit.finish_reason", event.finish_reason)
            self._client.set_terminated(self._run, _STATUS.get(event.finish_reason, "FINISHED"), at)

    def _open(self, event: RunStarted) -> None:
        client = self._client
        named = client.get_experiment_by_name(_EXPERIMENT)
        experiment = named.experiment_id if named else client.create_experiment(_EXPERIMENT)
        found = client.search_runs(
            [experiment], f"tags.`skillfit.run` = '{event.run}'", max_results=1
        )
        if found:
            self._run, self._heard = found[0].info.run_id, int(found[0].data.tags.get(_SEQ, 0))
            return client.set_terminated(self._run, "RUNNING")
        self._run = client.create_run(
            experiment, tags={"skillfit.run": event.run}, run_name=event.run
        ).info.run_id
        client.log_batch(
            self._run,
            params=[Param(name, value[:500]) for name, value in parameters(event).items()],
        )
        return None
