"""The Messages API on the wire."""

from __future__ import annotations

import pytest
from starlette.responses import JSONResponse

from skillfit.models import Request
from skillfit.models.protocol import (
    AuthFailed,
    BadReply,
    Image,
    Message,
    Overloaded,
    Refused,
    Tool,
    ToolCall,
)
from tests.models.clocks_and_meters import say, to
from tests.support.chat_server import Call, ChatServer

KEY = {"ANTHROPIC_API_KEY": "sk-ant-test-1234567890"}
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 10
CACHED = {"type": "ephemeral"}


def claude(server: ChatServer, **more):
    return to(server.root, "anthropic/claude-sonnet-4-6", environ=KEY, **more)


async def test_the_constant_prefix_is_marked_for_the_cache():
    request = Request(
        (
            Message("system", "You follow the skill."),
            Message("system", "# Skill"),
            Message("user", "item 7"),
        ),
        "rollout",
    )
    with ChatServer(lambda call: "fertig – 完") as server:
        reply = await claude(server, temperature=0.3).complete(request)
    body, headers = server.calls[0].body, server.calls[0].headers
    assert reply.text == "fertig – 完"
    assert body["system"] == [
        {"type": "text", "text": "You follow the skill.", "cache_control": CACHED},
        {"type": "text", "text": "# Skill", "cache_control": CACHED},
    ]
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "item 7"}]}]
    assert (body["model"], body["max_tokens"], body["temperature"]) == (
        "claude-sonnet-4-6",
        4096,
        0.3,
    )
    key = headers.get("x-api-key") or headers["authorization"].removeprefix(
        "Bearer "
    )  # the SDK's way
    assert (key, headers["anthropic-version"]) == (KEY["ANTHROPIC_API_KEY"], "2023-06-01")
    assert (headers["x-skillfit-stage"], headers["x-skillfit-run"]) == ("rollout", "run-1")


async def test_the_end_of_a_conversation_is_marked_for_the_cache_and_tools_and_images_are_sent(
    tmp_path,
):
    (tmp_path / "i.jpg").write_bytes(PNG)
    request = Request(
        (
            Message("user", "Look", (Image(tmp_path / "i.jpg", "image/jpeg"),)),
            Message(
                "assistant",
                "Looking.",
                tool_calls=(ToolCall("t1", "look", '{"q": 1}'), ToolCall("t2", "look", "not json")),
            ),
            Message("tool", "one", tool_call_id="t1"),
            Message("tool", "two", tool_call_id="t2"),
        ),
        "rollout",
        tools=(Tool("look", "Look", {"type": "object"}),),
    )
    answer = {
        "content": [{"type": "tool_use", "id": "t3", "name": "look", "input": {"q": "ß"}}],
        "stop_reason": "tool_use",
    }
    with ChatServer(lambda call: answer) as server:
        reply = await claude(server).complete(request)
    assert reply.tool_calls == (ToolCall("t3", "look", '{"q": "ß"}'),)
    user, assistant, results = server.calls[0].body["messages"]
    assert user["content"][1]["source"]["media_type"] == "image/png"
    assert assistant["content"][1:] == [
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"q": 1}},
        {"type": "tool_use", "id": "t2", "name": "look", "input": {"arguments": "not json"}},
    ]
    assert [block["tool_use_id"] for block in results["content"]] == ["t1", "t2"]
    assert results["content"][-1]["cache_control"] == CACHED
    assert server.calls[0].body["tools"] == [
        {"name": "look", "description": "Look", "input_schema": {"type": "object"}}
    ]


async def test_usage_counts_cache_reads_and_writes():
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 50,
        "output_tokens": 7,
    }
    with ChatServer(
        lambda call: {"content": [{"type": "text", "text": "ok"}], "usage": usage}
    ) as server:
        used = (await claude(server).complete(say("x"))).usage
    assert (used.input, used.cached, used.written, used.output) == (160, 100, 50, 7)
    assert used.usd == pytest.approx((10 * 3 + 100 * 0.3 + 50 * 3.75 + 7 * 15) / 1e6)


@pytest.mark.parametrize(("reason", "kind"), [("max_tokens", BadReply), ("refusal", Refused)])
async def test_truncated_and_refused_replies_are_failures(reason, kind):
    with (
        ChatServer(
            lambda call: {"content": [{"type": "text", "text": "ha"}], "stop_reason": reason}
        ) as server,
        pytest.raises(kind),
    ):
        await claude(server, retries=0).complete(say("x"))


async def test_overload_is_retried_and_a_bad_key_is_not():
    busy = JSONResponse(
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 529
    )
    with ChatServer(lambda call: busy if call.number < 2 else "ok") as server:
        assert (await claude(server).complete(say("x"))).usage.calls == 3
    with ChatServer(lambda call: busy) as server, pytest.raises(Overloaded):
        await claude(server, retries=1).complete(say("x"))
    wrong = JSONResponse(
        {
            "type": "error",
            "error": {"type": "authentication_error", "message": "invalid x-api-key"},
        },
        401,
    )
    with ChatServer(lambda call: wrong) as server, pytest.raises(AuthFailed) as caught:
        await claude(server).complete(say("x"))
    assert len(server.calls) == 1 and KEY["ANTHROPIC_API_KEY"] not in str(caught.value)


async def test_a_schema_is_sent_and_falls_back_to_instructions():
    def script(call: Call) -> str | JSONResponse:
        if "output_config" in call.body:
            words = "output_config.format: structured outputs are not supported for this model"
            return JSONResponse(
                {"type": "error", "error": {"type": "invalid_request_error", "message": words}}, 400
            )
        return '{"a": 1}'

    notices: list[str] = []
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    with ChatServer(script) as server:
        await claude(server, notices=notices).complete(say("x", schema=schema))
    assert (
        server.calls[0].body["output_config"]["format"]["schema"]["additionalProperties"] is False
    )
    assert "JSON schema" in server.calls[1].text
    assert len(notices) == 1


def test_a_missing_key_is_an_error():
    with pytest.raises(AuthFailed, match="ANTHROPIC_API_KEY"):
        to("", "anthropic/claude-sonnet-4-6", environ={})
