"""Sums over the rollouts of a run: how many per stage, and what failed.

A run may have 100,000 rollouts. Pages need sums of them, so a reader lets SQLite count; a live
terminal adds each event as it comes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from skillfit.run.events import EventLog, RolloutFinished, Stored

_ROLLOUTS = "key >= 'RolloutFinished/' AND key < 'RolloutFinished0'"
# The key of a rollout is RolloutFinished/phase/step/rollout/…: the index alone can count them.
_COUNTS = f"""
SELECT substr(key, 17, instr(substr(key, 17), '/rollout/') - 1) AS stage, count(*), max(seq)
FROM events WHERE {_ROLLOUTS} GROUP BY stage
"""
_FAILURES = """
SELECT json_extract(data, '$.phase'), json_extract(data, '$.step'), json_extract(data, '$.failure')
FROM events NOT INDEXED
WHERE kind = 'RolloutFinished' AND json_extract(data, '$.failure') <> ''
"""
_TIME = "SELECT at FROM events WHERE seq = ?"
_SCORES = f"""
SELECT json_extract(data, '$.hard') FROM events WHERE {_ROLLOUTS} LIMIT 500
"""


@dataclass(slots=True)
class StageRollouts:
    """The rollouts of one stage of one step."""

    done: int = 0
    failed: int = 0
    latest: float = 0.0  # time of the last one


@dataclass(slots=True)
class RolloutTotals:
    """Sums over all rollouts so far. Fed with events, or read from a log at once."""

    stages: dict[tuple[str, int], StageRollouts] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    first_failure: dict[str, str] = field(default_factory=dict)  # kind -> message
    graded: bool = False  # some score is neither 0 nor 1

    @property
    def done(self) -> int:
        return sum(stage.done for stage in self.stages.values())

    def add(self, stored: Stored, event: RolloutFinished) -> None:
        stage = self._stage(event.phase, event.step)
        stage.done += 1
        stage.latest = max(stage.latest, stored.at)
        if event.failure:
            stage.failed += 1
            self._count(event.failure)
        self.graded = self.graded or event.hard not in (None, 0, 1)

    def read(self, events: EventLog) -> None:
        """Count the rollouts of a log. Nothing may have been added before."""
        for name, count, last in events.query(_COUNTS):
            phase, _, step = name.rpartition("/")
            stage = self._stage(phase, int(step))
            stage.done = count
            [(stage.latest,)] = events.query(_TIME, (last,))
        for phase, step, failure in events.query(_FAILURES):
            self._stage(phase, step).failed += 1
            self._count(failure)
        self.graded = any(score not in (None, 0, 1) for (score,) in events.query(_SCORES))

    def _stage(self, phase: str, step: int) -> StageRollouts:
        return self.stages.setdefault((phase, step), StageRollouts())

    def _count(self, failure: str) -> None:
        kind, _, message = failure.partition(": ")
        self.failures[kind] += 1
        self.first_failure.setdefault(kind, message)
