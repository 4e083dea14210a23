"""An Inspect task through a whole program: rollouts within and over their time limit, its logs in
the run directory, and the end of the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_server import Call, ChatServer

pytest.importorskip("inspect_ai")

FILE = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate

@task
def sums():
    samples = [Sample(id=f"s{n}", input=f"What is {n} plus {n}?", target=str(2 * n))
               for n in range(8)]
    return Task(dataset=samples, solver=generate(), scorer=match())
"""


def _measure(folder: Path, url: str) -> dict[str, Any]:
    (folder / "sums.py").write_text(FILE)
    (folder / "skill.md").write_text("Add carefully.")
    model = {"id": "openai/small", "base_url": url}
    env = {"skill": "skill.md", "tasks": "inspect:sums.py@sums", "exec_timeout": 6}
    (folder / "config.yaml").write_text(json.dumps({"model": {"agent": model}, "env": env}))
    homes = dict.fromkeys(
        ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"),
        str(folder / "home"),
    )
    line = [
        sys.executable,
        "-m",
        "skillfit.cli.app",
        "eval",
        "config.yaml",
        "--split",
        "all",
        "--run",
        "run",
        "--json",
    ]
    ended = subprocess.run(
        line,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **homes, "OPENAI_API_KEY": "k"},
    )
    assert ended.returncode == 0, ended.stderr
    (measured,) = json.loads(ended.stdout)
    return dict(measured)


def test_one_hanging_rollout_is_ended_and_the_others_are_scored(tmp_path: Path) -> None:
    from inspect_ai.log import list_eval_logs, read_eval_log

    over = threading.Event()

    async def never() -> str:
        await asyncio.to_thread(over.wait)
        return "late"

    def answer(call: Call) -> Any:
        number = int(call.body["messages"][-1]["content"].split()[2])
        return never() if number == 3 else str(2 * number)

    with ChatServer(answer) as server:
        measured = _measure(tmp_path, server.url)
        over.set()
    assert (measured["scored"], measured["planned"], measured["hard"]) == (7, 8, 1.0)
    logs = [read_eval_log(info) for info in list_eval_logs(str(tmp_path / "run" / "inspect_logs"))]
    samples = {str(sample.id): sample for log in logs for sample in log.samples or []}
    assert {log.status for log in logs} == {"success"} and len(samples) == 8
    assert [name for name, sample in samples.items() if not sample.scores] == ["s3"]
    assert not (tmp_path / "logs").exists()
