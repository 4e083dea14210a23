"""Where a run is, and its stages being timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from skillfit.run.events import Event, StageFinished, StageStarted


@dataclass(slots=True)
class Position:
    """Where the run is, for those who only say it in events."""

    epoch: int = 0
    step: int = 0
    stage: str = ""


class Stage:
    """A stage of the step the run is at: `with parts.stage("gate"): …`, or `done()` when it ends
    elsewhere.
    """

    def __init__(self, emit: Callable[[Event], None], at: Position, stage: str, total: int) -> None:
        at.stage = stage
        self._emit = emit
        self._place: dict[str, Any] = {"epoch": at.epoch, "step": at.step, "stage": stage}
        self._begun = time.monotonic()
        self.seconds = 0.0
        emit(StageStarted(**self._place, total=total))

    def done(self) -> None:
        self.seconds = time.monotonic() - self._begun
        self._emit(StageFinished(**self._place, seconds=self.seconds))

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.done()
