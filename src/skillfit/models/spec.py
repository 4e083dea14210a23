"""What a person may say about a model in a config: an id, and where and how to call it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ModelSpec(BaseModel):
    """One role's model. A bare string in YAML is the id."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    id: str
    """`provider/name`: openai, azure, anthropic, qwen, minimax, ollama, local, cli, handoff, practice, scripted."""
    base_url: str | None = None
    """Endpoint; default: the provider's usual variable or address. Any OpenAI-compatible server works with `openai/`."""
    key_env: str | None = None
    """Name of the environment variable that holds the key, when it is not the provider's usual one."""
    temperature: float | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    """Ceiling of one reply; default 16384 for the optimizer, 4096 for agent and judge."""
    reasoning_effort: str | None = None
    timeout: float = Field(default=300, gt=0)
    """Seconds one attempt may take."""
    retries: int = Field(default=5, ge=0)
    """Attempts after the first, for failures that may pass."""
    thinking: Literal["on", "off", "default"] = "default"
    """qwen, minimax: thinking mode; default leaves it to the server."""
    context_window: int | None = Field(default=None, gt=0)
    """Tokens; default: known models' value, else 128000."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Provider specifics (azure: api_version, auth; minimax: region; local: threads, gpu_layers; cli: sandbox, profile)."""

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {"id": value} if isinstance(value, str) else value
