"""The models of a run behind an OpenAI-compatible server on loopback, for peers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bench.real.play import Players
from bench.throughput.server import completion

_STAGE = re.compile(r"\[stage: (\w+)\]")  # in the prompts that skillopt is given


@contextmanager
def serving(players: Players) -> Iterator[str]:
    """The base_url while the models can be asked: `agent`, and any other name is the optimizer."""
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with one_at_a_time:
                text = _reply(players, body)
            sent = json.dumps(completion(text)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def _reply(players: Players, body: dict[str, object]) -> str:
    messages = body["messages"]
    assert isinstance(messages, list)
    texts = {
        role: "\n".join(message["content"] for message in messages if message["role"] == role)
        for role in ("system", "user")
    }
    if str(body["model"]).endswith("agent"):
        return players.answer(texts["system"], texts["user"])
    stage = _STAGE.search(texts["system"])
    return players.propose(stage[1] if stage else "", texts["user"])
