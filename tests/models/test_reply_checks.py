"""What a server sends is checked before anything uses or records it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from skillfit.models.protocol import (
    BadReply,
    Message,
    ModelError,
    NotAReply,
    Overloaded,
    RateLimited,
    Reply,
    Request,
    Usage,
)
from skillfit.models.wire import MAX_TOKEN_COUNT
from tests.models.clocks_and_meters import CappedMeter, say, to
from tests.support.chat_server import (
    ChatServer,
    RawServer,
    anthropic_message,
    completion,
    http,
    openai_response,
)

ANTHROPIC = {"id": "anthropic/claude-sonnet", "environ": {"ANTHROPIC_API_KEY": "key-123456"}}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "chat": {},
    "responses": {"options": {"api": "responses"}},
    "anthropic": ANTHROPIC,
}


def whole(protocol: str) -> dict[str, Any]:
    if protocol == "chat":
        return completion({"content": "fine"}, "m")
    return (openai_response if protocol == "responses" else anthropic_message)("fine", "m")


async def answered(protocol: str, body: Any, meter: CappedMeter | None = None) -> Reply:
    """The reply to this body, sent unchanged (NaN included)."""
    answer = Response(json.dumps(body), media_type="application/json")
    with ChatServer(lambda call: answer) as server:
        url = server.root if protocol == "anthropic" else server.url
        model = to(url, retries=0, meter=meter, **PROTOCOLS[protocol])
        return await model.complete(say("x"))


@pytest.mark.parametrize(
    ("protocol", "part"),
    [
        ("chat", {"choices": ["x"]}),
        ("chat", {"choices": {"0": {}}}),
        ("chat", {"choices": [None]}),
        ("chat", {"choices": "text"}),
        ("chat", {"choices": [{"message": "hello"}]}),
        ("chat", {"choices": [{"message": ["hello"]}]}),
        ("chat", {"choices": [{"message": {"content": 5}}]}),
        ("chat", {"choices": [{"message": {"content": {"text": "x"}}}]}),
        ("chat", {"choices": [{"message": {"content": [{"text": 5}]}}]}),
        ("chat", {"choices": [{"message": {"content": "x", "refusal": ["no"]}}]}),
        ("chat", {"choices": [{"message": {"content": "x"}, "finish_reason": ["stop"]}]}),
        ("chat", {"choices": [{"message": {"content": "x", "tool_calls": "none"}}]}),
        ("chat", {"choices": [{"message": {"tool_calls": [5]}}]}),
        ("chat", {"choices": [{"message": {"tool_calls": [{"function": "f"}]}}]}),
        ("chat", {"choices": [{"message": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]}),
        ("chat", {"choices": [{"message": {"tool_calls": [{"id": 1, "function": {}}]}}]}),
        ("responses", {"output": "text"}),
        ("responses", {"output": [5]}),
        ("responses", {"output": [{"type": ["message"]}]}),
        ("responses", {"output": [{"type": "message", "content": "text"}]}),
        ("responses", {"output": [{"type": "message", "content": [5]}]}),
        ("responses", {"output": [{"type": "message", "content": [{"text": {}}]}]}),
        ("responses", {"output": [{"type": "function_call"}]}),
        ("responses", {"output": [{"type": "function_call", "name": 5, "call_id": "1"}]}),
        ("responses", {"status": 5}),
        ("responses", {"status": "incomplete", "incomplete_details": "length"}),
        ("anthropic", {"content": "text"}),
        ("anthropic", {"content": [5]}),
        ("anthropic", {"content": [{"type": "text", "text": 5}]}),
        ("anthropic", {"content": [{"type": "tool_use"}]}),
        ("anthropic", {"content": [{"type": "tool_use", "name": "f", "input": "text"}]}),
        ("anthropic", {"stop_reason": {"type": "end_turn"}}),
    ],
)
async def test_a_reply_of_unexpected_structure_is_a_failure_charged_in_full(protocol, part):
    meter = CappedMeter()
    with pytest.raises(BadReply):
        await answered(protocol, whole(protocol) | part, meter)
    assert meter.settled == meter.bounds


USAGES: list[Any] = [
    {"in": -1},
    {"in": 1.5},
    {"in": float("nan")},
    {"in": float("inf")},
    {"in": "10"},
    {"in": True},
    {"in": [10]},
    {"in": 10**400},
    {"in": MAX_TOKEN_COUNT + 1},
    {"in": 10, "out": -5},
    {"in": 10, "out": "five"},
    {"in": 10, "cached": 11},
    {"in": 10, "cached": -1},
    "10 tokens",
    [10, 5],
    10,
]
NAMES = {
    "chat": ("prompt_tokens", "completion_tokens", "prompt_tokens_details"),
    "responses": ("input_tokens", "output_tokens", "input_tokens_details"),
    "anthropic": ("input_tokens", "output_tokens", ""),
}


def reported(protocol: str, usage: Any) -> Any:
    """The usage under the names of a protocol."""
    if not isinstance(usage, dict):
        return usage
    read, written, details = NAMES[protocol]
    named = {read: usage["in"]} | ({written: usage["out"]} if "out" in usage else {})
    if "cached" in usage:
        cached = usage["cached"]
        named |= {details: {"cached_tokens": cached}} if details else {"input_tokens": cached}
    return named


def counts_cached_beside(protocol: str, usage: Any) -> bool:
    """Anthropic's input tokens do not include cached ones, so there may be more of these."""
    return protocol == "anthropic" and usage == {"in": 10, "cached": 11}


WRONG = [
    (protocol, usage)
    for protocol in PROTOCOLS
    for usage in USAGES
    if not counts_cached_beside(protocol, usage)
]


@pytest.mark.parametrize(("protocol", "usage"), WRONG, ids=str)
async def test_invalid_usage_is_a_failure_charged_in_full(protocol, usage):
    meter = CappedMeter()
    with pytest.raises(NotAReply):
        await answered(protocol, whole(protocol) | {"usage": reported(protocol, usage)}, meter)
    assert meter.settled == meter.bounds


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("usage", [None, {}, {"in": 0, "out": 0}, {"in": None, "out": None}])
async def test_usage_of_zero_counts_as_not_reported(protocol, usage):
    meter = CappedMeter()
    body = whole(protocol) | {"usage": reported(protocol, usage) if usage else usage}
    reply = await answered(protocol, body, meter)
    assert reply.usage.input == meter.bounds[0].input
    assert reply.usage.output == len("fine")


async def test_token_counts_may_be_integral_floats():
    body = whole("chat") | {"usage": {"prompt_tokens": 10.0, "completion_tokens": 5}}
    assert (await answered("chat", body)).usage == Usage(1, 10, output=5, usd=0.000075)


@pytest.mark.parametrize(
    "body",
    [
        "[" * 4096,
        '{"a":' * 4096,
        "[" * 4096 + "]" * 4096,
        '{"choices": ' + "9" * 400 + "}",
        '{"choices": ' + "9" * 5000 + "}",
        '{"choices": 1e999}',
        '{"choices": NaN}',
        '{"choices": [{"message": {"content": "x\\ud83d"}}], "usage": ' + "9" * 30 + "}",
        "\ufeff{}",
        "",
    ],
    ids=lambda body: body[:16] or "empty",
)
async def test_json_that_is_too_deep_or_too_large_is_a_failure(body):
    with RawServer(lambda number: http(body)) as server, pytest.raises(ModelError) as caught:
        await to(server.url, retries=0).complete(say("x"))
    assert caught.value.kind in ("not_a_reply", "network")
    assert len(caught.value.message) < 1000


async def test_a_lone_surrogate_does_not_invalidate_the_reply():
    body = json.dumps(completion({"content": "fine 🙂 \\"}, "m"))[:-1] + ', "x": "\\ud83d"}'
    with RawServer(lambda number: http(body)) as server:
        assert (await to(server.url).complete(say("x"))).text == "fine 🙂 \\"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"error": "the backend is gone"}, Overloaded),
        ({"error": {"message": "slow down", "code": 429}}, RateLimited),
        ({"status": "failed", "error": {"code": "server_error", "message": "x"}}, Overloaded),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, Overloaded),
        ({"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}, RateLimited),
    ],
)
async def test_an_error_with_status_200_has_its_kind(body, kind):
    with pytest.raises(kind):
        await answered("chat", body)


async def test_invalid_tool_arguments_are_sent_back_as_an_object():
    call = {"id": "1", "function": {"name": "read", "arguments": '["[[['}}
    with ChatServer(lambda seen: {"content": "ok", "tool_calls": [call]}) as server:
        model = to(server.url)
        reply = await model.complete(say("x"))
        turns = (Message("user", "x"), Message("assistant", "ok", tool_calls=reply.tool_calls))
        await model.complete(Request(turns, "rollout"))
    sent = server.calls[1].body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"arguments": '["[[['}


async def test_a_failure_does_not_quote_the_reply():
    key = "planted-key-0123456789"
    body = whole("chat") | {"choices": [{"message": {"content": {key: key}}}]}
    with ChatServer(lambda call: JSONResponse(body)) as server, pytest.raises(NotAReply) as caught:
        await to(server.url, retries=0, environ={"OPENAI_API_KEY": key}).complete(say("x"))
    assert key not in str(caught.value)
