"""Train on a Ray cluster of two nodes: `python -m bench.two_nodes` writes results.md.

The nodes are Linux namespaces with their own addresses (machines.py). Needs root. Five runs of the
same project must decide the same:

- local: no Ray;
- head: on both nodes, started on the head node with `executor: ray`;
- client: on both nodes, started elsewhere with `executor: ray://HEAD:10001`;
- node killed: one node disappears in the middle of the run;
- node added: it comes back in the middle of the run.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench.two_nodes.grade import LOG
from bench.two_nodes.machines import Machine, bridge

ROOT = Path(__file__).parents[2]
_RESULTS = Path(__file__).parent / "results.md"
_CONFIG = """\
model: {agent: practice/agent, optimizer: practice/optimizer}
train: {num_epochs: 4, batch_size: 16}
env: {skill: ./triage-requests, tasks: ./tasks.jsonl, grader: "grade.py:grade"}
"""
_CPUS = 2
_BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Result:
    name: str
    seconds: float
    graded_on: Counter[str]
    finish_reason: str
    best_skill: str

    def row(self, local: Result) -> str:
        here, there = (self.graded_on[node] for node in ("node1", "node2"))
        total = self.graded_on.total()
        same = "yes" if self.best_skill == local.best_skill else "no"
        repeated = total - local.graded_on.total()
        return (
            f"| {self.name} | {here} | {there} | {total - here - there} | {repeated} | "
            f"{self.finish_reason} | {same} | {self.seconds:.0f} |"
        )


class Project:
    """A copy of examples/triage with a grader that writes down where it ran."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("tasks.jsonl", "triage-requests"):
            source = ROOT / "examples" / "triage" / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, folder / name)
        shutil.copy(Path(__file__).parent / "grade.py", folder)
        (folder / "skillfit.yaml").write_text(_CONFIG, encoding="utf-8")
        sources = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self.env = {
            **os.environ,
            "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": sources,
            "PROJECT": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }

    def command(self, run: str, executor: str) -> list[str]:
        config = str(self.folder / "skillfit.yaml")
        options = ["--run", str(self.folder / "runs" / run), "--plain"]
        train = [sys.executable, "-m", "skillfit", "train", config]
        return [*train, f"executor={executor}", *options]

    def start(self, run: str, executor: str, on: Machine | None) -> subprocess.Popen[str]:
        (self.folder / LOG).write_text("")
        command = self.command(run, executor)
        return subprocess.Popen(
            on.command(command) if on else command,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def graded_on(self) -> Counter[str]:
        return Counter((self.folder / LOG).read_text().split())

    def wait_for(self, process: subprocess.Popen[str], graded: int, on: str | None = None) -> None:
        """Until so many rollouts were graded, on one node or on all."""
        while process.poll() is None:
            counts = self.graded_on()
            if (counts[on] if on else counts.total()) >= graded:
                return
            time.sleep(0.1)

    def finish(self, run: str, process: subprocess.Popen[str], started: float) -> Result:
        printed, _ = process.communicate()
        directory = self.folder / "runs" / run
        if process.returncode not in (0, 3, 4):
            raise SystemExit(f"{run} ended with {process.returncode}:\n{printed}")
        summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        return Result(
            run,
            time.monotonic() - started,
            self.graded_on(),
            summary["finish_reason"],
            (directory / "best_skill.md").read_text(encoding="utf-8"),
        )


def start_node(node: Machine, head: Machine, env: dict[str, str]) -> None:
    where = ["--head"] if node is head else [f"--address={head.address}:6379"]
    if node is head:
        where += ["--port=6379", "--ray-client-server-port=10001", "--include-dashboard=false"]
    size = [f"--num-cpus={_CPUS}", "--object-store-memory=100000000", "--disable-usage-stats"]
    command = [str(_BIN / "ray"), "start", *where, f"--node-ip-address={node.address}", *size]
    node.run(command, env)
    print(f"{node.name} ({node.address}) started", flush=True)


def measure(project: Project) -> list[Result]:
    results = [train(project, "local", "local")]
    with bridge():
        machines = [Machine(1), Machine(2)]
        head, second = machines
        try:
            for node in machines:
                start_node(node, head, project.env)
            results.append(train(project, "head", "ray", on=head))
            results.append(train(project, "client", f"ray://{head.address}:10001"))

            started = time.monotonic()
            process = project.start("node killed", "ray", head)
            project.wait_for(process, 60, second.name)
            second.kill()
            print(f"{second.name} killed", flush=True)
            results.append(project.finish("node killed", process, started))

            started = time.monotonic()
            process = project.start("node added", "ray", head)
            project.wait_for(process, 60)
            machines[1] = Machine(2)
            start_node(machines[1], head, project.env)
            results.append(project.finish("node added", process, started))
        finally:
            for node in machines:
                node.kill()
    return results


def train(project: Project, run: str, executor: str, on: Machine | None = None) -> Result:
    started = time.monotonic()
    result = project.finish(run, project.start(run, executor, on), started)
    print(f"{run}: {dict(result.graded_on)}, {result.seconds:.0f} s", flush=True)
    return result


def report(results: list[Result]) -> str:
    import ray

    rows = "\n".join(result.row(results[0]) for result in results)
    return f"""# Two Ray nodes

`python -m bench.two_nodes` with Ray {ray.__version__} and Python {platform.python_version()}; each
node offers {_CPUS} CPUs. The columns say where answers were graded (the checks of the gold answers
run where the run was started), how many were graded again because their node was lost, and
whether the run hands back the skill of the local run, byte for byte.

| run | node1 | node2 | elsewhere | repeated | result | same skill | seconds |
|---|---|---|---|---|---|---|---|
{rows}
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="nodes") as folder:
        results = measure(Project(Path(folder)))
    _RESULTS.write_text(report(results), encoding="utf-8")
    print(_RESULTS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
