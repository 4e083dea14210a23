"""From a model's spec to a model that can be called. Other rooms add their own kinds with
`register_provider`.
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from skillfit.errors import InputError
from skillfit.models.client import Client
from skillfit.models.limiter import START, Limiters
from skillfit.models.prices import Prices
from skillfit.models.protocol import Meter, Role
from skillfit.models.provider import Notice, Provider, Setup, log_notice
from skillfit.models.spec import ModelSpec

Factory = Callable[[Setup], Provider]


@dataclass(frozen=True)
class KnownProvider:
    """One way to reach models, for `skillfit models`. `keys`: any one of these variables; none: no
    key needed.
    """

    name: str
    about: str
    keys: tuple[str, ...] = ()
    keyless: bool = False  # works without a key (local servers, logins of a CLI)
    factory: Factory | str = ""  # or `module:function`, imported when first used

    def key_in(self, environ: Mapping[str, str]) -> str | None:
        """The variable that holds the key."""
        return next((name for name in self.keys if environ.get(name, "").strip()), None)

    def configured(self, environ: Mapping[str, str] | None = None) -> bool:
        return self.keyless or self.key_in(os.environ if environ is None else environ) is not None


_HERE = "skillfit.models.providers"
_registry: dict[str, KnownProvider] = {}


def register_provider(
    name: str,
    factory: Factory | str,
    *,
    about: str,
    keys: tuple[str, ...] = (),
    keyless: bool = False,
) -> None:
    """Make ids `name/…` connect through `factory`: a function of `Setup`, or `module:function` to
    import when needed.
    """
    _registry[name] = KnownProvider(name, about, keys, keyless, factory)


def known_providers() -> list[KnownProvider]:
    return sorted(_registry.values(), key=lambda provider: provider.name)


def connect(
    spec: ModelSpec,
    *,
    role: Role,
    run_id: str,
    meter: Meter | None = None,
    limiters: Limiters | None = None,
    prices: Prices | None = None,
    concurrency: int = 32,
    notice: Notice | None = None,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Client:
    """A model behind limiter, retries and metering; `await model.close()` when done.

    Share one `limiters` between all models of a run. `notice` hears what could not be done as
    asked. `folder` is where handoff prompts go. Missing keys and unknown providers are errors here,
    before anything is spent.
    """
    limiters = limiters or Limiters()
    name, _, model = spec.id.partition("/")
    setup = Setup(
        spec,
        model,
        role,
        run_id,
        os.environ if environ is None else environ,
        notice or log_notice,
        folder,
    )
    provider = _factory(name, spec.id)(setup)
    slots = min(concurrency, provider.slots or concurrency)
    limiter = limiters.of(provider.endpoint, slots, start=provider.slots or START)
    return Client(
        provider,
        spec,
        role=role,
        limiter=limiter,
        prices=prices or Prices(),
        clock=limiters.clock,
        meter=meter,
    )


def _factory(name: str, model_id: str) -> Factory:
    known = _registry.get(name)
    if known is None:
        close = difflib.get_close_matches(name, _registry, 1)
        hint = f"Did you mean {close[0]}/…?" if close else f"Known: {', '.join(sorted(_registry))}."
        raise InputError(f"The model {model_id!r} names no provider we know.", hint=hint)
    if callable(known.factory):
        return known.factory
    module, _, function = known.factory.partition(":")
    factory: Factory = getattr(importlib.import_module(module), function)
    return factory


_VENDORS = f"{_HERE}.vendors"
register_provider(
    "openai",
    f"{_VENDORS}:openai",
    about="OpenAI, or any compatible base_url",
    keys=("OPENAI_API_KEY",),
)
register_provider(
    "openrouter", f"{_VENDORS}:openrouter", about="OpenRouter", keys=("OPENROUTER_API_KEY",)
)
register_provider(
    "gemini", f"{_VENDORS}:gemini", about="Google Gemini", keys=("GEMINI_API_KEY", "GOOGLE_API_KEY")
)
register_provider(
    "qwen",
    f"{_VENDORS}:qwen",
    about="Qwen at DashScope, or vLLM at base_url",
    keys=("DASHSCOPE_API_KEY", "QWEN_API_KEY"),
)
register_provider(
    "minimax",
    f"{_VENDORS}:minimax",
    about="MiniMax, regions global and cn",
    keys=("MINIMAX_API_KEY",),
)
register_provider(
    "ollama", f"{_VENDORS}:ollama", about="Ollama on this machine or at OLLAMA_HOST", keyless=True
)
register_provider(
    "azure", f"{_HERE}.vendors:azure", about="Azure OpenAI", keys=("AZURE_OPENAI_API_KEY",)
)
register_provider(
    "anthropic",
    f"{_HERE}.anthropic:anthropic",
    about="Anthropic",
    keys=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
)
register_provider(
    "local", f"{_HERE}.local:local", about="a GGUF file in this process", keyless=True
)
register_provider(
    "handoff",
    f"{_HERE}.handoff:handoff",
    about="prompts as files, answered by anyone",
    keyless=True,
)
register_provider(
    "scripted", f"{_HERE}.scripted:scripted", about="a Python function, path.py:name", keyless=True
)
register_provider(
    "practice",
    "skillfit.models.practice.practice_server:provider",
    about="the built-in practice pair: rules, no language model",
    keyless=True,
)
