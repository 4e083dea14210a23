"""Real servers on loopback. `ChatServer` speaks the vendors' APIs and answers what a script says;
`RawServer` sends any bytes, also those that are not HTTP.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.loopback_server import LoopbackServer


@dataclass(frozen=True)
class Call:
    """One request as the server saw it."""

    body: dict[str, Any]
    headers: dict[str, str]
    number: int  # how many requests came before it
    path: str = ""
    query: str = ""

    @property
    def stage(self) -> str:
        return self.headers.get("x-skillfit-stage", "")

    @property
    def text(self) -> str:
        """All message text, joined."""
        messages = self.body.get("messages", self.body.get("input", ()))
        return "\n".join(_text(message.get("content")) for message in messages)


Answer = str | dict[str, Any] | Response
Script = Callable[[Call], Answer | Awaitable[Answer]]


class ChatServer(LoopbackServer):
    """`with ChatServer(script) as server:` and point `OPENAI_BASE_URL` at `server.url`.
    `server.calls` lists the requests.

    A string from the script becomes a reply of the API that was called: chat completions,
    Responses, or Anthropic Messages.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.calls: list[Call] = []
        self.most_in_flight = 0
        self._in_flight = 0
        routes = [Route("/{path:path}", self._complete, methods=["POST"])]
        super().__init__(Starlette(routes=routes))

    async def _complete(self, request: Request) -> Response:
        path = request.url.path
        if not path.endswith(
            ("/chat/completions", "/v1/messages", "/v1/responses", "/openai/responses")
        ):
            return JSONResponse(
                {"error": {"message": f"Nothing at {path}", "code": "not_found"}}, 404
            )
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            return await self._answer(request, path)
        finally:
            self._in_flight -= 1

    async def _answer(self, request: Request, path: str) -> Response:
        body = json.loads(await request.body())
        call = Call(body, dict(request.headers), len(self.calls), path, request.url.query)
        self.calls.append(call)
        answer = self._script(call)
        if not isinstance(answer, (str, dict, Response)):
            answer = await answer
        if isinstance(answer, Response):
            return answer
        model = call.body.get("model", "scripted")
        if path.endswith("/messages"):
            return JSONResponse(anthropic_message(answer, model))
        if path.endswith("/responses"):
            return JSONResponse(openai_response(answer, model))
        message = answer if isinstance(answer, dict) else {"role": "assistant", "content": answer}
        return JSONResponse(completion(message, model))

    @property
    def url(self) -> str:
        return f"{self.root}/v1"


class RawServer:
    """Reads whole HTTP requests, answers each with the bytes that a script gives, and closes the
    connection. An iterator is sent piece by piece until the client hangs up. None: no answer.
    """

    def __init__(self, script: Callable[[int], bytes | Iterator[bytes] | None]) -> None:
        self.requests = 0
        closing = threading.Event()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                length = 0
                while line := self.rfile.readline().strip():
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                self.rfile.read(length)
                number, outer.requests = outer.requests, outer.requests + 1
                answer = script(number)
                if answer is None:
                    closing.wait()
                    return
                with suppress(ConnectionError):  # the client may hang up when it has enough
                    for piece in [answer] if isinstance(answer, bytes) else answer:
                        self.wfile.write(piece)

        self._closing = closing
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> RawServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"


def http(
    body: str,
    *,
    status: str = "200 OK",
    content_type: str = "application/json",
    length: int | None = None,
) -> bytes:
    """An HTTP answer as bytes. With a `length` larger than the body, the connection ends early."""
    data = body.encode()
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        f"Content-Length: {length or len(data)}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + data


def anthropic_message(content: str | dict[str, Any], model: str) -> dict[str, Any]:
    fields = (
        content if isinstance(content, dict) else {"content": [{"type": "text", "text": content}]}
    )
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
    }
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "stop_reason": "end_turn",
        "usage": usage,
        **fields,
    }


def openai_response(content: str | dict[str, Any], model: str) -> dict[str, Any]:
    text = [{"type": "output_text", "text": content, "annotations": []}]
    fields = (
        content
        if isinstance(content, dict)
        else {"output": [{"type": "message", "role": "assistant", "content": text}]}
    )
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return {
        "id": "resp_1",
        "object": "response",
        "model": model,
        "status": "completed",
        "usage": usage,
        **fields,
    }


def completion(message: dict[str, Any], model: str, finish_reason: str = "stop") -> dict[str, Any]:
    size = len(_text(message.get("content"))) // 4 + 1
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", **message},
                "finish_reason": finish_reason,
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": size, "total_tokens": 10 + size},
    }


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return content or ""
