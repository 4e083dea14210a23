"""Carry out what a person asked a running run for: veto, pin, reword or approve an edit, raise a
budget. Requests are read between steps and journaled, so that a replay follows them again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from skillfit.errors import InputError
from skillfit.run.budget import Budget
from skillfit.run.control import SteeringRequest, read_requests
from skillfit.run.events import PersonDecided, Warned
from skillfit.run.journal import Journal
from skillfit.training.components import Components

NewRequests = Callable[[str], Awaitable[list[SteeringRequest]]]
EDIT_ACTIONS = ("veto", "pin", "reword", "approve", "decline")


def recorded_requests(journal: Journal, run: Path) -> NewRequests:
    """A reader of new requests. What it returns for a place in the run is the same on replay."""
    last = 0

    async def new_requests(place: str) -> list[SteeringRequest]:
        nonlocal last

        async def read() -> list[SteeringRequest]:
            return read_requests(run, after=last)

        found = await journal.once(
            f"steering/{place}", read, returns=list[SteeringRequest], stage="steering"
        )
        last = max([last, *(request.number for request in found)])
        return found

    return new_requests


async def follow_requests(run: Components, place: str) -> None:
    """Carry out the requests that arrived since the last call."""
    for request in await run.new_requests(place):
        try:
            _follow(run, request)
        except InputError as error:
            run.emit(Warned(what=f"request {request.number}", message=str(error)))
            continue
        run.emit(
            PersonDecided(
                number=request.number,
                action=request.action,
                target=request.target,
                text=request.text,
                command=request.command(run.path),
            )
        )


def _follow(run: Components, request: SteeringRequest) -> None:
    if request.action in EDIT_ACTIONS:
        if not run.gate.pools_edits:
            raise InputError("This run's gate has no pool of edits to steer.")
        run.gate.steer(request.action, request.target, request.text)
    elif request.action == "budget":
        raise_cap(run.budget, request.target, request.text)


def raise_cap(budget: Budget, cap: str, value: str) -> None:
    try:
        budget.set_cap(cap, float(value))
    except ValueError:
        raise InputError(f"budget.{cap}: {value!r} is not a number.") from None
