"""The vendors' own SDKs as a way to send: what they add to a request (their headers, proxies, TLS)
is theirs to keep right.

The vendor itself is called so. Other servers that speak its API are called by `http.Endpoint`, at a
fraction of the CPU.

Parameters a request can do without: what an endpoint turns out not to take is left out from then
on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from skillfit.errors import InputError
from skillfit.models.failures import NotReached, classify, read_json
from skillfit.models.protocol import BadRequest, ModelError, NetworkFailed, NoReply
from skillfit.models.provider import Adapted, Notice, Setup
from skillfit.models.secrets import redact

Vendor = Literal["openai", "anthropic"]
# By name, because the SDKs have moved between HTTP libraries that name these alike.
_NEVER_SENT = ("ConnectError", "ConnectTimeout", "UnsupportedProtocol", "ProxyError")


def through_sdk(setup: Setup, vendor: Vendor, own_address: bool) -> bool:
    """Whether the vendor's SDK is used: as the option `sdk` says, else where it is installed and
    the vendor itself is called.
    """
    asked, there = setup.spec.options.get("sdk"), find_spec(vendor) is not None
    if asked and not there:
        raise InputError(
            f"{setup.spec.id} with `sdk` needs the {vendor} package.",
            hint=f"pip install 'skillfit[{vendor}]'",
        )
    return bool(asked) if asked is not None else there and not own_address


class OfficialSdk:
    """Takes what `http.Endpoint` takes and gives what it gives."""

    def __init__(
        self,
        vendor: Vendor,
        base_url: str,
        path: str,
        where: str,
        headers: Mapping[str, str],
        **sign_in: str,
    ) -> None:
        self._base_url, self._path, self._where, self._headers, self._how = (
            base_url,
            path,
            where,
            headers,
            sign_in,
        )
        self._sdk: Any = import_module(vendor)
        self._client: Any = self._connect()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """The object that is the answer, or a typed failure. How long it may take is the caller's
        business.
        """
        import httpx2  # below both SDKs

        options = {"headers": {**self._headers, **headers}}
        try:
            # Straight to the path: the typed methods walk every message along their types, which
            # costs more than all the rest.
            raw = await self._open().post(
                self._path, cast_to=httpx2.Response, body=dict(body), options=options
            )
        except self._sdk.APIError as error:
            raise self._failure(error) from error
        return read_json(raw.text, raw.headers.get("content-type", ""), self._where)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    def _connect(self) -> Any:
        make = getattr(self._sdk, "AsyncOpenAI", None) or self._sdk.AsyncAnthropic
        return make(base_url=self._base_url, max_retries=0, timeout=None, **self._how)

    def _open(self) -> Any:
        """The SDK's client: its connections belong to the event loop they were made in."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop not in (None, loop):
            self._client = self._connect()
        self._loop = loop
        return self._client

    def _failure(self, error: Any) -> ModelError:
        if isinstance(error, self._sdk.APIStatusError):
            return classify(
                error.status_code,
                error.body or error.response.text,
                error.response.headers,
                self._where,
            )
        cause = error.__cause__ or error
        if isinstance(error, self._sdk.APIConnectionError) and type(cause).__name__ in _NEVER_SENT:
            return NotReached(
                redact(f"Cannot reach {self._where}: {cause}."),
                hint="Is the server running and the base_url right?",
            )
        if isinstance(error, self._sdk.APIConnectionError):
            return NetworkFailed(
                redact(f"The connection to {self._where} broke off: {type(cause).__name__} {cause}")
            )
        return NoReply(redact(f"{self._where} answered with something unreadable: {error}"))


_NOT_TAKEN = re.compile(
    r"unsupported|not support|n't support|unrecognized|unknown|unexpected|not permitted|not allowed|extra (field|input)|unavailable"
    r"|not available|deprecated|only the default"
)


class OptionalParameters:
    """Parameters a call can do without. What the endpoint refuses is left out from then on, and
    said once.

    `words` are those in the endpoint's complaint that name the parameter; `instead` says what
    happens in its place.
    """

    def __init__(
        self,
        where: str,
        notice: Notice,
        words: Mapping[str, Collection[str]],
        instead: Mapping[str, str],
    ) -> None:
        self._where = where
        self._notice = notice
        self._words = words
        self._instead = instead
        self.left_out: set[str] = set()

    def leave_out(self, name: str, why: str) -> None:
        if name not in self.left_out:
            self.left_out.add(name)
            self._notice(
                f"{self._where} does not take `{name}`: {self._instead.get(name, 'it is left out')}. ({why})"
            )

    def adapt(self, failure: BadRequest, sent: Collection[str]) -> None:
        """Raises `Adapted` when the failure is about a parameter that was sent and need not be."""
        said = failure.message.lower()
        for name, words in self._words.items():
            about_it = name in sent and any(word in said for word in words)
            if about_it and (name in self._instead or _NOT_TAKEN.search(said)):
                self.leave_out(name, failure.message)
                raise Adapted(failure.message) from failure
