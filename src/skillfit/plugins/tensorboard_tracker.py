"""TensorBoard event files. What a resumed run reports again has its old step and time, so its
points fall onto themselves.
"""

from __future__ import annotations

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event as Record
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from skillfit.plugins.trackers import EventMetrics
from skillfit.run.events import RunFinished, RunStarted, Stored


class TensorBoardTracker:
    """One folder per run below the given one (default: tensorboard)."""

    def __init__(self, where: str, run: Path) -> None:
        self._folder = Path(where or "tensorboard")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer: EventFileWriter | None = None
        self._metrics = EventMetrics()

    def __call__(self, stored: Stored) -> None:
        if isinstance(stored.event, RunStarted):
            self._writer = EventFileWriter(str(self._folder / stored.event.run))
        if self._writer is None:
            return
        numbers = self._metrics(stored.event)
        if numbers:
            values = [
                Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()
            ]
            step, summary = self._metrics.step, Summary(value=values)
            self._writer.add_event(Record(wall_time=stored.at, step=step, summary=summary))
        if isinstance(stored.event, RunFinished):
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
