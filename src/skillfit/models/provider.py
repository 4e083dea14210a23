"""What a provider is: one attempt at a request, and how providers are found by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from skillfit.errors import InputError
from skillfit.models.protocol import AuthFailed, BadRequest, Reply, Request, Role
from skillfit.models.secrets import remember_secret
from skillfit.models.spec import ModelSpec

Notice = Callable[[str], None]


class Provider(Protocol):
    """One attempt: no retries, no limits, no metering; those are the client's.

    Requests arrive with temperature, max_tokens and reasoning_effort already resolved.
    """

    endpoint: str  # who shares a rate limit
    slots: int | None  # requests in flight at the most, where the provider itself knows
    context_window: int | None  # tokens, where the provider itself knows

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

    def takes(
        self,
        *options: str,
        thinking: bool = False,
        base_url: bool = True,
        context_window: bool = False,
    ) -> None:
        """Every setting acts: refuse what this provider would ignore."""
        unknown = sorted(set(self.spec.options) - set(options))
        if unknown:
            hint = f"It takes {', '.join(options)}." if options else "It takes none."
            raise InputError(f"{self.spec.id} has no option `{unknown[0]}`.", hint=hint)
        if self.spec.thinking != "default" and not thinking:
            raise InputError(
                f"{self.spec.id} has no `thinking` switch.",
                hint="Use reasoning_effort, or leave it out.",
            )
        if self.spec.base_url and not base_url:
            raise InputError(
                f"{self.spec.id} is at no address: `base_url` means nothing to it.",
                hint="Leave it out.",
            )
        if self.spec.context_window and self.role != "optimizer" and not context_window:
            raise InputError(
                f"model.{self.role}.context_window: only the optimizer's prompts are cut to fit a window.",
                hint="Leave it out.",
            )

    def key(self, *usual: str, needed: bool) -> str:
        """The key, from the variable the spec names or one of the usual ones."""
        names = (self.spec.key_env,) if self.spec.key_env else usual
        key = remember_secret(self.variable(*names))
        if not key and (needed or self.spec.key_env):
            raise AuthFailed(
                f"No key for {self.spec.id}: {' or '.join(names)} is not set.",
                hint="Set it in the environment.",
            )
        return key

    def variable(self, *names: str) -> str:
        """The first of these variables that is set, or nothing."""
        return next(
            (self.environ[name].strip() for name in names if self.environ.get(name, "").strip()), ""
        )

    def address(self, *names: str, usual: str = "") -> str:
        """The endpoint: the spec's, else the first of these variables, else the usual one. Messages
        show it, so a sign-in may not stand in it; requests carry one of their own, so it could not
        be used anyway.
        """
        url = self.spec.base_url or self.variable(*names) or usual
        said = f"{'base_url' if self.spec.base_url else ' or '.join(names)} of {self.spec.id}"
        try:
            parts = urlsplit(url)
            right = not url or (
                parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            )
        except ValueError:  # a port that is no number, a broken IPv6 address
            right = False
        if "@" in url:
            raise InputError(
                f"{said} carries a user name or a key.",
                hint="Give the address alone, and the key in the environment.",
            )
        if not right:
            raise InputError(
                f"{said} is {url!r}: not an address.",
                hint="Write it out, for example http://127.0.0.1:8000/v1.",
            )
        return url

    def custom_headers(self, name: str) -> dict[str, str]:
        """Headers that a person wants sent along, from this variable: `Name: value`, one a line."""
        pairs = (
            line.partition(":") for line in self.environ.get(name, "").splitlines() if ":" in line
        )
        return {header.strip(): value.strip() for header, _, value in pairs}

    def headers(self, request: Request) -> dict[str, str]:
        """So gateways can route and attribute cost."""
        return {"X-Skillfit-Stage": request.stage, "X-Skillfit-Run": self.run_id}


class Adapted(BadRequest):
    """The endpoint refused one optional parameter; the provider leaves it out from now on, so the
    call can go again at once.
    """


def log_notice(message: str) -> None:
    logging.getLogger("skillfit.models").warning(message)
