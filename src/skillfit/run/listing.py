"""The runs in a folder, each by its card. A run that cannot be read does not hide the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skillfit.errors import InputError
from skillfit.models.providers.handoff import pending
from skillfit.run.card import KINDS, RunCard, fold, recorded_card, with_cost
from skillfit.run.control import in_use
from skillfit.run.directory import JOURNAL, RunDirectory, RunView

RunState = Literal["running", "finished", "waiting", "stopped"]

_DEPTH = 4  # folders below the given one


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run and its state now. waiting: for answers of a person (handoff); stopped: before its
    end, it can be resumed.
    """

    path: Path
    state: RunState
    card: RunCard


@dataclass(frozen=True, slots=True)
class RunListing:
    """Started runs, the one changed last at the end, and what could not be read."""

    runs: tuple[ListedRun, ...]
    problems: tuple[InputError, ...]


def list_runs(folder: Path) -> RunListing:
    """The started runs in a folder and its subfolders."""
    runs: list[ListedRun] = []
    problems: list[InputError] = []
    for path in find_runs(folder):
        try:
            listed = read_listed(path)
        except InputError as error:
            problems.append(error)
            continue
        if listed.card.started:
            runs.append(listed)
    runs.sort(key=lambda listed: (listed.card.updated_at, listed.path))
    return RunListing(tuple(runs), tuple(problems))


def find_runs(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Directories with a journal. Folders inside a run are not searched."""
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


def read_listed(path: Path) -> ListedRun:
    """One run of a list, without reading the events that its card has already."""
    running = in_use(path)
    with closing(RunDirectory.read(path)) as view:
        card = current_card(view, running=running)
    state = _state(path, running=running, finished=card.finished)
    return ListedRun(path.absolute(), state, card)


def current_card(view: RunView, *, running: bool = False) -> RunCard:
    """The card of a run, with the events that its writer has not folded in. While a run is
    running, its writer keeps the cost up to date.
    """
    card = recorded_card(view.journal)
    if view.events.newest() > card.seq:
        for stored in view.events.read(card.seq, KINDS):
            card = fold(card, stored)
        if not running:
            card = with_cost(card, view.journal)
    return card


def state_of(path: Path, *, finished: bool) -> RunState:
    """What a run is doing now."""
    return _state(path, running=in_use(path), finished=finished)


def _state(path: Path, *, running: bool, finished: bool) -> RunState:
    if running:
        return "running"
    if finished:
        return "finished"
    return "waiting" if pending(path / "handoff") else "stopped"
