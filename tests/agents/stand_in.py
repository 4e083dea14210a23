"""A small program that behaves like a coding agent: a real process with a real description.

Words in its prompt make it do things: `RUN command` runs a shell command and reports its output.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml

from skillfit.agents import build_agent
from skillfit.agents.agent import AttemptContext, remove_workspace
from skillfit.agents.cli_agent import CliAgent
from skillfit.config.schema import AgentSection
from skillfit.models import ModelSpec
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item

PROGRAM = """#!{python}
import json, os, pathlib, subprocess, sys, time

def say(**event): print(json.dumps(event), flush=True)

prompt = sys.stdin.read()
if "--file" in sys.argv:
    prompt = pathlib.Path(sys.argv[sys.argv.index("--file") + 1]).read_text()
if "RUN " in prompt:
    command = prompt.partition("RUN ")[2]
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    say(type="tool", name="shell", input=command, output=done.stdout + done.stderr)
if "NOLOGIN" in prompt:
    say(type="result", is_error=True, text="Not logged in. Please run /login"); sys.exit(0)
if "BROKE" in prompt:
    print("Credit balance is too low", file=sys.stderr); sys.exit(1)
if "CRASH" in prompt:
    print("boom", file=sys.stderr); sys.exit(70)
if "STDERR" in prompt:
    print(prompt.partition("STDERR ")[2], file=sys.stderr); sys.exit(1)
if "TOOLS ONLY" in prompt:
    say(type="tool", name="open", input=dict(path="x"), output="HTTP 401"); sys.exit(0)
if "RETRY " in prompt:
    print(prompt.partition("RETRY ")[2], file=sys.stderr, flush=True); time.sleep(600)
if "SLEEP" in prompt:
    sleep = [sys.executable, "-c", "import time; time.sleep(600)", prompt.split()[-1]]
    subprocess.Popen(sleep, start_new_session="AWAY" in prompt)
    time.sleep(600)
skills = sorted(map(str, pathlib.Path(".fake/skills").glob("*/SKILL.md")))
for path in skills:
    say(type="tool", name="open", input=dict(path=path), output=pathlib.Path(path).read_text())
home = sorted(str(path.relative_to(os.environ["HOME"])) for path in pathlib.Path.home().rglob("*"))
world = dict(env=dict(os.environ), home=home, cwd=sorted(os.listdir()))
say(type="tool", name="look", input=dict(argv=sys.argv[1:]), output=json.dumps(world))
pathlib.Path("left.txt").write_text("work")
say(type="message", text="I heard: " + prompt)
answer = "LONG" * 9000 if "LONG" in prompt else chr(0xd83d) if "HALF" in prompt else "42"
say(type="message", text=answer)
say(type="result", is_error=False, tokens=dict(read=30, cached=10, written=7), cost={cost})
"""
DESCRIPTION: dict[str, Any] = {
    "name": "fake",
    "program": "fake-agent",
    "argv": [
        "run",
        {"args": ["--model", "$model"]},
        {"args": ["--effort", "$effort"]},
        "--mode",
        "$mode",
    ],
    "model_argv": ["answer", {"args": ["--model", "$model"]}],
    "skills": ".fake/skills",
    "keys": ["FAKE_KEY"],
    "keep": ["FAKE_URL"],
    "env": {"FAKE_URL": "$base_url", "FAKE_QUIET": "1"},
    "files": {".fake/config.json": '{"theme": "plain"}'},
    "login": [".fake/login.json"],
    "options": {"mode": "careful"},
    "events": [
        {"when": {"type": "tool"}, "step": "tool_call", "name": "name", "text": ["input"]},
        {"when": {"type": "tool"}, "step": "tool_result", "name": "name", "text": ["output"]},
        {"when": {"type": "message"}, "step": "message", "text": ["text"]},
    ],
    "error": [{"when": {"type": "result", "is_error": True}, "text": ["text"]}],
    "usage": [
        {
            "when": {"type": "result"},
            "input": ["tokens.read"],
            "cached": ["tokens.cached"],
            "output": ["tokens.written"],
            "usd": "cost",
        }
    ],
    "skill_read": [r"$skill/SKILL\.md"],
}
SKILL = Skill.from_text(
    "---\nname: answering\ndescription: How to answer.\n---\nAnswer 42.\n",
    files={"references/why.md": b"because"},
)
ITEM = Item("q1", {"input": "What is six times seven?", "answers": ["42"]})


class StandIn:
    """A user's machine with the program on it: HOME, PATH, environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "user"
        (self.home / ".fake" / "skills" / "private").mkdir(parents=True)
        (self.home / ".fake" / "login.json").write_text('{"token": "login-token-0123456789abcdef"}')
        self.program = folder / "programs" / "bin" / "fake-agent"
        self.program.parent.mkdir(parents=True)
        self.install(PROGRAM)
        self.description = folder / "fake.yaml"
        self.describe()
        self.environ = {
            "PATH": f"{self.program.parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "FAKE_KEY": "key-of-the-program-itself",
            "OPENAI_API_KEY": "sk-key-of-someone-else",
        }

    def install(self, program: str, cost: float = 0.25) -> None:
        self.program.write_text(program.format(python=sys.executable, cost=cost))
        self.program.chmod(0o755)

    def describe(self, **changes: Any) -> None:
        """Change the program's description."""
        self.description = self.description.with_name(f"{len(changes)}{self.description.name}")
        self.description.write_text(yaml.safe_dump(DESCRIPTION | changes))

    def spec(self, model: str = "", **settings: Any) -> ModelSpec:
        options = {"file": str(self.description), **settings.pop("options", {})}
        return ModelSpec(id=f"cli/fake{model}", options=options, **settings)

    def agent(self, model: str = "", corpus: Path | None = None, **settings: Any) -> CliAgent:
        agent = build_agent(
            AgentSection(agent="cli", corpus=str(corpus or "")),
            self.spec(model, **settings),
            None,
            environ=self.environ,
        )
        assert isinstance(agent, CliAgent)
        return agent

    async def attempt(
        self, item: Item = ITEM, seconds: float | None = None, **settings: Any
    ) -> Attempt:
        context = AttemptContext(seconds=seconds)
        attempt = await self.agent(**settings).attempt(SKILL, item, context)
        remove_workspace(attempt.workspace)
        return attempt

    async def shell(self, command: str, **settings: Any) -> str:
        """What the agent's shell prints."""
        attempt = await self.attempt(Item("q", {"input": f"RUN {command}"}), **settings)
        return results(attempt, "shell")[0]


def results(attempt: Attempt, tool: str) -> list[str]:
    """The results of a tool's calls."""
    steps = [step for step in attempt.steps if step.kind == "tool_result"]
    return [step.text for step in steps if step.name == tool]


def seen(attempt: Attempt) -> dict[str, Any]:
    """What the program saw: its environment, its HOME and its folder."""
    (looked,) = results(attempt, "look")
    return dict(json.loads(looked))
