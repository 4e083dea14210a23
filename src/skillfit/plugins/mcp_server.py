"""The MCP server: an agent checks, estimates, starts, follows and applies a run, and may be the
run's optimizer itself.

What spends or changes something is done by the `skillfit` commands in processes of their own, as a
person would run them: a run goes on when the agent's session ends, and its output never mixes with
the protocol's.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from skillfit import __version__
from skillfit.errors import SkillfitError
from skillfit.models.providers.handoff import pending
from skillfit.report import RunStory, read_story
from skillfit.run.directory import JOURNAL, RunDirectory
from skillfit.run.events import RolloutFinished, as_json
from skillfit.run.lock import in_use
from skillfit.skill.document import write_whole

_INSTRUCTIONS = """skillfit trains a skill (SKILL.md) on graded tasks and shows whether it got better.
Usual order: check, estimate, start, follow until the state is no longer `running`, show, apply.
With `model.optimizer: handoff` in the config you are the optimizer: when the state is `waiting`, read `prompts`, give each its
`answer`, and `start` the same run again; repeat until it is finished. Nothing that was paid for is paid twice."""
_COMMAND = (sys.executable, "-m", "skillfit.cli.app")
_LOG = ".start.log"  # of the process that `start` begins, in the run directory
_LONG = 2_000  # characters of a text in an event
_WAIT = 60.0  # seconds that `follow` waits at the most
_POLL = 0.25

server = MCPServer("skillfit", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
_begun: dict[Path, subprocess.Popen[bytes]] = {}


def serve() -> None:
    """Speak MCP on stdin and stdout until the client goes. Runs that were started go on."""
    server.run("stdio")


@server.tool()
async def check(config: str, overrides: list[str] | None = None) -> dict[str, Any]:
    """Is this worth training? Tries keys, grader, noise, headroom and cost with a few rollouts.
    `overrides` are `key.sub=value`.
    """
    return await _command("check", config, *(overrides or ()))


@server.tool()
async def estimate(config: str, overrides: list[str] | None = None) -> dict[str, Any]:
    """What a run would take: calls, tokens, dollars and minutes as ranges, per stage and role.
    Spends nothing.
    """
    return await _command("estimate", config, *(overrides or ()))


@server.tool()
async def start(
    config: str, run: str, overrides: list[str] | None = None, force: bool = False
) -> dict[str, Any]:
    """Train in the directory `run`, or go on with the run that is there, in the background.
    `force`: although the check says stop. Spends money with paid models: set `budget.usd`.
    """
    path = Path(run).absolute()
    if in_use(path):
        raise ToolError(f"The run in {path} is going on already: follow it.")
    process = _begin(
        path,
        [
            "train",
            config,
            *(overrides or ()),
            "--run",
            str(path),
            "--json",
            *(["--force"] if force else []),
        ],
    )
    while True:
        if process.poll() is not None or (path / "config.json").is_file():
            return _standing(path)
        await asyncio.sleep(_POLL)


@server.tool()
async def follow(run: str, after: int = 0, wait: float = 20.0, limit: int = 40) -> dict[str, Any]:
    """Events of a run behind number `after`, oldest first, and how it stands. Waits up to `wait`
    seconds for something to tell. Go on with `after` set to the `last` that was given. Single
    rollouts are counted, not listed.
    """
    path = Path(run).absolute()
    until = time.monotonic() + min(wait, _WAIT)
    while True:
        events, rollouts, last = _events(path, after, limit)
        standing = _standing(path)
        if events or standing["state"] != "running" or time.monotonic() >= until:
            return {**standing, "events": events, "rollouts": rollouts, "last": last}
        await asyncio.sleep(_POLL)


@server.tool()
async def show(run: str) -> dict[str, Any]:
    """What a run comes down to: verdict, scores with intervals, the steps' verdicts, edits and
    their worth, cost, best skill.
    """
    return _told(_story(Path(run).absolute()))


@server.tool()
async def apply(run: str, confirm: bool = False) -> dict[str, Any]:
    """What changes from the initial to the best skill; with `confirm` it is put into the skill's
    folder (the old text is kept).
    """
    if confirm:
        return await _command("apply", run, "--yes")
    return await _command("diff", run)


@server.tool()
async def prompts(run: str) -> dict[str, Any]:
    """Prompts of a handoff run that wait for an answer: id and text. Answer each with `answer`,
    then `start` the run again.
    """
    waiting = pending(Path(run).absolute() / "handoff")
    return {
        "prompts": [
            {"id": one.id, "prompt": one.prompt.read_text(encoding="utf-8")} for one in waiting
        ]
    }


@server.tool()
async def answer(run: str, id: str, text: str) -> dict[str, Any]:
    """Answer one handoff prompt, in the form that it asks for. An answer cannot be taken back once
    the run has used it.
    """
    waiting = {one.id: one for one in pending(Path(run).absolute() / "handoff")}
    if id not in waiting:
        raise ToolError(
            f"No prompt {id!r} waits in {run}. Waiting: {', '.join(waiting) or 'none'}."
        )
    if not text.strip():
        raise ToolError("The answer is empty.")
    write_whole(waiting[id].answer, text.encode())
    return {"answered": id, "waiting": len(waiting) - 1}


def _begin(path: Path, arguments: list[str]) -> subprocess.Popen[bytes]:
    """A process that outlives this one."""
    path.mkdir(parents=True, exist_ok=True)
    with (path / _LOG).open("wb") as log:
        command = [*_COMMAND, *arguments]
        _begun[path] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    return _begun[path]


async def _command(*arguments: str) -> dict[str, Any]:
    """A skillfit command's result: the last line it prints with --json."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        *arguments,
        "--json",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    lines = out.decode().strip().splitlines()
    if not lines:
        raise ToolError(
            err.decode().strip()
            or f"`skillfit {arguments[0]}` ended with exit code {process.returncode}."
        )
    result: dict[str, Any] = json.loads(lines[-1])
    if "error" in result:
        raise ToolError(f"{result['error']} {result.get('hint', '')}".strip())
    return result


def _standing(path: Path) -> dict[str, Any]:
    """How a run stands; a process that ended before there was a run says why."""
    process = _begun.get(path)
    failed = process is not None and process.poll() not in (None, 0)
    log = (path / _LOG).read_text(encoding="utf-8", errors="replace").strip() if failed else ""
    if not (path / JOURNAL).is_file():
        raise ToolError(log or f"There is no run in {path}.")
    story = _story(path)
    if process is not None and process.poll() is None:
        story = replace(story, state="running")  # it may be about to take its place
    waiting = len(pending(path / "handoff"))
    standing = {
        "run": str(path),
        "state": story.state,
        "verdict": story.verdict,
        "at": story.at,
        "prompts_waiting": waiting,
    }
    return standing | ({"stopped_by": log[-_LONG:]} if log and story.state == "stopped" else {})


def _story(path: Path) -> RunStory:
    try:
        return read_story(path)
    except SkillfitError as error:
        raise ToolError(str(error)) from error


def _events(path: Path, after: int, limit: int) -> tuple[list[dict[str, Any]], int, int]:
    if not (path / JOURNAL).is_file():
        return [], 0, after
    events: list[dict[str, Any]] = []
    rollouts, last = 0, after
    with closing(RunDirectory.read(path)) as view:
        for stored in view.events.read(after):
            if isinstance(stored.event, RolloutFinished):
                rollouts += 1
            elif len(events) < limit:
                events.append(_brief(as_json(stored)))
            else:
                break
            last = stored.seq
    return events, rollouts, last


def _brief(value: Any) -> Any:
    """Without long texts: skills and patches are read with `show`."""
    if isinstance(value, dict):
        return {
            name: _brief(item)
            for name, item in value.items()
            if name not in ("config", "summary", "all_pairs", "pairs")
        }
    if isinstance(value, list | tuple):
        return [_brief(item) for item in value]
    return (
        f"{value[:_LONG]}… ({len(value)} characters)"
        if isinstance(value, str) and len(value) > _LONG
        else value
    )


def _told(story: RunStory) -> dict[str, Any]:
    names = (
        "run",
        "path",
        "state",
        "finish_reason",
        "verdict",
        "diagnosis",
        "practice",
        "seconds",
        "best_skill",
        "tokens",
    )
    listed = {
        name: [asdict(one) for one in getattr(story, name)]
        for name in ("points", "decided", "edits", "costs", "notices")
    }
    changed = {
        change: [item.id for item in story.items if item.change == change]
        for change in ("fixed", "broken")
    }
    return {
        **{name: getattr(story, name) for name in names},
        **listed,
        **changed,
        "total": asdict(story.total),
    }
