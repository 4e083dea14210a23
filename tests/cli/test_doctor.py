"""`skillfit doctor`: what works here, and what to do about the rest."""

from typing import Any

import pytest

from tests.cli.cli_project import Shell


def by_name(told: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in told}


def test_missing_parts_name_what_to_do_and_are_no_problem(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    found = shell("doctor", "--json")
    rows = by_name(found.json)
    assert found.code == 0
    assert rows["openai/…"] == {
        "state": "missing",
        "name": "openai/…",
        "found": "not ready",
        "fix": "Set OPENAI_API_KEY",
    }
    assert rows["cli/codex"]["fix"] == "Install it with: npm install -g @openai/codex."
    assert rows["practice/…"]["state"] == rows["skillfit"]["state"] == "ok"
    printed = shell("doctor").out
    assert "Set OPENAI_API_KEY" in printed and "Nothing is broken." in printed


def test_a_key_makes_a_provider_ready_and_is_not_shown(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-test")
    found = shell("doctor", "--json")
    assert by_name(found.json)["openai/…"]["state"] == "ok"
    assert "secret-of-the-test" not in found.out


def test_too_few_open_files_are_a_problem_with_its_fix(shell: Shell) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        found = shell("doctor", "--json")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.code == 2
    assert by_name(found.json)["open files"]["state"] == "problem"
    assert "ulimit -n" in by_name(found.json)["open files"]["fix"]
