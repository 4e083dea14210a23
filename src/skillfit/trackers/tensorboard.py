"""TensorBoard event files. Points told again on resume carry their old step and time, so they fall
onto themselves.
"""

from __future__ import annotations

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event as Record
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from skillfit.run.events import RunFinished, RunStarted, Stored
from skillfit.trackers.metrics import EventMetrics


class TensorBoard:
    def __init__(self, where: str) -> None:
        self._folder = Path(where or "tensorboard")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer: EventFileWriter | None = None
        self._meter = EventMetrics()

    def __call__(self, stored: Stored) -> None:
        if isinstance(stored.event, RunStarted):
            self._writer = EventFileWriter(str(self._folder / stored.event.run))
        if self._writer is None:
            return
        numbers = self._meter(stored.event)
        if numbers:
            values = [
                Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()
            ]
            self._writer.add_event(
                Record(wall_time=stored.at, step=self._meter.step, summary=Summary(value=values))
            )
        if isinstance(stored.event, RunFinished):
            self._writer.flush()
