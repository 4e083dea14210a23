"""A run on disk: one directory with one writer, and the identity that decides who may resume it.

`RunDirectory.open` starts or resumes a run and is its only writer. Files appear complete or not at
all. `RunDirectory.read` gives a `RunView` to everybody else, also while the run is being written.

A run is resumed only by a command with the same identity: `RunIdentity` for training,
`EvaluationIdentity` for `eval`, `AblationIdentity` for `ablate`. The journal keeps it as JSON.
`RecordedIdentity` is that JSON, perhaps written by an older version. It is compared key by key, so
that an error names every setting that has changed.
"""

from __future__ import annotations

import errno
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol

import pydantic_core

from skillfit.atomic_write import replace_file
from skillfit.config.schema import Config, ModelSection, with_earlier_behaviour
from skillfit.errors import InputError
from skillfit.extensions import JsonValue, PartDescription, is_reference
from skillfit.models.protocol import ROLES
from skillfit.models.registry import MACHINE_OPTIONS, SCRIPTED, ModelSpec, names_cli_program
from skillfit.models.secrets import hide_keys_in_use
from skillfit.plain_text import shorten
from skillfit.run.control import read_requests
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
from skillfit.run.view import CardKeeper, RunView
from skillfit.skill.units import Granularity

PROBE = "probe"  # the stage of calls that only test whether a model can be reached
PartKind = Literal["gate", "proposer", "sampler", "executor"]  # parts that a user can replace
IdentityJson = dict[str, JsonValue]
SettingsJson = Mapping[str, JsonValue]
"""Settings of the config as JSON. Other versions have other settings: no closer type holds all."""

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
_TRAINING_RUN = "a training run"
_PLAN_VERSION = "version of the rollout plan"  # in the identity of an ablation
_FIRST_PLAN = 1
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

    def _begin(self, identity: RecordedIdentity, keep_end: bool) -> None:
        """Resume the recorded run if its identity is the same, else begin a new one."""
        before = RecordedIdentity.read(self.journal)
        if before is None and (others := other_files(self.path)):
            raise emptied(self.path / JOURNAL, others)
        changes = before.changes(identity) if before is not None else []
        if before is not None and changes:
            if before.is_fix(changes, self.journal.fact(_FAILED_PART_FACT, str) or ""):
                identity.write(self.journal)
                changes = []
            elif self._has_results():
                if before.kind != identity.kind:
                    raise InputError(
                        f"{self.path} holds {before.kind}, not {identity.kind}.",
                        hint="Give another directory with --run.",
                    )
                raise _changed_settings_error(self.path, changes, before.kind)
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
        self.journal.set_fact(_FAILED_PART_FACT, kind)

    def expect_no_fix(self) -> None:
        """The run continues: from here on a changed file is a different run."""
        if self.journal.fact(_FAILED_PART_FACT, str):
            self.journal.set_fact(_FAILED_PART_FACT, "")

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
            blank = self.events.empty and self.journal.empty and not self.journal.bill().rows
            if not blank and not self.journal.failed:
                self._card.save()
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
        self.close()


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
    if kind == _TRAINING_RUN:
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
    """The document that `skillfit apply` changed last; empty when that was undone."""
    requests = [one for one in read_requests(path) if one.action in ("apply", "undo")]
    return requests[-1].target if requests and requests[-1].action == "apply" else ""


def refuse_other_kinds(path: Path) -> None:
    """Raise an error when the directory holds an evaluation or an ablation."""
    with closing(RunView.open(path)) as view:
        recorded = RecordedIdentity.read(view.journal)
    if recorded is not None and recorded.kind != _TRAINING_RUN:
        raise InputError(
            f"{path} holds {recorded.kind}, not {_TRAINING_RUN}.",
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


class Identity(Protocol):
    """What tells a run from others."""

    def as_json(self) -> IdentityJson:
        """As the journal keeps it. The keys are named in messages about changes."""
        ...


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What must be the same when a training run is resumed."""

    config: SettingsJson  # the settings that must stay the same
    skill: str  # hash
    task: TaskIdentity
    parts: ReplacedParts
    agent: PartDescription | None  # of an agent in Python
    programs: Mapping[str, str]  # role -> hash of the command-line program's description
    corpus: str  # hash; empty: no corpus
    memory: str = ""  # hash of the evidence of earlier runs; empty: none

    def as_json(self) -> IdentityJson:
        """Without what the run does not have."""
        whole: IdentityJson = {
            "config": self.config,
            "skill": self.skill,
            "task": self.task.as_json(),
            "parts": self.parts.as_json(),
        }
        if self.agent is not None:
            whole["agent"] = self.agent
        if self.programs:
            whole["programs"] = self.programs
        if self.corpus:
            whole["corpus"] = self.corpus
        if self.memory:
            whole["memory"] = self.memory
        return whole

    def for_name(self) -> IdentityJson:
        """What the default name of a run's directory is computed from. If no part is replaced, it
        is what versions without replaceable parts computed it from.
        """
        whole = self.as_json()
        if not any(self.parts.as_json().values()):
            del whole["parts"]
        return whole


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Hashes of the items, and how they are graded."""

    train: str
    selection: str
    test: str
    weights: str  # empty: all items count the same
    grader: PartDescription | None
    evaluator: PartDescription | None

    def as_json(self) -> IdentityJson:
        items: IdentityJson = {
            "train items": self.train,
            "selection items": self.selection,
            "test items": self.test,
        }
        weights = {"weights": self.weights} if self.weights else {}
        return {**items, **weights, "grader": self.grader, "evaluator": self.evaluator}


@dataclass(frozen=True, slots=True)
class ReplacedParts:
    """Parts of the user that the settings do not describe completely; None for other parts. The
    executor is left out: where rollouts run does not change the results.
    """

    gate: PartDescription | None
    proposer: PartDescription | None
    sampler: PartDescription | None
    agent: PartDescription | None
    ship_grader: PartDescription | None

    def as_json(self) -> Mapping[str, PartDescription | None]:
        return {
            "gate": self.gate,
            "proposer": self.proposer,
            "sampler": self.sampler,
            "agent": self.agent,
            "ship_grader": self.ship_grader,
        }


@dataclass(frozen=True, slots=True)
class EvaluationIdentity:
    """How the answers of an evaluation are made and graded. Items, splits, skills and repeats may
    change, because each rollout is recorded separately.
    """

    agent_model: SettingsJson | None
    judge_model: SettingsJson | None
    env: SettingsJson  # of skillfit's own agents
    corpus: str  # hash; empty: no corpus
    seed: int
    agent: PartDescription | None  # of an agent in Python
    grader: PartDescription | None
    evaluator: PartDescription | None

    def as_json(self) -> IdentityJson:
        return {
            "model": {"agent": self.agent_model, "judge": self.judge_model},
            "env": self.env,
            "corpus": self.corpus,
            "seed": self.seed,
            "described": [self.agent, self.grader, self.evaluator],
        }


@dataclass(frozen=True, slots=True)
class AblationIdentity:
    """What must be the same when an ablation is resumed."""

    models: SettingsJson  # by role
    skill: str  # hash
    by: Granularity
    plan: int  # version of the plan that says which skill each rollout runs under
    answers: EvaluationIdentity

    def as_json(self) -> IdentityJson:
        return {
            "ablate": self.models,
            "skill": self.skill,
            "by": self.by,
            _PLAN_VERSION: self.plan,
            "env": self.answers.env,
            "corpus": self.answers.corpus,
            "seed": self.answers.seed,
            "agent": self.answers.agent,
            "grader": self.answers.grader,
            "evaluator": self.answers.evaluator,
        }

    @staticmethod
    def recorded_plan(journal: Journal) -> int:
        """The plan that the ablation was begun with; the first versions did not record it."""
        recorded = RecordedIdentity.read(journal)
        plan = recorded.values.get(_PLAN_VERSION) if recorded is not None else None
        return plan if isinstance(plan, int) else _FIRST_PLAN

    @staticmethod
    def recorded_granularity(journal: Journal) -> Granularity | None:
        """What the ablation leaves out of the skill at a time; None for other runs."""
        recorded = RecordedIdentity.read(journal)
        if recorded is None or "ablate" not in recorded.values:
            return None
        return "paragraph" if recorded.values.get("by") == "paragraph" else "line"


def settings_identity(config: Config) -> SettingsJson:
    """The part of a config that must stay the same for a run to be resumed."""
    kept = _without_changeable(config.model_dump(mode="json"))
    return {**kept, "model": models_identity(config.model)}


def models_identity(models: ModelSection) -> dict[str, SettingsJson | None]:
    """By role; None: the run has no such model."""
    return {role: model_identity(models.of_role(role)) for role in ROLES}


def model_identity(spec: ModelSpec | None) -> SettingsJson | None:
    """The settings of a model that decide what it answers."""
    if spec is None:
        return None
    kept: IdentityJson = spec.model_dump(mode="json", exclude=set(CHANGEABLE_OF_A_MODEL))
    provider, _, name = spec.id.partition("/")
    if provider == SCRIPTED:  # without its folder, so that a moved project is the same run
        kept["id"] = f"{SCRIPTED}/{Path(name).name}"
    options = kept["options"]
    if names_cli_program(spec.id) and isinstance(options, dict):
        kept["options"] = {
            name: value for name, value in options.items() if name not in MACHINE_OPTIONS
        }
    return kept


@dataclass(frozen=True, slots=True)
class RecordedIdentity:
    """An identity as the journal keeps it."""

    values: Mapping[str, JsonValue]

    @classmethod
    def of(cls, identity: Identity, redact: Redact) -> RecordedIdentity:
        """The identity as it will be read back, to compare like with like."""
        text = pydantic_core.to_json(identity.as_json()).decode()
        return cls(pydantic_core.from_json(redact(text)))

    @classmethod
    def read(cls, journal: Journal) -> RecordedIdentity | None:
        """None: nothing is recorded yet."""
        values = journal.fact(_IDENTITY_FACT, dict)
        return None if values is None else cls(values)

    @property
    def kind(self) -> str:
        """What the command does that recorded it."""
        if "ablate" in self.values:
            return "an ablation"
        return "an evaluation" if "described" in self.values else _TRAINING_RUN

    def write(self, journal: Journal) -> None:
        journal.set_fact(_IDENTITY_FACT, self.as_json())

    def as_json(self) -> IdentityJson:
        return dict(self.values)

    def changes(self, current: RecordedIdentity) -> list[IdentityChange]:
        """What differs in the identity of the command that wants to resume the run."""
        return _json_changes(self._completed(current).values, current.values)

    def is_fix(self, changes: Sequence[IdentityChange], failed_part: str) -> bool:
        """Whether only the file of the part that failed has changed. Other parts may be in it, but
        none whose results are recorded (agents, graders).
        """
        file = _recorded_source(self.values.get("parts"), failed_part)
        allowed = {f"parts.{kind}.source" for kind in _RECOMPUTED}
        return file is not None and all(
            change.key in allowed and change.before == file for change in changes
        )

    def _completed(self, current: RecordedIdentity) -> RecordedIdentity:
        """As this version would have recorded it. What an older version did not record about
        replaced parts, an evaluation or an ablation is taken to be the same. An ablation is
        continued with the plan it was begun with.
        """
        if self.kind != _TRAINING_RUN and self.kind == current.kind:
            env, recorded_env = current.values.get("env"), self.values.get("env", {})
            if isinstance(env, dict) and isinstance(recorded_env, dict):
                env = {**env, **recorded_env}
            return RecordedIdentity({**current.values, **self.values, "env": env})
        settings = self.values.get("config")
        if not isinstance(settings, dict):
            return self
        completed = {**self.values, "config": _completed_settings(settings)}
        parts, recorded = current.values.get("parts"), self.values.get("parts", {})
        if isinstance(parts, dict) and isinstance(recorded, dict):
            completed["parts"] = {**parts, **recorded}
        return RecordedIdentity(completed)


@dataclass(frozen=True, slots=True)
class IdentityChange:
    """A value that differs from the one the run was started with."""

    key: str  # for example config.train.seed
    before: JsonValue
    after: JsonValue

    def __str__(self) -> str:
        return f"{self.key}: {_shown_value(self.before)} -> {_shown_value(self.after)}"


def _completed_settings(recorded: SettingsJson) -> SettingsJson:
    """Recorded settings with exactly the keys that this version compares. A setting that was added
    since the run started has its default, or the value that means what earlier versions did
    (`with_earlier_behaviour`): that is how the run was made.
    """
    whole = dict(settings_identity(Config()))
    for section, values in with_earlier_behaviour(dict(recorded)).items():
        known = whole.get(section)
        if isinstance(known, dict) and isinstance(values, dict):
            values = {**known, **values}
        whole[section] = values
    if isinstance(models := whole["model"], dict):
        unset = model_identity(ModelSpec(id="any/model")) or {}
        whole["model"] = {
            name: {**unset, **spec} if name in ROLES and isinstance(spec, dict) else spec
            for name, spec in models.items()
        }
    return _without_changeable(whole)


def _without_changeable(settings: SettingsJson) -> IdentityJson:
    kept: IdentityJson = {}
    for section, values in settings.items():
        if isinstance(values, dict):
            kept[section] = {
                name: value
                for name, value in values.items()
                if f"{section}.{name}" not in CHANGEABLE
            }
        else:
            kept[section] = values
    return {section: values for section, values in kept.items() if section not in CHANGEABLE}


def _recorded_source(parts: JsonValue, kind: str) -> str | None:
    """The recorded hash of a part's file; None for a part that is in none."""
    part = parts.get(kind) if isinstance(parts, dict) else None
    source = part.get("source") if isinstance(part, dict) else None
    return source if isinstance(source, str) else None


def _json_changes(before: JsonValue, after: JsonValue, key: str = "") -> list[IdentityChange]:
    if isinstance(before, dict) and isinstance(after, dict):
        found: list[IdentityChange] = []
        for name in sorted(before.keys() | after.keys()):
            found += _json_changes(before.get(name), after.get(name), f"{key}.{name}".strip("."))
        return found
    if _without_folders(before) == _without_folders(after):
        return []
    return [IdentityChange(key, before, after)]


def _without_folders(value: JsonValue) -> JsonValue:
    """Every file.py:name without its folder, so that a moved project is the same run. The content
    of such files is compared apart.
    """
    if isinstance(value, dict):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    return Path(value).name if isinstance(value, str) and is_reference(value) else value


def _shown_value(value: JsonValue) -> str:
    return shorten(pydantic_core.to_json(value).decode(), 120)
