"""The MCP server: an agent checks, measures, estimates, starts, follows, stops and applies runs,
and may be the optimizer of a run itself.

It reaches only the folders it was given, and an agent cannot add programs or code through
overrides. Tools that spend money or write files need `confirm: true`; without it they only say what
they would do. Commands run in separate processes, so a run continues when the session ends.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from skillfit import __version__
from skillfit.errors import InputError, SkillfitError
from skillfit.extensions import JsonValue
from skillfit.models.json_text import JsonObject
from skillfit.plain_text import last_part, shorten
from skillfit.plugins.studio.commands import (
    Folders,
    Starter,
    as_typed,
    checked_overrides,
    run_command,
)
from skillfit.record.fold import read_record
from skillfit.record.record import RunState, record_json
from skillfit.record.steering import answer_prompt, find_prompt, steer_run, waiting_prompts
from skillfit.report import open_details
from skillfit.run.control import stop_run
from skillfit.run.events import RolloutFinished, as_json
from skillfit.run.store import CONFIG_FILE, JOURNAL, in_use

_INSTRUCTIONS = """skillfit trains a skill (SKILL.md) on graded tasks and measures whether it got
better. Usual order: estimate, check, start, follow until the state is no longer `running`, show,
apply. Give `check` and `start` the same `run`: what check paid for is not paid again.
Tools that spend money or write files do so only with `confirm: true`; ask your user first.
With `model.optimizer: handoff` in the config you are the optimizer: when the state is `waiting`,
read `prompts`, give each its `answer`, and `start` the same run again until it is finished. When
the state is `review`, edits wait for your user's approval (tool `steer`)."""
_LONG = 2_000  # characters of a text in an event
_WAIT = 60.0  # seconds that `follow` waits at most
_POLL = 0.25
_OMITTED = ("config", "summary", "all_pairs", "pairs")  # long fields of events

_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
_CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
_SPENDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)


def serve_mcp(folders: Sequence[Path] = ()) -> None:
    """Serve MCP on stdin and stdout until the client disconnects. Started runs continue.

    `folders`: what may be reached; the current one when none is given.
    """
    make_server(Folders.of(*(folders or (Path.cwd(),)))).run("stdio")


def make_server(folders: Folders) -> MCPServer:
    """Make a server confined to these folders."""
    tools = Tools(folders)
    server = MCPServer(
        "skillfit", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    listed: tuple[tuple[Callable[..., Any], str, ToolAnnotations], ...] = (
        (tools.check, "Check a config (spends a little)", _SPENDS),
        (tools.estimate, "Estimate a run", _READS),
        (tools.evaluate, "Measure the skill on a split (spends)", _SPENDS),
        (tools.ablate, "Measure what each part of the skill adds (spends)", _SPENDS),
        (tools.verify, "Check that a skill still scores as recorded (spends)", _SPENDS),
        (tools.start, "Start or resume a run (spends)", _SPENDS),
        (tools.stop, "Stop a run", _WRITES),
        (tools.follow, "Follow a run", _READS),
        (tools.show, "Show a run", _READS),
        (tools.apply, "Put the best skill into its folder (writes)", _CHANGES),
        (tools.prompts, "Prompts that wait for an answer", _READS),
        (tools.answer, "Answer a prompt (writes)", _WRITES),
        (tools.steer, "Decide about an edit, or raise a budget (writes)", _WRITES),
    )
    for tool, title, effects in listed:
        server.add_tool(_as_json_tool(tool), title=title, annotations=effects)
    return server


def _as_json_tool(tool: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[JsonObject]]:
    """Return the tool as the client sees it: its result is a JSON object, and what the user or the
    agent can fix is an error of the tool.
    """

    @wraps(tool)
    async def answer(*args: Any, **arguments: Any) -> JsonObject:
        try:
            result = await tool(*args, **arguments)
        except SkillfitError as error:
            raise ToolError(str(error)) from error
        return result if isinstance(result, dict) else asdict(result)

    signature = inspect.signature(tool, eval_str=True)
    returning_json = signature.replace(return_annotation=JsonObject)
    answer.__signature__ = returning_json  # type: ignore[attr-defined]
    return answer


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """What a call would do with `confirm: true`."""

    needs_confirmation: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStanding:
    """The state of a run, for an agent that follows it."""

    run: str
    state: RunState
    verdict: str
    stage: str
    step: int
    total_steps: int
    seconds_left: float | None
    prompts_waiting: int
    stopped_by: str = ""  # output of a process that ended before the run did


BriefEvent = dict[str, JsonValue]  # the line that a tracker gets, without its long texts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUpdate(RunStanding):
    """The state of a run, and what happened since the last call."""

    events: list[BriefEvent]
    rollouts: int  # counted, not listed
    last: int  # number of the last event


@dataclass(slots=True)
class Tools:
    """The tools of a session. Relative paths begin in the first folder."""

    folders: Folders
    _starter: Starter = field(default_factory=Starter)

    async def check(
        self, config: str, run: str, overrides: list[str] | None = None, confirm: bool = False
    ) -> JsonObject | Unconfirmed:
        """Is this worth training? Tries keys, grader, noise, headroom and cost with a few rollouts,
        recorded in the directory `run`: a later `start` there does not pay for them again.
        `overrides` are `key.sub=value`. Spends money with paid models, so it needs `confirm`.
        """
        arguments = ["check", *self._config(config, overrides), "--run", str(self._run(run))]
        return await self._spend(arguments, "makes a few paid calls", confirm)

    async def estimate(self, config: str, overrides: list[str] | None = None) -> JsonObject:
        """Show what a run would take: calls, tokens, dollars and minutes, per stage and role.
        Spends nothing.
        """
        return await self._command(["estimate", *self._config(config, overrides)])

    async def evaluate(
        self,
        config: str,
        run: str,
        split: str = "selection",
        overrides: list[str] | None = None,
        confirm: bool = False,
    ) -> JsonObject | Unconfirmed:
        """Measure the config's skill on a split (train, selection, test or all): score, interval
        and what fails. Recorded in the directory `run`; what was measured there before is not paid
        again. Spends money with paid models, so it needs `confirm`.
        """
        words = self._config(config, overrides)
        arguments = ["eval", *words, f"--split={split}", "--run", str(self._run(run))]
        return await self._spend(arguments, "makes a paid rollout of each item", confirm)

    async def ablate(
        self, config: str, run: str, overrides: list[str] | None = None, confirm: bool = False
    ) -> JsonObject | Unconfirmed:
        """Estimate how much each part of the config's skill adds to its score. Recorded in the
        directory `run`. Spends money with paid models, so it needs `confirm`.
        """
        words = self._config(config, overrides)
        arguments = ["ablate", *words, "--run", str(self._run(run))]
        return await self._spend(arguments, "makes at least a hundred paid rollouts", confirm)

    async def verify(
        self, run: str, overrides: list[str] | None = None, confirm: bool = False
    ) -> JsonObject | Unconfirmed:
        """Measure the skill of a finished run again: does it still score as recorded? `overrides`
        may name another model, for example `model.agent=openai/gpt-5-mini`. Spends money with paid
        models, so it needs `confirm`.
        """
        changed = checked_overrides(self.folders, overrides or ())
        arguments = ["verify", str(self._run(run)), *changed]
        return await self._spend(arguments, "makes a paid rollout of each item", confirm)

    async def start(
        self,
        config: str,
        run: str,
        overrides: list[str] | None = None,
        force: bool = False,
        confirm: bool = False,
    ) -> RunStanding | Unconfirmed:
        """Train in the directory `run`, or resume the run that is there, in the background.
        `force`: even if the check says stop. Spends money with paid models (set `budget.usd`), so
        it needs `confirm`.
        """
        path = self._run(run)
        forced = ["--force"] if force else []
        words = self._config(config, overrides)
        arguments = ["train", *words, "--run", str(path), "--json", *forced]
        if not confirm:
            return _unconfirmed(arguments, "starts a run that may spend money")
        self._starter.start(path, arguments, folder=self.folders.roots[0])
        begun = path / CONFIG_FILE
        await _wait_until(lambda: begun.is_file() or not self._starter.is_alive(path))
        return self._standing(path)

    async def stop(self, run: str, confirm: bool = False) -> RunStanding | Unconfirmed:
        """Stop a running run: what is in progress finishes and is saved. `start` resumes it. Needs
        `confirm`.
        """
        path = self._run(run)
        if not confirm:
            return _unconfirmed(["steer", str(path), "stop"], "stops the run")
        stop_run(path)
        await _wait_until(lambda: not in_use(path) and not self._starter.is_alive(path))
        return self._standing(path)

    async def follow(
        self, run: str, after: int = 0, wait: float = 20.0, limit: int = 40
    ) -> RunUpdate:
        """Events of a run behind number `after`, oldest first, and its state. Waits up to
        `wait` seconds for new ones. Call again with `after` set to the `last` that was returned.
        Rollouts are counted, not listed.
        """
        path = self._run(run)
        until = time.monotonic() + min(wait, _WAIT)
        while True:
            update = _update(self._standing(path), path, after, limit)
            if update.events or update.state != "running" or time.monotonic() >= until:
                return update
            await asyncio.sleep(_POLL)

    async def show(self, run: str) -> JsonObject:
        """Show what a run did: verdict, scores with intervals, decisions, edits and their effects,
        cost, and the skill it hands back. `unproven_skill` is what was found but not shown to be
        better.
        """
        return record_json(read_record(self._run(run)))

    async def apply(self, run: str, confirm: bool = False) -> JsonObject:
        """Put the best skill into its folder; the old text is kept in the run. Without `confirm`
        this shows the diff and changes nothing.
        """
        path = self._run(run)
        if not confirm:
            return await self._command(["diff", str(path)])
        skill = read_record(path).data.skill
        if skill:
            self.folders.resolve(skill)
        return await self._command(["apply", str(path), "--yes"])

    async def prompts(self, run: str) -> JsonObject:
        """Prompts of a handoff run that wait for an answer: id and text. Answer each with `answer`,
        then `start` the run again.
        """
        waiting = waiting_prompts(self._run(run))
        return {
            "prompts": [
                {"id": one.id, "prompt": one.prompt.read_text(encoding="utf-8")} for one in waiting
            ]
        }

    async def answer(
        self, run: str, id: str, text: str, confirm: bool = False
    ) -> JsonObject | Unconfirmed:
        """Answer one handoff prompt, in the form that it asks for. An answer cannot be taken back
        once the run has used it. Needs `confirm`.
        """
        path = self._run(run)
        prompt = find_prompt(path, id)
        if not confirm:
            command = as_typed(["steer", str(path), "answer", id])
            return Unconfirmed(f"Writes the answer to {prompt.answer.name}.", command)
        left = await asyncio.to_thread(answer_prompt, path, id, text)
        return {"answered": id, "waiting": left}

    async def steer(
        self, run: str, action: str, target: str = "", text: str = "", confirm: bool = False
    ) -> JsonObject | Unconfirmed:
        """Decide about an edit of a run: `veto`, `pin`, `reword` (with `text`), `approve`,
        `decline`, or `release` to take that back, with the edit's id as `target`; or raise a
        `budget` (target usd, text 10). The run takes it up between steps. Needs `confirm`.
        """
        path = self._run(run)
        if not confirm:
            return _unconfirmed(["steer", str(path), action, target, text], "steers the run")
        request = await asyncio.to_thread(steer_run, path, action, target, text)
        return {"number": request.number, "command": request.command(path)}

    def _run(self, run: str) -> Path:
        path = self.folders.resolve(run)
        if path in self.folders.roots:
            raise InputError(f"{run!r} is a project folder, not a run.")
        return path

    def _config(self, config: str, overrides: list[str] | None) -> list[str]:
        """Return the config and its overrides as words of a command, checked."""
        path = self.folders.resolve(config)
        if not path.is_file():
            raise InputError(f"There is no config {config!r}.")
        if any((folder / JOURNAL).exists() for folder in path.parents):
            raise InputError(
                f"{config!r} is a file of a run, and answers to prompts are written there.",
                hint="Give the config file from which the run was started.",
            )
        return [str(path), *checked_overrides(self.folders, overrides or ())]

    async def _spend(
        self, arguments: list[str], what: str, confirm: bool
    ) -> JsonObject | Unconfirmed:
        """Run a command that makes paid calls, once that is confirmed."""
        return await self._command(arguments) if confirm else _unconfirmed(arguments, what)

    async def _command(self, arguments: list[str]) -> JsonObject:
        """Return what the command printed as JSON."""
        result = await run_command(arguments, folder=self.folders.roots[0], timeout=3_600)
        if result.error:
            raise InputError(result.error)
        return result.data

    def _standing(self, path: Path) -> RunStanding:
        """Return the state of a run, or why its process ended before there was one."""
        failure = self._starter.failure(path)
        if not (path / JOURNAL).is_file():
            raise InputError(failure or f"There is no run in {path}.")
        record = read_record(path)
        state: RunState = "running" if self._starter.is_alive(path) else record.state
        stage = record.running_stage
        return RunStanding(
            run=str(path),
            state=state,
            verdict=record.verdict,
            stage=stage.stage if stage else "",
            step=stage.step if stage else record.steps_done,
            total_steps=record.total_steps,
            seconds_left=record.seconds_left,
            prompts_waiting=record.prompts,
            stopped_by=last_part(failure, _LONG) if state in ("stopped", "review") else "",
        )


async def _wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, or the longest wait is over."""
    for _ in range(round(_WAIT / _POLL)):
        if is_so():
            return
        await asyncio.sleep(_POLL)


def _unconfirmed(arguments: Sequence[str], what: str) -> Unconfirmed:
    return Unconfirmed(
        f"This {what}. Ask your user, then call again with confirm: true.",
        as_typed([word for word in arguments if word]),
    )


def _update(standing: RunStanding, path: Path, after: int, limit: int) -> RunUpdate:
    """Add to the state of a run the events behind number `after`."""
    events: list[BriefEvent] = []
    rollouts, last = 0, after
    with open_details(path) as details:
        for stored in details.events(after):
            if isinstance(stored.event, RolloutFinished):
                rollouts += 1
            elif len(events) < limit:
                events.append(_brief_fields(as_json(stored)))
            else:
                break
            last = stored.seq
    return RunUpdate(**asdict(standing), events=events, rollouts=rollouts, last=last)


def _brief_fields(line: Mapping[str, JsonValue]) -> BriefEvent:
    """Leave out long texts: skills and patches are read with `show`."""
    return {name: _brief(value) for name, value in line.items() if name not in _OMITTED}


def _brief(value: JsonValue) -> JsonValue:
    if isinstance(value, Mapping):
        return _brief_fields(value)
    if isinstance(value, list):
        return [_brief(item) for item in value]
    if isinstance(value, str) and len(value) > _LONG:
        return f"{shorten(value, _LONG)} ({len(value)} characters)"
    return value
