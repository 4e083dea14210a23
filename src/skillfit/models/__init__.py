"""Call language models: providers, limiter, retries, prices, structured replies."""

from skillfit.models.client import ask, connect
from skillfit.models.limiter import Limiters
from skillfit.models.prices import Prices, context_window_of
from skillfit.models.protocol import (
    Model,
    ModelError,
    Reply,
    Request,
    Role,
    Usage,
)
from skillfit.models.registry import (
    CHAT_API,
    KnownProvider,
    ModelSpec,
    known_providers,
    register_provider,
)

__all__ = [
    "CHAT_API",
    "KnownProvider",
    "Limiters",
    "Model",
    "ModelError",
    "ModelSpec",
    "Prices",
    "Reply",
    "Request",
    "Role",
    "Usage",
    "ask",
    "connect",
    "context_window_of",
    "known_providers",
    "register_provider",
]
