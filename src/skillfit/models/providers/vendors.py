"""Vendors that speak the OpenAI chat API: where they are, which key they want, what they do differently."""

from __future__ import annotations

from skillfit.models.protocol import AuthFailed
from skillfit.models.provider import Setup
from skillfit.models.providers.chat import ChatProvider
from skillfit.models.secrets import find_key


def _key(setup: Setup, *usual: str, needed: bool) -> str:
    names = (setup.spec.key_env,) if setup.spec.key_env else usual
    key = find_key(setup.environ, names)
    if needed and not key:
        raise AuthFailed(f"No key for {setup.spec.id}: {' or '.join(names)} is not set.", hint="Set it in the environment.")
    return key


def openai(setup: Setup) -> ChatProvider:
    base_url = setup.spec.base_url or setup.environ.get("OPENAI_BASE_URL", "").strip()
    key = _key(setup, "OPENAI_API_KEY", needed=not base_url)
    return ChatProvider(setup, base_url=base_url or "https://api.openai.com/v1", key=key)
