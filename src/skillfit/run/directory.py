"""A run on disk: one directory, one writer, and everything in it written whole."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pydantic_core

from skillfit.errors import InputError
from skillfit.models.secrets import hide_keys_in_use
from skillfit.run.events import (
    Event,
    EventLog,
    RunFinished,
    RunStarted,
    SlowUpdateFinished,
    StepFinished,
)
from skillfit.run.files import RunFiles
from skillfit.run.journal import Journal
from skillfit.run.lock import NAME as LOCK_NAME
from skillfit.run.lock import RunLock
from skillfit.run.records import RunSummary
from skillfit.run.store import Redact, disk_full

E = TypeVar("E", bound=Event)

JOURNAL = "journal.sqlite"
PROBE = "probe"  # the stage of calls that only try whether a model can be reached
_OWN = (JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm")
_SCRATCH = ".writing"  # files grow here and move to their place when they are whole
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunDirectory:
    """A run being written. Use as a context manager, or `close` it."""

    def __init__(self, path: Path, lock: RunLock, redact: Redact) -> None:
        self.path = path
        self._lock = lock
        self._redact = redact
        self.journal = Journal(path / JOURNAL, redact=redact)
        self.events = EventLog(path / JOURNAL, redact=redact, beside=self.journal)
        progress = self.events.last(StepFinished, SlowUpdateFinished)
        self.events.listen(RunFiles(self, progress.seq if progress else 0))

    @classmethod
    def open(
        cls,
        path: Path | str,
        identity: Mapping[str, Any],
        *,
        force_new: bool = False,
        redact: Redact = hide_keys_in_use,
    ) -> RunDirectory:
        """Start a run in `path`, or go on with the one that is there if it is the same run.

        `identity` is what makes the run this run (settings, skill, tasks); one that has only tried
        its models may still change it. `force_new` moves a run that is there aside first. A run
        that records nothing at all leaves nothing when it is closed.
        """
        path = Path(path).absolute()
        identity = _plain(identity, redact)
        with _in_words(path):
            lock = _claim(path)
            if force_new and (path / JOURNAL).exists():
                _move_aside(path, lock)
                lock = _claim(path)
            try:
                run = cls(path, lock, redact)
                run._begin(identity)
            except BaseException:
                lock.release()
                raise
        return run

    def _begin(self, identity: dict[str, Any]) -> None:
        before = self.journal.fact("identity")
        changes = _changes(before, identity)
        if (
            before is not None
            and changes
            and any(entry.stage != PROBE for entry in self.journal.entries())
        ):
            raise _changed_run(self.path, changes)
        if changes:
            self.journal.set_fact("identity", identity)
            self.events.clear()
        if before is None:
            self.journal.set_fact("run", secrets.token_hex(6))
        self.resumed = before is not None and not changes
        self.run_id = str(self.journal.fact("run"))
        self.events.go_on()

    @staticmethod
    def read(path: Path | str) -> RunView:
        """The run in `path` for faces: nothing is written, and its writer may be alive."""
        path = Path(path).absolute()
        if not (path / JOURNAL).is_file():
            raise InputError(
                f"{path} is not a run directory: it has no {JOURNAL}.",
                hint="Give the directory named with --run.",
            )
        return RunView(
            path, Journal.open_readonly(path / JOURNAL), EventLog.open_readonly(path / JOURNAL)
        )

    def write_text(self, name: str, text: str) -> None:
        """The file `name` (a relative path) appears whole, or not at all. Unchanged files are left
        alone.
        """
        target = self.path / name
        data = self._redact(text).encode()
        with _in_words(target):
            if target.is_file() and target.read_bytes() == data:
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch = self.path / _SCRATCH / target.name
            scratch.parent.mkdir(exist_ok=True)
            with scratch.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(target)

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(
            name, pydantic_core.to_json(value, indent=2, inf_nan_mode="null").decode() + "\n"
        )

    def close(self) -> None:
        blank = self.events.empty and self.journal.empty and not any(self.journal.bill())
        self.journal.close()
        self.events.close()
        shutil.rmtree(self.path / _SCRATCH, ignore_errors=True)
        if blank and not _others(self.path):
            self._remove()
        else:
            self._lock.release()

    def _remove(self) -> None:
        for name in _OWN:
            (self.path / name).unlink(missing_ok=True)
        self._lock.remove()
        with suppress(OSError):  # it is in use, or holds hidden files
            self.path.rmdir()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class RunView:
    """A run seen from outside."""

    path: Path
    journal: Journal
    events: EventLog

    @property
    def run_id(self) -> str:
        return str(self.journal.fact("run") or "")

    @property
    def started(self) -> RunStarted | None:
        return self._last(RunStarted)

    @property
    def finished(self) -> RunFinished | None:
        """None while the run is going on, or was stopped before its end."""
        return self._last(RunFinished)

    @property
    def config(self) -> dict[str, Any]:
        return started.config if (started := self.started) else {}

    @property
    def summary(self) -> RunSummary | None:
        """None while the run has not finished."""
        return finished.summary if (finished := self.finished) else None

    def _last(self, kind: type[E]) -> E | None:
        last = self.events.last(kind)
        return last.event if last and isinstance(last.event, kind) else None

    def close(self) -> None:
        self.journal.close()
        self.events.close()


@dataclass(frozen=True, slots=True)
class Change:
    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {_short(self.before)} -> {_short(self.after)}"


def _changes(before: Any, after: Any, key: str = "") -> list[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted(before.keys() | after.keys())
        return [
            change
            for name in names
            for change in _changes(before.get(name), after.get(name), f"{key}.{name}".strip("."))
        ]
    return [] if before == after else [Change(key, before, after)]


def _changed_run(path: Path, changes: list[Change]) -> InputError:
    return InputError(
        f"The run in {path} was started with other settings:\n"
        + "\n".join(f"  {change}" for change in changes)
        + "\n",
        hint="Set them back to go on, give another directory with --run, or start anew with --force-new (the old run is kept).",
    )


def _short(value: Any) -> str:
    text = pydantic_core.to_json(value).decode()
    return text if len(text) <= 120 else f"{text[:117]}…"


def _plain(identity: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    """As it will be read back, so that comparing with it is fair."""
    plain: dict[str, Any] = pydantic_core.from_json(
        redact(pydantic_core.to_json(identity).decode())
    )
    return plain


def _claim(path: Path) -> RunLock:
    """The directory, made if need be, and locked. Anything that is no run stays untouched."""
    if path.is_file():
        raise InputError(
            f"{path} is a file, not a directory.", hint="Give a directory for the run with --run."
        )
    if path.is_dir() and not (path / JOURNAL).exists() and (others := _others(path)):
        raise InputError(
            f"{path} holds other things ({', '.join(others[:3])}) and no run.",
            hint="Give a new or empty directory with --run.",
        )
    path.mkdir(parents=True, exist_ok=True)
    lock = RunLock(path)
    shutil.rmtree(path / _SCRATCH, ignore_errors=True)
    return lock


def _others(path: Path) -> list[str]:
    """What lies there that a run without a word to say would not have."""
    names = (entry.name for entry in path.iterdir())
    return sorted(
        name for name in names if name not in (*_OWN, LOCK_NAME) and not name.startswith(".")
    )


def _move_aside(path: Path, lock: RunLock) -> None:
    aside = next(
        name
        for number in count(1)
        if not (name := path.with_name(f"{path.name}.old-{number}")).exists()
    )
    if sys.platform == "win32":  # there, an open file holds its folder in place
        lock.release()
    path.rename(aside)
    lock.release()


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """The file system's refusals, said so that a person can act."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise disk_full(str(path)) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise InputError(
                f"No permission to write {error.filename or path}.",
                hint="Check its owner and mode, or give another directory.",
            ) from error
        if error.errno in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.EISDIR, errno.EEXIST):
            raise InputError(
                f"Cannot write {path}: {error.strerror}.", hint="Give another directory with --run."
            ) from error
        raise
