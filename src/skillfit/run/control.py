"""The lock of a run directory, and how a run is steered and stopped.

**Lock.** One writer per run directory: a lock of the operating system, which ends with its process.

**Steering.** Requests of a person to a run: veto or pin an edit, reword it, raise a budget, stop.
`skillfit steer` and the studio append one JSON line to RUN/steering.jsonl. A running loop reads new
lines between steps and records each as a `PersonDecided` event with the line's number; a stopped
run reads them when it is resumed. A request never interrupts a write of the run, and two requests
at the same time never mix.

**Stopping.** `Control` tells the process of a run to stop, after Ctrl-C, a signal or a call.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import pydantic_core
from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from skillfit.errors import Exit, InputError, SkillfitError, did_you_mean
from skillfit.models.protocol import Usage

LOCK = "run.lock"
STEERING = "steering.jsonl"
_STEERING_LOCK = ".steering.lock"
_LONGEST = 20_000  # characters of a new wording

EditAction = Literal["veto", "pin", "reword", "approve", "decline"]  # about one edit of the pool
Action = Literal[EditAction, "budget", "stop", "apply", "undo", "answer"]
EDIT_ACTIONS: tuple[EditAction, ...] = get_args(EditAction)
DONE_TO_EDIT: Mapping[EditAction, str] = {
    "veto": "vetoed",
    "pin": "pinned",
    "reword": "reworded",
    "approve": "approved",
    "decline": "declined",
}
_NEED_TARGET: tuple[Action, ...] = (*EDIT_ACTIONS, "budget")
_NEED_TEXT: tuple[Action, ...] = ("reword", "budget")
RAISABLE = ("usd", "calls", "tokens", "minutes")  # caps that can change while a run is running
_PATIENCE = 0.3  # seconds: longer than `in_use` in another process holds the lock


class RunLock:
    """Holds a run directory for this process. The lock file says which process that is."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK
        self._lock = FileLock(self._path, thread_local=False, on_acquired=_write_holder)
        try:
            self._lock.acquire(timeout=_PATIENCE)
        except Timeout as error:
            raise InputError(
                f"The run in {directory} is in use by {_read_holder(self._path) or 'a process'}.",
                hint="Wait for it, end it, or give another directory with --run.",
            ) from error

    def release(self) -> None:
        self._lock.release()

    def remove(self) -> None:
        """Release the lock and delete its file."""
        if os.name == "nt":  # there an open file cannot be deleted
            self.release()
        self._path.unlink(missing_ok=True)
        self.release()


def in_use(directory: Path) -> bool:
    """Whether a process writes this run now. Changes nothing."""
    path = directory / LOCK
    if not path.is_file():
        return False
    holder = _read_holder(path)
    if holder is not None and holder.is_dead():
        return False  # without touching the lock, which a run that starts now could be taking
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    except PermissionError:  # the run of another user, or on a read-only disk
        return False
    lock.release()
    return False


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a run, or held it last."""

    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_here(self) -> bool:
        """Whether that process is one of this machine."""
        return self.host == socket.gethostname()

    def is_dead(self) -> bool:
        """Whether that process is known to have ended."""
        if os.name == "nt" or not self.is_here():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            return False
        return False


def read_holder(directory: Path) -> Holder | None:
    """The process that holds the run in a directory, or held it last; None where none is known."""
    return _read_holder(directory / LOCK)


def _write_holder(descriptor: int) -> None:
    # The first byte stays blank: on Windows it is the locked one, which others cannot read.
    text = f" {json.dumps({'pid': os.getpid(), 'host': socket.gethostname()})}"
    os.ftruncate(descriptor, 0)
    os.write(descriptor, text.encode())


def _read_holder(path: Path) -> Holder | None:
    """The last holder; None where the file does not say."""
    try:
        with path.open("rb") as file:
            file.seek(1 if os.name == "nt" else 0)
            holder = json.loads(file.read())
        return Holder(int(holder["pid"]), str(holder["host"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class SteeringRequest:
    """One line of steering.jsonl."""

    number: int  # 1 for the first line
    action: Action
    target: str = ""  # an edit's id, or the cap of a budget
    text: str = ""  # the new wording or value
    at: float = 0.0
    cap_before: float | None = None  # budget: what the cap was when the run read the request

    def command(self, run: Path | str) -> str:
        """The CLI command that makes the same request."""
        if self.action in ("apply", "undo"):
            return shlex.join(
                ["skillfit", "apply", str(run)] + ["--undo"] * (self.action == "undo")
            )
        words = ["skillfit", "steer", str(run), self.action, self.target, self.text]
        return shlex.join(word for word in words if word)


_LINES = TypeAdapter(SteeringRequest)


def request_steering(run: Path, action: str, target: str = "", text: str = "") -> SteeringRequest:
    """Append a request. The line is on disk when this returns."""
    path = Path(run)
    if not path.is_dir():
        raise InputError(f"{path} is not a run directory.", hint="Give the directory of a run.")
    wanted = _checked(action, target, text)
    with FileLock(path / _STEERING_LOCK, timeout=10):
        number = len(read_requests(path)) + 1
        request = SteeringRequest(number, wanted, target, text, time.time())
        line = pydantic_core.to_json(asdict(request)) + b"\n"
        with (path / STEERING).open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    return request


def stop_run(run: Path) -> None:
    """Ask a running run to stop: what is in progress finishes and is saved."""
    holder = read_holder(run)
    if holder is None or not in_use(run):
        raise InputError(f"The run in {run} is not running.")
    if not holder.is_here():
        raise InputError(
            f"The run in {run} is running on {holder.host}.",
            hint=f"Stop it there: skillfit steer {run} stop",
        )
    request_steering(run, "stop")
    os.kill(holder.pid, signal.SIGINT)


def read_requests(run: Path, after: int = 0) -> list[SteeringRequest]:
    """The requests behind number `after`, oldest first. A last line that is not yet complete is
    left for the next call.
    """
    try:
        data = (Path(run) / STEERING).read_bytes()
    except FileNotFoundError:
        return []
    requests = []
    for at, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            requests.append(_LINES.validate_json(line))
        except ValidationError as error:
            raise InputError(
                f"Line {at} of {Path(run) / STEERING} is not a steering request.",
                hint="Remove that line, or make requests with `skillfit steer`.",
            ) from error
    return [request for request in requests if request.number > after]


def _checked(action: str, target: str, text: str) -> Action:
    known: tuple[Action, ...] = get_args(Action)
    if action not in known:
        hint = did_you_mean(action, known) or f"Actions: {', '.join(known)}."
        raise InputError(f"Unknown action {action!r}.", hint=hint)
    if action in _NEED_TARGET and not target:
        raise InputError(f"{action} needs a target.", hint="Give the edit's id, like s0003e02.")
    if action in _NEED_TEXT and not text.strip():
        raise InputError(f"{action} needs a text.", hint="Give the new wording or value.")
    if len(text) > _LONGEST:
        raise InputError(f"The text has {len(text):,} characters; {_LONGEST:,} are allowed.")
    if action == "budget":
        cap_amount(target, text)
    return next(name for name in known if name == action)


def cap_amount(name: str, value: str) -> float:
    """The value that a person typed for a cap. Raises for one that no cap can have."""
    if name == "rollouts":
        raise InputError(
            "budget.rollouts is the plan of a run and cannot change while it is running.",
            hint="Start a new run with the larger number: skillfit train CONFIG --rollouts N.",
        )
    if name not in RAISABLE:
        raise InputError(f"There is no budget {name!r}.", hint=f"Budgets: {', '.join(RAISABLE)}.")
    try:
        amount = float(value)
    except ValueError:
        amount = 0.0
    if not 0 < amount < float("inf"):
        raise InputError(f"{value!r} is not a budget.", hint="Give a number above 0.")
    return amount


class Interrupted(SkillfitError):
    """The user asked to stop. Everything done so far is saved."""

    exit_code = Exit.INTERRUPTED

    def __init__(self, run: Path | None = None) -> None:
        """`run`: the run that can be resumed; None for commands that only measure."""
        hint = "Run the same command again: what was measured is kept."
        if run is not None:
            hint = f"Resume with: skillfit resume {run}"
        super().__init__("Stopped.", hint=hint)


class Control:
    """How a caller asks a run to stop: work in flight finishes and is saved, nothing new starts.
    It also tells what the run has used so far.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._on_stop: list[Callable[[], None]] = []
        self._read_usage: Callable[[], Usage] | None = None
        self._usage: Usage | None = None

    @property
    def usage(self) -> Usage | None:
        """None before the run is open. After its end, or when it cannot be read, the last value."""
        if self._read_usage is not None:
            with suppress(SkillfitError):  # the run itself reports what is wrong with its files
                self._usage = self._read_usage()
        return self._usage

    @contextmanager
    def reporting(self, usage: Callable[[], Usage]) -> Iterator[None]:
        """The run is open in this block, and `usage` reads what it has used."""
        self._read_usage = usage
        try:
            yield
        finally:
            self._usage, self._read_usage = self.usage, None

    def stop(self) -> None:
        self.stopping = True
        for callback in self._on_stop:
            callback()

    def check(self) -> None:
        """Raise Interrupted if the user asked to stop. Called before new work."""
        if self.stopping:
            raise Interrupted

    def on_stop(self, callback: Callable[[], None]) -> None:
        self._on_stop.append(callback)
        if self.stopping:
            callback()
