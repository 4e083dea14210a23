"""Whole training runs on a benchmark's sample, with models that a test scripts.

Everything between the models is real: HTTP on loopback, the model layer, the agent loop, grading,
reflection, gate and files. The agent solves its tasks only when its skill contains LESSON, and the
optimizer proposes LESSON after failures, so a working loop ends with a better skill.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

import skillfit
from skillfit.api import prepare
from skillfit.cli.app import app
from skillfit.errors import Exit
from skillfit.tasks import Task
from tests.support.chat_server import Answer, Call, ChatServer

LESSON = "Compare your answer with the given material once more before you hand it in."
_NUMBERED = re.compile(r"^\[\d+\] [^{\n]*(\{.*\})$", re.MULTILINE)
Solve = Callable[[Call], Answer]


def optimize(call: Call) -> str:
    """The scripted optimizer's reply for the stage of a call."""
    edit = {"op": "append", "target": "", "content": f"- {LESSON}"}
    proposals = [json.loads(text) for text in _NUMBERED.findall(call.text)]
    replies: dict[str, Any] = {
        "reflect.failure": {
            "failure_summary": [{"failure_type": "unchecked", "items": [], "description": "d"}],
            "patch": {"reasoning": "r", "edits": [edit]},
        },
        "reflect.corpus": {"reasoning": "r", "failures": [], "edits": [edit]},
        "reflect.success": {"success_patterns": [], "patch": {"edits": []}},
        "merge": {
            "reasoning": "the same edit several times",
            "edits": [{**edit, "sources": list(range(len(proposals)))}],
        },
        "rank": {"selected_indices": list(range(len(proposals)))},
        "slow_update": {"slow_update_content": ""},
        "meta_skill": {"meta_skill_content": ""},
    }
    return json.dumps(replies.get(call.stage, {}))


@dataclass
class Lab:
    """A server that plays agent, optimizer and judge, and a folder for runs."""

    folder: Path
    solve: Solve
    wrong: Solve = lambda call: "I do not know."
    judge: Solve = lambda call: "{}"
    server: ChatServer = field(init=False)

    def __post_init__(self) -> None:
        self.server = ChatServer(self._answer)

    def __enter__(self) -> Lab:
        self.server.__enter__()
        return self

    def __exit__(self, *arguments: object) -> None:
        self.server.__exit__(*arguments)

    def _answer(self, call: Call) -> Answer:
        if call.stage == "probe":
            return "ok"
        if call.body["model"] == "optimizer":
            return optimize(call)
        if call.body["model"] == "judge":
            return self.judge(call)
        return self.solve(call) if LESSON in system(call) else self.wrong(call)

    @property
    def rollouts(self) -> list[Call]:
        return [call for call in self.server.calls if call.stage == "rollout"]

    def config(self, tasks: str, recipe: str = "default", **env: Any) -> dict[str, Any]:
        """A short run on these tasks."""
        models = {
            role: {"id": f"openai/{role}", "base_url": self.server.url}
            for role in ("agent", "optimizer", "judge")
        }
        return {
            "recipe": recipe,
            "model": models,
            "train": {"num_epochs": 1, "batch_size": 6},
            "optimizer": {"use_slow_update": False, "use_meta_skill": False},
            "env": {"tasks": tasks, **env},
        }

    async def train(self, tasks: str, recipe: str = "default", **env: Any) -> skillfit.Run:
        config = self.config(tasks, recipe, **env)
        return await skillfit.train_async(config=config, run=self.folder / "run")

    def check(self, tasks: str, **env: Any) -> dict[str, dict[str, str]]:
        """What `skillfit check` says about these tasks: name of the check -> its result."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "check.yaml"
        config.write_text(yaml.safe_dump(self.config(tasks, **env)))
        run = str(self.folder / "checked")
        done = CliRunner().invoke(app, ["check", str(config), "--run", run, "--json"])
        assert done.exit_code in (0, Exit.PREFLIGHT), done.output
        report = json.loads(done.stdout.strip().splitlines()[-1])
        return {check["name"]: check for check in report["checks"]}

    async def evaluate(self, tasks: str, skill: str, **env: Any) -> dict[str, float]:
        """Mean hard score of a skill text on all items, by name `skill`."""
        config = self.config(tasks, **env)
        results = await skillfit.evaluate_async(
            skillfit.Skill.from_text(skill),
            config=config,
            run=self.folder / "evaluation",
            split="all",
        )
        return {name: measured.score for name, measured in results.items()}


def system(call: Call) -> str:
    return "\n".join(
        str(message["content"]) for message in call.body["messages"] if message["role"] == "system"
    )


def user(call: Call) -> str:
    """The text of the first user message."""
    for message in call.body["messages"]:
        if message["role"] == "user":
            content = message["content"]
            if isinstance(content, str):
                return content
            return "\n".join(part["text"] for part in content if part["type"] == "text")
    raise AssertionError("no user message")


def image_urls(call: Call) -> list[str]:
    """Data URLs of the images in a request, in order."""
    return [
        part["image_url"]["url"]
        for message in call.body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    ]


def tool(name: str, **arguments: str) -> dict[str, Any]:
    """The assistant's message that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }


def sample_task(name: str, **settings: Any) -> Task:
    """The sample with the benchmark's own grader, as a run would load it."""
    env = {"tasks": f"{name}:sample", **settings}
    roles = {role: f"openai/{role}" for role in ("agent", "judge", "optimizer")}
    return prepare(config={"model": roles, "env": env}).task


def by_question(task: Task) -> Mapping[str, str]:
    """Item input -> a gold answer, for scripted agents that know all answers."""
    return {item.input: item.answers[0] for item in task.items}
