"""Requests of a person to a run: veto or pin an edit, reword it, raise a budget, stop.

`skillfit steer` and the studio append one JSON line to RUN/steering.jsonl. A running loop reads new
lines between steps and records each as a `PersonDecided` event with the line's number; a stopped
run reads them when it is resumed. A request never interrupts a write of the run, and two requests
at the same time never mix.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import pydantic_core
from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from skillfit.errors import InputError, did_you_mean
from skillfit.run.lock import in_use, read_holder

FILE = "steering.jsonl"
_LOCK = ".steering.lock"
_LONGEST = 20_000  # characters of a new wording

Action = Literal[
    "veto", "pin", "reword", "approve", "decline", "budget", "stop", "apply", "undo", "answer"
]
# What each action needs besides the run: a target, a text.
_NEEDS: dict[str, tuple[bool, bool]] = {
    "veto": (True, False),
    "pin": (True, False),
    "reword": (True, True),
    "approve": (True, False),
    "decline": (True, False),
    "budget": (True, True),
}
_CAPS = ("usd", "tokens", "calls", "minutes", "rollouts")


@dataclass(frozen=True, slots=True)
class SteeringRequest:
    """One line of steering.jsonl."""

    number: int  # 1 for the first line
    action: Action
    target: str = ""  # an edit's id, or the cap of a budget
    text: str = ""  # the new wording or value
    at: float = 0.0

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
    with FileLock(path / _LOCK, timeout=10):
        number = len(read_requests(path)) + 1
        request = SteeringRequest(number, wanted, target, text, time.time())
        line = pydantic_core.to_json(asdict(request)) + b"\n"
        with (path / FILE).open("ab") as file:
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
        data = (Path(run) / FILE).read_bytes()
    except FileNotFoundError:
        return []
    requests = []
    for at, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            requests.append(_LINES.validate_json(line))
        except ValidationError as error:
            raise InputError(
                f"Line {at} of {Path(run) / FILE} is not a steering request.",
                hint="Remove that line, or make requests with `skillfit steer`.",
            ) from error
    return [request for request in requests if request.number > after]


def _checked(action: str, target: str, text: str) -> Action:
    known: tuple[Action, ...] = get_args(Action)
    if action not in known:
        hint = did_you_mean(action, known) or f"Actions: {', '.join(known)}."
        raise InputError(f"Unknown action {action!r}.", hint=hint)
    target_needed, text_needed = _NEEDS.get(action, (False, False))
    if target_needed and not target:
        raise InputError(f"{action} needs a target.", hint="Give the edit's id, like s0003e02.")
    if text_needed and not text.strip():
        raise InputError(f"{action} needs a text.", hint="Give the new wording or value.")
    if len(text) > _LONGEST:
        raise InputError(f"The text has {len(text):,} characters; {_LONGEST:,} are allowed.")
    if action == "budget":
        _check_cap(target, text)
    return next(name for name in known if name == action)


def _check_cap(name: str, value: str) -> None:
    if name not in _CAPS:
        raise InputError(f"There is no budget {name!r}.", hint=f"Budgets: {', '.join(_CAPS)}.")
    try:
        amount = float(value)
    except ValueError:
        amount = 0.0
    if not 0 < amount < float("inf"):
        raise InputError(f"{value!r} is not a budget.", hint="Give a number above 0.")
