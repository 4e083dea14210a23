"""What a provider is: it sends one request to one model. `ModelSpec` is the model in a config,
`Setup` what its provider is created from.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from skillfit.errors import InputError
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import AuthFailed, BadRequest, Reply, Request, Role
from skillfit.models.secrets import remember_secret, remember_setting

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
    local: threads, gpu_layers, slots; cli: sandbox, profile)."""

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
                f"{setting} is {url.partition('?')[0][:200]!r}: not an address.",
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
