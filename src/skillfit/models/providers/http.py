"""JSON over HTTP: one request to a model server, and its answer as an object or a typed failure.
Every vendor is called so.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pydantic_core

from skillfit.errors import InputError
from skillfit.models.failures import NotReached, classify, read_json
from skillfit.models.protocol import NetworkFailed
from skillfit.models.secrets import redact, remember_secret

if TYPE_CHECKING:
    import ssl

    import aiohttp


SignIn = Callable[[], Awaitable[Mapping[str, str]]]

# seconds an idle connection is kept: many servers hang up after five, and a request must not meet
# that
_IDLE = 4.0


class Endpoint:
    """An address that takes JSON. `headers` go with every request; `sign_in` is asked for more
    before each: tokens expire.
    """

    def __init__(
        self, url: str, where: str, headers: Mapping[str, str], sign_in: SignIn | None = None
    ) -> None:
        self._url = url
        self._where = where
        self._headers = {"User-Agent": "skillfit", "Content-Type": "application/json", **headers}
        self._sign_in = sign_in
        # Only `Authorization` is held back by itself when a redirect leads to another host.
        self._follow = not {"api-key", "x-api-key"} & {name.lower() for name in headers}
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """The object that is the answer, or a typed failure. How long it may take is the caller's
        business.
        """
        import aiohttp

        # Not the session's own headers: aiohttp would show those to a proxy, keys and all.
        headers = {**self._headers, **headers, **(await self._sign_in() if self._sign_in else {})}
        data = pydantic_core.to_json(body)
        try:
            async with self._open().post(
                self._url, data=data, headers=headers, allow_redirects=self._follow
            ) as answer:
                text = await answer.text(errors="replace")
        except aiohttp.ClientHttpProxyError as error:
            said = f"Cannot reach {self._where}: the proxy answered {error.status} {error.message}."
            raise NotReached(
                said, hint="Check the proxy's address and sign-in."
            ) from None  # the error shows its password
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            hint = "Is the server running and the base_url right?"
            raise NotReached(redact(f"Cannot reach {self._where}: {error}."), hint=hint) from error
        except aiohttp.ClientError as error:
            raise NetworkFailed(
                redact(f"The connection to {self._where} broke off: {type(error).__name__} {error}")
            ) from error
        if not 200 <= answer.status < 300:
            raise classify(answer.status, _json_or_text(text), answer.headers, self._where)
        return read_json(text, answer.headers.get("Content-Type", ""), self._where)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        """The connections, made when first needed: they belong to the event loop they were made in."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._session, self._loop = self._connect(), loop
        return self._session

    def _connect(self) -> aiohttp.ClientSession:
        import aiohttp

        # How many at a time and for how long is decided above: by the limiter, and by the model's
        # `timeout`.
        trusted = _trusted() if self._url.startswith("https:") else True
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE, ssl=trusted)
        unhurried = aiohttp.ClientTimeout(total=None)
        return aiohttp.ClientSession(
            connector=connector, timeout=unhurried, proxy=proxy_for(self._url)
        )


def bearer(key: str) -> dict[str, str]:
    """The key as a header. Servers of one's own need none, but some refuse a request without the
    header.
    """
    return {"Authorization": f"Bearer {key or 'none'}"}


def join(base_url: str, path: str) -> str:
    """The address of `path` under `base_url`, whose query stays at the end."""
    parts = urlsplit(base_url)
    return parts._replace(path=parts.path.rstrip("/") + path).geturl()


def proxy_for(url: str) -> str | None:
    """The proxy the environment names for this address: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, but for
    what NO_PROXY lists.
    """
    from urllib.request import getproxies, proxy_bypass

    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    remember_secret(urlsplit(proxy).password or "")
    if not proxy.startswith(("http://", "https://")):
        raise InputError(
            f"The proxy for {parts.hostname} is of the kind {proxy.partition('://')[0]}, which cannot be used.",
            hint=f"Set {parts.scheme.upper()}_PROXY to an HTTP proxy, or name the host in NO_PROXY.",
        )
    return proxy


def _trusted() -> ssl.SSLContext:
    """SSL_CERT_FILE and SSL_CERT_DIR where they are set, else what the system trusts."""
    import ssl

    file, folder = (os.environ.get(name) or None for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
    if sys.platform in ("win32", "darwin") and not (file or folder):
        import truststore

        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context(cafile=file, capath=folder)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
