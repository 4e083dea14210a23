"""Vendors with an OpenAI API: their addresses, their keys, and what each does differently.

For Azure OpenAI the model's name is that of the deployment. It signs in by key, Azure CLI or
managed identity.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from http.client import HTTPException
from urllib.parse import quote, urlsplit

from skillfit.errors import InputError
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import AuthFailed, Readiness, Setup
from skillfit.models.providers.http import SignIn, bearer, join
from skillfit.models.providers.openai_protocols import (
    ChatProvider,
    ResponsesProvider,
    needs_responses,
)
from skillfit.models.secrets import remember_secret

_MINIMAX = {"global": "https://api.minimax.io/v1", "cn": "https://api.minimaxi.com/v1"}
_MINIMAX_REGION_NAMES = {"global_en": "global", "cn_zh": "cn"}
_NO_EFFORT = {"reasoning_effort": "this vendor has `thinking: on` or `off` instead"}


def openai(setup: Setup) -> ChatProvider:
    """OpenAI, or a server with its API at `base_url` or OPENAI_BASE_URL, which may need no key."""
    setup.takes("api")
    base_url = setup.address("OPENAI_BASE_URL")
    api = setup.spec.options.get(
        "api", "responses" if not base_url and needs_responses(setup.name) else "chat"
    )
    if api not in ("chat", "responses"):
        raise InputError(
            f"The option `api` of {setup.spec.id} is {api!r}.", hint="Use chat or responses."
        )
    kind = ResponsesProvider if api == "responses" else ChatProvider
    key = setup.key("OPENAI_API_KEY", needed=not base_url)
    headers = bearer(key) | openai_headers(setup)
    return kind(setup, base_url=base_url or "https://api.openai.com/v1", key=key, headers=headers)


def openai_headers(setup: Setup) -> dict[str, str]:
    """Headers that OpenAI's usual variables ask for."""
    wanted = {
        "OpenAI-Organization": setup.variable("OPENAI_ORG_ID"),
        "OpenAI-Project": setup.variable("OPENAI_PROJECT_ID"),
    }
    return {name: value for name, value in wanted.items() if value} | setup.custom_headers(
        "OPENAI_CUSTOM_HEADERS"
    )


def openrouter(setup: Setup) -> ChatProvider:
    """OpenRouter."""
    setup.takes()
    key = setup.key("OPENROUTER_API_KEY", needed=True)
    return ChatProvider(
        setup, base_url=setup.address(usual="https://openrouter.ai/api/v1"), key=key
    )


def gemini(setup: Setup) -> ChatProvider:
    """Google Gemini, through its OpenAI API."""
    setup.takes()
    key = setup.key("GEMINI_API_KEY", "GOOGLE_API_KEY", needed=True)
    return ChatProvider(
        setup,
        base_url=setup.address(usual="https://generativelanguage.googleapis.com/v1beta/openai"),
        key=key,
    )


def qwen(setup: Setup) -> ChatProvider:
    """DashScope, or a server of Qwen models (vLLM, SGLang) at `base_url`. Their switches for
    thinking differ.
    """
    setup.takes(thinking=True)
    own = setup.address("QWEN_BASE_URL", "QWEN_CHAT_BASE_URL", "DASHSCOPE_BASE_URL")
    base_url = own or "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"
    key = setup.key("DASHSCOPE_API_KEY", "QWEN_API_KEY", "QWEN_CHAT_API_KEY", needed=not own)
    extra: JsonObject = {}
    if setup.spec.thinking != "default":
        switch = {"enable_thinking": setup.spec.thinking == "on"}
        dashscope = "dashscope" in (urlsplit(base_url).hostname or "")
        extra = switch if dashscope else {"chat_template_kwargs": switch}
    return ChatProvider(setup, base_url=base_url, key=key, extra=extra, never=_NO_EFFORT)


def minimax(setup: Setup) -> ChatProvider:
    """MiniMax. Its API wants names in their own spelling (MiniMax-M2), whatever the config has."""
    setup.takes("region", thinking=True)
    setup = replace(setup, name=re.sub(r"(?i)^minimax-m(?=\d)", "MiniMax-M", setup.name))
    region = str(setup.spec.options.get("region") or setup.variable("MINIMAX_REGION") or "global")
    region = _MINIMAX_REGION_NAMES.get(region, region)
    if region not in _MINIMAX:
        raise InputError(
            f"MiniMax has no region {region!r}.", hint=f"Available: {', '.join(_MINIMAX)}."
        )
    if setup.spec.thinking == "off" and setup.name.startswith("MiniMax-M2"):
        raise InputError(
            f"{setup.spec.id} always thinks: `thinking: off` is not possible.",
            hint="Leave `thinking` out.",
        )
    thinking = {"on": "adaptive", "off": "disabled"}.get(setup.spec.thinking)
    base_url = setup.address("MINIMAX_BASE_URL", usual=_MINIMAX[region])
    key = setup.key("MINIMAX_API_KEY", needed=True)
    return ChatProvider(
        setup,
        base_url=base_url,
        key=key,
        extra={"thinking": {"type": thinking}} if thinking else {},
        never=_NO_EFFORT,
    )


def ollama(setup: Setup) -> ChatProvider:
    """Ollama on this machine or at OLLAMA_HOST. It silently cuts prompts that are longer than its
    context size, so ours must be the same.
    """
    setup.takes()
    base_url = setup.address(usual=f"{ollama_address(setup.variable('OLLAMA_HOST'))}/v1")
    context = setup.variable("OLLAMA_CONTEXT_LENGTH")
    window = int(context) if context.isdigit() else None
    return ChatProvider(
        setup, base_url=base_url, key=setup.key(needed=False), context_window=window
    )


def ollama_address(host: str) -> str:
    """The URL that OLLAMA_HOST means: it may be a URL, `host:port`, a host, or 0.0.0.0."""
    try:
        parts = urlsplit(host if "://" in host else f"http://{host}")
        port = parts.port or (443 if parts.scheme == "https" else 11434)
    except ValueError as error:
        raise InputError(
            f"OLLAMA_HOST is {host!r}: not an address ({error}).",
            hint="For example 127.0.0.1:11434.",
        ) from error
    name = parts.hostname if parts.hostname not in (None, "", "0.0.0.0") else "127.0.0.1"
    return f"{parts.scheme}://{name}:{port}"


def ollama_readiness(environ: Mapping[str, str]) -> Readiness:
    """Whether an Ollama server answers."""
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        address = ollama_address(environ.get("OLLAMA_HOST", "").strip())
        with urlopen(f"{address}/api/version", timeout=0.5):
            return Readiness(True, f"answers at {address}")
    except InputError as error:
        return Readiness(False, error.message)
    except (URLError, OSError, ValueError, HTTPException):
        return Readiness(False, f"no server answers at {address}")


_API_VERSION = "2025-04-01-preview"
_SCOPE = "https://cognitiveservices.azure.com/.default"
_AUTH = ("api_key", "openai_compatible", "azure_cli", "managed_identity")


def azure(setup: Setup) -> ChatProvider:
    """Azure OpenAI. With `auth: openai_compatible` the endpoint is called as a plain OpenAI API."""
    setup.takes("api_version", "auth", "scope", "client_id")
    options = setup.spec.options
    endpoint = setup.address("AZURE_OPENAI_ENDPOINT")
    if not endpoint:
        raise InputError(
            f"No endpoint for {setup.spec.id}.", hint="Set base_url or AZURE_OPENAI_ENDPOINT."
        )
    auth = str(options.get("auth") or setup.variable("AZURE_OPENAI_AUTH_MODE") or "api_key")
    if auth not in _AUTH:
        raise InputError(
            f"Azure has no sign-in {auth!r}.", hint=f"`auth` is one of {', '.join(_AUTH)}."
        )
    by_key = auth in ("api_key", "openai_compatible")
    key = setup.key("AZURE_OPENAI_API_KEY", needed=False) if by_key else ""
    if by_key and not key:
        raise AuthFailed(
            f"No key for {setup.spec.id}: AZURE_OPENAI_API_KEY is not set.",
            hint="Set it, or sign in without a key: option `auth`, azure_cli or managed_identity.",
        )
    if auth == "openai_compatible":
        headers = bearer(key) | openai_headers(setup)
        return ChatProvider(setup, base_url=endpoint, key=key, headers=headers)
    version = str(
        options.get("api_version")
        or setup.variable("AZURE_OPENAI_API_VERSION", "OPENAI_API_VERSION")
        or _API_VERSION
    )
    responses = needs_responses(setup.name)
    root = join(
        endpoint, "/openai" if responses else f"/openai/deployments/{quote(setup.name, safe='')}"
    )
    return (ResponsesProvider if responses else ChatProvider)(
        setup,
        base_url=endpoint,
        key=key,
        root=f"{root}?api-version={version}",
        headers=openai_headers(setup) | ({"api-key": key} if key else {}),
        sign_in=None if by_key else _sign_in(setup, auth),
    )


def azure_readiness(environ: Mapping[str, str]) -> Readiness:
    """A key alone is not enough: the endpoint must be known too."""
    if environ.get("AZURE_OPENAI_ENDPOINT", "").strip():
        return Readiness(True, "AZURE_OPENAI_API_KEY and AZURE_OPENAI_ENDPOINT")
    return Readiness(False, "set AZURE_OPENAI_ENDPOINT, or give base_url in the config")


def _sign_in(setup: Setup, auth: str) -> SignIn:
    """A function that gives a fresh token of azure-identity."""
    try:
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity import (
            AzureCliCredential,
            ManagedIdentityCredential,
            get_bearer_token_provider,
        )
    except ImportError as error:
        raise InputError(
            f"{setup.spec.id} with auth {auth} needs azure-identity.",
            hint="pip install 'skillfit[azure]'",
        ) from error
    client_id = (
        setup.spec.options.get("client_id")
        or setup.variable("AZURE_OPENAI_MANAGED_IDENTITY_CLIENT_ID")
        or None
    )
    credential = (
        AzureCliCredential()
        if auth == "azure_cli"
        else ManagedIdentityCredential(client_id=client_id)
    )
    scope = str(
        setup.spec.options.get("scope") or setup.variable("AZURE_OPENAI_AD_SCOPE") or _SCOPE
    )
    fresh = get_bearer_token_provider(credential, scope)

    async def sign_in() -> dict[str, str]:
        try:
            return bearer(remember_secret(await asyncio.to_thread(fresh)))
        except ClientAuthenticationError as error:
            hint = (
                "Run `az login`."
                if auth == "azure_cli"
                else "Is a managed identity assigned to this machine?"
            )
            raise AuthFailed(
                f"Azure gave no token for {setup.spec.id} ({auth}): {error.message}", hint=hint
            ) from error

    return sign_in
