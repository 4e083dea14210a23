"""Secrets of the environment, from the request to everything a command shows and writes."""

from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from tests.cli.cli_project import SMALL, Shell
from tests.support.chat_server import Call, ChatServer

IN_QUERY, HEADER, KEY = (
    "planted-in-the-query-01",
    "planted-header-0123456",
    "planted-key-0123456789",
)


def test_secrets_in_address_header_and_key_are_sent_but_never_shown(
    shell: Shell, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server names them all in its replies and errors, as gateways do."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Gateway: {HEADER}")

    def script(call: Call) -> Any:
        seen = (
            f"{call.path}?{call.query} {call.headers['authorization']} {call.headers['x-gateway']}"
        )
        if call.number > 5 and call.number % 3 == 0:
            return JSONResponse({"error": {"message": f"no route {seen}"}}, 503)
        return f"billing {seen}"

    with ChatServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}?code={IN_QUERY}")
        models = [f"model.{role}={{id: openai/m, retries: 0}}" for role in ("agent", "optimizer")]
        trained = shell("train", config, "--run", "run", "--force", "--plain", *models, *SMALL)
        results = [
            trained,
            *(shell(command, "run") for command in ("show", "report", "diff", "ls")),
        ]
    calls = server.calls
    assert len(calls) > 10 and all(f"code={IN_QUERY}" in call.query for call in calls)
    shown = "".join(each.out + each.err for each in results)
    written = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {"journal.sqlite", "report.html"} <= {path.name for path in written}
    assert "[secret]" in shown + "".join(map(str, written.values()))
    for secret in (IN_QUERY, HEADER, KEY):
        assert secret not in shown
        assert [path.name for path, data in written.items() if secret.encode() in data] == []
