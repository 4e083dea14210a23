"""Cards and lists of runs.

The writer of a run keeps its card in the journal and updates it as events happen (`CardKeeper`), so
a list of a thousand runs reads a thousand small cards instead of all their events. A card says up
to which event it goes. Where a killed process, or a version without cards, left some out, a reader
folds the events of that run again: it is the same fold.

`list_runs` lists the runs in a folder. A run that cannot be read does not hide the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from skillfit.errors import InputError
from skillfit.models.providers.handoff import pending
from skillfit.record.labels import read_labels
from skillfit.record.record import RunCard, RunState
from skillfit.run.control import read_requests, without_undone
from skillfit.run.events import (
    AblationFinished,
    EvaluationFinished,
    Event,
    EventLog,
    GateDecided,
    PreflightFinished,
    RunFinished,
    RunStarted,
    ShipTested,
    SkillsMeasured,
    StepFinished,
    Stored,
)
from skillfit.run.journal import Journal
from skillfit.run.store import HANDOFF, JOURNAL, damaged, dump, in_use, load
from skillfit.run.view import CARD_FACT, RunView

if TYPE_CHECKING:
    from skillfit.record.fold import Fold

CARD_EVENTS: tuple[type[Event], ...] = (
    RunStarted,
    PreflightFinished,
    EvaluationFinished,
    GateDecided,
    StepFinished,
    ShipTested,
    AblationFinished,
    SkillsMeasured,
    RunFinished,
)
_DEPTH = 4  # folders below the given one that `list_runs` searches
_REFRESH = 2.0  # seconds after which a running run's cost is written again


def make_fold() -> Fold:
    from skillfit.record.fold import Fold  # here: a list of runs does not need it

    return Fold()


def recorded_card(journal: Journal) -> RunCard:
    """Return the card as its writer left it; an empty one where there is none."""
    kept = journal.fact(CARD_FACT, str)
    if not kept:
        return RunCard()
    try:
        return load(RunCard, kept)
    except ValueError as error:
        raise damaged(journal.path, "the run's card cannot be read") from error


@contextmanager
def kept_card(journal: Journal, events: EventLog) -> Iterator[None]:
    """Keep the card of a run up to date while it is being written."""
    keeper = CardKeeper(journal, events)
    events.listen(keeper)
    try:
        yield
    finally:
        if not journal.failed:
            keeper.save()


class CardKeeper:
    """A listener on the event log that keeps the card in the journal up to date."""

    def __init__(self, journal: Journal, events: EventLog) -> None:
        self._journal, self._events = journal, events
        self._saved_at = 0.0
        self._written = recorded_card(journal)
        self._read_log()

    def _read_log(self) -> None:
        self._fold = make_fold()
        self._read = self._fold.read(self._events)  # number of the last event that the fold has

    def __call__(self, stored: Stored) -> None:
        if stored.seq > self._read:
            self._fold(stored)
            self._read = stored.seq
        elif isinstance(stored.event, RunStarted):  # its settings may have changed in place
            self._read_log()
        if isinstance(stored.event, CARD_EVENTS) or time.monotonic() - self._saved_at > _REFRESH:
            self.save()

    def save(self) -> None:
        """Write the card if it changed."""
        self._saved_at = time.monotonic()
        card = replace(self._fold.card(), usage=self._journal.spent())
        if card != self._written and (card.started or self._written.started):
            self._written = card
            self._journal.set_fact(CARD_FACT, dump(RunCard, card).decode())


@dataclass(frozen=True, slots=True)
class RunListing:
    """Started runs, the one changed last at the end, and what could not be read."""

    runs: tuple[RunCard, ...]
    problems: tuple[InputError, ...]


def list_runs(folder: Path) -> RunListing:
    """Read the cards of the started runs in a folder and its subfolders."""
    runs: list[RunCard] = []
    problems: list[InputError] = []
    for path in find_runs(folder):
        try:
            card = read_card(path)
        except InputError as error:
            problems.append(error)
            continue
        if card.started:
            runs.append(card)
    runs.sort(key=lambda card: (card.ended or 0.0, card.path))
    return RunListing(tuple(runs), tuple(problems))


def find_runs(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Yield directories with a journal. Folders inside a run are not searched."""
    if not folder.is_dir():
        return
    below: list[Path] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == JOURNAL and entry.is_file():
                yield folder
                return
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                below.append(Path(entry.path))
    if depth:
        for path in sorted(below):
            yield from find_runs(path, depth - 1)


def read_card(path: Path) -> RunCard:
    """Return the card of a run, without reading the events that it has already."""
    running = in_use(path)
    with closing(RunView.open(path)) as view:
        card = current_card(view, running=running)
    to_review = bool(card.awaiting) and not _reviewed(path, card)
    state = state_of(path, running=running, finished=bool(card.finish_reason), to_review=to_review)
    labels = read_labels(path)
    return replace(
        card,
        path=str(path.absolute()),
        state=state,
        tags=labels.tags,
        archived=labels.archived,
    )


def _reviewed(path: Path, card: RunCard) -> bool:
    """Return whether a person has decided about every edit. A resumed run carries the decisions
    out.
    """
    requests = without_undone(read_requests(path))
    decided = {request.target for request in requests if request.decides}
    return decided.issuperset(card.awaiting)


def current_card(view: RunView, *, running: bool = False) -> RunCard:
    """Return the card of a run with the events that its writer has not folded in. While a run is
    running, its writer keeps the cost up to date.
    """
    card = recorded_card(view.journal)
    if view.events.newest() <= card.seq:
        return card
    last = view.events.last(*CARD_EVENTS)
    if last is not None and last.seq > card.seq:
        fold = make_fold()
        fold.read(view.events)
        card = replace(fold.card(), usage=card.usage)
    return card if running else replace(card, usage=view.journal.spent())


def state_of(path: Path, *, running: bool, finished: bool, to_review: bool) -> RunState:
    """Say what a run is doing now. `to_review`: a person has still to decide on an edit."""
    if running:
        return "running"
    if finished:
        return "finished"
    if pending(path / HANDOFF):
        return "waiting"
    return "review" if to_review else "stopped"
