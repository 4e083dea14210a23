"""Weights & Biases. Its step is the event's number: what a resumed run tells again is older than
what stands there and left out.
"""

from __future__ import annotations

from typing import Any

import wandb

from skillfit.run.events import RunFinished, RunStarted, Stored
from skillfit.trackers.metrics import EventMetrics, parameters


class WandB:
    def __init__(self, where: str) -> None:
        self._project = where or None
        self._run: Any = None
        self._meter = EventMetrics()

    def __call__(self, stored: Stored) -> None:
        event, numbers = stored.event, self._meter(stored.event)
        if isinstance(event, RunStarted) and self._run is None:
            config = parameters(event)
            self._run = wandb.init(
                project=self._project or "skillfit", id=event.run, resume="allow", config=config
            )
        if self._run is None or stored.seq < self._run.step:
            return
        if numbers:
            self._run.log({**numbers, "step": self._meter.step}, step=stored.seq)
        if isinstance(event, RunFinished):
            artifact = wandb.Artifact("best_skill", type="skill")
            with artifact.new_file("best_skill.md", mode="w") as file:
                file.write(event.best_skill)
            self._run.log_artifact(artifact)
            self._run.summary["finish_reason"] = event.finish_reason
            self._run.finish()
