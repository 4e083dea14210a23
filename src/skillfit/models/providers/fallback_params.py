"""Optional parameters of a request: one that the endpoint rejects is left out from then on."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from skillfit.models.protocol import BadRequest
from skillfit.models.provider import Adapted, Notice

_NOT_TAKEN = re.compile(
    r"unsupported|not support|n't support|unrecognized|unknown|unexpected|not permitted"
    r"|not allowed|extra (field|input)|unavailable|not available|deprecated|only the default"
)


class OptionalParameters:
    """The parameters of one endpoint that a call works without.

    `words` lists, for each parameter, the words in an error message that refer to it. `instead`
    says what is done when the parameter is left out, where that is not simply nothing.
    """

    def __init__(
        self,
        where: str,
        notice: Notice,
        words: Mapping[str, Collection[str]],
        instead: Mapping[str, str],
    ) -> None:
        self._where = where
        self._notice = notice
        self._words = words
        self._instead = instead
        self.left_out: set[str] = set()

    def leave_out(self, name: str, why: str) -> None:
        """Leave the parameter out from now on, with one notice."""
        if name in self.left_out:
            return
        self.left_out.add(name)
        instead = self._instead.get(name, "it is left out")
        self._notice(f"{self._where} does not take `{name}`: {instead}. ({why})")

    def adapt(self, failure: BadRequest, sent: Collection[str]) -> None:
        """Raise `Adapted` when the failure is about an optional parameter that was sent."""
        message = failure.message.lower()
        for name, words in self._words.items():
            named = name in sent and any(word in message for word in words)
            if named and (name in self._instead or _NOT_TAKEN.search(message)):
                self.leave_out(name, failure.message)
                raise Adapted(failure.message) from failure
