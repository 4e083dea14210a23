"""Keys are in memory only."""

from __future__ import annotations

import base64
import html
import json
import re
from dataclasses import replace
from urllib.parse import quote

import pytest
from pydantic import ValidationError
from starlette.responses import JSONResponse

from skillfit.errors import InputError
from skillfit.models import ModelSpec
from skillfit.models.protocol import AuthFailed, BadRequest
from skillfit.models.secrets import hide_keys_in_use, redact, remember_secret
from tests.models.clocks_and_meters import say, to
from tests.support.chat_server import ChatServer


async def test_a_key_repeated_by_the_server_is_not_in_our_messages():
    key = "plain-secret-without-a-prefix-77"

    def script(call):
        return JSONResponse(
            {"error": {"message": f"Incorrect API key: {call.headers['authorization']}"}}, 401
        )

    with ChatServer(script) as server:
        model = to(server.url, environ={"OPENAI_API_KEY": key})
        with pytest.raises(AuthFailed) as caught:
            await model.complete(say("x"))
    assert server.calls[0].headers["authorization"] == f"Bearer {key}"
    seen = [
        str(caught.value),
        repr(caught.value),
        repr(model),
        repr(model.spec),
        model.provider.endpoint,
        model.spec.model_dump_json(),
    ]
    assert not [text for text in seen if key in text]


def test_redact_hides_keys_and_look_alikes_and_keeps_other_text():
    remember_secret("hunter2hunter2")
    text = (
        "pass hunter2hunter2, sk-proj-abcdefghijklmnop1234, Bearer abcdefgh1234, "
        "keep task-force and skill"
    )
    assert redact(text) == "pass [secret], [secret], Bearer [secret], keep task-force and skill"


@pytest.mark.parametrize(
    "key", ['quo"ted"key1', "back\\slash\\key2", "tick'ed&<key>3", "schlüssel-größe-4"]
)
def test_a_key_is_hidden_in_every_escaped_form(key):
    remember_secret(key)
    once = json.dumps({"reply": f"the key is {key}."})
    forms = [
        key,
        once,
        json.dumps(once),
        json.dumps(json.dumps(once)),
        json.dumps(key, ensure_ascii=False),
        repr(key),
        html.escape(f"<b>{key}</b>"),
        f"https://host/v1?x={quote(key)}",
    ]
    inside = {json.dumps(key)[1:-1], json.dumps(key, ensure_ascii=False)[1:-1], key}
    for form in forms:
        hidden = hide_keys_in_use(form)
        assert "[secret]" in hidden and not any(part in hidden for part in inside), form
    assert json.loads(hide_keys_in_use(once)) == {"reply": "the key is [secret]."}


@pytest.mark.parametrize("user", ["", "x:", "me:", "user:"])
def test_a_key_is_hidden_in_base64_with_and_without_a_user(user):
    key = "sk?>~a-secret/of+mine"
    remember_secret(key)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(f"{user}{key}".encode()).decode()
        hidden = hide_keys_in_use(f"Basic {encoded}")
        assert "[secret]" in hidden
        kept = hidden.removeprefix("Basic ").replace("[secret]", "").rstrip("=")
        assert len(kept) <= len(user) * 8 / 6 + 3


@pytest.mark.parametrize("escape", ["\\u{:04x}", "\\u{:04X}", "\\x{:02x}"])
def test_a_key_is_hidden_where_every_character_is_escaped(escape):
    key = "another-secret-of-mine"
    remember_secret(key)
    escaped = "".join(escape.format(ord(char)) for char in key)
    for form in (escaped, json.dumps(escaped)):
        assert hide_keys_in_use(f"key {form}.").replace('"', "") == "key [secret]."


async def test_a_key_in_the_query_of_an_address_is_sent_and_never_shown():
    environ = {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": "key-123456"}

    def script(call):
        return JSONResponse(
            {"error": {"message": "no such path /v1?code=planted-in-the-query"}}, 404
        )

    with ChatServer(script) as server:
        environ["OPENAI_BASE_URL"] = (
            f"{server.url}?code=planted-in-the-query&api-version=2025-01-01"
        )
        with pytest.raises(BadRequest) as caught:
            await to(None, environ=environ).complete(say("x"))
    assert server.calls[0].query == "code=planted-in-the-query&api-version=2025-01-01"
    assert "planted" not in str(caught.value)
    assert (
        hide_keys_in_use("version 2025-01-01, planted-in-the-query")
        == "version 2025-01-01, [secret]"
    )


async def test_custom_headers_are_sent_and_never_shown():
    values = {"X-Gateway-Key": "gw-planted", "X-Trace": "0123456789abcdef01", "X-Team": "research"}
    headers = "\n".join(f"{name}: {value}" for name, value in values.items())

    def script(call):
        seen = [call.headers[name.lower()] for name in values]
        return JSONResponse({"error": {"message": f"Not for {', '.join(seen)}"}}, 403)

    with ChatServer(script) as server, pytest.raises(AuthFailed) as caught:
        await to(server.url, environ={"OPENAI_CUSTOM_HEADERS": headers}).complete(say("x"))
    assert "Not for [secret], [secret], [secret]" in str(caught.value)
    # In skills and replies an ordinary word stays unchanged.
    assert (
        hide_keys_in_use("gw-planted 0123456789abcdef01 research") == "[secret] [secret] research"
    )


@pytest.mark.parametrize(
    "key",
    ["first\nsecond", "first\r\nX-Planted: 1", "sk-“quoted”", "sk-ключ", "sk-\udcff", "a\u200bb"],
)
def test_a_key_with_invalid_header_characters_is_refused_before_it_is_sent(key):
    with pytest.raises(AuthFailed, match="OPENAI_API_KEY has a line break or another") as caught:
        to("http://127.0.0.1:9/v1", environ={"OPENAI_API_KEY": key})
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-A", "planted\x00value"),
        ("X-A", "planted\rX-B: 1"),
        ("X-A", "plantéd"),
        ("X-A", "planted\udcff"),
        ("X A", "planted"),
        ("X-Ä", "planted"),
        ("", "planted"),
        ("Content-Length", "1"),
        ("transfer-encoding", "chunked"),
    ],
)
def test_a_custom_header_that_would_break_the_request_is_refused_without_its_value(name, value):
    environ = {"OPENAI_API_KEY": "key-123456", "OPENAI_CUSTOM_HEADERS": f"{name}: {value}"}
    with pytest.raises(InputError, match=re.escape(repr(name))) as caught:
        to("http://127.0.0.1:9/v1", environ=environ)
    assert "plant" not in str(caught.value)


async def test_a_stage_cannot_add_a_header():
    with (
        ChatServer(lambda call: "ok") as server,
        pytest.raises(InputError, match="X-Skillfit-Stage"),
    ):
        await to(server.url).complete(replace(say("x"), stage="judge\r\nX-Planted: 1"))
    assert server.calls == []


def test_placeholder_keys_are_not_redacted():
    remember_secret("none")
    assert redact("none of it") == "none of it"


@pytest.mark.parametrize(
    "spec",
    [
        {"id": "openai/m", "base_url": "https://user:pa55word@host/v1"},
        {"id": "openai/m", "base_url": "https://pa55word@host/v1"},
        {"id": "openai/m", "base_url": "https://host/v1?api_key=pa55word"},
        {"id": "openai/m", "options": {"api_key": "pa55word"}},
        {"id": "azure/m", "options": {"client_secret": "pa55word"}},
    ],
)
def test_a_key_in_a_config_is_refused(spec):
    with pytest.raises(ValidationError, match="environment") as caught:
        ModelSpec.model_validate(spec)
    assert "pa55word" not in str(caught.value)


def test_redacting_a_secret_inside_a_key_hides_the_whole_key():
    remember_secret("hunter3hunter3")
    remember_secret("sk-0123456789abcdefgh/after-the-slash")
    assert redact("a sk-hunter3hunter3hunter3 b") == "a [secret] b"
    assert redact("a sk-0123456789abcdefgh/after-the-slash b") == "a [secret] b"
    assert redact("hunter3hunter3hunter3hunter3, x") == "[secret][secret], x"
