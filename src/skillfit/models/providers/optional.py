"""Parameters a request can do without: what an endpoint turns out not to take is left out from then on."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from skillfit.models.protocol import BadRequest
from skillfit.models.provider import Adapted, Notice

_NOT_TAKEN = re.compile(
    r"unsupported|not support|n't support|unrecognized|unknown|unexpected|not permitted|not allowed|extra (field|input)|unavailable"
    r"|not available|deprecated|only the default"
)


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

    def adapt(self, failure: BadRequest, sent: Collection[str]) -> None:
        """Raises `Adapted` when the failure is about a parameter that was sent and need not be."""
        said = failure.message.lower()
        for name, words in self._words.items():
            about_it = name in sent and any(word in said for word in words)
            if about_it and (name in self._instead or _NOT_TAKEN.search(said)):
                self.leave_out(name, failure.message)
                raise Adapted(failure.message) from failure
