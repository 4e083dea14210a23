"""How requests are sent: proxies and certificates from the environment, keys only to their own
server.
"""

from __future__ import annotations

import asyncio
import datetime
import gzip
import ipaddress
import json
import ssl
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.responses import RedirectResponse, Response

from skillfit.errors import InputError
from skillfit.models.protocol import (
    AuthFailed,
    BadReply,
    BadRequest,
    NetworkFailed,
    NotAReply,
    NotReached,
    RateLimited,
)
from skillfit.models.providers.http import join, proxy_for
from tests.models.clocks_and_meters import CappedMeter, say, to
from tests.support.chat_server import ChatServer, RawServer, completion, http

KEY = {"OPENAI_API_KEY": "key-for-the-model-server"}
WHOLE = http(json.dumps(completion({"content": "fine"}, "m")))


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Proxy:
    """Forwards nothing of plain HTTP (it answers itself), and tunnels the rest. `heads` is what it
    got to see.
    """

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        if head.startswith("CONNECT"):
            host, _, port = head.split()[1].rpartition(":")
            there = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(_pipe(reader, there[1]), _pipe(there[0], writer))
        else:
            writer.write(WHOLE)
            writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


@asynccontextmanager
async def a_proxy() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """An untrusted certificate for 127.0.0.1, and what a server needs to show it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    today = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "public.pem", folder / "private.pem"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    encoding, form, unlocked = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    private.write_bytes(key.private_bytes(encoding, form, unlocked))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return public, context


@asynccontextmanager
async def a_tls_server(context: ssl.SSLContext) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
        writer.write(WHOLE)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


async def test_http_proxy_is_used_with_its_credentials(monkeypatch):
    async with a_proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:word@127.0.0.1:{proxy.port}")
        assert (await to("http://model.example/v1", environ=KEY).complete(say("x"))).text == "fine"
    assert proxy.heads[0].startswith("POST http://model.example/v1/chat/completions HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic bWU6d29yZA==" in proxy.heads[0]


async def test_all_proxy_is_used_without_a_more_specific_proxy(monkeypatch):
    async with a_proxy() as proxy:
        monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{proxy.port}")
        assert (await to("http://model.example/v1").complete(say("x"))).text == "fine"
    assert len(proxy.heads) == 1


async def test_hosts_in_no_proxy_are_called_directly(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    with ChatServer(lambda call: "direct") as server:
        assert (await to(server.url).complete(say("x"))).text == "direct"


async def test_a_tunnel_hides_the_key_from_the_proxy(monkeypatch, tmp_path):
    public, context = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(public))
    async with a_proxy() as proxy, a_tls_server(context) as url:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        model = to(url, environ=KEY)
        assert (await model.complete(say("x"))).text == "fine"
        await model.close()
    assert proxy.heads[0].startswith("CONNECT 127.0.0.1:")
    assert KEY["OPENAI_API_KEY"] not in "".join(proxy.heads)


async def test_a_refusing_proxy_is_reported_without_its_password(monkeypatch):
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(http("", status="407 Proxy Authentication Required"))
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        monkeypatch.setenv(
            "HTTPS_PROXY", f"http://me:pa55@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        )
        with pytest.raises(NotReached, match="proxy answered 407") as caught:
            await to("https://model.example/v1", retries=0).complete(say("x"))
    assert "pa55" not in "".join(traceback.format_exception(caught.value))


async def test_an_unreachable_proxy_costs_nothing(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    meter = CappedMeter()
    with pytest.raises(NotReached):
        await to("http://model.example/v1", retries=0, meter=meter).complete(say("x"))
    assert meter.spent.calls == 0


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({"HTTPS_PROXY": "http://p:1"}, "https://a.example/v1", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://a.example/v1", None),
        ({"https_proxy": "p:1", "ALL_PROXY": "q:2"}, "https://a.example/v1", "http://p:1"),
        ({"ALL_PROXY": "http://q:2", "NO_PROXY": ".example"}, "https://a.example/v1", None),
        (
            {"ALL_PROXY": "http://q:2", "NO_PROXY": "a.example:8443"},
            "https://a.example:8443/v1",
            None,
        ),
        ({"ALL_PROXY": "http://q:2", "NO_PROXY": "*"}, "https://a.example/v1", None),
    ],
)
def test_an_address_gets_the_proxy_of_its_scheme_and_host(monkeypatch, environ, url, proxy):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(url) == proxy


def test_an_unsupported_proxy_is_reported(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    with pytest.raises(InputError, match="socks5"):
        proxy_for("https://a.example/v1")


async def test_certificates_are_checked_and_ssl_cert_file_names_those_to_trust(
    monkeypatch, tmp_path
):
    public, context = certificate(tmp_path)
    async with a_tls_server(context) as url:
        with pytest.raises(NetworkFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await to(url, retries=0).complete(say("x"))
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
        assert (await to(url).complete(say("x"))).text == "fine"


async def test_a_redirect_within_the_host_is_followed_with_the_whole_request():
    def script(call):
        if call.path.startswith("/v1/"):
            return RedirectResponse("/elsewhere/v1/chat/completions", 308)
        return "moved"

    with ChatServer(script) as server:
        assert (await to(server.url, environ=KEY).complete(say("x"))).text == "moved"
    first, second = server.calls
    assert second.body == first.body
    assert second.headers["authorization"] == f"Bearer {KEY['OPENAI_API_KEY']}"


@pytest.mark.parametrize(
    ("id", "environ"),
    [
        ("openai/m", {"OPENAI_API_KEY": "secret-key-123", "OPENAI_CUSTOM_HEADERS": "X-A: planted"}),
        ("azure/d", {"AZURE_OPENAI_API_KEY": "secret-key-123"}),
        ("anthropic/c", {"ANTHROPIC_API_KEY": "secret-key-123"}),
    ],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_to_another_host_are_not_followed(id, environ, status):
    with (
        ChatServer(lambda call: "taken") as there,
        ChatServer(lambda call: RedirectResponse(f"{there.root}/v1/messages", status)) as here,
    ):
        url = here.url if id.startswith("openai/") else here.root
        with pytest.raises(BadRequest, match=f"{status}: it redirects to {there.root}"):
            await to(url, id, environ=environ).complete(say("x"))
        assert there.calls == []


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_that_would_change_the_request_is_refused_within_the_host_too(status):
    with (
        ChatServer(lambda call: RedirectResponse("/elsewhere", status)) as server,
        pytest.raises(BadRequest, match=f"{status}: it redirects to") as failed,
    ):
        await to(server.url).complete(say("x"))
    assert len(server.calls) == 1
    assert "307 or 308 within the same host are followed" in failed.value.hint


@pytest.mark.parametrize("location", ["//[", "http://[::1", "http://a\x1b[2Kb/", "http://h:99999/"])
async def test_a_redirect_to_an_invalid_address_is_a_failure(location):
    answer = f"HTTP/1.1 307 There\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    with (
        RawServer(lambda number: answer) as server,
        pytest.raises(BadRequest, match="307: it redirects to"),
    ):
        await to(server.url).complete(say("x"))


@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape", "rot13", "no-such"])
async def test_unusual_charsets_are_read_as_utf_8(charset):
    """Punycode takes time with the square of the length: hours for the largest reply."""
    body = json.dumps(completion({"content": "ü" + "-b9" * 500_000}, "m")).encode()
    head = f"Content-Type: application/json; charset={charset}\r\nContent-Length: {len(body)}"
    answer = f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + body
    with RawServer(lambda number: answer) as server:
        reply = await to(server.url).complete(say("x"))
    assert reply.text.startswith("ü-b9") and len(reply.text) == 1_500_001


@pytest.mark.parametrize(
    "url",
    [
        "http://.../",
        "http://a..b/v1",
        f"http://{'a' * 64}.invalid/",
        "http://h/\x1b[2K",
        "http://a b/",
    ],
)
def test_an_invalid_address_is_refused_at_once(url):
    with pytest.raises(InputError, match="not an address"):
        to(url)


def test_a_refused_address_is_shown_without_its_query():
    environ = {"OPENAI_API_KEY": "key-123456", "OPENAI_BASE_URL": "http://h:x/v1?key=planted-key"}
    with pytest.raises(InputError, match="not an address") as caught:
        to(None, environ=environ)
    assert "planted" not in str(caught.value)


async def test_circular_redirects_are_a_failure():
    with (
        ChatServer(lambda call: RedirectResponse("/v1/chat/completions")) as server,
        pytest.raises(BadRequest, match="redirects more than 3 times"),
    ):
        await to(server.url).complete(say("x"))
    assert len(server.calls) == 4


def endless(head: str, piece: bytes) -> Iterator[bytes]:
    yield f"HTTP/1.1 {head}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    while True:
        yield b"%x\r\n%s\r\n" % (len(piece), piece)


async def test_an_endless_reply_is_aborted_and_charged_in_full():
    meter = CappedMeter()
    with (
        RawServer(lambda number: endless("200 OK", b"[" * 65536)) as server,
        pytest.raises(NotAReply, match="more than 8 MB"),
    ):
        await to(server.url, retries=1, meter=meter).complete(say("x"))
    assert server.requests == 2
    assert meter.settled == meter.bounds


async def test_an_endless_error_is_classified_by_its_beginning():
    head = "429 Too Many Requests\r\nRetry-After: 1"
    with (
        RawServer(lambda number: endless(head, b"too many of you; " * 4096)) as server,
        pytest.raises(RateLimited, match="too many of you"),
    ):
        await to(server.url, retries=0).complete(say("x"))


async def test_endless_headers_are_aborted():
    def headers() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n"
        while True:
            yield b"X-More: and more\r\n"

    with RawServer(lambda number: headers()) as server, pytest.raises(NetworkFailed):
        await to(server.url, retries=0).complete(say("x"))


def compressed(encoding: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: {encoding}"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def test_an_unrequested_compressed_reply_is_read():
    body = gzip.compress(json.dumps(completion({"content": "fine"}, "m")).encode())
    with RawServer(lambda number: compressed("gzip", body)) as server:
        assert (await to(server.url).complete(say("x"))).text == "fine"


@pytest.mark.parametrize(
    ("encoding", "body", "problem"),
    [
        ("gzip", gzip.compress(b" " * (1 << 25), mtime=0), "more than 8 MB"),
        ("gzip", b"no gzip at all", "compression is broken"),
        ("br", b"anything", "Content-Encoding is 'br'"),
        ("gzip, gzip", b"anything", "Content-Encoding is 'gzip, gzip'"),
    ],
    ids=["bomb", "broken", "other", "twice"],
)
async def test_a_decompression_bomb_does_not_exhaust_memory(encoding, body, problem):
    with (
        RawServer(lambda number: compressed(encoding, body)) as server,
        pytest.raises(NotAReply, match=problem),
    ):
        await to(server.url, retries=0).complete(say("x"))


EMPTY_BLOCK = b"\x00\x00\x00\xff\xff"  # a block of deflate that holds nothing, and is not the last


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (gzip.compress(b"{}", mtime=0), b"x" * 65536),
        (gzip.compress(b"", mtime=0)[:10], EMPTY_BLOCK * 8192),
    ],
    ids=["after the end", "empty blocks"],
)
async def test_an_endless_compressed_reply_is_aborted(start, piece):
    def answer() -> Iterator[bytes]:
        pieces = endless("200 OK\r\nContent-Encoding: gzip", piece)
        yield next(pieces)
        yield b"%x\r\n%s\r\n" % (len(start), start)
        yield from pieces

    with (
        RawServer(lambda number: answer()) as server,
        pytest.raises(NotAReply, match="more than 8 MB"),
    ):
        await to(server.url, retries=0, timeout=30).complete(say("x"))


async def test_an_error_with_broken_compression_is_classified_by_its_status():
    answer = compressed("gzip", b"notgzip").replace(b"200 OK", b"401 Unauthorized")
    with (
        RawServer(lambda number: answer) as server,
        pytest.raises(AuthFailed, match=r"answered 401: .*compression is broken"),
    ):
        await to(server.url, retries=0).complete(say("x"))


async def test_cookies_are_not_sent_back():
    answer = Response(json.dumps(completion({"content": "ok"}, "m")), media_type="application/json")
    answer.set_cookie("session", "123")
    with ChatServer(lambda call: answer) as server:
        model = to(server.url)
        await model.complete(say("x"))
        await model.complete(say("y"))
    assert "cookie" not in server.calls[1].headers


@pytest.mark.parametrize("charset", ["hex", "undefined", "idna", "no-such-charset", "utf-7"])
async def test_an_unknown_charset_is_read_as_utf_8(charset):
    body = json.dumps(completion({"content": "ok"}, "m"))
    with RawServer(
        lambda number: http(body, content_type=f"application/json; charset={charset}")
    ) as server:
        assert (await to(server.url).complete(say("x"))).text == "ok"


async def test_openai_organization_variables_are_sent():
    environ = KEY | {
        "OPENAI_ORG_ID": "org-1",
        "OPENAI_PROJECT_ID": "proj-2",
        "OPENAI_CUSTOM_HEADERS": "X-Team: blue\nX-Route: a:b\nnothing",
    }
    with ChatServer(lambda call: "ok") as server:
        await to(server.url, environ=environ).complete(say("x"))
    headers = server.calls[0].headers
    assert (headers["openai-organization"], headers["openai-project"]) == ("org-1", "proj-2")
    assert (headers["x-team"], headers["x-route"]) == ("blue", "a:b")
    assert headers["user-agent"] == "skillfit"


async def test_anthropic_headers_are_sent_and_a_token_is_a_bearer_token():
    environ = {"ANTHROPIC_AUTH_TOKEN": "token-12345", "ANTHROPIC_CUSTOM_HEADERS": "X-Team: blue"}
    with ChatServer(lambda call: "ok") as server:
        await to(server.root, "anthropic/claude-sonnet", environ=environ).complete(say("x"))
    headers = server.calls[0].headers
    assert (headers["authorization"], headers["x-team"]) == ("Bearer token-12345", "blue")
    assert "x-api-key" not in headers


async def test_a_connection_closed_before_the_reply_may_have_been_billed():
    meter = CappedMeter()
    with RawServer(lambda number: b"") as server, pytest.raises(NetworkFailed) as caught:
        await to(server.url, retries=0, meter=meter).complete(say("x"))
    assert not isinstance(caught.value, NotReached)
    assert meter.settled == meter.bounds


async def test_a_reply_that_is_not_http_is_a_network_failure():
    with (
        RawServer(lambda number: b"SSH-2.0-OpenSSH_9.6\r\n") as server,
        pytest.raises(NetworkFailed),
    ):
        await to(server.url, retries=0).complete(say("x"))


async def test_a_body_is_decoded_with_its_declared_charset():
    body = json.dumps(completion({"content": "Größe"}, "m"), ensure_ascii=False).encode("latin-1")
    with ChatServer(
        lambda call: Response(body, media_type="application/json; charset=latin-1")
    ) as server:
        assert (await to(server.url).complete(say("x"))).text == "Größe"


async def test_undecodable_bytes_are_a_failure_with_a_message():
    noise = Response(b"\xff\xfe\x00", media_type="application/octet-stream")
    with ChatServer(lambda call: noise) as server, pytest.raises(BadReply, match="octet-stream"):
        await to(server.url, retries=0).complete(say("x"))


@pytest.mark.parametrize(
    ("base", "joined"),
    [
        ("https://h/v1", "https://h/v1/chat"),
        ("https://h/v1/", "https://h/v1/chat"),
        ("https://h", "https://h/chat"),
        ("https://h/openai?api-version=1", "https://h/openai/chat?api-version=1"),
    ],
)
def test_a_path_is_put_before_the_query(base, joined):
    assert join(base, "/chat") == joined
