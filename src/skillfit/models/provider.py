"""What a provider is: one attempt at a request, and how providers are found by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from skillfit.models.protocol import BadRequest, Reply, Request, Role
from skillfit.models.spec import ModelSpec

Notice = Callable[[str], None]


class Provider(Protocol):
    """One attempt: no retries, no limits, no metering; those are the client's.

    `endpoint` names who shares a rate limit, `slots` caps requests in flight where the provider itself knows the number.
    Requests arrive with temperature, max_tokens and reasoning_effort already resolved.
    """

    endpoint: str
    slots: int | None

    async def send(self, request: Request) -> Reply:
        """The reply as it came with its usage, or a typed `ModelError`."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Setup:
    """Everything a provider is made from. Keys are read from `environ`, never from the spec."""

    spec: ModelSpec
    name: str  # the id without its provider
    role: Role
    run_id: str
    environ: Mapping[str, str] = field(repr=False)
    notice: Notice = field(repr=False)
    folder: Path | None = None  # where handoff prompts go

    def headers(self, request: Request) -> dict[str, str]:
        """So gateways can route and attribute cost."""
        return {"X-Skillfit-Stage": request.stage, "X-Skillfit-Run": self.run_id}


class Adapted(BadRequest):
    """The endpoint refused one optional parameter; the provider leaves it out from now on, so the call can go again at once."""


def log_notice(message: str) -> None:
    logging.getLogger("skillfit.models").warning(message)
