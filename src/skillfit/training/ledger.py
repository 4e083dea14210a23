"""What each stage of a step used, counted from values, so that a replayed step counts the same as a
fresh one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from skillfit.models.protocol import Model, Reply, Request, Usage


class Ledger:
    def __init__(self) -> None:
        self._stages: defaultdict[str, Usage] = defaultdict(Usage)

    def add(self, stage: str, usage: Usage) -> None:
        self._stages[stage] += usage

    def close(self) -> dict[str, dict[str, int]]:
        """What was counted since the last close, by stage."""
        counted = {
            stage: tokens(usage) for stage, usage in sorted(self._stages.items()) if usage.calls
        }
        self._stages.clear()
        return counted


def tokens(usage: Usage) -> dict[str, int]:
    """As records and summary.json show it."""
    return {"calls": usage.calls, "prompt_tokens": usage.input, "completion_tokens": usage.output}


class CountedModel:
    """A model whose replies, recorded or fresh, are entered in the ledger under their stage.
    `admit` may refuse a call.
    """

    def __init__(self, model: Model, ledger: Ledger, admit: Callable[[], None]) -> None:
        self._model = model
        self._ledger = ledger
        self._admit = admit

    @property
    def id(self) -> str:
        return self._model.id

    @property
    def context_window(self) -> int:
        return self._model.context_window

    async def complete(self, request: Request) -> Reply:
        self._admit()
        reply = await self._model.complete(request)
        self._ledger.add(request.stage, reply.usage)
        return reply
