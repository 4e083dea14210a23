"""Rollouts on a real Ray cluster of two worker nodes: same results as local, whether worker, node
or driver dies.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skillfit.agents.agent import AgentFailure, AttemptContext
from skillfit.config.schema import BudgetSection, Config, EnvSection
from skillfit.extensions import load_object
from skillfit.models.protocol import Message, Model, NetworkFailed, Reply, Request, Usage
from skillfit.plugins.ray.executor import RayExecutor
from skillfit.rollout import RolloutEngine, gather, requests_for
from skillfit.run.budget import Budget, BudgetReached
from skillfit.run.journal import RecordedModel
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, RowAt
from skillfit.tasks.task import Task
from tests.rollout.scripted_agents import SKILL, RolloutSetup, Sums, items

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]
ray = pytest.importorskip("ray")

SMALL = {"num_cpus": 1, "object_store_memory": 80 * 1024 * 1024, "include_dashboard": False}


def join(address: str) -> None:
    """Workers find this module's agents by name."""
    environment = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[3])}}
    ray.init(address=address, log_to_driver=False, logging_level="error", runtime_env=environment)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    folder = Path(tempfile.mkdtemp(prefix="ray"))  # Ray's sockets need a short path
    (folder / "ray").mkdir()
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", str(folder))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "num_cpus": 0})
    cluster.add_node(**SMALL)
    cluster.add_node(**SMALL)
    join(cluster.address)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    patch.undo()
    shutil.rmtree(folder, ignore_errors=True)


class Adder:
    """A model of the driver: computes the requested sum and reports its process."""

    id = "practice/adder"
    context_window = 8000

    def __init__(self, budget: Budget | None = None) -> None:
        self.asked: list[str] = []
        self.processes: set[int] = set()
        self._budget = budget

    async def complete(self, request: Request) -> Reply:
        if self._budget:
            (await self._budget.reserve("agent", Usage(calls=1))).settle(Usage(calls=1))
        self.processes.add(os.getpid())
        text = request.messages[-1].content
        self.asked.append(text)
        await asyncio.sleep(0.01)
        if text == "broken + 1":
            raise NetworkFailed("reset", usage=Usage(calls=1, usd=1.0))
        return Reply(
            str(int(text.partition(" ")[0]) + 1), usage=Usage(calls=1, input=4, output=1, usd=0.5)
        )


@dataclass(frozen=True)
class Asking:
    """Calls its model, writes a marker file in `folder`, then fails as `trouble` says, once per
    item.
    """

    model: Model
    folder: Path
    trouble: str = ""

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        reply = await self.model.complete(
            Request((Message("user", item.input),), "rollout", purpose=context.purpose)
        )
        mark = self.folder / f"{item.id}.{os.getpid()}"
        first = not list(self.folder.glob(f"{item.id}.*"))
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"
        mark.write_text(node)
        if first and self.trouble == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if (first and self.trouble == "hang") or self.trouble == f"hang on {node}":
            await asyncio.sleep(600)
        if self.trouble == "fail":
            raise AgentFailure("no browser here", kind="sandbox")
        return Attempt(reply.text, usage=reply.usage)

    def describe(self) -> dict[str, Any]:
        return {}


def engine(
    setup: RolloutSetup,
    model: Adder,
    folder: Path,
    trouble: str = "",
    executor: RayExecutor | None = None,
    **settings: Any,
) -> RolloutEngine:
    agent = Asking(RecordedModel(model, setup.journal, "agent"), folder, trouble)
    return RolloutEngine(Sums(), agent, setup.journal, setup.events, executor=executor, **settings)


def recorded(setup: RolloutSetup) -> dict[str, tuple[float, Usage]]:
    return {entry.key: entry.usage for entry in setup.journal.entries()}  # type: ignore[misc]


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


async def on_ray(work: Any) -> Any:
    executor = RayExecutor(cpus=0.5)
    try:
        return await work(executor)
    finally:
        await executor.close()


async def until(true: Callable[[], Any]) -> None:
    for _ in range(1200):
        if true():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("waited for a minute")


async def test_results_journal_and_limits_equal_those_of_a_local_run(
    cluster: Any, setup: RolloutSetup, marks: Path, tmp_path: Path
) -> None:
    (tmp_path / "local").mkdir()
    local, near = RolloutSetup(tmp_path / "local"), Adder()
    expected = await engine(local, near, marks).run(
        requests_for(SKILL, items(6)), stage="gate", series="selection"
    )
    model = Adder(Budget(BudgetSection(calls=6), setup.journal))

    async def work(executor: RayExecutor) -> Any:
        rollouts = engine(setup, model, marks, executor=executor)
        outcomes = await rollouts.run(
            requests_for(SKILL, items(6)), stage="gate", series="selection"
        )
        with pytest.raises(BudgetReached):
            await rollouts.run(requests_for(SKILL, items(7)), stage="gate", series="selection")
        return outcomes

    outcomes = await on_ray(work)
    assert [(o.item_id, o.score, o.attempt, o.usage) for o in outcomes] == [
        (o.item_id, o.score, o.attempt, o.usage) for o in expected
    ]
    assert recorded(setup) == recorded(local)
    assert model.processes == {os.getpid()} and sorted(model.asked) == sorted(near.asked)
    pids = {mark.suffix for mark in marks.iterdir()}
    assert f".{os.getpid()}" in pids and len(pids) > 1  # the local run's, and workers'
    local.close()


async def test_a_row_on_the_drivers_disk_is_sent_with_its_item(
    cluster: Any, setup: RolloutSetup, marks: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"input": "4 + 1", "answers": ["5"]}\n')
    item = Item("on-disk", RowAt(file, 0, file.stat().st_size))

    async def work(executor: RayExecutor) -> Any:
        task = engine(setup, Adder(), marks, executor=executor).start(
            requests_for(SKILL, [item]), stage="gate", series="selection"
        )[0]
        await until(lambda: executor._packed)
        file.unlink()
        return await task

    assert (await on_ray(work)).succeeded


async def test_failures_in_a_worker_keep_their_kind_and_calls_are_billed_once(
    cluster: Any, setup: RolloutSetup, marks: Path
) -> None:
    async def work(executor: RayExecutor) -> Any:
        calls = engine(setup, Adder(), marks, executor=executor)
        broken = await calls.run(
            requests_for(SKILL, [Item("broken", {"input": "broken + 1"})]),
            stage="gate",
            series="selection",
        )
        return broken + await engine(setup, Adder(), marks, "fail", executor).run(
            requests_for(SKILL, items(1)), stage="gate", series="selection"
        )

    call, agent = await on_ray(work)
    assert (call.failure.kind, agent.failure.kind) == ("network", "sandbox")
    assert setup.losses() == 2  # one each for the first try and the second
    assert setup.journal.bill().known_usd == 2.5


async def test_a_killed_worker_is_replaced_and_its_call_is_not_paid_again(
    cluster: Any, setup: RolloutSetup, marks: Path
) -> None:
    model = Adder()

    async def work(executor: RayExecutor) -> Any:
        return await engine(setup, model, marks, "die", executor).run(
            requests_for(SKILL, items(2)), stage="gate", series="selection"
        )

    outcomes = await on_ray(work)
    assert all(outcome.succeeded for outcome in outcomes)
    assert sorted(model.asked) == ["0 + 1", "1 + 1"] and len(list(marks.iterdir())) == 4


async def test_a_rollout_over_its_time_limit_is_ended_in_its_worker(
    cluster: Any, setup: RolloutSetup, marks: Path
) -> None:
    hurried = Config(env=EnvSection(exec_timeout=1))

    async def work(executor: RayExecutor) -> Any:
        return await engine(setup, Adder(), marks, "hang", executor, config=hurried).run(
            requests_for(SKILL, items(1)), stage="gate", series="selection"
        )

    (outcome,) = await on_ray(work)
    assert outcome.failure.kind == "timeout"


async def test_functions_of_a_user_file_are_sent_to_the_workers(
    cluster: Any, setup: RolloutSetup, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import os\nHELPED = 'with a neighbour'\n"
        "def evaluate(skill, item):\n    return {'score': 1, 'feedback': HELPED}\n"
    )
    task = Task([{"input": "a"}, {"input": "b"}], evaluate=load_object(f"{file}:evaluate"))

    async def work(executor: RayExecutor) -> Any:
        rollouts = RolloutEngine(task, None, setup.journal, setup.events, executor=executor)
        return await rollouts.run(requests_for(SKILL, task.items), stage="gate", series="selection")

    assert [outcome.score.feedback for outcome in await on_ray(work)] == ["with a neighbour"] * 2


async def test_a_node_killed_during_rollouts_loses_no_results(
    cluster: Any, setup: RolloutSetup, marks: Path
) -> None:
    model = Adder()
    victim = cluster.add_node(**SMALL)

    async def work(executor: RayExecutor) -> Any:
        tasks = engine(setup, model, marks, f"hang on {victim.node_id}", executor).start(
            requests_for(SKILL, items(6)), stage="gate", series="selection"
        )
        await until(lambda: victim.node_id in {mark.read_text() for mark in marks.iterdir()})
        cluster.remove_node(victim, allow_graceful=False)
        return await gather(tasks)

    outcomes = await on_ray(work)
    assert all(outcome.succeeded for outcome in outcomes)
    assert sorted(model.asked) == [item.input for item in items(6)]


DRIVER = """
import asyncio, sys
from pathlib import Path
from tests.plugins.ray.test_ray import Adder, RayExecutor, engine, join, requests_for
from tests.rollout.scripted_agents import SKILL, RolloutSetup, items

async def main(address, folder, trouble):
    join(address)
    executor, setup, model = RayExecutor(cpus=0.5), RolloutSetup(Path(folder)), Adder()
    rollouts = engine(setup, model, Path(folder) / "marks", trouble, executor)
    outcomes = await rollouts.run(requests_for(SKILL, items(6)), stage="gate", series="selection")
    succeeded = sum(outcome.succeeded for outcome in outcomes)
    (Path(folder) / "result").write_text(f"{len(model.asked)} {succeeded}")
    await executor.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_killed_driver_resumes_from_the_journal(
    cluster: Any, tmp_path: Path, marks: Path
) -> None:
    command = [sys.executable, "-c", DRIVER, cluster.address, str(tmp_path)]
    killed = subprocess.Popen([*command, "hang"], cwd=Path(__file__).parents[3])
    while len(list(marks.iterdir())) < 4:  # four at half a CPU each have asked their model and hang
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    resumed = subprocess.run(
        [*command, ""], cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=300
    )
    assert resumed.returncode == 0, resumed.stderr
    assert (
        tmp_path / "result"
    ).read_text() == "2 6"  # the four calls made before were not paid again; Ray prints as it likes
