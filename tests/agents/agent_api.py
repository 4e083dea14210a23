"""A real HTTP server on loopback that streams as coding-agent CLIs expect: Anthropic Messages,
OpenAI Responses and chat.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.loopback_server import LoopbackServer


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Use:
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Refuse:
    status: int
    message: str


@dataclass(frozen=True)
class Seen:
    """One request as the server saw it."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def tools(self) -> set[str]:
        listed = self.body.get("tools") or ()
        listed = [inner for tool in listed for inner in tool.get("functionDeclarations", [tool])]
        return {str(tool.get("name") or tool.get("function", {}).get("name")) for tool in listed}

    @property
    def answers_a_tool(self) -> bool:
        marks = ('"tool_result"', '"function_call_output"', '"role": "tool"', '"functionResponse"')
        return any(mark in self.text for mark in marks)

    @property
    def text(self) -> str:
        return json.dumps(self.body, ensure_ascii=False)


Script = Callable[[Seen], Say | Use | Refuse]


class AgentApi(LoopbackServer):
    """`with AgentApi(script) as api:` gives `api.url` (without /v1) and `api.seen`, the requests
    that came.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.seen: list[Seen] = []
        routes = [
            Route("/v1/messages", self._serve(_anthropic), methods=["POST"]),
            Route("/v1/responses", self._serve(_responses), methods=["POST"]),
            Route("/v1/chat/completions", self._serve(_chat), methods=["POST"]),
            Route("/v1beta/models/{model}", self._serve(_gemini), methods=["POST"]),
            Route(
                "/{rest:path}",
                lambda request: JSONResponse({}, 404),
                methods=["GET", "POST", "HEAD"],
            ),
        ]
        super().__init__(Starlette(routes=routes))

    def _serve(self, stream: Callable[[Say | Use], Iterator[str]]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            seen = Seen(request.url.path, json.loads(await request.body()), dict(request.headers))
            self.seen.append(seen)
            act = self._script(seen)
            if isinstance(act, Refuse):
                error = {
                    "type": "authentication_error",
                    "message": act.message,
                    "code": act.status,
                    "status": "UNAUTHENTICATED",
                }
                return JSONResponse({"type": "error", "error": error}, act.status)
            return StreamingResponse(stream(act), media_type="text/event-stream")

        return endpoint

    def __exit__(self, *error: object) -> None:
        self._server.force_exit = True  # a coding agent may keep its connection open
        super().__exit__(*error)

    @property
    def url(self) -> str:
        return self.root


def _anthropic(act: Say | Use) -> Iterator[str]:
    usage = {
        "input_tokens": 20,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "output_tokens": 1,
    }
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [],
        "usage": usage,
    }
    yield _event(
        "message_start", {"message": {**message, "stop_reason": None, "stop_sequence": None}}
    )
    if isinstance(act, Say):
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": act.text}
    else:
        block = {"type": "tool_use", "id": "toolu_1", "name": act.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(act.arguments)}
    yield _event("content_block_start", {"index": 0, "content_block": block})
    yield _event("content_block_delta", {"index": 0, "delta": delta})
    yield _event("content_block_stop", {"index": 0})
    reason = "end_turn" if isinstance(act, Say) else "tool_use"
    yield _event(
        "message_delta",
        {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 7}},
    )
    yield _event("message_stop", {})


def _responses(act: Say | Use) -> Iterator[str]:
    if isinstance(act, Say):
        item: dict[str, Any] = {
            "type": "message",
            "id": "item_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": act.text, "annotations": []}],
        }
    else:
        arguments = json.dumps(act.arguments)
        item = {
            "type": "function_call",
            "id": "item_1",
            "call_id": "call_1",
            "name": act.tool,
            "arguments": arguments,
        }
    usage = {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 5},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 27,
    }
    yield _event("response.created", {"response": {"id": "resp_1"}})
    yield _event("response.output_item.done", {"output_index": 0, "item": item})
    yield _event(
        "response.completed", {"response": {"id": "resp_1", "output": [item], "usage": usage}}
    )


def _chat(act: Say | Use) -> Iterator[str]:
    if isinstance(act, Say):
        delta: dict[str, Any] = {"role": "assistant", "content": act.text}
    else:
        function = {"name": act.tool, "arguments": json.dumps(act.arguments)}
        delta = {
            "role": "assistant",
            "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}],
        }
    base = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "scripted",
    }
    reason = "stop" if isinstance(act, Say) else "tool_calls"
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 7,
        "total_tokens": 27,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    yield _data({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _data({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    yield _data({**base, "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _gemini(act: Say | Use) -> Iterator[str]:
    part = (
        {"text": act.text}
        if isinstance(act, Say)
        else {"functionCall": {"name": act.tool, "args": act.arguments}}
    )
    usage = {
        "promptTokenCount": 20,
        "cachedContentTokenCount": 5,
        "candidatesTokenCount": 7,
        "totalTokenCount": 27,
    }
    candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
    yield _data({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"})


def _event(name: str, payload: dict[str, Any]) -> str:
    return f"event: {name}\n" + _data({"type": name, **payload})


def _data(payload: dict[str, Any]) -> str:
    return f"data: {json.dumps(payload)}\n\n"
