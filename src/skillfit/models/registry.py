"""From a model's id to a model that can be called: the known providers, and `connect`.

Other packages add providers with `register_provider`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillfit.errors import InputError, did_you_mean
from skillfit.models.client import Client
from skillfit.models.limiter import START, Limiters
from skillfit.models.prices import Prices
from skillfit.models.protocol import (
    Meter,
    ModelSpec,
    Notice,
    Provider,
    Readiness,
    Role,
    Setup,
    log_notice,
)

Factory = Callable[[Setup], Provider]
Check = Callable[[Mapping[str, str]], Readiness]


@dataclass(frozen=True)
class KnownProvider:
    """A provider as `skillfit models` lists it. `keys`: environment variables for its key, of which
    one is enough. Without `keys` it needs none.

    `factory` and `check` are functions, or `module:function` to import when needed.
    """

    name: str
    about: str
    factory: Factory | str
    keys: tuple[str, ...] = ()
    check: Check | str | None = None  # None: a key is all it needs

    def key_in(self, environ: Mapping[str, str]) -> str | None:
        """The variable that holds the key."""
        return next((name for name in self.keys if environ.get(name, "").strip()), None)

    def readiness(self, environ: Mapping[str, str] | None = None) -> Readiness:
        """Whether this provider can be used: its key is set, its module or program is installed,
        its server answers. Takes at most a second.
        """
        environ = os.environ if environ is None else environ
        if self.keys:
            found = self.key_in(environ)
            if found is None:
                return Readiness(False, f"set {' or '.join(self.keys)}")
            if self.check is None:
                return Readiness(True, found)
        check: Check | None = _imported(self.check)
        return check(environ) if check else Readiness(True)


_registry: dict[str, KnownProvider] = {}


def register_provider(
    name: str,
    factory: Factory | str,
    *,
    about: str,
    keys: tuple[str, ...] = (),
    check: Check | str | None = None,
) -> None:
    """Let model ids `name/…` connect through `factory`, a function of `Setup`."""
    _registry[name] = KnownProvider(name, about, factory, keys, check)


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
    """A model with limiter, retries and metering. Call `await model.close()` when done.

    Use one `limiters` for all models of a run. `notice` is called with what could not be done as
    configured, and when calls are retried because the endpoint does not answer. `folder` is where
    handoff prompts are written. Missing keys and unknown providers are errors here, before anything
    is spent.
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
        notice=setup.notice,
    )


def _factory(name: str, model_id: str) -> Factory:
    known = _registry.get(name)
    if known is None:
        hint = did_you_mean(name, _registry) or f"Available: {', '.join(sorted(_registry))}."
        raise InputError(f"Unknown provider {name!r} in model id {model_id!r}.", hint=hint)
    factory: Factory = _imported(known.factory)
    return factory


def _imported(function: Any) -> Any:
    """The function itself, imported when it is given as `module:function`."""
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


_PROVIDERS = "skillfit.models.providers"
register_provider(
    "openai",
    f"{_PROVIDERS}.openai_protocols:openai",
    about="OpenAI, or any compatible base_url",
    keys=("OPENAI_API_KEY",),
)
register_provider(
    "openrouter",
    f"{_PROVIDERS}.openai_protocols:openrouter",
    about="OpenRouter",
    keys=("OPENROUTER_API_KEY",),
)
register_provider(
    "gemini",
    f"{_PROVIDERS}.openai_protocols:gemini",
    about="Google Gemini",
    keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
)
register_provider(
    "qwen",
    f"{_PROVIDERS}.openai_protocols:qwen",
    about="Qwen at DashScope, or vLLM at base_url",
    keys=("DASHSCOPE_API_KEY", "QWEN_API_KEY"),
)
register_provider(
    "minimax",
    f"{_PROVIDERS}.openai_protocols:minimax",
    about="MiniMax, regions global and cn",
    keys=("MINIMAX_API_KEY",),
)
register_provider(
    "ollama",
    f"{_PROVIDERS}.openai_protocols:ollama",
    about="Ollama on this machine or at OLLAMA_HOST",
    check=f"{_PROVIDERS}.openai_protocols:ollama_readiness",
)
register_provider(
    "azure",
    f"{_PROVIDERS}.openai_protocols:azure",
    about="Azure OpenAI",
    keys=("AZURE_OPENAI_API_KEY",),
    check=f"{_PROVIDERS}.openai_protocols:azure_readiness",
)
register_provider(
    "anthropic",
    f"{_PROVIDERS}.anthropic:anthropic",
    about="Anthropic",
    keys=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
)
register_provider(
    "local",
    f"{_PROVIDERS}.local:local",
    about="a GGUF file in this process",
    check=f"{_PROVIDERS}.local:readiness",
)
register_provider(
    "handoff",
    f"{_PROVIDERS}.handoff:handoff",
    about="prompts as files, answered by anyone",
)
register_provider(
    "scripted",
    f"{_PROVIDERS}.practice:scripted",
    about="a Python function, path.py:name",
)
register_provider(
    "practice",
    f"{_PROVIDERS}.practice:practice",
    about="the built-in practice pair: rules, no language model",
)
