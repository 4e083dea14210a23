"""A table of another model: rollouts on a real server, resumed, and the emulator fitted to them."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from bench.real import make_table
from bench.real.fit import fit, log_loss

TASK = {
    "name": "letters",
    "start": "Answer with the letter.",
    "lines": [
        {"text": "- Use capitals.", "role": "helpful"},
        {"text": "- Be kind.", "role": "useless"},
    ],
    "items": [
        {"id": f"i{at}", "kind": "k", "split": "train", "ask": f"Case {at}.", "gold": "A"}
        for at in range(4)
    ],
}


@pytest.fixture
def server() -> Iterator[tuple[urllib.request.Request, list[str]]]:
    """A model that is right exactly when the skill holds the first line, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            skill = body["messages"][0]["content"]
            asked.append(body["messages"][1]["content"])
            text = " A\n" if "- Use capitals." in skill else "a"
            sent = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield urllib.request.Request(f"http://127.0.0.1:{served.server_port}/v1"), asked
        served.shutdown()


def test_the_rollouts_resume_and_say_what_was_right(
    tmp_path: Path, server: tuple[urllib.request.Request, list[str]]
) -> None:
    url, asked = server
    make_table.roll_out(tmp_path, TASK, 2, url, "m", concurrency=2)
    assert len(asked) == 2 * 4
    make_table.roll_out(tmp_path, TASK, 5, url, "m", concurrency=2)
    assert len(asked) == 5 * 4
    sets, right = make_table.outcomes(tmp_path, 2)
    assert sets.tolist()[:4] == [[0, 0], [1, 0], [0, 1], [1, 0]]  # none, each, all helpful
    assert (right == sets[:, :1]).all()
    assert right.shape == (5, 4)


def test_the_emulator_finds_the_line_that_helps() -> None:
    luck = np.random.default_rng(1)
    sets = (luck.random((300, 3)) < 0.5).astype(float)
    truth = np.where(sets[:, :1] > 0, 0.9, 0.2) * np.ones((1, 6))
    right = (luck.random(truth.shape) < truth).astype(float)
    networks = fit(sets[:250], right[:250], steps=300)
    constant = right[:250].mean()
    base = -(constant * np.log(constant) + (1 - constant) * np.log(1 - constant))
    assert log_loss(networks, sets[250:], right[250:]) < 0.8 * base
