"""What a person asks of a run while it works: `skillfit steer`, the studio, `review: true`.

Requests are read between steps and recorded in the journal, so that a replay follows them at the
same places.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from skillfit.errors import Exit, InputError, SkillfitError
from skillfit.plain_text import quantity
from skillfit.run.budget import Budget
from skillfit.run.control import SteeringRequest, read_requests
from skillfit.run.events import PersonDecided, Warned
from skillfit.run.journal import Journal
from skillfit.training.components import Components
from skillfit.training.state import TrainingState


class ReviewPending(SkillfitError):
    """Edits wait for a person's yes or no; the ship test comes after that."""

    exit_code = Exit.HANDOFF


NewRequests = Callable[[str, Sequence[str]], Awaitable[list[SteeringRequest]]]
EDIT_ACTIONS = ("veto", "pin", "reword", "approve", "decline")


def recorded_requests(journal: Journal, run: Path) -> NewRequests:
    """A reader of new requests. What it returns for a place in the run is the same on replay."""
    last = 0

    async def new_requests(place: str, needed: Sequence[str]) -> list[SteeringRequest]:
        nonlocal last

        async def read() -> list[SteeringRequest]:
            found = read_requests(run, after=last)
            decided = {request.target for request in found}
            missing = [target for target in needed if target not in decided]
            if missing:
                raise _review_pending(run, missing)
            return found

        found = await journal.once(
            f"steering/{place}", read, returns=list[SteeringRequest], stage="steering"
        )
        last = max([last, *(request.number for request in found)])
        return found

    return new_requests


def _review_pending(run: Path, edits: Sequence[str]) -> ReviewPending:
    count = quantity(len(edits), "edit waits", "edits wait")
    return ReviewPending(
        f"{count} for your yes or no (review: true): {', '.join(edits)}.",
        hint=f"Decide with `skillfit steer {run} approve {edits[0]}` (or decline) or in"
        f" `skillfit studio`, then: skillfit resume {run}",
    )


async def follow_requests(
    run: Components, place: str, state: TrainingState, needed: Sequence[str] = ()
) -> TrainingState:
    """Carry out the requests that arrived since the last call. A request may change the incumbent.

    Raises ReviewPending when an edit in `needed` got no yes or no.
    """
    for request in await run.new_requests(place, needed):
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
    return state.with_incumbent(run.gate.incumbent)


def _follow(run: Components, request: SteeringRequest) -> None:
    if request.action in EDIT_ACTIONS:
        if not run.gate.pools_edits:
            raise InputError("This run's gate has no pool of edits to steer.")
        run.gate.steer(request.action, request.target, request.text)
    elif request.action == "budget":
        raise_cap(run.budget, request.target, request.text)


def raise_cap(budget: Budget, cap: str, value: str) -> None:
    """Set a cap of the budget to a value that a person typed."""
    try:
        budget.set_cap(cap, float(value))
    except ValueError:
        raise InputError(f"budget.{cap}: {value!r} is not a number.") from None
