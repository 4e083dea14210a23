"""An agent's way through skillfit, with the real client over stdio: a whole run, and one whose
optimizer is the agent itself.
"""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from skillfit.skill import Skill, without_placeholder

LABELS = {"refund": "billing", "parcel": "delivery", "login": "account"}
SKILL = "---\nname: triage\ndescription: Sort tickets into queues.\n---\n\n# Triage\n\n- Answer with the label alone, in lower case.\n"


def project(folder: Path, optimizer: str) -> Path:
    (folder / "triage").mkdir()
    (folder / "triage" / "SKILL.md").write_text(SKILL)
    texts = [
        (f"case {number}: my {word} is a problem", label)
        for number in range(8)
        for word, label in LABELS.items()
    ]
    rows = [
        {"id": f"t{at:02d}", "input": text, "answer": label}
        for at, (text, label) in enumerate(texts)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = folder / "skillfit.yaml"
    config.write_text(
        f"model: {{agent: practice/agent, optimizer: {optimizer}}}\n"
        "train: {num_epochs: 1, batch_size: 9}\n"
        "evaluation: {preflight: false}\n"
        "env: {skill: ./triage, tasks: ./tasks.jsonl, grader: exact}\n"
    )
    return config


@asynccontextmanager
async def client() -> AsyncIterator[Client]:
    command = StdioServerParameters(
        command=sys.executable,
        args=["-c", "from skillfit.plugins.mcp_server import serve; serve()"],
    )
    async with Client(command) as connected:
        yield connected


async def call(agent: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await agent.call_tool(tool, arguments)
    text = result.content[0].text
    assert not result.is_error, text
    return json.loads(text)


async def refused(agent: Client, tool: str, **arguments: Any) -> str:
    result = await agent.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)


async def follow_to_the_end(agent: Client, run: Path) -> tuple[dict[str, Any], list[str]]:
    seen: list[str] = []
    last = 0
    while True:
        told = await call(agent, "follow", run=str(run), after=last, wait=30)
        seen += [event["kind"] for event in told["events"]]
        last = told["last"]
        if told["state"] != "running" and not told["events"]:
            return told, seen


async def test_an_agent_estimates_starts_follows_shows_and_applies_a_run(tmp_path: Path) -> None:
    config, run = project(tmp_path, "practice/optimizer"), tmp_path / "runs" / "one"
    async with client() as agent:
        tools = {tool.name for tool in (await agent.list_tools()).tools}
        assert tools == {
            "check",
            "estimate",
            "start",
            "follow",
            "show",
            "apply",
            "prompts",
            "answer",
        }
        checked = await call(agent, "check", config=str(config))
        assert checked["verdict"] in ("go", "warn")
        assert {check["name"] for check in checked["checks"]} >= {
            "gold",
            "blind",
            "headroom",
            "power",
        }
        estimated = await call(agent, "estimate", config=str(config))
        assert estimated["total"]["calls"]
        longer = ["train.num_epochs=4"]
        begun = await call(agent, "start", config=str(config), run=str(run), overrides=longer)
        assert begun["state"] in ("running", "finished")
        told, seen = await follow_to_the_end(agent, run)
        assert told["state"] == "finished"
        assert seen[0] == "RunStarted"
        assert seen[-1] == "RunFinished"
        assert "RolloutFinished" not in seen
        shown = await call(agent, "show", run=str(run))
        assert shown["practice"] is True
        assert shown["points"][0]["name"] == "baseline"
        assert shown["total"]["calls"] > 0
        assert shown["finish_reason"] == "improved"
        assert await call(agent, "apply", run=str(run))
        assert (tmp_path / "triage" / "SKILL.md").read_text() == SKILL, (
            "nothing is changed before it is confirmed"
        )
        await call(agent, "apply", run=str(run), confirm=True)
        best = without_placeholder(Skill.from_text(shown["best_skill"]))
        assert (tmp_path / "triage" / "SKILL.md").read_text() == best.text != SKILL


async def test_the_agent_is_the_optimizer_of_a_handoff_run(tmp_path: Path) -> None:
    config, run = project(tmp_path, "handoff"), tmp_path / "run"
    rules = [f"- Mentions of {word} mean {label}." for word, label in LABELS.items()]
    edits = [{"op": "append", "target": "", "content": rule} for rule in rules]
    reply = {
        "failure_summary": [],
        "patch": {"reasoning": "words", "edits": edits},
        "success_patterns": [],
    }
    async with client() as agent:
        answered = 0
        for _ in range(8):
            await call(agent, "start", config=str(config), run=str(run))
            told, _ = await follow_to_the_end(agent, run)
            if told["state"] != "waiting":
                break
            for waiting in (await call(agent, "prompts", run=str(run)))["prompts"]:
                assert waiting["prompt"].startswith("# ")
                text = json.dumps(
                    reply
                    if "reflect" in waiting["id"]
                    else {"reasoning": "", "edits": edits, "selected_indices": [0, 1, 2]}
                )
                await call(agent, "answer", run=str(run), id=waiting["id"], text=text)
                answered += 1
        assert answered
        assert told["state"] == "finished"
        shown = await call(agent, "show", run=str(run))
        assert all(rule in shown["best_skill"] for rule in rules)
        assert shown["finish_reason"] == "improved"
        assert "No prompt 'x' waits" in await refused(
            agent, "answer", run=str(run), id="x", text="y"
        )


async def test_what_is_wrong_is_said_in_words(tmp_path: Path) -> None:
    config = project(tmp_path, "practice/optimizer")
    config.write_text(config.read_text() + "trian: {}\n")
    async with client() as agent:
        assert "trian" in await refused(agent, "estimate", config=str(config))
        assert "trian" in await refused(
            agent, "start", config=str(config), run=str(tmp_path / "run")
        )
        assert "There is no run" in await refused(agent, "follow", run=str(tmp_path / "none"))
