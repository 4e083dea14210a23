"""What a coding agent can see and reach from its shell."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skillfit.agents.agent import AgentFailure, AttemptContext, remove_workspace
from skillfit.errors import InputError
from skillfit.models.failures import policy
from skillfit.sandbox.programs import ISOLATIONS, Isolation, works
from skillfit.tasks.item import Item
from tests.agents.stand_in import ITEM, SKILL, StandIn

FULL = [isolation for isolation in ISOLATIONS if isolation.full and works(isolation)]
each = pytest.mark.parametrize("isolation", FULL, ids=lambda isolation: isolation.name)


@pytest.fixture
def isolated(fake: StandIn, isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The machine has this isolation and no better one."""
    monkeypatch.setattr("skillfit.sandbox.programs.best_isolation", lambda: isolation)
    return fake


@each
async def test_the_environment_of_other_processes_cannot_be_read(isolated: StandIn) -> None:
    other = subprocess.Popen(["sleep", "600"], env={"A_KEY_OF_OURS": "sesame"})  # noqa: ASYNC220
    try:
        seen = await isolated.shell("cat /proc/[0-9]*/environ | tr '\\0' '\\n' | sort -u")
    finally:
        other.kill()
        other.wait()

    assert "FAKE_KEY=" in seen, "its own"
    assert "sesame" not in seen and "OPENAI_API_KEY" not in seen


@each
async def test_the_tasks_the_users_home_and_the_run_cannot_be_read(
    isolated: StandIn, tmp_path: Path
) -> None:
    private = ["tasks.jsonl", "runs/first/journal.sqlite", "user/.ssh/id_ed25519", "user/.fake/x"]
    for name in private:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("sesame")
    seen = await isolated.shell(f"cd {tmp_path} && cat {' '.join(private)}; ls -R {tmp_path}")

    assert "sesame" not in seen


@each
async def test_the_workspace_of_another_rollout_can_be_neither_read_nor_changed(
    isolated: StandIn,
) -> None:
    other = await isolated.agent().attempt(SKILL, ITEM, AttemptContext())
    left = Path(other.workspace) / "left.txt"
    seen = await isolated.shell(f"cat {left}; echo forged > {left}")

    assert left.read_text() == "work"
    assert "work\n" not in seen.replace(str(left), "")
    remove_workspace(other.workspace)


@each
async def test_the_files_of_the_system_cannot_be_changed(isolated: StandIn) -> None:
    await isolated.shell("touch /usr/skillfit-was-here /etc/skillfit-was-here")

    assert not Path("/usr/skillfit-was-here").exists()
    assert not Path("/etc/skillfit-was-here").exists()


@each
async def test_the_network_can_be_used(isolated: StandIn) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code = f"import socket; print(socket.create_connection(('127.0.0.1', {port})).recv(9))"
    async with server:
        assert "hello" in await isolated.shell(f'{sys.executable} -c "{code}"')


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    await writer.drain()
    writer.close()


@each
async def test_a_shared_corpus_is_visible_and_read_only(isolated: StandIn, tmp_path: Path) -> None:
    corpus = tmp_path / "documents"
    (corpus / "law").mkdir(parents=True)
    (corpus / "law" / "one.txt").write_text("article one")
    item = Item("q", {"input": "RUN cat corpus/law/one.txt; echo x > corpus/law/two.txt; ls"})
    attempt = await isolated.agent(corpus=corpus).attempt(SKILL, item, AttemptContext())

    assert "article one" in attempt.steps[1].text
    assert "in the folder corpus (read-only)" in "".join(step.text for step in attempt.steps)
    assert [path.name for path in corpus.rglob("*.txt")] == ["one.txt"]
    assert not (Path(attempt.workspace) / "corpus").exists()
    remove_workspace(attempt.workspace)


async def test_more_files_can_be_made_readable(fake: StandIn, tmp_path: Path) -> None:
    (tmp_path / "extra.txt").write_text("sesame")
    options = {"readable": [str(tmp_path / "extra.txt")]}

    assert "sesame" in await fake.shell(f"cat {tmp_path / 'extra.txt'}", options=options)


async def test_running_without_a_sandbox_is_recorded(fake: StandIn) -> None:
    attempt = await fake.attempt(options={"isolation": "off"})

    assert attempt.isolation == "none"


def test_a_missing_required_sandbox_is_an_error_at_the_start(
    fake: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillfit.sandbox.programs.best_isolation", lambda: ISOLATIONS[-1])

    with pytest.raises(InputError, match=r"options\.isolation of cli/.* is require.*no full"):
        fake.agent(options={"isolation": "require"})


async def test_a_sandbox_that_does_not_start_is_a_transient_failure(
    fake: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken" / "bwrap"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'bwrap: no permission' >&2\nexit 1\n")
    broken.chmod(0o755)
    agent = fake.agent()
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("skillfit.sandbox.programs.best_isolation", lambda: ISOLATIONS[0])

    with pytest.raises(AgentFailure, match="no permission") as failed:
        await agent.attempt(SKILL, ITEM, AttemptContext())

    assert failed.value.kind == "sandbox" and policy("sandbox").rollout_retries
