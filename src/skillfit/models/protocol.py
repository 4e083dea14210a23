"""The protocol of model calls: a `Request` goes in, a `Reply` with its `Usage` comes out, or a
typed `ModelError` is raised.

Requests put what stays the same first (system prompt, skill) and what changes last (item), so that
the prompt caches of providers are used. What a run does about each kind of failure is in
`failures.py`, and how a model is chosen and its provider created in `registry.py`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from skillfit.errors import Exit, SkillfitError
from skillfit.models.json_text import JsonObject

Role = Literal["agent", "optimizer", "judge"]
ROLES: tuple[Role, ...] = get_args(Role)
CONCURRENCY = 32  # calls at one time, per endpoint, unless set otherwise
FinishReason = Literal["stop", "length", "tool_calls", "refused", "other"]


@dataclass(frozen=True, slots=True)
class Image:
    """An image by reference. Its bytes are read when the request is sent."""

    path: Path
    media_type: str = "image/png"
    detail: Literal["auto", "low", "high"] = "auto"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool the model wants to call."""

    id: str
    name: str
    arguments: str  # JSON text, as the model wrote it


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. `tool_call_id` is set when `role` is tool."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: tuple[Image, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool the model may call."""

    name: str
    description: str
    parameters: JsonObject  # JSON schema


@dataclass(frozen=True, slots=True)
class Request:
    """Everything a model is asked in one call."""

    messages: tuple[Message, ...]
    stage: str  # the stage that asks: rollout, judge, reflect.failure, merge, rank, …
    tools: tuple[Tool, ...] = ()
    schema: JsonObject | None = None  # JSON schema that the reply text must follow
    temperature: float | None = None  # None: as the ModelSpec says; so are the next two
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    seed: int | None = None
    # Distinguishes equal requests (item, repeat, turn). Part of the journal key, never sent.
    purpose: str = ""

    def fingerprint(self) -> str:
        """Return a stable hash of all fields."""
        return hashlib.sha256(
            json.dumps(self, sort_keys=True, ensure_ascii=False, default=_plain).encode()
        ).hexdigest()


@dataclass(frozen=True, slots=True)
class Usage:
    """What one or more calls used. `input` includes `cached` and `written`; `output` includes
    `reasoning`. `usd` is None when no price is known.
    """

    calls: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    usd: float | None = 0.0
    written: int = 0  # input tokens written to the provider's prompt cache
    failed: int = 0  # attempts that failed, also those that cost nothing and are no call
    failed_tokens: int = 0  # of these, part of `tokens`

    @property
    def tokens(self) -> int:
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        return Usage(
            self.calls + other.calls,
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.reasoning + other.reasoning,
            usd,
            self.written + other.written,
            self.failed + other.failed,
            self.failed_tokens + other.failed_tokens,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answered."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)  # of all attempts, including failed ones
    model: str = ""  # the model's name as the provider reports it

    def with_usage(self, usage: Usage) -> Reply:
        return Reply(self.text, self.tool_calls, self.finish_reason, usage, self.model)


class Model(Protocol):
    """Anything that completes a request: a `Client`, a recorded model, a scripted model."""

    @property
    def id(self) -> str: ...

    @property
    def context_window(self) -> int:
        """Tokens that fit in one request and its reply."""
        ...

    async def complete(self, request: Request) -> Reply:
        """Return the reply. Raises `ModelError`, also for replies that are empty, truncated, or
        contain only thinking.
        """
        ...


class Reservation(Protocol):
    """Budget reserved for one attempt."""

    def settle(self, usage: Usage) -> None:
        """Replace the reserved amount by what the attempt used (zero when nothing was billed)."""
        ...


class Meter(Protocol):
    """The budget, as the client sees it: reserve before each attempt, settle after it."""

    async def reserve(self, role: Role, upper_bound: Usage) -> Reservation:
        """Reserve `upper_bound`. Raises when that would exceed a cap."""
        ...

    def waiting(self) -> AbstractAsyncContextManager[None]:
        """Enclose a wait that costs nothing (slot, back-off, Retry-After). Raise as soon as the run
        must stop.
        """
        ...

    def sending(self) -> AbstractAsyncContextManager[None]:
        """Enclose an attempt that is being sent. Raise as soon as the run's time is over."""
        ...


Notice = Callable[[str], None]
"""Called with what the user should know, for example that a setting could not be used."""


def log_notice(message: str) -> None:
    logging.getLogger("skillfit.models").warning(message)


class ModelError(SkillfitError):
    """A call that gave no usable reply. `kind` names the failure in journals and reports, and
    decides what the run does about it (`failures.py`). `usage` is what the call cost anyway.
    """

    kind = "model"
    exit_code = Exit.INFRASTRUCTURE

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        retry_after: float | None = None,
        usage: Usage | None = None,
    ):
        super().__init__(message, hint=hint)
        self.retry_after = retry_after
        self.usage = usage or Usage()

    def release_reply(self) -> None:
        """Drop the frames and causes of this error. They hold the refused reply, which may have
        megabytes, and callers keep the errors of a thousand calls.
        """
        self.__cause__ = self.__context__ = self.__traceback__ = None


class AuthFailed(ModelError):
    """The key or login is missing, wrong, or not allowed to use the model."""

    kind = "auth"


class QuotaExhausted(ModelError):
    """The account has no credit left."""

    kind = "quota"


class RateLimited(ModelError):
    """The provider refuses requests at this rate."""

    kind = "rate_limit"


class Overloaded(ModelError):
    """The provider failed or is too busy (5xx)."""

    kind = "overloaded"


class TimedOut(ModelError):
    """No reply within the model's `timeout`."""

    kind = "timeout"


class NetworkFailed(ModelError):
    """The connection broke after the request was sent. The call may have been billed."""

    kind = "network"


class NotReached(NetworkFailed):
    """The request was never sent (connection refused, unknown host), so nothing was billed."""


class ContextTooLong(ModelError):
    """The request does not fit into the model's context window."""

    kind = "context_too_long"


class Refused(ModelError):
    """The model or a content filter refused to answer."""

    kind = "refused"


class BadRequest(ModelError):
    """The provider rejects the request itself: unknown model, bad parameter."""

    kind = "config"


class ParameterDropped(BadRequest):
    """The endpoint rejected an optional parameter. The provider leaves it out from now on, so the
    call can be repeated at once.
    """


class BadReply(ModelError):
    """The reply is empty, truncated, malformed, or not of the requested form."""

    kind = "bad_reply"


class CutOff(BadReply):
    """The reply reached its limit of tokens at temperature 0: another attempt would end there
    too.
    """

    kind = "cut_off"


class NotAReply(BadReply):
    """The answer is not a model's reply at all: the address may be wrong, or something on the way
    answers instead of the server.
    """

    kind = "not_a_reply"


class AnswerPending(ModelError):
    """A handoff prompt was written. The run stops until its answer file is there."""

    kind = "handoff"
    exit_code = Exit.HANDOFF


def _plain(value: Any) -> Any:
    """Return a path, mapping or dataclass in a form that `json.dumps` accepts, one level deep."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
