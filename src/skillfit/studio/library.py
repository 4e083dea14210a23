"""The runs under a folder: found by name, listed quickly, and followed while they run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from skillfit.errors import InputError
from skillfit.report import RunFollower, RunStory
from skillfit.run.control import LOCK, STEERING, in_use
from skillfit.run.directory import JOURNAL, ListedRun, find_runs, read_listed

_FOLLOWED = 40  # runs whose story is kept in memory

Stamp = tuple[int, ...]  # changes whenever a file of the run was written


class NoSuchRun(InputError):
    """No run of this name is in the folder."""


@dataclass(frozen=True, slots=True)
class NamedRun:
    """A run with the name it has in the studio: its path below the folder."""

    name: str
    listed: ListedRun


@dataclass(frozen=True, slots=True)
class RunIndex:
    """The runs of the folder, the one changed last first, and what could not be read."""

    runs: tuple[NamedRun, ...]
    problems: tuple[str, ...]


class FollowedRun:
    """One run in memory. Any number of threads may ask for its story; only one reads at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._follower = RunFollower(path)
        self._lock = threading.Lock()
        self._stamp: Stamp = ()
        self._story: RunStory | None = None

    def story(self) -> RunStory:
        """The story as of now. Nothing is read when no file of the run has changed."""
        with self._lock:
            stamp = stamp_of(self.path)
            story = self._story
            ended = story is not None and story.state == "running" and not in_use(self.path)
            if story is None or stamp != self._stamp or ended:
                story = self._story = self._follower.story()
                self._stamp = stamp
            return story


class RunLibrary:
    """The runs under a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._listed: dict[Path, tuple[Stamp, ListedRun]] = {}
        self._followed: OrderedDict[Path, FollowedRun] = OrderedDict()

    def name_of(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix() if path != self.folder else path.name

    def find(self, name: str) -> Path:
        """The directory of a run. Only names of runs inside the folder lead anywhere."""
        parts = Path(name).parts
        if not name or "\x00" in name or Path(name).is_absolute() or ".." in parts:
            raise NoSuchRun(f"There is no run {name!r}.")
        for path in (self.folder / name, self.folder):
            if self.name_of(path) == name and (path / JOURNAL).is_file() and self._holds(path):
                return path
        raise NoSuchRun(f"There is no run {name!r}.")

    def _holds(self, path: Path) -> bool:
        """Whether the run's journal is in the folder, with links followed."""
        return (path / JOURNAL).resolve().is_relative_to(self.folder.resolve())

    def follow(self, path: Path) -> FollowedRun:
        with self._lock:
            followed = self._followed.get(path)
            if followed is None:
                followed = self._followed[path] = FollowedRun(path)
            self._followed.move_to_end(path)
            while len(self._followed) > _FOLLOWED:
                self._followed.popitem(last=False)
            return followed

    def story(self, name: str) -> RunStory:
        return self.follow(self.find(name)).story()

    def index(self) -> RunIndex:
        """All runs. A run whose files did not change is not read again."""
        runs: list[NamedRun] = []
        problems: list[str] = []
        with self._lock:
            known, self._listed = self._listed, {}
            for path in find_runs(self.folder):
                if (path / JOURNAL).is_symlink() and not self._holds(path):
                    continue
                try:
                    stamp = stamp_of(path)
                    kept = known.get(path)
                    if kept is not None and kept[0] == stamp and kept[1].state != "running":
                        listed = kept[1]
                    else:
                        listed = read_listed(path)
                except (InputError, OSError) as error:
                    problems.append(str(error))
                    continue
                self._listed[path] = (stamp, listed)
                if listed.card.started or listed.state == "running":
                    runs.append(NamedRun(self.name_of(path), listed))
        runs.sort(key=lambda run: (-run.listed.card.updated_at, run.name))
        return RunIndex(tuple(runs), tuple(problems))


def stamp_of(path: Path) -> Stamp:
    """Sizes and times of the files that change with a run."""
    stamp: list[int] = []
    for name in (JOURNAL, f"{JOURNAL}-wal", LOCK, STEERING, "handoff"):
        try:
            found = (path / name).stat()
        except OSError:
            stamp.append(0)
        else:
            stamp += (found.st_mtime_ns, found.st_size)
    return tuple(stamp)
