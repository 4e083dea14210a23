"""A real HTTP server on loopback that speaks the OpenAI chat API and says what a script tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


@dataclass(frozen=True)
class Call:
    """One request as the server saw it."""

    body: dict[str, Any]
    headers: dict[str, str]
    number: int  # how many requests came before it

    @property
    def stage(self) -> str:
        return self.headers.get("x-skillfit-stage", "")

    @property
    def text(self) -> str:
        """All message text, joined."""
        return "\n".join(_text(message.get("content")) for message in self.body["messages"])


Answer = str | dict[str, Any] | Response
Script = Callable[[Call], Answer | Awaitable[Answer]]


class ChatServer:
    """`with ChatServer(script) as server:` point `OPENAI_BASE_URL` at `server.url`; `server.calls` lists what came."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.calls: list[Call] = []
        app = Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    async def _complete(self, request: Request) -> Response:
        call = Call(json.loads(await request.body()), dict(request.headers), len(self.calls))
        self.calls.append(call)
        answer = self._script(call)
        if not isinstance(answer, (str, dict, Response)):
            answer = await answer
        if isinstance(answer, Response):
            return answer
        message = answer if isinstance(answer, dict) else {"role": "assistant", "content": answer}
        return JSONResponse(completion(message, call.body.get("model", "scripted")))

    def __enter__(self) -> ChatServer:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)

    @property
    def port(self) -> int:
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


def completion(message: dict[str, Any], model: str, finish_reason: str = "stop") -> dict[str, Any]:
    size = len(_text(message.get("content"))) // 4 + 1
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 10, "completion_tokens": size, "total_tokens": 10 + size},
    }


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return content or ""
