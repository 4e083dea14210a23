"""The one way to call a model: a request goes in, a reply with its usage comes out, or a typed
failure is raised.

Everything here is plain data. Requests put what stays the same first (system, skill) and what
changes last (item), so provider prompt caches hit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from skillfit.errors import Exit, SkillfitError

Role = Literal["agent", "optimizer", "judge"]
FinishReason = Literal["stop", "length", "tool_calls", "refused", "other"]


@dataclass(frozen=True, slots=True)
class Image:
    """An image by reference; its bytes are read at the moment of the call."""

    path: Path
    media_type: str = "image/png"
    detail: Literal["auto", "low", "high"] = "auto"


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # JSON text, as the model wrote it


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: tuple[Image, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    parameters: Mapping[str, Any]  # JSON schema


@dataclass(frozen=True, slots=True)
class Request:
    messages: tuple[Message, ...]
    # rollout, judge, reflect.failure, reflect.success, merge, rank, rewrite, slow_update,
    # meta_skill, …
    stage: str
    tools: tuple[Tool, ...] = ()
    schema: Mapping[str, Any] | None = None  # JSON schema the reply text must follow
    temperature: float | None = None  # None: the model spec's value
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    seed: int | None = None
    purpose: str = (
        ""  # tells equal requests apart (item, repeat, turn): part of the journal key, never sent
    )

    def fingerprint(self) -> str:
        """Stable hash of everything that makes this request this request."""
        return hashlib.sha256(
            json.dumps(self, sort_keys=True, ensure_ascii=False, default=_plain).encode()
        ).hexdigest()


@dataclass(frozen=True, slots=True)
class Usage:
    """What calls cost. `input` includes `cached` and `written`, `output` includes `reasoning`;
    `usd` None: no price is known.
    """

    calls: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    usd: float | None = 0.0
    written: int = 0  # input put into the provider's prompt cache, where that has its own price

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
        )


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)  # of every attempt, failed ones included
    model: str = ""  # what the provider says answered

    def with_usage(self, usage: Usage) -> Reply:
        return Reply(self.text, self.tool_calls, self.finish_reason, usage, self.model)


class Model(Protocol):
    """Anything that completes a request: a provider behind retries and limiter, a recorded one, a
    scripted one.
    """

    @property
    def id(self) -> str: ...

    @property
    def context_window(self) -> int:
        """Tokens that fit in one request and its reply."""
        ...

    async def complete(self, request: Request) -> Reply:
        """The reply, or a `ModelError`. Empty, truncated and thought-only replies are errors, not
        answers.
        """
        ...


class Reservation(Protocol):
    def settle(self, usage: Usage) -> None:
        """Replace the reserved estimate by what the attempt really used (zero when nothing was
        billed).
        """
        ...


class Meter(Protocol):
    """Asked before every attempt, told after it: the budget."""

    async def reserve(self, role: Role, upper_bound: Usage) -> Reservation:
        """Set `upper_bound` aside, or raise when it would pass a cap."""
        ...


class ModelError(SkillfitError):
    """A call that gave no answer. `kind` is the failure's name in journals and reports; `usage` is
    what it cost all the same.
    """

    kind = "model"
    retryable = False
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


class AuthFailed(ModelError):
    kind = "auth"


class QuotaExhausted(ModelError):
    kind = "quota"


class RateLimited(ModelError):
    kind = "rate_limit"
    retryable = True


class Overloaded(ModelError):
    kind = "overloaded"
    retryable = True


class TimedOut(ModelError):
    kind = "timeout"
    retryable = True


class NetworkFailed(ModelError):
    kind = "network"
    retryable = True


class ContextTooLong(ModelError):
    kind = "context_too_long"


class Refused(ModelError):
    kind = "refused"


class BadRequest(ModelError):
    """The provider rejects the request itself (unknown model, bad parameter): a config error, never
    retried.
    """

    kind = "config"


class BadReply(ModelError):
    """Empty, truncated, thought-only, or not of the asked form."""

    kind = "bad_reply"
    retryable = True


class NoReply(BadReply):
    """What came is no model's reply at all, as from an address where something else stands."""


class AnswerPending(ModelError):
    """A handoff prompt was written; the run stops until its answer is dropped beside it."""

    kind = "handoff"
    exit_code = Exit.HANDOFF


def _plain(value: Any) -> Any:
    """What JSON has no form for, one level deep."""
    if isinstance(value, Path):
        return str(value)
    return (
        dict(value)
        if isinstance(value, Mapping)
        else {name: getattr(value, name) for name in value.__dataclass_fields__}
    )
