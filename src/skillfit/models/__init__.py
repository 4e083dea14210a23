"""Call language models: providers, limiter, retries, prices, structured replies."""

from skillfit.models.client import (
    Client,
    KnownProvider,
    ask,
    connect,
    known_providers,
    register_provider,
)
from skillfit.models.limiter import Limiters
from skillfit.models.prices import Price, Prices, context_window_of, price_of
from skillfit.models.protocol import (
    Image,
    Message,
    Meter,
    Model,
    ModelError,
    ModelSpec,
    Provider,
    Readiness,
    Reply,
    Request,
    Reservation,
    Role,
    Setup,
    Tool,
    ToolCall,
    Usage,
)
from skillfit.models.providers.practice import ScriptedModel
from skillfit.models.secrets import redact

__all__ = [
    "Client",
    "Image",
    "KnownProvider",
    "Limiters",
    "Message",
    "Meter",
    "Model",
    "ModelError",
    "ModelSpec",
    "Price",
    "Prices",
    "Provider",
    "Readiness",
    "Reply",
    "Request",
    "Reservation",
    "Role",
    "ScriptedModel",
    "Setup",
    "Tool",
    "ToolCall",
    "Usage",
    "ask",
    "connect",
    "context_window_of",
    "known_providers",
    "price_of",
    "redact",
    "register_provider",
]
