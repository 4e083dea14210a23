"""A run on disk: one directory, one writer, and files that appear complete or not at all.

`RunDirectory.open` starts or resumes a run and is its only writer. `RunDirectory.read` gives a
`RunView` to everybody else, also while the run is being written.
"""

from __future__ import annotations

import errno
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import TracebackType

import pydantic_core

from skillfit.atomic_write import replace_file
from skillfit.errors import InputError
from skillfit.models.secrets import hide_keys_in_use
from skillfit.run.events import EventLog, SlowUpdateFinished, StepFinished
from skillfit.run.files import RunFiles
from skillfit.run.identity import Identity, IdentityChange, PartKind, RecordedIdentity
from skillfit.run.journal import Journal
from skillfit.run.store import JOURNAL, LOCK, Redact, RunLock, RunNotWritable, damaged, disk_full
from skillfit.run.view import CardKeeper, RunView

PROBE = "probe"  # the stage of calls that only test whether a model can be reached
_DATABASE = (JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm", f"{JOURNAL}-journal")
_FAILED_PART = "failed_part"  # the fact that holds its kind
_SCRATCH = ".writing"  # files are written here and renamed when they are complete
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
_BAD_PATH = (errno.ENOTDIR, errno.ENAMETOOLONG, errno.EISDIR, errno.EEXIST)
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class RunDirectory:
    """A run being written. Use it as a context manager, or `close` it."""

    def __init__(self, path: Path, lock: RunLock, redact: Redact) -> None:
        self.path = path
        self._lock = lock
        self._redact = redact
        self.journal = Journal(path / JOURNAL, redact=redact)
        self.events = EventLog(path / JOURNAL, redact=redact, beside=self.journal)
        progress = self.events.last(StepFinished, SlowUpdateFinished)
        self.events.listen(RunFiles(self, progress.seq if progress else 0))
        self._card = CardKeeper(self.journal)
        self.events.listen(self._card)

    @classmethod
    def open(
        cls,
        path: Path | str,
        identity: Identity,
        *,
        force_new: bool = False,
        keep_end: bool = False,
        redact: Redact = hide_keys_in_use,
    ) -> RunDirectory:
        """Start a run in `path`, or resume the one that is there if it is the same run.

        `identity` identifies the run (settings, skill, tasks). It may change as long as the run has
        only tested its models, and in the file of a part that failed (`expect_fix_of`). `force_new`
        first moves an existing run aside. With `keep_end` a finished run stays finished: nothing of
        its result is decided again. A run that records nothing leaves no files when it is closed.
        """
        path = Path(path).absolute()
        recorded = RecordedIdentity.of(identity, redact)
        with _explained(path):
            lock = _claim(path)
            if force_new and (path / JOURNAL).exists():
                _move_aside(path, lock)
                lock = _claim(path)
            try:
                run = cls(path, lock, redact)
                run._begin(recorded, keep_end)
            except BaseException:
                lock.release()
                raise
        return run

    def _begin(self, identity: RecordedIdentity, keep_end: bool) -> None:
        """Resume the recorded run if its identity is the same, else begin a new one."""
        before = RecordedIdentity.read(self.journal)
        if before is None and (others := _others(self.path)):
            raise damaged(self.path / JOURNAL, f"it is empty, but {', '.join(others[:3])} is there")
        changes = before.changes(identity) if before is not None else []
        if before is not None and changes:
            if before.is_fix(changes, self.journal.fact(_FAILED_PART, str) or ""):
                identity.write(self.journal)
                changes = []
            elif self._has_results():
                if before.kind != identity.kind:
                    raise InputError(
                        f"{self.path} holds {before.kind}, not {identity.kind}.",
                        hint="Give another directory with --run.",
                    )
                raise _changed_run(self.path, changes)
        self.resumed = before is not None and not changes
        if not self.resumed:
            identity.write(self.journal)
            self.events.clear()
        if before is None:
            self.journal.set_fact("run", secrets.token_hex(6))
        self.run_id = self.journal.fact("run", str) or ""
        if self.resumed and keep_end:
            return
        self.events.resume()
        self._card.reopen(new=not self.resumed)

    def expect_fix_of(self, kind: PartKind) -> None:
        """A user's gate, proposer or batch sampler failed. The next start may bring its file with
        other content: these parts decide again from what is recorded.
        """
        self.journal.set_fact(_FAILED_PART, kind)

    def expect_no_fix(self) -> None:
        """The run continues: from here on a changed file is a different run."""
        if self.journal.fact(_FAILED_PART, str):
            self.journal.set_fact(_FAILED_PART, "")

    def _has_results(self) -> bool:
        """Whether the run has done more than test its models."""
        return any(entry.stage != PROBE for entry in self.journal.entries())

    @staticmethod
    def read(path: Path | str) -> RunView:
        """The run in `path` for readers. Nothing is written; another process may be writing."""
        return RunView.open(path)

    def write_text(self, name: str, text: str) -> None:
        """Write the file `name` (a relative path) completely or not at all. A file that would not
        change is left alone. After a failed write the run records nothing more.
        """
        self.journal.ensure_writable()
        target = self.path / name
        data = self._redact(text).encode()
        try:
            with _explained(target):
                replace_file(target, data, scratch=self.path / _SCRATCH)
        except InputError as error:
            self.journal.fail(error)
            raise

    def write_json(self, name: str, value: object) -> None:
        """Write a value as an indented JSON file; NaN becomes null."""
        self.write_text(
            name, pydantic_core.to_json(value, indent=2, inf_nan_mode="null").decode() + "\n"
        )

    def close(self) -> None:
        """Close the journal and release the lock. What a run without any record created is
        deleted.
        """
        blank = False
        try:
            blank = self.events.empty and self.journal.empty and not self.journal.bill().rows
            if not blank and not self.journal.failed:
                self._card.save()
        finally:
            self.journal.close()
            self.events.close()
            shutil.rmtree(self.path / _SCRATCH, ignore_errors=True)
            if blank and self.path.is_dir() and not _others(self.path):
                self._remove()
            else:
                self._lock.release()

    def _remove(self) -> None:
        for name in _DATABASE:
            (self.path / name).unlink(missing_ok=True)
        self._lock.remove()
        with suppress(OSError):  # in use, or with hidden files in it
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


def _changed_run(path: Path, changes: Sequence[IdentityChange]) -> InputError:
    return InputError(
        f"The run in {path} was started with other settings:\n"
        + "\n".join(f"  {change}" for change in changes)
        + "\n",
        hint="Set them back to resume it, give another directory with --run, or start a new run "
        "with --force-new (the old run is moved aside).",
    )


def _claim(path: Path) -> RunLock:
    """Create the directory if needed, and lock it. A directory with other files is not touched."""
    if path.is_file():
        raise InputError(
            f"{path} is a file, not a directory.", hint="Give a directory for the run with --run."
        )
    if path.is_dir() and not (path / JOURNAL).exists() and (others := _others(path)):
        raise InputError(
            f"{path} holds other files ({', '.join(others[:3])}) and no run.",
            hint="Give a new or empty directory with --run.",
        )
    path.mkdir(parents=True, exist_ok=True)
    lock = RunLock(path)
    shutil.rmtree(path / _SCRATCH, ignore_errors=True)
    return lock


def _others(path: Path) -> list[str]:
    """Files that an empty run would not have created."""
    names = (entry.name for entry in path.iterdir())
    return sorted(
        name for name in names if name not in (*_DATABASE, LOCK) and not name.startswith(".")
    )


def _move_aside(path: Path, lock: RunLock) -> None:
    for number in count(1):
        aside = path.with_name(f"{path.name}.old-{number}")
        if not aside.exists():
            break
    if sys.platform == "win32":  # there a folder with an open file cannot be renamed
        lock.release()
    path.rename(aside)
    lock.release()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of the file system into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise disk_full(str(path)) from error
        if error.errno in _NO_PERMISSION:
            raise RunNotWritable(
                f"No permission to write {error.filename or path}.",
                hint="Check its owner and mode, or give another directory.",
            ) from error
        if error.errno in _BAD_PATH:
            raise InputError(
                f"Cannot write {path}: {error.strerror}.", hint="Give another directory with --run."
            ) from error
        if error.errno in _NO_LOCKS:
            raise InputError(
                f"The file system of {path} does not support locks.",
                hint="Give a directory on another disk with --run.",
            ) from error
        raise
