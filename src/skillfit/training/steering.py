"""What a person asks of a run while it works: `skillfit steer`, the studio, `review: true`.

Requests are read between steps and recorded in the journal, so that a replay follows them at the
same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from skillfit.errors import Exit, InputError, SkillfitError
from skillfit.gate import Gate
from skillfit.plain_text import quantity
from skillfit.run.budget import Budget
from skillfit.run.control import EDIT_ACTIONS, SteeringRequest, cap_amount, read_requests
from skillfit.run.events import PersonDecided, Warned
from skillfit.run.journal import Journal
from skillfit.training.state import TrainingState
from skillfit.training.step_log import Emit
from skillfit.training.user_parts import PartFailed


class ReviewPending(SkillfitError):
    """Edits wait for a person's decision; the ship test comes after that."""

    exit_code = Exit.HANDOFF


class RecordedRequests:
    """Reads new requests to a run. What it returns for a place in the run is the same on replay."""

    def __init__(self, journal: Journal, run: Path) -> None:
        self._journal, self.run = journal, run
        self._last = 0  # the number of the last request that was read

    async def read(
        self, place: str, budget: Budget, needed: Sequence[str] = ()
    ) -> list[SteeringRequest]:
        """Raises ReviewPending when an edit in `needed` was neither approved nor declined."""

        async def read() -> list[SteeringRequest]:
            found = read_requests(self.run, after=self._last)
            decided = {request.target for request in found}
            missing = [target for target in needed if target not in decided]
            if missing:
                raise _review_pending(self.run, missing)
            return _with_caps(found, budget)

        found = await self._journal.once(
            f"steering/{place}", read, returns=list[SteeringRequest], stage="steering"
        )
        self._last = max([self._last, *(request.number for request in found)])
        return found


def _with_caps(requests: Sequence[SteeringRequest], budget: Budget) -> list[SteeringRequest]:
    """The requests, those about a cap with what it was before."""
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


async def follow_requests(
    requests: RecordedRequests,
    place: str,
    state: TrainingState,
    gate: Gate,
    budget: Budget,
    emit: Emit,
    needed: Sequence[str] = (),
) -> TrainingState:
    """Carry out the requests that arrived since the last call. A request may change the incumbent.

    Raises ReviewPending when an edit in `needed` was neither approved nor declined.
    """
    found = await requests.read(place, budget, needed)
    for request in found:
        try:
            _follow(request, gate, budget)
        except PartFailed:
            raise
        except InputError as error:
            emit(Warned(what=f"request {request.number}", message=str(error)))
            continue
        emit(
            PersonDecided(
                number=request.number,
                action=request.action,
                target=request.target,
                text=request.text,
                command=request.command(requests.run),
                cap=budget.cap(request.target) if request.action == "budget" else None,
            )
        )
    return state.with_incumbent(gate.incumbent) if found else state


def _follow(request: SteeringRequest, gate: Gate, budget: Budget) -> None:
    if request.action in EDIT_ACTIONS:
        if not gate.pools_edits:
            raise InputError("This run's gate has no pool of edits to steer.")
        gate.steer(request.action, request.target, request.text)
    elif request.action == "budget":
        _set_cap(request, budget)


def _set_cap(request: SteeringRequest, budget: Budget) -> None:
    """Set a cap as a request asks. A cap that was raised since then, in the config of a resumed
    run, stays.
    """
    wanted, cap = cap_amount(request.target, request.text), budget.cap(request.target)
    changed_since = request.cap_before is not None and cap != request.cap_before
    if changed_since and (cap is None or cap > wanted):
        return
    budget.set_cap(request.target, wanted)
