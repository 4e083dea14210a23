"""Models that ask a Python function, for tests and for answers that need no language model."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from skillfit.errors import InputError
from skillfit.extensions import load_object
from skillfit.models.client import check_reply
from skillfit.models.protocol import BadReply, Reply, Request, Usage
from skillfit.models.registry import Setup, call_own

Line = str | Reply | Exception
Script = Callable[[Request], Line | Awaitable[Line]]


class ScriptedModel:
    """A `Model` in this process: `ScriptedModel(function)`, or
    `ScriptedModel(["first", Reply(…), RateLimited("third")])` for replies in order.

    `requests` lists the requests. A reply without usage counts as a token for every four bytes, at
    no cost.
    """

    endpoint = "scripted"
    slots: int | None = None

    def __init__(
        self,
        script: Script | Iterable[Line],
        id: str = "scripted/model",
        context_window: int = 128_000,
    ) -> None:
        self.id = id
        self.context_window = context_window
        self.requests: list[Request] = []
        self._script = script if callable(script) else _in_order(script)

    async def send(self, request: Request) -> Reply:
        self.requests.append(request)
        line = self._script(request)
        if inspect.isawaitable(line):
            line = await line
        if isinstance(line, Exception):
            raise line
        if not isinstance(line, (str, Reply)):
            raise InputError(
                f"The script of {self.id} returned {type(line).__name__} for {request.stage}.",
                hint="Return the reply's text, or a Reply.",
            )
        reply = line if isinstance(line, Reply) else Reply(line)
        if reply.usage.calls:
            return reply
        sent = sum(len(message.content.encode()) for message in request.messages)
        received = len(reply.text.encode(errors="replace"))
        return reply.with_usage(Usage(calls=1, input=sent // 4 + 1, output=received // 4 + 1))

    async def complete(self, request: Request) -> Reply:
        return check_reply(await self.send(request), self.id)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def scripted(setup: Setup) -> ScriptedModel:
    """Make the provider of `scripted/path.py:name`, the function of that name.

    A function that is not async runs in a thread.
    """
    setup.takes(base_url=False, key_env=False)
    function = load_object(setup.name)
    if not callable(function):
        raise InputError(f"{setup.spec.id}: {setup.name} is not a function.")

    return ScriptedModel(partial(call_own, function, where=setup.spec.id), id=setup.spec.id)


def _in_order(lines: Iterable[Line]) -> Script:
    rest = iter(lines)

    def next_line(request: Request) -> Line:
        return next(rest, BadReply(f"The script has no reply left for {request.stage}."))

    return next_line
