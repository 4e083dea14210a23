"""Connecting to a Ray cluster that `ray start` made: by address, by RAY_ADDRESS, with and without
its token. The cluster and each driver are separate processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from skillfit.errors import InfrastructureError, InputError
from skillfit.plugins.ray import executor as ray_executor
from skillfit.plugins.ray.executor import RayExecutor

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]
pytest.importorskip("ray")
ROOT = Path(__file__).parents[3]
TOKEN = "0123456789abcdef" * 4
DRIVER = """
import asyncio, sys
from pathlib import Path
from skillfit.errors import SkillfitError
from tests.plugins.ray.test_ray import Adder, RayExecutor, engine, requests_for
from tests.rollout.scripted_agents import SKILL, RolloutSetup, items

async def main(address, folder):
    try:
        executor = RayExecutor(address, cpus=0.5)
    except SkillfitError as error:
        return f"{type(error).__name__}: {error.message} {error.hint}"
    rollouts = engine(RolloutSetup(folder), Adder(), folder / "marks", executor=executor)
    outcomes = await rollouts.run(requests_for(SKILL, items(3)), stage="gate", series="selection")
    cores = executor.cores
    await executor.close()
    return f"{sum(outcome.succeeded for outcome in outcomes)} rollouts on {cores} CPUs"

folder = Path(sys.argv[2])
(folder / "marks").mkdir()
(folder / "result").write_text(asyncio.run(main(sys.argv[1], folder)))
"""


@dataclass(frozen=True)
class Head:
    address: str  # for other nodes and for drivers on this machine
    client: str  # for drivers on other machines


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path, **more: str) -> dict[str, str]:
    sources = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    fixed = {"PATH": path, "HOME": str(home), "PYTHONPATH": sources, "LANG": "C.UTF-8"}
    return {**fixed, "RAY_USAGE_STATS_ENABLED": "0", **more}


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A head node with three CPUs that asks for a token."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # Ray's sockets need a short path
    port, client_port = free_port(), free_port()
    command = ["ray", "start", "--head", "--block", "--num-cpus=3", "--include-dashboard=false"]
    command += [f"--port={port}", f"--ray-client-server-port={client_port}"]
    command += ["--node-ip-address=127.0.0.1", f"--temp-dir={folder}"]
    command += ["--object-store-memory=80000000", "--disable-usage-stats"]
    started = folder / "started.txt"
    process = subprocess.Popen(
        command,
        env=environment(folder, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN),
        stdout=started.open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    # The client's port answers before the node can start processes, so that is too early.
    while "Ray runtime started" not in started.read_text() or not _listens(client_port):
        assert process.poll() is None, started.read_text()
        time.sleep(0.1)
    yield Head(f"127.0.0.1:{port}", f"ray://127.0.0.1:{client_port}")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def drive(address: str, folder: Path, **more: str) -> str:
    """What a separate driver, with an empty home directory, reports."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, address, str(folder)],
        cwd=ROOT,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (folder / "result").read_text(encoding="utf-8")


def test_rollouts_run_through_the_ray_client_with_the_token_in_the_home_directory(
    head: Head, tmp_path: Path
) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(TOKEN)
    assert drive(head.client, tmp_path) == "3 rollouts on 3 CPUs"


def test_a_missing_token_is_named_with_what_to_do(head: Head, tmp_path: Path) -> None:
    reported = drive(head.client, tmp_path)
    assert reported.startswith("InfrastructureError: The Ray cluster at 127.0.0.1:")
    assert "RAY_AUTH_TOKEN" in reported


def test_executor_ray_joins_the_cluster_that_ray_address_names(head: Head, tmp_path: Path) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    result = drive("ray", tmp_path, RAY_ADDRESS=head.address, **token)
    assert result == "3 rollouts on 3 CPUs"


def test_a_wrong_token_is_named_with_what_to_do(head: Head, tmp_path: Path) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}
    reported = drive("ray", tmp_path, RAY_ADDRESS=head.address, **token)
    assert reported.startswith("InfrastructureError: ")
    assert "RAY_AUTH_TOKEN" in reported


@pytest.mark.parametrize("address", ["ray://head", "ray://head:port", "ray://:10001"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(InputError) as refused:
        RayExecutor(address)
    assert "ray://HOST:10001" in refused.value.hint


def test_an_address_where_nothing_listens_is_reported_at_once() -> None:
    with pytest.raises(InfrastructureError) as refused:
        RayExecutor(f"ray://127.0.0.1:{free_port()}")
    assert "Nothing listens at 127.0.0.1:" in refused.value.message
    assert "10001" in refused.value.hint


def test_a_connection_is_retried_when_the_head_node_cannot_start_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc
    from ray.core.generated import ray_client_pb2, ray_client_pb2_grpc

    asked = []

    class Head(
        ray_client_pb2_grpc.RayletDriverServicer, ray_client_pb2_grpc.RayletDataStreamerServicer
    ):
        def ClusterInfo(self, request, context):  # type: ignore[no-untyped-def]
            return ray_client_pb2.ClusterInfoResponse(type=request.type, json="{}")

        def Datapath(self, requests, context):  # type: ignore[no-untyped-def]
            request = next(requests)
            asked.append(request.WhichOneof("type"))
            refusal = ray_client_pb2.InitResponse(ok=False, msg="no process")
            yield ray_client_pb2.DataResponse(req_id=request.req_id, init=refusal)
            next(requests, None)  # until the client hangs up

    monkeypatch.setattr(ray_executor, "_PAUSES_BEFORE_RETRY", (0.1, 0.1))
    server = grpc.server(ThreadPoolExecutor(8))
    ray_client_pb2_grpc.add_RayletDriverServicer_to_server(Head(), server)
    ray_client_pb2_grpc.add_RayletDataStreamerServicer_to_server(Head(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(InfrastructureError) as refused:
            RayExecutor(f"ray://127.0.0.1:{port}")
    finally:
        server.stop(0)
    assert "no process" in refused.value.message
    assert asked == ["init"] * 3
