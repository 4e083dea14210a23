"""What all providers over a vendor's SDK share: one client per event loop, and parameters an endpoint turns out not to take."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from skillfit.models.protocol import BadRequest, ModelError
from skillfit.models.provider import Adapted, Notice

_NOT_TAKEN = re.compile(
    r"unsupported|not support|n't support|unrecognized|unknown|unexpected|not permitted|not allowed|extra (field|input)|unavailable"
    r"|not available|deprecated|only the default"
)


class PerLoop:
    """An SDK client made when first needed; a connection pool belongs to the event loop it was made in."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def client(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = self._make(), loop
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()


class OptionalParameters:
    """Parameters a call can do without. What the endpoint refuses is left out from then on, and said once.

    `words` are those in the endpoint's complaint that name the parameter; `instead` says what happens in its place.
    """

    def __init__(self, where: str, notice: Notice, words: Mapping[str, Collection[str]], instead: Mapping[str, str]) -> None:
        self._where = where
        self._notice = notice
        self._words = words
        self._instead = instead
        self.left_out: set[str] = set()

    def leave_out(self, name: str, why: str) -> None:
        if name not in self.left_out:
            self.left_out.add(name)
            self._notice(f"{self._where} does not take `{name}`: {self._instead.get(name, 'it is left out')}. ({why})")

    def adapt(self, failure: ModelError, sent: Collection[str]) -> ModelError:
        """The failure itself, or `Adapted` when it is about a parameter that was sent and need not be."""
        if type(failure) is not BadRequest:
            return failure
        said = failure.message.lower()
        for name, words in self._words.items():
            about_it = name in sent and any(word in said for word in words)
            if about_it and (name in self._instead or _NOT_TAKEN.search(said)):
                self.leave_out(name, failure.message)
                return Adapted(failure.message)
        return failure
