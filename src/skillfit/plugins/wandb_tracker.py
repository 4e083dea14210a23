"""Weights & Biases: scores, settings, the best skill and the report.

The step of W&B is the number of the event, so W&B itself drops what a resumed run reports again.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import wandb

from skillfit.plugins.trackers import EventMetrics, parameters
from skillfit.run.events import RunFinished, RunStarted, Stored

_PROJECT = "skillfit"


class WandbTracker:
    """One W&B run per run, found again by its id on resume."""

    def __init__(self, where: str, run: Path) -> None:
        self._project = where or _PROJECT
        self._directory = run
        self._run: Any = None
        self._metrics = EventMetrics()

    def __call__(self, stored: Stored) -> None:
        event, numbers = stored.event, self._metrics(stored.event)
        if isinstance(event, RunStarted) and self._run is None:
            self._run = wandb.init(
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
                artifact = wandb.Artifact(name, type=kind)
                artifact.add_file(str(file))
                self._run.log_artifact(artifact)
            self._run.summary["finish_reason"] = event.finish_reason
            self._run.finish()
        self._run = None

    def close(self) -> None:
        if self._run is not None:  # stopped before its end
            self._run.finish(exit_code=1)
