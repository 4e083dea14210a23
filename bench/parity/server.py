"""One server on loopback for both systems: chat completions by the scripted models."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bench.parity.optimizer import STAGE, Prompt, reply
from bench.parity.scenario import Scenario

# The reference's stage is the marker in its stand-in prompts; ours comes in a header.
_STAGES = {
    "reflect.failure": "failure",
    "reflect.success": "success",
    "analyst_error": "failure",
    "analyst_success": "success",
    "merge_failure": "merge",
    "merge_success": "merge",
    "merge_final": "merge",
    "ranking": "rank",
    "rewrite_skill": "rewrite",
}


class ParityServer:
    """`with ParityServer() as server:` both systems call `server.url`."""

    def __init__(self) -> None:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> ParityServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one packet

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = json.dumps(
            _completion(
                body["model"], reply(_prompt(body, self.headers.get("X-Skillfit-Stage", "")))
            )
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _prompt(body: dict[str, Any], stage: str) -> Prompt:
    texts = {message["role"]: str(message["content"]) for message in body["messages"]}
    if not stage:
        found = STAGE.search(texts["system"])
        if found is None:
            raise ValueError("a prompt without a stage")
        stage = found[1]
    return Prompt(
        Scenario.parse(body["model"]),
        _STAGES.get(stage, stage),
        texts.get("system", ""),
        texts["user"],
    )


def _completion(model: str, text: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-parity",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
