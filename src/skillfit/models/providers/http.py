"""The HTTP layer of all providers: send JSON to a model server, get an object or a typed failure.

What a server can do is limited here: a reply has at most `MAX_REPLY_BYTES`, redirects to another
host are not followed, and cookies are not kept.

Optional parameters of a request: one that the endpoint rejects is left out from then on.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import sys
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import pydantic_core

from skillfit.errors import InputError
from skillfit.models.failures import classify, read_json
from skillfit.models.json_text import JsonObject, parse_json
from skillfit.models.protocol import (
    BadRequest,
    NetworkFailed,
    NotAReply,
    Notice,
    NotReached,
    ParameterDropped,
)
from skillfit.models.secrets import redact, remember_secret
from skillfit.plain_text import one_line, shorten

if TYPE_CHECKING:
    import ssl

    import aiohttp


SignIn = Callable[[], Awaitable[Mapping[str, str]]]

MAX_REPLY_BYTES = 8 << 20  # a reply of 128,000 tokens has less than 4 MB
MAX_ERROR_BYTES = 64 << 10  # the rest of a longer error answer is not read
# Seconds an idle connection is kept. Many servers close theirs after five, and a request on a
# connection that is just being closed would fail.
_IDLE_SECONDS = 4.0
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 3
_MAX_LOCATION = 300  # characters of a redirect's address in messages
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "windows-1252")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = ("content-length", "transfer-encoding")  # the HTTP library writes these itself
_NOT_TAKEN = re.compile(
    r"unsupported|not support|n't support|unrecognized|unknown|unexpected|not permitted"
    r"|not allowed|extra (field|input)|unavailable|not available|deprecated|only the default"
)


class Endpoint:
    """An address that takes JSON. `headers` go with every request. `sign_in` gives further headers
    and is called before each request, because tokens expire. `where` names the model and its
    address in messages.
    """

    def __init__(
        self, url: str, where: str, headers: Mapping[str, str], sign_in: SignIn | None = None
    ) -> None:
        self._url = url
        self._where = where
        self._headers = {
            "User-Agent": "skillfit",
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            **headers,
        }
        _check_headers(self._headers, where)
        self._sign_in = sign_in
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post(self, body: JsonObject, headers: Mapping[str, str]) -> JsonObject:
        """Return the object in the answer. Raises `ModelError`. There is no time limit: the caller
        sets one.
        """
        import aiohttp

        signed_in = await self._sign_in() if self._sign_in else {}
        # Headers are given per request: aiohttp would send those of the session to a proxy too.
        headers = {**headers, **signed_in}
        _check_headers(headers, self._where)
        headers = {**self._headers, **headers}
        data = pydantic_core.to_json(body)
        try:
            url = self._url
            for _ in range(_MAX_REDIRECTS + 1):
                sent = self._open().post(url, data=data, headers=headers, allow_redirects=False)
                async with sent as answer:
                    if answer.status in _REDIRECTS:
                        url = self._redirected(answer, url)
                        continue
                    ok = 200 <= answer.status < 300
                    text = await self._read(answer, is_reply=ok)
                    break
            else:
                raise BadRequest(
                    f"{self._where} redirects more than {_MAX_REDIRECTS} times.",
                    hint="Check the base_url.",
                )
        except aiohttp.ClientHttpProxyError as error:
            raise NotReached(
                f"Cannot reach {self._where}: the proxy answered {error.status} {error.message}.",
                hint="Check the proxy's address and sign-in.",
            ) from None  # the original error shows the proxy's password
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL, UnicodeError) as error:
            raise NotReached(
                redact(f"Cannot reach {self._where}: {_described(error)}."),
                hint="Is the server running and the base_url right?",
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NetworkFailed(
                redact(f"The connection to {self._where} broke off: {_described(error)}")
            ) from error
        if not ok:
            raise classify(answer.status, _json_or_text(text), answer.headers, self._where)
        return read_json(text, answer.headers.get("Content-Type", ""), self._where)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()

    def _redirected(self, answer: aiohttp.ClientResponse, url: str) -> str:
        """Return where an answer redirects a request for `url`. Redirects that keep the request as
        it is (307, 308) are followed within the same host. Others are refused: those to another
        host, because prompts, keys and custom headers belong to the configured host only, and 301
        to 303, after which clients send a GET.
        """
        target = _redirect_target(url, answer.headers.get("Location", ""))
        if answer.status not in (307, 308) or _origin(target) != _origin(self._url):
            raise BadRequest(
                redact(
                    f"{self._where} answered {answer.status}: it redirects to "
                    f"{shorten(target, _MAX_LOCATION)}."
                ),
                hint="Set base_url to the address that answers. Only redirects with status 307 or "
                "308 within the same host are followed.",
            )
        return target

    async def _read(self, answer: aiohttp.ClientResponse, *, is_reply: bool) -> str:
        """Return the text of the answer. A reply that is too long or cannot be decompressed is a
        `NotAReply`. An error is classified by its status: one that is too long is cut, and one that
        cannot be decompressed has the reason as its text.
        """
        limit = MAX_REPLY_BYTES if is_reply else MAX_ERROR_BYTES
        try:
            data = _Body(answer.headers.get("Content-Encoding", ""), limit)
            async for chunk in answer.content.iter_any():
                data.add(chunk)
                if data.full:
                    answer.close()  # the rest is not wanted, so the connection cannot be reused
                    break
        except ValueError as error:
            answer.close()
            if not is_reply:
                return f"The body of this answer cannot be read: {error}"
            raise NotAReply(
                redact(f"The answer of {self._where} cannot be read: {error}"),
                hint="Check the base_url and any proxy on the way: replies are requested "
                "uncompressed.",
            ) from error
        if data.full and is_reply:
            raise NotAReply(
                f"The reply of {self._where} has more than {limit >> 20} MB.",
                hint="Check the base_url.",
            )
        return data.text(answer.charset)

    def _open(self) -> aiohttp.ClientSession:
        """Return the session, created when first needed. It belongs to the event loop that created
        it.
        """
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._session, self._loop = self._connect(), loop
        return self._session

    def _connect(self) -> aiohttp.ClientSession:
        import aiohttp

        # The limiter decides how many requests are in flight, and `timeout` how long one takes.
        trusted = _trusted() if self._url.startswith("https:") else True
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS, ssl=trusted)
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None),
            proxy=proxy_for(self._url),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )


class _Body:
    """The bytes of an answer, decompressed and bounded."""

    def __init__(self, encoding: str, limit: int) -> None:
        encoding = encoding.strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ValueError(f"its Content-Encoding is {encoding[:40]!r}.")
        compressed = encoding not in ("", "identity")
        self._inflate = zlib.decompressobj(wbits=47) if compressed else None  # zlib or gzip
        self._limit = limit
        self._received = 0  # bytes, before decompression
        self._data = bytearray()

    @property
    def full(self) -> bool:
        # Compressed data that expands to nothing, or that follows the end of the compressed
        # stream, adds nothing to `_data`.
        return max(self._received, len(self._data)) > self._limit

    def add(self, chunk: bytes) -> None:
        self._received += len(chunk)
        room = self._limit + 1 - len(self._data)
        if self._inflate is None:
            self._data += chunk[:room]
            return
        try:
            self._data += self._inflate.decompress(chunk, room)
        except zlib.error as error:
            raise ValueError(f"its compression is broken ({error}).") from error

    def text(self, charset: str | None) -> str:
        # Of Python's other codecs some take hours for a few MB (punycode).
        known = (charset or "").lower() in _CHARSETS
        return self._data.decode(charset if known and charset else "utf-8", errors="replace")


def bearer(key: str) -> dict[str, str]:
    """Return the key as a header. Servers without keys ignore it, but some refuse requests without
    it.
    """
    return {"Authorization": f"Bearer {key or 'none'}"}


def join(base_url: str, path: str) -> str:
    """Return the address of `path` under `base_url`, whose query stays at the end."""
    parts = urlsplit(base_url)
    return parts._replace(path=parts.path.rstrip("/") + path).geturl()


def without_query(url: str) -> str:
    """Return the address as messages show it. A query may hold a key."""
    return urlsplit(url)._replace(query="", fragment="").geturl()


def proxy_for(url: str) -> str | None:
    """Return the proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names for this address, unless
    NO_PROXY lists its host.
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
            f"The proxy for {parts.hostname} uses {proxy.partition('://')[0]}, "
            "which is not supported.",
            hint=f"Set {parts.scheme.upper()}_PROXY to an HTTP proxy, or add the host to NO_PROXY.",
        )
    return proxy


def _trusted() -> ssl.SSLContext:
    """Return the certificates in SSL_CERT_FILE and SSL_CERT_DIR where set, else those of the
    system.
    """
    import ssl

    file, folder = (os.environ.get(name) or None for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
    if sys.platform in ("win32", "darwin") and not (file or folder):
        import truststore

        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context(cafile=file, capath=folder)


def _check_headers(headers: Mapping[str, str], where: str) -> None:
    """Refuse what would break the request or add a header to it. The values may be secret."""
    for name, value in headers.items():
        valid = _HEADER_NAME.fullmatch(name) and name.lower() not in _FRAMING
        if not (valid and value.isascii() and value.isprintable()):
            raise InputError(
                f"The header {name!r} for {where} cannot be sent.",
                hint="Check the variables that hold keys and custom headers: a name is letters, "
                "digits and hyphens, a value printable ASCII. Content-Length and "
                "Transfer-Encoding cannot be set.",
            )


def _redirect_target(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        return "an address that cannot be read"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ("", None, None)
    return (parts.scheme, parts.hostname, port)


def _described(error: Exception) -> str:
    """Return the error in one line; aiohttp quotes what the server sent, at any length."""
    return _connection_problem(error) or one_line(f"{type(error).__name__} {error}", 300)


def _connection_problem(error: Exception) -> str:
    """Return the system's words for a connection that could not be opened, such as "connection
    refused". Empty for other errors. Those of TLS have numbers that mean something else.
    """
    import aiohttp

    is_tls = isinstance(error, aiohttp.ClientSSLError)
    if is_tls or not isinstance(error, aiohttp.ClientConnectorError):
        return ""
    cause = error.os_error
    known = cause.errno is not None and cause.errno in errno.errorcode
    problem = os.strerror(cause.errno or 0) if known else cause.strerror or ""
    if problem and isinstance(error, aiohttp.ClientProxyConnectionError):
        return f"the proxy {error.host}:{error.port}: {problem.lower()}"
    return problem.lower()


def _json_or_text(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


class OptionalParameters:
    """The parameters of one endpoint that a call works without.

    `words` lists, for each parameter, the words in an error message that refer to it. `instead`
    says what is done when the parameter is left out, where that is not simply nothing.
    `on_any_error` are parameters that are left out after any error that names them; others only
    after one that says that the endpoint does not take them.
    """

    def __init__(
        self,
        where: str,
        notice: Notice,
        words: Mapping[str, Collection[str]],
        instead: Mapping[str, str],
        on_any_error: Collection[str],
    ) -> None:
        self._where = where
        self._notice = notice
        self._words = words
        self._instead = instead
        self._on_any_error = on_any_error
        self.left_out: set[str] = set()

    def leave_out(self, name: str, why: str) -> None:
        """Leave the parameter out from now on, with one notice."""
        if name in self.left_out:
            return
        self.left_out.add(name)
        instead = self._instead.get(name, "it is left out")
        self._notice(f"{self._where} does not take `{name}`: {instead}. ({why})")

    def adapt(self, failure: BadRequest, sent: Collection[str]) -> None:
        """Raise `ParameterDropped` if the failure is about an optional parameter that was sent."""
        message = failure.message.lower()
        for name, words in self._words.items():
            named = name in sent and any(word in message for word in words)
            if named and (name in self._on_any_error or _NOT_TAKEN.search(message)):
                self.leave_out(name, failure.message)
                raise ParameterDropped(failure.message) from failure
