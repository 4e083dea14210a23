"""A model in a config: its id, and where and how to call it."""

from __future__ import annotations

import re
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

_SECRET = re.compile(
    r"(^|[_-])(api_?key|key|token|secret|password|passwd|sig|signature|code)$", re.IGNORECASE
)


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
    options: dict[str, Any] = Field(default_factory=dict)
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
