"""The protocol of model calls: a `Request` goes in, a `Reply` with its `Usage` comes out, or a
typed `ModelError` is raised.

Requests put what stays the same first (system prompt, skill) and what changes last (item), so that
the prompt caches of providers are used. What a run does about each kind of failure is in
`failures.py`.

A `Provider` sends one request to one model. `ModelSpec` is the model in a config, `Setup` what its
provider is created from.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self, get_args
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from skillfit.errors import Exit, InputError, SkillfitError
from skillfit.models.json_text import JsonObject
from skillfit.models.secrets import remember_secret, remember_setting
from skillfit.plain_text import shorten

Role = Literal["agent", "optimizer", "judge"]
ROLES: tuple[Role, ...] = get_args(Role)
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
    parameters: Mapping[str, Any]  # JSON schema


@dataclass(frozen=True, slots=True)
class Request:
    """Everything a model is asked in one call."""

    messages: tuple[Message, ...]
    stage: str  # the stage that asks: rollout, judge, reflect.failure, merge, rank, …
    tools: tuple[Tool, ...] = ()
    schema: Mapping[str, Any] | None = None  # JSON schema that the reply text must follow
    temperature: float | None = None  # None: as the ModelSpec says; so are the next two
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    seed: int | None = None
    # Distinguishes equal requests (item, repeat, turn). Part of the journal key, never sent.
    purpose: str = ""

    def fingerprint(self) -> str:
        """A stable hash of all fields."""
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
        """The reply. Raises `ModelError`, also for replies that are empty, truncated, or contain
        only thinking.
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
        """Around a wait that costs nothing (slot, back-off, Retry-After). Raises as soon as the
        run must stop.
        """
        ...

    def sending(self) -> AbstractAsyncContextManager[None]:
        """Around an attempt that is being sent. Raises as soon as the run's time is over."""
        ...


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


class BadReply(ModelError):
    """The reply is empty, truncated, malformed, or not of the requested form."""

    kind = "bad_reply"


class CutOff(BadReply):
    """The reply reached its limit of tokens at temperature 0: another attempt would end there
    too.
    """

    kind = "cut_off"


class NoReply(BadReply):
    """The answer is not a model's reply at all: the address may be wrong."""


class AnswerPending(ModelError):
    """A handoff prompt was written. The run stops until its answer file is there."""

    kind = "handoff"
    exit_code = Exit.HANDOFF


def _plain(value: Any) -> Any:
    """A path, mapping or dataclass in a form that `json.dumps` accepts, one level deep."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


_SECRET = re.compile(
    r"(^|[_-])(api_?key|key|token|secret|password|passwd|sig|signature|code)$", re.IGNORECASE
)
_HARMLESS_PARAMETERS = ("api-version", "api_version", "version")


class ModelSpec(BaseModel):
    """The model of one role. In YAML a string is the id."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    id: str
    """`provider/name`: openai, azure, anthropic, gemini, openrouter, qwen, minimax, ollama, local,
    cli, handoff, practice, scripted.
    """
    base_url: str | None = None
    """Address of the server; default: the provider's usual variable or address. `openai/` works
    with any OpenAI-compatible server.
    """
    key_env: str | None = None
    """Name of the environment variable that holds the key, when it is not the provider's usual one.
    """
    temperature: float | None = None
    """default: the server's own"""
    max_tokens: int | None = Field(default=None, gt=0)
    """The most tokens of one reply; default 16384 for the optimizer and for reasoning models, 4096
    for agent and judge.
    """
    reasoning_effort: str | None = None
    """low, medium, high, or another value of the vendor; default: the server's own"""
    timeout: float = Field(default=300, gt=0)
    """Seconds one attempt may take."""
    retries: int = Field(default=5, ge=0)
    """Attempts after the first, for failures that may be temporary."""
    thinking: Literal["on", "off", "default"] = "default"
    """qwen, minimax: thinking mode; default: the server's own"""
    context_window: int | None = Field(default=None, gt=0)
    """Tokens. For the optimizer, and for local models of any role; default: the known value of the
    model, else 128000.
    """
    options: JsonObject = Field(default_factory=dict)
    """Provider specifics (openai: api; azure: api_version, auth, scope, client_id; minimax: region;
    local: threads, gpu_layers, slots; cli: login, env, isolation, concurrency and those of the
    program)."""

    @model_validator(mode="after")
    def _without_secrets(self) -> Self:
        """A config is written into the run directory, so it must not contain a key."""
        parts = urlsplit(self.base_url or "")
        names = [*self.options, *(name for name, _ in parse_qsl(parts.query))]
        if parts.username or parts.password or any(_SECRET.search(name) for name in names):
            raise ValueError(
                "keys are read from the environment: set the provider's usual variable, "
                "or name another with key_env"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {"id": value} if isinstance(value, str) else value


Notice = Callable[[str], None]


class Provider(Protocol):
    """Sends a request once. Retries, limits and metering are done by the client.

    Requests arrive with temperature, max_tokens and reasoning_effort filled in from the spec.
    """

    endpoint: str  # providers with the same endpoint share one rate limit
    slots: int | None  # the most requests in flight; None: the provider does not know
    context_window: int | None  # in tokens; None: the provider does not know

    async def send(self, request: Request) -> Reply:
        """The reply with its usage. Raises `ModelError`."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a provider can be used here and now. `detail`: what it found, or what is missing."""

    ready: bool
    detail: str = ""


@dataclass(frozen=True)
class Setup:
    """Everything a provider is created from. Keys are read from `environ`, never from the spec."""

    spec: ModelSpec
    name: str  # the model's id without the provider
    role: Role
    run_id: str
    environ: Mapping[str, str] = field(repr=False)
    notice: Notice = field(repr=False)
    folder: Path | None = None  # where handoff prompts are written

    def takes(
        self,
        *options: str,
        thinking: bool = False,
        base_url: bool = True,
        context_window: bool = False,
    ) -> None:
        """Refuse settings of the spec that this provider would ignore."""
        unknown = sorted(set(self.spec.options) - set(options))
        if unknown:
            hint = f"Available: {', '.join(options)}." if options else "It has no options."
            raise InputError(f"{self.spec.id} has no option `{unknown[0]}`.", hint=hint)
        if self.spec.thinking != "default" and not thinking:
            raise InputError(
                f"{self.spec.id} has no `thinking` switch.",
                hint="Use reasoning_effort, or leave it out.",
            )
        if self.spec.base_url and not base_url:
            raise InputError(
                f"{self.spec.id} has no address, so it takes no `base_url`.", hint="Leave it out."
            )
        if self.spec.context_window and self.role != "optimizer" and not context_window:
            raise InputError(
                f"model.{self.role}.context_window has no effect: only the optimizer's prompts "
                "are cut to fit a context window.",
                hint="Leave it out.",
            )

    def key(self, *usual: str, needed: bool) -> str:
        """The key, from the variable that the spec names or from one of the usual ones."""
        names = (self.spec.key_env,) if self.spec.key_env else usual
        key = self.variable(*names)
        if not (key.isascii() and key.isprintable()):
            raise AuthFailed(
                f"The key for {self.spec.id} in {' or '.join(names)} has a line break or another "
                "character that an HTTP header cannot hold.",
                hint="Set the variable to the key alone.",
            )
        if not key and (needed or self.spec.key_env):
            raise AuthFailed(
                f"No key for {self.spec.id}: {' or '.join(names)} is not set.",
                hint="Set it in the environment.",
            )
        return remember_secret(key)

    def variable(self, *names: str) -> str:
        """The value of the first of these variables that is set, or an empty text."""
        values = (self.environ.get(name, "").strip() for name in names)
        return next((value for value in values if value), "")

    def address(self, *names: str, usual: str = "") -> str:
        """The endpoint: of the spec, else from the first of these variables, else the usual one.

        A user name or password in it is refused. Values in its query are hidden in all messages.
        """
        url = self.spec.base_url or self.variable(*names) or usual
        setting = f"{'base_url' if self.spec.base_url else ' or '.join(names)} of {self.spec.id}"
        if "@" in url:
            raise InputError(
                f"{setting} contains a user name or a key.",
                hint="Give the address alone, and the key in the environment.",
            )
        if url and not _is_address(url):
            raise InputError(
                f"{setting} is {shorten(url.partition('?')[0], 200)!r}: not an address.",
                hint="Give a complete one, for example http://127.0.0.1:8000/v1.",
            )
        for name, value in parse_qsl(urlsplit(url).query):
            if name.lower() not in _HARMLESS_PARAMETERS:
                remember_setting(name, value)
        return url

    def custom_headers(self, variable: str) -> dict[str, str]:
        """Headers that the user wants sent along, from a variable: `Name: value`, one per line."""
        headers: dict[str, str] = {}
        for line in self.environ.get(variable, "").split("\n"):
            name, colon, value = line.partition(":")
            if colon:
                headers[name.strip()] = value.strip()
                remember_setting(name.strip(), value.strip())
        return headers

    def headers(self, request: Request) -> dict[str, str]:
        """Headers by which a gateway can route requests and attribute their cost."""
        return {"X-Skillfit-Stage": request.stage, "X-Skillfit-Run": self.run_id}


class Adapted(BadRequest):
    """The endpoint rejected an optional parameter. The provider leaves it out from now on, so the
    call can be repeated at once.
    """


def log_notice(message: str) -> None:
    logging.getLogger("skillfit.models").warning(message)


def _is_address(url: str) -> bool:
    if not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:  # a port that is no number, a broken IPv6 address, a name with an empty part
        return False
