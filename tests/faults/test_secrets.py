"""Nothing secret on disk."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.chat_server import Call
from tests.training.practice_project import Script, items
from tests.training.project_fixture import MakeProject

HEADER = "team-header-0123456789"


@pytest.mark.parametrize("key", ["kx-3f1b9c8e7d6a5b4c", 'kx-"3f1b\\9c8e"7d6a'])
async def test_keys_never_reach_the_run_directory_even_when_a_server_echoes_them(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    others = {
        name: f"planted-{name.lower()}-0123456789"
        for name in ("ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN")
    }
    for name, value in others.items():
        monkeypatch.setenv(name, value)

    def echoing(call: Call) -> Any:
        sent = f"{call.headers['authorization']} {call.headers['x-team']}"
        return json.dumps(
            {
                "success_patterns": [sent],
                "patch": {
                    "reasoning": sent,
                    "edits": [{"op": "append", "content": f"- Use {key} and {HEADER}."}],
                },
            }
        )

    def chatty(call: Call) -> str:
        return f"unknown {call.headers['authorization']} {call.headers['x-team']}"

    script = Script(
        {"reflect.failure": echoing, "reflect.success": echoing, "slow_update": echoing}, chatty
    )
    project = make_project(
        "train.num_epochs=2", "evaluation.preflight=true", script=script, rows=items(4, 4, 2)
    )
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Team: {HEADER}")
    await project.train(force=True)
    assert all(key in call.headers["authorization"] for call in project.calls)
    written = [path for path in (project.folder / "run").rglob("*") if path.is_file()]
    found = [
        path.name
        for path in written
        for secret in (key, json.dumps(key)[1:-1], HEADER, *others.values())
        if secret.encode() in path.read_bytes()
    ]
    assert len(written) > 20
    assert found == []
