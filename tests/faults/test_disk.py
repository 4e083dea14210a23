"""A full disk or a deleted run directory ends a run: no request is sent whose answer could not be
recorded.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from skillfit.run.store import RunNotWritable
from tests.support.chat_server import Call, completion
from tests.support.small_disk import (
    needs_failing_disk,
    needs_small_disk,
    on_failing_disk,
    on_small_disk,
)
from tests.training.practice_project import Script, TrainingProject, answered, fingerprint, items
from tests.training.project_fixture import MakeProject

ROOT = Path(__file__).parents[2]
CONCURRENCY = 16
PROGRAM = (
    "import json, sys; from tests.faults.killed_training import train; "
    "print(json.dumps(train(json.loads(sys.argv[1]))))"
)


def training(project: TrainingProject, disk: Path) -> list[str]:
    """The command line that trains in a run directory on this disk."""
    order = {
        "config": project.config(),
        "settings": [f"model.concurrency={CONCURRENCY}"],
        "run": str(disk / "run"),
        "key": "a-key",
        "kill": None,
    }
    return [sys.executable, "-c", PROGRAM, json.dumps(order)]


def trained(command: list[str]) -> dict[str, Any]:
    """How the training ended."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.stdout, done
    ended: dict[str, Any] = json.loads(done.stdout)
    return ended


@needs_small_disk
def test_a_full_disk_loses_only_requests_in_flight(make_project: MakeProject) -> None:
    def long_answer(call: Call) -> Any:
        return JSONResponse(completion({"content": "word " * 1000}, fingerprint(call)))

    project = make_project(script=long_answer, rows=items(200, 200, 0))
    disk = project.folder / "disk"
    ended = trained(on_small_disk(disk, 3000, training(project, disk)))
    assert ended["error"] == "RunNotWritable" and ended["exit"] == 2, ended
    assert "No room left on the disk" in ended["message"]
    recorded = answered(Path(f"{disk}.after") / "run").total()
    assert recorded > 20
    assert len(project.calls) - recorded <= CONCURRENCY


@needs_failing_disk
def test_a_disk_that_becomes_read_only_ends_the_run(make_project: MakeProject) -> None:
    script = Script()
    sent_after = 0

    def failing(call: Call) -> Any:
        nonlocal sent_after
        if call.number == 30:
            Path(f"{disk}.fail").touch()
            while not Path(f"{disk}.failed").exists():
                time.sleep(0.01)
        sent_after += call.number > 30
        return script(call)

    project = make_project(script=failing, rows=items(100, 100, 0))
    disk = project.folder / "disk"
    ended = trained(on_failing_disk(disk, training(project, disk)))
    assert ended["error"] == "RunNotWritable" and ended["exit"] == 2, ended
    assert sent_after <= CONCURRENCY
    assert 30 + sent_after - answered(Path(f"{disk}.after") / "run").total() <= 2 * CONCURRENCY


async def test_a_run_directory_deleted_mid_run_ends_the_run(make_project: MakeProject) -> None:
    script = Script()
    sent_after = 0

    def deleting(call: Call) -> Any:
        nonlocal sent_after
        if call.number == 30:
            shutil.rmtree(project.folder / "run")
        sent_after += call.number > 30
        return script(call)

    project = make_project(
        f"model.concurrency={CONCURRENCY}", script=deleting, rows=items(100, 100, 0)
    )
    with pytest.raises(RunNotWritable, match="was deleted or moved during the run"):
        await project.train()
    assert sent_after <= CONCURRENCY
    assert not (project.folder / "run").exists()
