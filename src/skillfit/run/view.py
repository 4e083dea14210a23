"""A run seen by a reader: its journal and its events, also while another process writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from skillfit.errors import InputError, near_file
from skillfit.run.events import (
    Event,
    EventLog,
    GateDecided,
    RunStarted,
)
from skillfit.run.journal import Journal
from skillfit.run.records import (
    RecordedConfig,
)
from skillfit.run.store import JOURNAL

E = TypeVar("E", bound=Event)

STOP_FACT = "stopped"  # of the journal: why the last start of the run ended
CARD_FACT = "card"  # of the journal: the run's card, which `record/lists.py` reads and writes


@dataclass(frozen=True, slots=True)
class RunView:
    """A run seen by a reader.

    Threads may share a view: statements run one after the other, and `close` waits for the one in
    progress; afterwards reading raises `RunClosed`. Threads that should not wait for each other
    open a view each.
    """

    path: Path
    journal: Journal
    events: EventLog

    @classmethod
    def open(cls, path: Path | str) -> RunView:
        """Open the run in `path`. Nothing is written; another process may be writing."""
        path = Path(path).absolute()
        if not path.exists():
            raise InputError(
                f"{path} is not a run directory: it does not exist.",
                hint=near_file(path) or "Give the directory named with --run.",
            )
        if not (path / JOURNAL).is_file():
            raise InputError(
                f"{path} is not a run directory: it has no {JOURNAL}.",
                hint="Give the directory named with --run.",
            )
        journal = Journal.open_readonly(path / JOURNAL)
        return cls(path, journal, EventLog(path / JOURNAL, readonly=True, beside=journal))

    @property
    def run_id(self) -> str:
        return self.journal.fact("run", str) or ""

    @property
    def seconds(self) -> float:
        """How long the run has worked, over all its starts and without the pauses between them."""
        return 60 * (self.journal.fact("minutes", float) or 0.0)

    @property
    def stop_reason(self) -> str:
        """Why the last start of the run ended; empty when it ended by itself."""
        return self.journal.fact(STOP_FACT, str) or ""

    @property
    def started(self) -> RunStarted | None:
        return self._last(RunStarted)

    @property
    def config(self) -> RecordedConfig:
        return started.config if (started := self.started) else RecordedConfig({})

    @property
    def pool_ids(self) -> tuple[str, ...]:
        """The ids of the edits in the pool after the last decision; empty before the first one,
        and for gates without a pool.
        """
        decided = self._last(GateDecided)
        return tuple(effect.id for effect in decided.effects) if decided else ()

    def _last(self, kind: type[E]) -> E | None:
        last = self.events.last(kind)
        return last.event if last and isinstance(last.event, kind) else None

    def close(self) -> None:
        """Close the database. May be called more than once, and from any thread."""
        self.journal.close()
        self.events.close()
