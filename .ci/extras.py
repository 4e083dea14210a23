"""Install each extra alone in an empty environment and run its smallest example.

`make extras` runs all of them one after the other and prints a table; with names, as in
`python .ci/extras.py mcp ray`, only these. `--lowest` installs the lowest version of every
dependency that pyproject.toml allows.
Nothing here needs a key, a server or another program.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".bench" / "extras"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
FOR_DEVELOPERS = {"benchmarks", "docs", "test", "dev"}
AGENT = "def agent(request):\n    return 'inventory'\n"
SKILL = "# Work\n\nRead the task twice.\n"
EVAL = "skillfit eval config.yaml --split all --run run"
DEMO = "skillfit demo --plain && cd skillfit-demo && skillfit train skillfit.yaml --run tracked"


@dataclass(frozen=True)
class Example:
    command: str
    shows: str  # in what the command prints or, after "file:", a file that it writes
    files: dict[str, str] = field(default_factory=dict)
    fails: bool = False  # the example ends with an error that can only come after the import


def measured(tasks: str, task_args: str = "{}", model: str = "scripted/agent.py:agent") -> Example:
    """`skillfit eval` of named tasks with an agent that always answers the same."""
    config = (
        f"model: {{agent: '{model}'}}\nenv:\n  skill: ./skill.md\n  tasks: {tasks}\n"
        f"  task_args: {task_args}\n  limit: 2\n"
    )
    files = {"config.yaml": config, "skill.md": SKILL, "agent.py": AGENT}
    return Example(EVAL, "scored", files)


INSPECT = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate

@task
def sums():
    samples = [Sample(id=f"s{n}", input=f"What is {n} plus {n}?", target=str(2 * n))
               for n in range(4)]
    return Task(dataset=samples, solver=generate(), scorer=match())
"""
MCP = """
import asyncio

from mcp import Client, StdioServerParameters


async def tools():
    async with Client(StdioServerParameters(command="skillfit", args=["mcp", "."])) as client:
        print(sorted(tool.name for tool in (await client.list_tools()).tools))


asyncio.run(tools())
"""
PLOT = """
import skillfit

axes = skillfit.Run.open("skillfit-demo/run").plot()
axes.figure.savefig("plot.png")
"""
OTEL = """
import http.server, os, subprocess, threading

paths = []


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        paths.append(self.path)
        self.send_response(200)
        self.end_headers()


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
track = f"otel:http://127.0.0.1:{server.server_port}"
line = ["skillfit", "train", "skillfit.yaml", "--run", "tracked", "--track", track]
subprocess.run(line, cwd="skillfit-demo", check=True)
print(set(paths))
"""
PARQUET = """
import pyarrow, pyarrow.parquet

rows = [
    {"key": str(n), "question": f"{n} plus {n}?", "answers": [str(2 * n)], "context": "Add."}
    for n in range(30)
]
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "rows.parquet")
"""
EXAMPLES = {
    "local": Example(
        "python -c 'import xllamacpp' && skillfit eval config.yaml --split all",
        "not a GGUF file",
        {
            "config.yaml": "model: {agent: local/model.gguf}\nenv: {skill: ./skill.md, tasks: "
            "'searchqa:sample', limit: 2}\n",
            "skill.md": SKILL,
            "model.gguf": "no model",
        },
        fails=True,
    ),
    "ray": Example(
        "skillfit demo --plain && cd skillfit-demo && skillfit eval skillfit.yaml executor=ray",
        "40/40",
    ),
    "inspect": Example(
        EVAL,
        "scored",
        {
            "sums.py": INSPECT,
            "agent.py": AGENT,
            "skill.md": SKILL,
            "config.yaml": "model: {agent: 'scripted/agent.py:agent'}\n"
            "env: {skill: ./skill.md, tasks: 'inspect:sums.py@sums'}\n",
        },
    ),
    "mcp": Example("python client.py", "'estimate'", {"client.py": MCP}),
    "mlflow": Example(f"{DEMO} --track mlflow", "file:skillfit-demo/mlflow.db"),
    "wandb": Example(f"{DEMO} --track wandb", "file:skillfit-demo/wandb"),
    "tensorboard": Example(f"{DEMO} --track tensorboard:board", "file:skillfit-demo/board"),
    "otel": Example("skillfit demo --plain && python otel.py", "/v1/traces", {"otel.py": OTEL}),
    "notebook": Example(
        "skillfit demo --plain && python plot.py", "file:plot.png", {"plot.py": PLOT}
    ),
    "data": Example(
        "python parquet.py && skillfit data make searchqa --from rows.parquet",
        "30",
        {"parquet.py": PARQUET},
    ),
    "gepa": Example(
        "skillfit demo --plain && cd skillfit-demo && "
        "skillfit compare skillfit.yaml --rollouts 40 --way initial --way gepa --run cmp",
        "file:skillfit-demo/cmp/comparison.json",
    ),
    "alfworld": measured("alfworld:sample", "{max_steps: 2}"),
    "textworld": measured("textworld:coin_collector", "{games: 4}"),
    "reasoning-gym": measured("reasoning_gym:word_sorting", "{size: 20, seed: 1}"),
    "spreadsheetbench": measured("spreadsheetbench:sample"),
    "swebench": measured("swebench:sample"),
    "azure": Example(
        EVAL,
        "az login",
        {
            "config.yaml": "model: {agent: {id: azure/gpt-5, base_url: 'http://127.0.0.1:9', "
            "options: {auth: azure_cli}}}\n"
            "env: {skill: ./skill.md, tasks: 'searchqa:sample', limit: 2}\n",
            "skill.md": SKILL,
        },
        fails=True,
    ),
}


@dataclass(frozen=True)
class Result:
    extra: str
    seconds: float
    megabytes: float
    problem: str  # empty: the example did what it should

    def __str__(self) -> str:
        size = f"{self.seconds:6.0f} s {self.megabytes:7.0f} MB"
        return f"{self.extra:18}{size}  {self.problem or 'ok'}"


def run(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
        **settings,
    )


def install(extra: str, wheel: Path, constraint: Path | None) -> str:
    """Make an empty environment with the extra, and return what went wrong."""
    made = run([sys.executable, "-m", "venv", "--clear", str(WORK / extra)])
    if made.returncode:
        return made.stdout
    pins = ["-c", str(constraint)] if constraint else []
    pip = [str(WORK / extra / "bin" / "python"), "-m", "pip", "install", "--quiet", *pins]
    done = run([*pip, f"{wheel}[{extra}]"])
    return done.stdout if done.returncode else ""


def example_problem(extra: str, example: Example) -> str:
    """Run the example in an empty folder, and return what it did not do."""
    with TemporaryDirectory() as folder:
        for name, text in example.files.items():
            (Path(folder) / name).write_text(text)
        path = os.pathsep.join([str(WORK / extra / "bin"), "/usr/bin", "/bin"])
        environment = {"PATH": path, "HOME": folder, "LANG": "C.UTF-8", "WANDB_MODE": "offline"}
        try:
            done = run(["sh", "-c", example.command], cwd=folder, env=environment, timeout=900)
        except subprocess.TimeoutExpired:
            return "did not end within 15 minutes"
        kind, _, file = example.shows.partition("file:")
        shown = (Path(folder) / file).exists() if file else example.shows in done.stdout
        if not kind and not shown:
            return f"there is no {file}: {last_line(done.stdout)}"
        if not shown or (done.returncode == 0) == example.fails or "skillfit itself" in done.stdout:
            (WORK / f"{extra}.txt").write_text(done.stdout)
            return f"exit {done.returncode}: {last_line(done.stdout)}"
    return ""


def last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def size_of(folder: Path) -> float:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def tried(extra: str, wheel: Path, constraint: Path | None) -> Result:
    start = time.monotonic()
    problem = install(extra, wheel, constraint)
    if problem:
        problem = f"not installed: {last_line(problem)}"
    elif extra not in EXAMPLES:
        problem = "no example in .ci/extras.py"
    else:
        problem = example_problem(extra, EXAMPLES[extra])
    size = size_of(WORK / extra)
    shutil.rmtree(WORK / extra)
    return Result(extra, time.monotonic() - start, size, problem)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", help="all when none is given")
    parser.add_argument("--lowest", action="store_true")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    names = options.extras or [name for name in EXTRAS if name not in FOR_DEVELOPERS]
    wheel_line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    built = run([*wheel_line, "--no-build-isolation", "--wheel-dir", str(WORK), str(ROOT)])
    if built.returncode:
        raise SystemExit(built.stdout)
    (wheel,) = WORK.glob("skillfit-*.whl")
    constraint = None
    if options.lowest:
        constraint = WORK / "lowest.txt"
        pins = run([sys.executable, str(ROOT / ".ci" / "lowest.py"), *names])
        constraint.write_text(pins.stdout)
    failed = 0
    for name in names:
        result = tried(name, wheel, constraint)
        failed += bool(result.problem)
        print(result, flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
