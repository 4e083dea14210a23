"""The practice models behind the OpenAI chat API on loopback, with one server per process, and the
provider that calls it.

They are for learning skillfit, for trying a config in CI, and for tests. Everything around them
(HTTP, journal, gate, report) is real, and the answers of the agent depend on the skill.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from skillfit.errors import InputError
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import Setup
from skillfit.models.providers.openai_protocols import ChatProvider
from skillfit.models.providers.practice_rules import practice_answer, practice_reply

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


_MODELS = ("agent", "optimizer")
_SECONDS = 0.02  # about the time of a call, so that progress is visible


def practice(setup: Setup) -> ChatProvider:
    """`practice/agent` or `practice/optimizer`."""
    setup.takes(base_url=False)
    if setup.name not in _MODELS:
        raise InputError(
            f"There is no practice model {setup.name!r}.",
            hint="There are practice/agent and practice/optimizer.",
        )
    return ChatProvider(setup, base_url=_serve(), key="practice")


@cache
def _serve() -> str:
    """Start the server in a thread of its own. Returns its address."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Route

    app = Starlette(routes=[Route("/v1/chat/completions", _complete, methods=["POST"])])
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    )
    threading.Thread(target=server.run, daemon=True, name="practice").start()
    while not server.started:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    return f"http://127.0.0.1:{port}/v1"


async def _complete(request: Request) -> Response:
    from starlette.responses import JSONResponse

    body: JsonObject = await request.json()
    texts = [(message["role"], _text(message["content"])) for message in body["messages"]]
    prompt = "\n\n".join(text for _, text in texts)
    await asyncio.sleep(_SECONDS * (0.5 + random.Random(prompt).expovariate(2)))
    if body["model"] == "optimizer":
        said = practice_reply(request.headers.get("x-skillfit-stage", ""), prompt)
    else:
        skill = "\n".join(text for role, text in texts if role == "system")
        task = "\n".join(text for role, text in texts if role == "user")
        said = practice_answer(skill, task, int(body.get("seed") or 0))
    usage = {"prompt_tokens": len(prompt) // 4 + 1, "completion_tokens": len(said) // 4 + 1}
    return JSONResponse(
        {
            "id": "practice",
            "object": "chat.completion",
            "created": 0,
            "model": f"practice/{body['model']}",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": said},
                    "finish_reason": "stop",
                }
            ],
            "usage": {**usage, "total_tokens": sum(usage.values())},
        }
    )


def _text(content: Any) -> str:
    return (
        "\n".join(part.get("text", "") for part in content)
        if isinstance(content, list)
        else content or ""
    )
