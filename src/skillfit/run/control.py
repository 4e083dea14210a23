"""How people steer and stop a run.

**Steering.** Requests of a person to a run: veto or pin an edit, reword it, take such a decision
back, raise a budget, stop, and notes that an answer is right or wrong.
`skillfit steer` and the studio append one JSON line to RUN/steering.jsonl. A running loop reads new
lines between steps and records each as a `PersonDecided` event with the line's number; a stopped
run reads them when it is resumed. A request never interrupts a write of the run, and two requests
at the same time never mix.

**Stopping.** `Control` tells the process of a run to stop, after Ctrl-C, a signal or a call.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import pydantic_core
from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from skillfit.errors import Exit, InputError, SkillfitError, did_you_mean
from skillfit.models.protocol import Usage
from skillfit.plain_text import one_line, quantity, visible
from skillfit.run.records import EditStatus
from skillfit.run.store import in_use, read_holder
from skillfit.skill.regions import clean

if TYPE_CHECKING:
    from skillfit.run.budget import Budget
    from skillfit.run.journal import Journal

STEERING = "steering.jsonl"
_STEERING_LOCK = ".steering.lock"
_LONGEST = 20_000  # characters of a new wording
_LONGEST_TARGET = 200  # characters of the name of an edit, a cap or a prompt

# About one edit of the pool. release: take back what a person decided about it.
EditAction = Literal["veto", "pin", "reword", "approve", "decline", "release"]
NoteAction = Literal["right", "wrong"]  # a person says so about an answer to an item
Action = Literal[EditAction, NoteAction, "budget", "stop", "apply", "undo", "answer"]
EDIT_ACTIONS: tuple[EditAction, ...] = get_args(EditAction)
NOTE_ACTIONS: tuple[NoteAction, ...] = get_args(NoteAction)
DONE_TO_EDIT: Mapping[EditAction, str] = {
    "veto": "vetoed",
    "pin": "pinned",
    "reword": "reworded",
    "approve": "approved",
    "decline": "declined",
    "release": "released",
}
# What becomes of the edit. A reworded one is dropped, and its new wording joins the pool. A
# released one that is promoted stays so until its evidence is against it.
STATUS_AFTER: Mapping[EditAction, EditStatus] = {
    "veto": "dropped",
    "pin": "promoted",
    "reword": "dropped",
    "approve": "promoted",
    "decline": "dropped",
    "release": "pending",
}
_NEED_TARGET: tuple[Action, ...] = (*EDIT_ACTIONS, *NOTE_ACTIONS, "budget")
_NEED_TEXT: tuple[Action, ...] = ("reword", "budget")
RAISABLE = ("usd", "calls", "tokens", "minutes")  # caps that can change while a run is running


@dataclass(frozen=True, slots=True)
class SteeringRequest:
    """One line of steering.jsonl."""

    number: int  # 1 for the first line
    action: Action
    target: str = ""  # an edit's id, the cap of a budget, or an item's id
    text: str = ""  # the new wording or value; of a note the reason
    at: float = 0.0
    rollout: str = ""  # of a note: the rollout that it is about
    cap_before: float | None = None  # budget: what the cap was when the run read the request

    @property
    def decides(self) -> bool:
        """Whether it is a decision about an edit."""
        return self.action in EDIT_ACTIONS and self.action != "release"

    def command(self, run: Path | str) -> str:
        """Return the CLI command that makes the same request."""
        if self.action in ("apply", "undo"):
            return shlex.join(
                ["skillfit", "apply", str(run)] + ["--undo"] * (self.action == "undo")
            )
        words = ["skillfit", "steer", str(run), self.action, self.target, self.text]
        return shlex.join(word for word in words if word)


_LINES = TypeAdapter(SteeringRequest)


def request_steering(
    run: Path, action: str, target: str = "", text: str = "", rollout: str = ""
) -> SteeringRequest:
    """Append a request. The line is on disk when this returns."""
    path = Path(run)
    if not path.is_dir():
        raise InputError(f"{path} is not a run directory.", hint="Give the directory of a run.")
    wanted = _checked(action, target, text)
    with FileLock(path / _STEERING_LOCK, timeout=10):
        number = len(read_requests(path)) + 1
        request = SteeringRequest(number, wanted, target, text, time.time(), rollout)
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
    """Return the requests behind number `after`, oldest first. A last line that is not yet complete
    is left for the next call.
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


def without_undone(requests: Sequence[SteeringRequest]) -> list[SteeringRequest]:
    """Return the requests that are to be followed: a release takes back the decision about its edit
    that is before it, and both are left out. One without a decision before it follows what was read
    earlier.
    """
    kept: list[SteeringRequest] = []
    for request in requests:
        decision = _decision_about(request.target, kept)
        if request.action == "release" and decision is not None:
            kept.remove(decision)
        else:
            kept.append(request)
    return kept


def _decision_about(edit: str, requests: Sequence[SteeringRequest]) -> SteeringRequest | None:
    found = [one for one in requests if one.target == edit and one.decides]
    return found[-1] if found else None


def decision_about(run: Path, edit: str) -> SteeringRequest | None:
    """Return the decision of a person about an edit that a release takes back; None without one."""
    return _decision_about(edit, without_undone(read_requests(run)))


class ReviewPending(SkillfitError):
    """Edits wait for a person's decision; the ship test comes after that."""

    exit_code = Exit.HANDOFF


class RecordedRequests:
    """Reads new requests to a run. What it returns for a place in the run is the same on replay."""

    def __init__(self, journal: Journal, run: Path) -> None:
        self._journal, self.run = journal, run
        self._last = 0  # the number of the last request that was read

    def unread(self) -> list[SteeringRequest]:
        """Return the requests that no earlier process of this run has read."""
        recorded = [
            request.number
            for entry in self._journal.entries("steering/")
            for request in entry.value(list[SteeringRequest])
        ]
        return read_requests(self.run, after=max(recorded, default=0))

    async def read(
        self, place: str, budget: Budget, undecided: Sequence[str] = ()
    ) -> list[SteeringRequest]:
        """Return the requests since the last call. Raises ReviewPending when no request has an edit
        in `undecided` as its target. Any decision counts: veto, pin and reword decide about it too.
        """

        async def read_new() -> list[SteeringRequest]:
            found = read_requests(self.run, after=self._last)
            decided = {request.target for request in without_undone(found) if request.decides}
            still_undecided = [edit for edit in undecided if edit not in decided]
            if still_undecided:
                raise _review_pending(self.run, still_undecided)
            return _with_caps(found, budget)

        found = await self._journal.once(
            f"steering/{place}", read_new, returns=list[SteeringRequest], stage="steering"
        )
        self._last = max([self._last, *(request.number for request in found)])
        return without_undone(found)


def _with_caps(requests: Sequence[SteeringRequest], budget: Budget) -> list[SteeringRequest]:
    """Return the requests, those about a cap with what it was before."""
    caps: dict[str, float | None] = {}
    noted = []
    for request in requests:
        if request.action == "budget":
            before = caps.get(request.target, budget.cap(request.target))
            request = replace(request, cap_before=before)
            with suppress(InputError):  # `_set_cap` says what is wrong with it
                caps[request.target] = cap_amount(request.target, request.text)
        noted.append(request)
    return noted


def _review_pending(run: Path, edits: Sequence[str]) -> ReviewPending:
    count = quantity(len(edits), "edit waits", "edits wait")
    return ReviewPending(
        f"{count} for your approval (review: true): {', '.join(edits)}.",
        hint=f"Decide with `skillfit steer {run} approve {edits[0]}` (or decline) or in"
        f" `skillfit studio`, then: skillfit resume {run}",
    )


def _checked(action: str, target: str, text: str) -> Action:
    known: tuple[Action, ...] = get_args(Action)
    if action not in known:
        # `apply` and `undo` are recorded here and have commands of their own.
        offered = [one for one in known if one not in ("apply", "undo")]
        hint = did_you_mean(action, offered) or f"Actions: {', '.join(offered)}."
        raise InputError(f"Unknown action {action!r}.", hint=hint)
    if action in _NEED_TARGET and not target:
        wanted = "an item" if action in NOTE_ACTIONS else "the edit's id, like s0003e02"
        raise InputError(f"{action} needs a target.", hint=f"Give {wanted}.")
    if action in _NEED_TEXT and not clean(text).strip():
        raise InputError(f"{action} needs a text.", hint="Give the new wording or value.")
    if len(text) > _LONGEST:
        raise InputError(f"The text has {len(text):,} characters; {_LONGEST:,} are allowed.")
    if action == "budget":
        cap_amount(target, text)
    if len(target) > _LONGEST_TARGET or visible(target) != target:
        raise InputError(
            f"{action} has a target that is no name: {one_line(target, 60)!r}.",
            hint="Give the edit's id, like s0003e02.",
        )
    return next(name for name in known if name == action)


def cap_amount(name: str, value: str) -> float:
    """Parse the value that a person typed for a cap. Raises for one that no cap can have."""
    if name == "rollouts":
        raise InputError(
            "budget.rollouts is the plan of a run and cannot change while it is running.",
            hint="Start a new run with the larger number: skillfit train CONFIG --rollouts N.",
        )
    if name not in RAISABLE:
        raise InputError(
            f"There is no budget {one_line(name, 60)!r}.", hint=f"Budgets: {', '.join(RAISABLE)}."
        )
    try:
        amount = float(value)
    except ValueError:
        amount = 0.0
    if not 0 < amount < float("inf"):
        raise InputError(f"{one_line(value, 60)!r} is not a budget.", hint="Give a number above 0.")
    return amount


class Interrupted(SkillfitError):
    """The user asked to stop. Everything done so far is saved."""

    exit_code = Exit.INTERRUPTED

    def __init__(self, run: Path | None = None) -> None:
        """Name the command that continues. `run`: the run to resume; None for commands that only
        measure.
        """
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
        self.read_usage: Callable[[], Usage | None] = lambda: None  # set once the run is open

    @property
    def usage(self) -> Usage | None:
        """What the run has used; None before it is open."""
        return self.read_usage()

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
