"""A command's caps hold for all it does: all models of `eval`, both measurements of `verify`."""

from pathlib import Path

import pytest

from tests.cli.cli_project import Shell
from tests.support.chat_server import ChatServer


def test_eval_of_several_models_has_one_budget(
    shell: Shell, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-tests")
    models = ("--model", "openai/one", "--model", "openai/two")
    with ChatServer(lambda call: "billing") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        result = shell("eval", config, *models, "--run", "both", "budget.calls=45", "--json")
    assert result.code == 5 and "budget of 45 calls is reached" in result.err
    assert len(server.calls) == 45


def test_both_measurements_of_verify_have_one_budget(
    shell: Shell, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-tests")
    with ChatServer(lambda call: "no such category") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        result = shell(
            "verify", finished / "run", "model.agent=openai/one", "budget.calls=60", "--json"
        )
    assert result.code == 5 and "budget of 60 calls is reached" in result.err
    assert len(server.calls) == 60
