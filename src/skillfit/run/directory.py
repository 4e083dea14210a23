"""A run on disk: one directory with one writer, and the identity that decides who may resume it.

`RunDirectory.open` starts or resumes a run and is its only writer. Files appear complete or not at
all. `RunDirectory.read` gives a `RunView` to everybody else, also while the run is being written.

A run is resumed only by a command with the same identity: a dict that says what must stay the same.
Its key `kind` says what the run does. It is compared key by key, so that an error names every
setting that has changed.
"""

from __future__ import annotations

import errno
import re
import secrets
import shutil
import sys
from asyncio import CancelledError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Literal

import pydantic_core

from skillfit.atomic_write import replace_file
from skillfit.config.schema import SECTIONS, Config, ModelSection
from skillfit.errors import Exit, InputError, SkillfitError
from skillfit.extensions import JsonValue, is_reference
from skillfit.models.protocol import ROLES
from skillfit.models.registry import MACHINE_OPTIONS, ModelSpec, map_file, names_cli_program
from skillfit.models.secrets import hide_keys_in_use
from skillfit.plain_text import shorten
from skillfit.run.control import Interrupted, read_requests
from skillfit.run.events import EventLog, SlowUpdateFinished, StepFinished
from skillfit.run.files import RunFiles
from skillfit.run.journal import Journal
from skillfit.run.store import (
    DATABASE,
    JOURNAL,
    Redact,
    RunLock,
    RunNotWritable,
    disk_full,
    emptied,
    other_files,
)
from skillfit.run.view import CARD_FACT, STOP_FACT, RunView
from skillfit.skill.units import Granularity

PROBE = "probe"  # the stage of calls that only test whether a model can be reached
PartKind = Literal["gate", "proposer", "sampler", "executor"]  # parts that a user can replace
Identity = Mapping[str, JsonValue]
"""What must stay the same when a run is resumed. `kind`: a key of `_KINDS`."""

# What may change between two starts of one run: limits, speed and places. The contents of skill and
# tasks are compared instead of their paths. docs/runs.md lists them.
CHANGEABLE = frozenset(
    {
        "budget",
        "executor",
        "run",
        "model.concurrency",
        "model.prices",
        "gradient.analyst_workers",
        "optimizer.memory",
        "optimizer.agent_minutes",
        "env.exec_timeout",
        "env.rollout_usd",
        "env.sandbox",
        "env.corpus",
        "env.skill",
        "env.tasks",
        "env.folder",
    }
)
CHANGEABLE_OF_A_MODEL = frozenset({"timeout", "retries", "key_env"})

_SCRATCH = ".writing"  # files are written here and renamed when they are complete
_IDENTITY_FACT = "identity"  # names of facts in the journal
_FAILED_PART_FACT = "failed_part"
_KILLED = "Its process was killed, or the machine went down."
_KINDS = {
    "training": "a training run",
    "evaluation": "an evaluation",
    "ablation": "an ablation",
    "peer": "a run of another optimizer",
}
# Parts of which no result is recorded: after a fix they decide again.
_RECOMPUTED: tuple[PartKind, ...] = ("gate", "proposer", "sampler")
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
        first moves an existing run aside. With `keep_end` a finished run stays finished until
        `reopen`. A run that records nothing leaves no files when it is closed.
        """
        path = Path(path).absolute()
        # As it will be read back, to compare like with like.
        text = redact(pydantic_core.to_json(identity).decode())
        recorded: Identity = pydantic_core.from_json(text)
        with _explained_file_errors(path):
            lock = _locked_directory(path)
            if force_new and (path / JOURNAL).exists():
                _move_aside(path, lock)
                lock = _locked_directory(path)
            try:
                run = cls(path, lock, redact)
                run._begin(recorded, keep_end)
            except BaseException:
                lock.release()
                raise
        return run

    def _begin(self, identity: Identity, keep_end: bool) -> None:
        """Resume the recorded run if its identity is the same, else begin a new one."""
        before = recorded_identity(self.journal)
        if before is None and (others := other_files(self.path)):
            raise emptied(self.path / JOURNAL, others)
        changes = identity_changes(before, identity) if before is not None else []
        if before is not None and changes:
            if is_fix(before, changes, self.journal.fact(_FAILED_PART_FACT, str) or ""):
                self.journal.set_fact(_IDENTITY_FACT, identity)
                changes = []
            elif self._has_results():
                if _kind(before) != _kind(identity):
                    raise InputError(
                        f"{self.path} holds {_named_kind(before)}, not {_named_kind(identity)}.",
                        hint="Give another directory with --run.",
                    )
                raise _changed_settings_error(self.path, changes, _kind(before))
        self.resumed = before is not None and not changes
        if not self.resumed:
            self.journal.set_fact(_IDENTITY_FACT, identity)
            self.events.clear()
        if before is None:
            self.journal.set_fact("run", secrets.token_hex(6))
        self.run_id = self.journal.fact("run", str) or ""
        if not (self.resumed and keep_end):
            self.reopen()

    def reopen(self) -> None:
        """Delete the end of the run: its result is decided again."""
        self.events.resume()
        self.journal.set_fact(CARD_FACT, "")  # it said that the run has ended
        self.journal.set_fact(STOP_FACT, _KILLED)  # until `__exit__` knows better

    def expect_fix_of(self, kind: PartKind) -> None:
        """Note that a user's gate, proposer or batch sampler failed. The next start may bring its
        file with other content: these parts decide again from what is recorded.
        """
        self.journal.set_fact(_FAILED_PART_FACT, kind)

    def expect_no_fix(self) -> None:
        """Note that the run continues: from here on a changed file is a different run."""
        if self.journal.fact(_FAILED_PART_FACT, str):
            self.journal.set_fact(_FAILED_PART_FACT, "")

    def _has_results(self) -> bool:
        """Return whether the run has done more than test its models."""
        return any(entry.stage != PROBE for entry in self.journal.entries())

    @staticmethod
    def read(path: Path | str) -> RunView:
        """Open the run in `path` to read it. Nothing is written; another process may be writing."""
        return RunView.open(path)

    def write_text(self, name: str, text: str) -> None:
        """Write the file `name` (a relative path) completely or not at all. A file that would not
        change is left alone. After a failed write the run records nothing more.
        """
        self.journal.ensure_writable()
        target = self.path / name
        data = self._redact(text).encode()
        try:
            with _explained_file_errors(target):
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
            blank = self.events.empty and self.journal.empty and not self.journal.bill().total.calls
        finally:
            self.journal.close()
            self.events.close()
            shutil.rmtree(self.path / _SCRATCH, ignore_errors=True)
            if blank and self.path.is_dir() and not other_files(self.path):
                self._remove()
            else:
                self._lock.release()

    def _remove(self) -> None:
        for name in DATABASE:
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
        if not self.journal.failed:
            self.journal.set_fact(STOP_FACT, _stop_reason(error))
        self.close()


def _stop_reason(error: BaseException | None) -> str:
    if error is None:
        return ""
    if isinstance(error, Interrupted | KeyboardInterrupt | CancelledError):
        return "A person or another program asked the run to stop."
    if isinstance(error, SkillfitError):
        return "It waited for a person." if error.exit_code is Exit.HANDOFF else str(error)
    return f"An unexpected error in skillfit: {type(error).__name__}: {error}"


def _locked_directory(path: Path) -> RunLock:
    """Create the directory if needed, and lock it. A directory with other files is not touched."""
    if path.is_file():
        raise InputError(
            f"{path} is a file, not a directory.", hint="Give a directory for the run with --run."
        )
    if path.is_dir() and not (path / JOURNAL).exists() and (others := other_files(path)):
        raise InputError(
            f"{path} holds other files ({', '.join(others[:3])}) and no run.",
            hint="Give a new or empty directory with --run.",
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # a file system that takes no folders, such as /proc
        raise InputError(
            f"Cannot create the directory {path}.", hint="Give another directory with --run."
        ) from error
    lock = RunLock(path)
    shutil.rmtree(path / _SCRATCH, ignore_errors=True)
    return lock


def _move_aside(path: Path, lock: RunLock) -> None:
    for number in count(1):
        aside = path.with_name(f"{path.name}.old-{number}")
        if not aside.exists():
            break
    if sys.platform == "win32":  # there a folder with an open file cannot be renamed
        lock.release()
    path.rename(aside)
    lock.release()


def _changed_settings_error(path: Path, changes: Sequence[IdentityChange], kind: str) -> InputError:
    hint = "Set them back, or give another directory with --run."
    if kind == "training":
        hint = (
            "Set them back to resume it. `skillfit train` starts a new run in another directory "
            "with --run, or in this one with --force-new (the old run is moved aside)."
        )
    if [change.key for change in changes] == ["skill"] and (applied := _applied_document(path)):
        hint = (
            f"This run was applied: `skillfit apply` changed {applied}. `skillfit resume {path}` "
            "uses the document that the run began with. To train the new one, give another "
            "directory with --run."
        )
    return InputError(
        f"The run in {path} was started with other settings:\n"
        + "\n".join(f"  {change}" for change in changes)
        + "\n",
        hint=hint,
    )


def _applied_document(path: Path) -> str:
    """Return the document that `skillfit apply` changed last; empty when that was undone."""
    requests = [one for one in read_requests(path) if one.action in ("apply", "undo")]
    return requests[-1].target if requests and requests[-1].action == "apply" else ""


def refuse_other_kinds(path: Path) -> None:
    """Raise an error when the directory holds an evaluation or an ablation."""
    with closing(RunView.open(path)) as view:
        recorded = recorded_identity(view.journal)
    if recorded is not None and _kind(recorded) != "training":
        raise InputError(
            f"{path} holds {_named_kind(recorded)}, not {_KINDS['training']}.",
            hint="Give the directory of a training run.",
        )


@contextmanager
def _explained_file_errors(path: Path) -> Iterator[None]:
    """Turn errors of the file system into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise disk_full(str(path)) from error
        if error.errno in _NO_PERMISSION:
            hint = "Check its owner and mode, or give another directory."
            if error.errno == errno.EROFS:
                hint = "Its file system is read-only: give another directory."
            raise RunNotWritable(
                f"No permission to write {error.filename or path}.", hint=hint
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


def settings_identity(config: Config) -> Identity:
    """Return the settings that must stay the same for a run to be resumed: those that differ from
    their defaults. So a later version may add a setting whose default changes nothing.
    """
    kept = _without_changeable(config.model_dump(mode="json", exclude_defaults=True))
    return {**kept, "model": models_identity(config.model)}


def models_identity(models: ModelSection) -> Identity:
    """Return the identity of each model by its role; None where the run has no such model."""
    several = {"agents": [model_identity(spec) for spec in models.agents]} if models.agents else {}
    return {**{role: model_identity(models.of_role(role)) for role in ROLES}, **several}


def model_identity(spec: ModelSpec | None) -> Identity | None:
    """Return the settings of a model that decide what it answers."""
    if spec is None:
        return None
    kept: dict[str, JsonValue] = spec.model_dump(
        mode="json", exclude=set(CHANGEABLE_OF_A_MODEL), exclude_defaults=True
    )
    # Without the folder of its Python file, so that a moved project is the same run.
    kept["id"] = map_file(spec.id, lambda file: Path(file).name)
    options = kept.get("options")
    if names_cli_program(spec.id) and isinstance(options, dict):
        kept["options"] = {
            name: value for name, value in options.items() if name not in MACHINE_OPTIONS
        }
    return kept


def _without_changeable(settings: Identity) -> dict[str, JsonValue]:
    kept: dict[str, JsonValue] = {}
    for section, values in settings.items():
        if section in CHANGEABLE:
            continue
        if isinstance(values, dict):
            values = {
                name: value
                for name, value in values.items()
                if f"{section}.{name}" not in CHANGEABLE
            }
        if values != {}:
            kept[section] = values
    return kept


def recorded_identity(journal: Journal) -> Identity | None:
    """Return the identity of the run in this journal; None before it is recorded."""
    return journal.fact(_IDENTITY_FACT, dict)


def ablated_by(journal: Journal) -> Granularity | None:
    """Return what an ablation leaves out of the skill at a time; None for other runs."""
    identity = recorded_identity(journal) or {}
    if _kind(identity) != "ablation":
        return None
    return "paragraph" if identity.get("by") == "paragraph" else "line"


def _kind(identity: Identity) -> str:
    return str(identity.get("kind", "training"))


def _named_kind(identity: Identity) -> str:
    kind = _kind(identity)
    return _KINDS.get(kind, f"a run of the kind {kind!r}")


@dataclass(frozen=True, slots=True)
class IdentityChange:
    """A value that differs from the one the run was started with."""

    key: str  # for example config.train.seed
    before: JsonValue
    after: JsonValue

    def __str__(self) -> str:
        """Name the key and both values, or say that a content changed of which there is a hash
        only. A setting that is not in an identity has its default.
        """
        if _is_hash(self.before) or _is_hash(self.after):
            return f"{self.key}: the content has changed"
        default = _default_setting(self.key)
        before, after = (default if one is None else one for one in (self.before, self.after))
        return f"{self.key}: {_shown_value(before)} -> {_shown_value(after)}"


def identity_changes(before: JsonValue, after: JsonValue, key: str = "") -> list[IdentityChange]:
    """Compare two identities key by key."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        found: list[IdentityChange] = []
        for name in sorted(before.keys() | after.keys()):
            # A section of the settings that is missing has its defaults only.
            missing: JsonValue = {} if key == "config" and name in SECTIONS else None
            old, new = before.get(name, missing), after.get(name, missing)
            found += identity_changes(old, new, f"{key}.{name}".strip("."))
        return found
    if _without_folders(before) == _without_folders(after):
        return []
    return [IdentityChange(key, before, after)]


def is_fix(before: Identity, changes: Sequence[IdentityChange], failed_part: str) -> bool:
    """Return whether only the file of the part that failed has changed. Other parts may be in it,
    but none whose results are recorded (agents, graders).
    """
    file = _recorded_source(before.get("parts"), failed_part)
    allowed = {f"parts.{kind}.source" for kind in _RECOMPUTED}
    return file is not None and all(
        change.key in allowed and change.before == file for change in changes
    )


def _default_setting(key: str) -> JsonValue:
    """Return the default of a setting by its key in an identity; None where it has none."""
    value: JsonValue = {"config": Config().model_dump(mode="json")}
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if isinstance(value, Mapping) else value


def _recorded_source(parts: JsonValue, kind: str) -> str | None:
    """Return the recorded hash of a part's file; None for a part that is in none."""
    part = parts.get(kind) if isinstance(parts, dict) else None
    source = part.get("source") if isinstance(part, dict) else None
    return source if isinstance(source, str) else None


def _without_folders(value: JsonValue) -> JsonValue:
    """Remove the folder from every file.py:name, so that a moved project is the same run. The
    content of such files is compared apart.
    """
    if isinstance(value, dict):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    return Path(value).name if isinstance(value, str) and is_reference(value) else value


def _is_hash(value: JsonValue) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{16}", value) is not None


def _shown_value(value: JsonValue) -> str:
    return shorten(pydantic_core.to_json(value).decode(), 120)
