"""Images and tools, both ways, over the chat API and the Responses API."""

from __future__ import annotations

import base64

import pytest

from skillfit.errors import InputError
from skillfit.models import Request
from skillfit.models.protocol import BadReply, Image, Message, Refused, Tool, ToolCall
from tests.models.clocks_and_meters import say, to
from tests.support.chat_server import ChatServer

JPEG = b"\xff\xd8\xff\xe0" + b"\0" * 20
LOOK = Tool(
    "look", "Look something up", {"type": "object", "properties": {"q": {"type": "string"}}}
)


def conversation(image: Image) -> Request:
    return Request(
        (
            Message("system", "Be brief."),
            Message("user", "What is this?", (image,)),
            Message("assistant", "", tool_calls=(ToolCall("c1", "look", '{"q": "é"}'),)),
            Message("tool", "A cat.", tool_call_id="c1"),
        ),
        "rollout",
        tools=(LOOK,),
    )


async def test_images_are_read_at_the_call_and_identified_by_content(tmp_path):
    path = tmp_path / "wrong-name.png"
    request = conversation(Image(path, detail="low"))
    path.write_bytes(JPEG)
    with ChatServer(lambda call: "a cat") as server:
        await to(server.url).complete(request)
    text, image = server.calls[0].body["messages"][1]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    assert image["image_url"] == {
        "url": "data:image/jpeg;base64," + base64.b64encode(JPEG).decode(),
        "detail": "low",
    }


async def test_a_missing_image_is_an_input_error(tmp_path):
    with ChatServer(lambda call: "never") as server, pytest.raises(InputError, match=r"gone\.png"):
        await to(server.url).complete(
            say("x").__class__((Message("user", "", (Image(tmp_path / "gone.png"),)),), "rollout")
        )
    assert server.calls == []


async def test_tool_calls_are_sent_and_read_back(tmp_path):
    path = tmp_path / "i.png"
    path.write_bytes(JPEG)
    answer = {
        "content": None,
        "tool_calls": [
            {
                "id": "c2",
                "type": "function",
                "function": {"name": "look", "arguments": '{"q":"dog"}'},
            }
        ],
    }
    with ChatServer(lambda call: answer) as server:
        reply = await to(server.url).complete(conversation(Image(path)))
    assert reply.tool_calls == (ToolCall("c2", "look", '{"q":"dog"}'),)
    body = server.calls[0].body
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "look",
                "description": "Look something up",
                "parameters": dict(LOOK.parameters),
            },
        }
    ]
    assert body["messages"][2]["tool_calls"][0]["function"] == {
        "name": "look",
        "arguments": '{"q": "é"}',
    }
    assert body["messages"][3] == {"role": "tool", "content": "A cat.", "tool_call_id": "c1"}


async def test_the_responses_api_sends_the_same_conversation(tmp_path):
    path = tmp_path / "i.png"
    path.write_bytes(JPEG)
    output = [
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
    ]
    with ChatServer(lambda call: {"output": output}) as server:
        model = to(
            server.url,
            "openai/gpt-5.1-codex",
            options={"api": "responses"},
            reasoning_effort="high",
        )
        reply = await model.complete(conversation(Image(path)))
    assert reply.tool_calls == (ToolCall("c2", "look", "{}"),)
    assert (reply.usage.input, reply.usage.output) == (10, 5)
    body = server.calls[0].body
    assert server.calls[0].path == "/v1/responses" and server.calls[0].stage == "rollout"
    assert body["reasoning"] == {"effort": "high"} and body["max_output_tokens"] == 16384
    assert [item.get("type", item.get("role")) for item in body["input"]] == [
        "system",
        "user",
        "function_call",
        "function_call_output",
    ]
    assert body["input"][1]["content"][1]["type"] == "input_image"


async def test_the_responses_api_recognises_truncated_and_refused_replies():
    cut = {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [{"type": "reasoning"}],
    }
    with ChatServer(lambda call: cut) as server, pytest.raises(BadReply, match="cut off"):
        await to(server.url, "openai/o3-pro", options={"api": "responses"}, retries=0).complete(
            say("x")
        )
    refused = {"output": [{"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}]}
    with ChatServer(lambda call: refused) as server, pytest.raises(Refused, match=r"No\."):
        await to(server.url, "openai/o3-pro", options={"api": "responses"}).complete(say("x"))


async def test_the_responses_api_sends_schemas_in_its_own_format():
    with ChatServer(lambda call: '{"a": 1}') as server:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        await to(server.url, "openai/gpt-5-codex", options={"api": "responses"}).complete(
            say("x", schema=schema)
        )
    form = server.calls[0].body["text"]["format"]
    assert form["type"] == "json_schema" and form["schema"]["required"] == ["a"]
