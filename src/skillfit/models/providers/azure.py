"""Azure OpenAI: the name is the deployment's; signed in by key, Azure CLI or managed identity."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from skillfit.errors import InputError
from skillfit.models.protocol import AuthFailed
from skillfit.models.provider import Setup
from skillfit.models.providers.chat import ChatProvider
from skillfit.models.providers.http import SignIn, bearer, join
from skillfit.models.providers.responses import ResponsesProvider, needs_responses
from skillfit.models.providers.vendors import openai_headers
from skillfit.models.secrets import remember_secret

_API_VERSION = "2025-04-01-preview"
_SCOPE = "https://cognitiveservices.azure.com/.default"
_AUTH = ("api_key", "azure_cli", "managed_identity")


def azure(setup: Setup) -> ChatProvider:
    setup.takes("api_version", "auth", "scope", "client_id")
    options = setup.spec.options
    endpoint = setup.address("AZURE_OPENAI_ENDPOINT")
    if not endpoint:
        raise InputError(f"No endpoint for {setup.spec.id}.", hint="Set base_url or AZURE_OPENAI_ENDPOINT.")
    auth = str(options.get("auth") or setup.variable("AZURE_OPENAI_AUTH_MODE") or "api_key")
    if auth not in _AUTH:
        raise InputError(f"Azure cannot be signed in to by {auth!r}.", hint=f"`auth` is one of {', '.join(_AUTH)}.")
    key = setup.key("AZURE_OPENAI_API_KEY", needed=False) if auth == "api_key" else ""
    if auth == "api_key" and not key:
        hint = "Set it, or sign in without a key by the option `auth`: azure_cli or managed_identity."
        raise AuthFailed(f"No key for {setup.spec.id}: AZURE_OPENAI_API_KEY is not set.", hint=hint)
    version = str(options.get("api_version") or setup.variable("AZURE_OPENAI_API_VERSION", "OPENAI_API_VERSION") or _API_VERSION)
    responses = needs_responses(setup.name)
    root = join(endpoint, "/openai" if responses else f"/openai/deployments/{quote(setup.name, safe='')}")
    return (ResponsesProvider if responses else ChatProvider)(
        setup,
        base_url=endpoint,
        key=key,
        root=f"{root}?api-version={version}",
        headers=openai_headers(setup) | ({"api-key": key} if key else {}),
        sign_in=None if auth == "api_key" else _sign_in(setup, auth),
    )


def _sign_in(setup: Setup, auth: str) -> SignIn:
    try:
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity import AzureCliCredential, ManagedIdentityCredential, get_bearer_token_provider
    except ImportError as error:
        raise InputError(f"{setup.spec.id} with auth {auth} needs azure-identity.", hint="pip install 'skillfit[azure]'") from error
    client_id = setup.spec.options.get("client_id") or setup.variable("AZURE_OPENAI_MANAGED_IDENTITY_CLIENT_ID") or None
    credential = AzureCliCredential() if auth == "azure_cli" else ManagedIdentityCredential(client_id=client_id)
    scope = str(setup.spec.options.get("scope") or setup.variable("AZURE_OPENAI_AD_SCOPE") or _SCOPE)
    fresh = get_bearer_token_provider(credential, scope)

    async def sign_in() -> dict[str, str]:
        try:
            return bearer(remember_secret(await asyncio.to_thread(fresh)))
        except ClientAuthenticationError as error:
            hint = "Run `az login`." if auth == "azure_cli" else "Is a managed identity assigned to this machine?"
            raise AuthFailed(f"Azure gave no token for {setup.spec.id} ({auth}): {error.message}", hint=hint) from error

    return sign_in
