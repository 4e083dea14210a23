"""A model whose every reply is paid for once."""

from __future__ import annotations

from dataclasses import dataclass

from skillfit.models.protocol import (
    BadReply,
    ContextTooLong,
    Model,
    ModelError,
    NetworkFailed,
    Overloaded,
    RateLimited,
    Refused,
    Reply,
    Request,
    Role,
    TimedOut,
)
from skillfit.run.journal import Journal

# Failures a run may go on without; the others stop it.
_BEARABLE = {kind.kind: kind for kind in (BadReply, ContextTooLong, NetworkFailed, Overloaded, RateLimited, Refused, TimedOut)}


@dataclass(frozen=True, slots=True)
class _GivenUp:
    kind: str
    message: str
    hint: str = ""


class RecordedModel:
    """Sends each request through the journal: a recorded reply comes back at once and is never sent again."""

    def __init__(self, model: Model, journal: Journal, role: Role) -> None:
        self._model = model
        self._journal = journal
        self._role = role
        self._lost: dict[str, _GivenUp] = {}

    @property
    def id(self) -> str:
        return self._model.id

    @property
    def context_window(self) -> int:
        return self._model.context_window

    async def complete(self, request: Request) -> Reply:
        key = f"call/{self._role}/{request.stage}/{request.fingerprint()}"
        given_up = self._journal.get(f"given_up/{key}", _GivenUp)
        if given_up is not None:
            raise _BEARABLE[given_up.kind](given_up.message, hint=given_up.hint)
        try:
            reply = await self._journal.once(
                key,
                lambda: self._model.complete(request),
                returns=Reply,
                stage=request.stage,
                role=self._role,
                model=self._model.id,
                usage=lambda reply: reply.usage,
            )
        except ModelError as error:
            if error.kind in _BEARABLE:
                self._lost[key] = _GivenUp(error.kind, error.message, error.hint)
            raise
        self._lost.pop(key, None)
        return reply

    async def go_on_without_lost(self) -> None:
        """The run now decides without the replies it could not get. A later run of the same code must decide the same, so from
        here on they stay lost; until this is called, starting again asks for them again."""
        lost, self._lost = self._lost, {}
        for key, given_up in lost.items():
            await self._journal.note(f"given_up/{key}", given_up, _GivenUp)
