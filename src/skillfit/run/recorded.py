"""A model whose every reply is paid for once."""

from __future__ import annotations

from skillfit.models.protocol import Model, Reply, Request, Role
from skillfit.run.journal import Journal


class RecordedModel:
    """Sends each request through the journal: a recorded reply comes back at once and is never sent again."""

    def __init__(self, model: Model, journal: Journal, role: Role) -> None:
        self._model = model
        self._journal = journal
        self._role = role

    @property
    def id(self) -> str:
        return self._model.id

    @property
    def context_window(self) -> int:
        return self._model.context_window

    async def complete(self, request: Request) -> Reply:
        return await self._journal.once(
            f"call/{self._role}/{request.stage}/{request.fingerprint()}",
            lambda: self._model.complete(request),
            returns=Reply,
            stage=request.stage,
            role=self._role,
            model=self._model.id,
            usage=lambda reply: reply.usage,
        )
