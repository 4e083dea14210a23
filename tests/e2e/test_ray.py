"""The same run on a Ray cluster: same files, same requests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.practice_project import differences, fingerprint, items, readable
from tests.training.project_fixture import MakeProject

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]
ray = pytest.importorskip("ray")


@pytest.fixture
def cluster() -> Iterator[None]:
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # Ray's sockets need a short path
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", str(folder))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    environment = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}}
    (folder / "ray").mkdir()
    ray.init(
        num_cpus=1,
        object_store_memory=80 * 1024 * 1024,
        include_dashboard=False,
        logging_level="error",
        runtime_env=environment,
    )
    yield
    ray.shutdown()
    patch.undo()
    shutil.rmtree(folder, ignore_errors=True)


async def test_a_run_on_ray_equals_the_local_run(make_project: MakeProject, cluster: None) -> None:
    short = (
        "evaluation.gate=strict",
        "evaluation.ship_test=false",
        "evaluation.eval_test=false",
    )
    project = make_project(*short, rows=items(4, 4, 0))
    await project.train(run="local")
    local = sorted(map(fingerprint, project.calls))
    project.calls.clear()
    await project.train("executor=ray", run="ray")
    assert sorted(map(fingerprint, project.calls)) == local
    assert set(
        differences(readable(project.folder / "ray"), readable(project.folder / "local"))
    ) <= {
        "config.json",
        "summary.json",
    }
    assert project.best("ray") == project.best("local")
