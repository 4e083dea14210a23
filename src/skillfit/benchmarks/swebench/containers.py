"""SWE-bench with Docker: an agent works in the instance's container, and the official harness of
the `swebench` package evaluates its patch.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from skillfit.benchmarks.dialogue import Dialogue, required_model, system_message
from skillfit.errors import InputError
from skillfit.models.protocol import Message, Model, Tool, ToolCall
from skillfit.sandbox.process import plain_environment, run_process, scratch_folder
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Score, Step, TaskFailure
from skillfit.tasks.task import Evaluator

_COMMAND_SECONDS = 180.0
_SHOWN = 10_000  # characters of a command's output
_HARNESS_SECONDS = 7200.0
RUN = Tool(
    "run_command",
    "Run a shell command in the repository, /testbed.",
    {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
)


def require_docker() -> None:
    """Refuse to start where the harness could not evaluate anything."""
    if find_spec("swebench") is None:
        raise InputError(
            "swebench needs the package swebench to evaluate patches with Docker.",
            hint="pip install 'skillfit[swebench]', or use rows with a `repository` folder.",
        )
    program = shutil.which("docker")
    if program is None:
        raise InputError(
            "swebench needs Docker for repositories without a local copy, and there is no docker.",
            hint="Install Docker, or name a folder of repositories: env.task_args: {repo_root: …}.",
        )


async def docker(*arguments: str, stdin: str = "", timeout: float = _COMMAND_SECONDS) -> str:
    """Run a docker command. Raises `TaskFailure` when it fails."""
    result = await run_process(
        [shutil.which("docker") or "docker", *arguments],
        cwd=Path("/"),
        timeout=timeout,
        env={**plain_environment(), **_docker_settings()},
        stdin=stdin.encode(),
    )
    if result.code != 0:
        said = (result.stderr or result.stdout).strip()[-500:] or result.killed
        raise TaskFailure("docker", f"docker {arguments[0]}: {said}")
    return result.stdout


def _docker_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("DOCKER_")}


@asynccontextmanager
async def container(image: str) -> AsyncIterator[str]:
    """A running container of the instance's image; it is removed with the block."""
    started = await docker("run", "--detach", "--rm", "--network=none", image, "sleep", "infinity")
    name = started.strip()
    try:
        yield name
    finally:
        await asyncio.shield(docker("rm", "--force", name))


def image_of(instance_id: str) -> str:
    """The name under which the harness publishes the image of an instance."""
    name = instance_id.lower().replace("__", "_1776_")
    return f"swebench/sweb.eval.x86_64.{name}:latest"


@dataclass(frozen=True)
class ContainerRounds(Evaluator):
    """The model runs commands in the container until it stops calling the tool."""

    needs_model: ClassVar[bool] = True

    model: Model | None
    prompt: str
    dataset: str
    step_limit: int
    timeout_per_instance: float

    async def __call__(self, skill: Skill, item: Item, seed: int) -> tuple[Attempt, Score]:
        dialogue = Dialogue(required_model(self.model, "swebench"), item, seed)
        messages = (system_message(self.prompt, skill), *item.messages)
        async with container(image_of(item.id)) as name:
            for _ in range(self.step_limit):
                reply = await dialogue.ask(messages, (RUN,))
                if not reply.tool_calls:
                    break
                said = Message("assistant", reply.text, tool_calls=reply.tool_calls)
                results = [await self._run(name, call, dialogue) for call in reply.tool_calls]
                messages = (*messages, said, *results)
            else:
                dialogue.note(f"Ended after {self.step_limit} steps.")
            patch = await docker("exec", name, "git", "-C", "/testbed", "diff")
        attempt = Attempt(patch, tuple(dialogue.steps), usage=dialogue.usage)
        if not patch.strip():
            return attempt, Score(0.0, feedback="Nothing was changed.")
        return attempt, await self._evaluate(item, patch)

    async def _run(self, name: str, call: ToolCall, dialogue: Dialogue) -> Message:
        dialogue.steps.append(Step("tool_call", call.arguments, name=call.name))
        try:
            command = str(json.loads(call.arguments)["command"])
        except (ValueError, KeyError, TypeError):
            text = 'error: call run_command with {"command": "…"}'
        else:
            shell = f"cd /testbed && ( {command}\n) 2>&1; echo [exit code $?]"
            output = await docker("exec", "--interactive", name, "bash", "-c", shell)
            text = output if len(output) <= _SHOWN else f"[…]\n{output[-_SHOWN:]}"
        dialogue.steps.append(Step("tool_result", text, role="tool", name=call.name))
        return Message("tool", text, tool_call_id=call.id)

    async def _evaluate(self, item: Item, patch: str) -> Score:
        """The official harness on this one prediction; its report says whether it is resolved."""
        with scratch_folder("swebench") as folder:
            prediction = {
                "instance_id": item.id,
                "model_name_or_path": "skillfit",
                "model_patch": patch,
            }
            (folder / "predictions.json").write_text(json.dumps([prediction]), encoding="utf-8")
            arguments = ["--dataset_name", self.dataset, "--predictions_path", "predictions.json"]
            arguments += ["--instance_ids", item.id, "--run_id", "skillfit", "--max_workers", "1"]
            arguments += ["--timeout", str(int(self.timeout_per_instance))]
            result = await run_process(
                [sys.executable, "-m", "swebench.harness.run_evaluation", *arguments],
                cwd=folder,
                timeout=_HARNESS_SECONDS,
                env={**plain_environment(), **_docker_settings()},
            )
            report = folder / "skillfit.skillfit.json"
            if not report.is_file():
                said = (result.stderr or result.stdout).strip()[-500:] or result.killed
                raise TaskFailure("docker", f"the harness wrote no report: {said}")
            found = json.loads(report.read_bytes())
        if item.id in found.get("error_ids", []):
            raise TaskFailure("docker", f"the harness could not evaluate {item.id}.")
        resolved = item.id in found.get("resolved_ids", [])
        return Score(float(resolved), feedback="" if resolved else "The issue is not resolved.")

    def describe(self) -> dict[str, Any]:
        return {
            "swebench": "docker",
            "dataset": self.dataset,
            "prompt": self.prompt,
            "step_limit": self.step_limit,
            "model": self.model.id if self.model else "",
        }
