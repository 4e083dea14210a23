"""Call language models: providers, limiter, retries, prices, structured replies."""

from skillfit.models.client import Client, ask, connect
from skillfit.models.limiter import Limiters
from skillfit.models.prices import Prices, context_window_of
from skillfit.models.protocol import (
    Image,
    Message,
    Model,
    ModelError,
    Reply,
    Request,
    Role,
    Tool,
    ToolCall,
    Usage,
)
from skillfit.models.registry import ModelSpec, Readiness, Setup, known_providers, register_provider
from skillfit.models.secrets import redact

__all__ = [
    "Client",
    "Image",
    "Limiters",
    "Message",
    "Model",
    "ModelError",
    "ModelSpec",
    "Prices",
    "Readiness",
    "Reply",
    "Request",
    "Role",
    "Setup",
    "Tool",
    "ToolCall",
    "Usage",
    "ask",
    "connect",
    "context_window_of",
    "known_providers",
    "redact",
    "register_provider",
]
