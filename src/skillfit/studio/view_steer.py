"""Pages that change something: a new run, decisions about edits, stop and resume, handoff answers,
apply and undo. Each does what a command does, and says which.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from skillfit.errors import InputError, SkillfitError
from skillfit.models.providers.handoff import Pending
from skillfit.plain_text import quantity
from skillfit.report import RunStory
from skillfit.run.control import in_use, stop_run
from skillfit.run.directory import JOURNAL
from skillfit.skill import diff_hunks
from skillfit.studio.commands import (
    CommandResult,
    answer_prompt,
    as_typed,
    check_run_name,
    run_command,
    start_log,
    steer_run,
    waiting_prompts,
)
from skillfit.studio.run_form import NewRun, file_values, main_fields, sections
from skillfit.studio.site import Studio, run_url

_STEERING = ("veto", "pin", "reword", "approve", "decline")
_CHECK_SECONDS = 1_800.0


async def new(studio: Studio, request: Request) -> Response:
    """The form; with POST, its estimate, its check, or the start of the run."""
    if request.method == "GET":
        filled = NewRun(_free_name(studio), request.query_params.get("config", ""))
        return _form(studio, request, filled)
    form = await studio.form(request)
    texts = {key: str(value) for key, value in form.items()}
    do = texts.get("do", "")
    try:
        filled = NewRun.from_form(texts)
        if do == "show":
            return _form(studio, request, filled)
        filled.check(studio.folders)
        run = studio.folders.resolve(studio.library.folder / filled.name)
        config = filled.config_path(studio.folders, studio.project)
    except SkillfitError as error:
        filled = NewRun(texts.get("name", ""), texts.get("config", ""), _given(texts))
        return _form(studio, request, filled, problem=str(error))
    settings = filled.overrides() if filled.config else []
    words = [studio.folders.shown(config), *settings]
    if do == "start":
        return await _start(studio, request, filled, run, words, force="force" in texts)
    if do == "check":
        arguments = ["check", *words, "--run", str(run)]
    else:
        arguments = ["estimate", *words]
    try:
        result = await run_command(arguments, folder=studio.project, timeout=_CHECK_SECONDS)
    except InputError as error:
        return _form(studio, request, filled, problem=str(error))
    return _form(studio, request, filled, result=result, kind=do)


def _given(texts: dict[str, str]) -> dict[str, str]:
    return {key.removeprefix("set:"): text for key, text in texts.items() if key.startswith("set:")}


def _form(
    studio: Studio,
    request: Request,
    filled: NewRun,
    *,
    problem: str = "",
    result: CommandResult | None = None,
    kind: str = "",
) -> Response:
    folders = studio.folders
    given: dict[str, str] = {}
    if filled.config:
        try:
            given = file_values(folders, filled.config)
        except SkillfitError as error:
            problem = problem or str(error)
    return studio.page(
        request,
        "new.html.j2",
        status=400 if problem else 200,
        filled=filled,
        given=given,
        problem=problem,
        result=result,
        kind=kind,
        fields=main_fields(),
        sections=sections(),
        skills=[folders.shown(path) for path in folders.skills()],
        tasks=[folders.shown(path) for path in folders.tasks()],
        configs=[folders.shown(path) for path in folders.configs()],
    )


def _free_name(studio: Studio) -> str:
    taken = {run.name for run in studio.library.index().runs}
    number = len(taken) + 1
    while f"run-{number}" in taken or (studio.library.folder / f"run-{number}").exists():
        number += 1
    return f"run-{number}"


async def _start(
    studio: Studio, request: Request, filled: NewRun, run: Path, words: list[str], *, force: bool
) -> Response:
    if await asyncio.to_thread(_has_started, studio, filled.name):  # not only checked
        problem = f"There is a run named {filled.name} already. Give this one another name."
        return _form(studio, request, filled, problem=problem)
    forced = ["--force"] if force else []
    arguments = ["train", *words, "--run", str(run), "--json", *forced]
    try:
        studio.starter.start(run, arguments, folder=studio.project)
    except InputError as error:
        return _form(studio, request, filled, problem=str(error))
    return studio.go_to(run_url("starting", filled.name))


async def starting(studio: Studio, request: Request) -> Response:
    """The page until the run has its journal: its process is starting, or failed with a reason."""
    name = str(request.path_params["name"])
    try:
        run = studio.folders.resolve(studio.library.folder / check_run_name(name))
    except InputError as error:
        raise HTTPException(404, str(error)) from error
    if (run / JOURNAL).is_file() and _has_started(studio, name):
        return studio.go_to(run_url("run", name))
    alive = studio.starter.is_starting(run) or in_use(run)
    written = studio.project / f"{name}.yaml"  # by the form, when it did not start from a file
    return studio.page(
        request,
        "starting.html.j2",
        name=name,
        alive=alive,
        log=start_log(run),
        config=studio.folders.shown(written) if written.is_file() else "",
    )


def _has_started(studio: Studio, name: str) -> bool:
    try:
        return studio.library.story(name).has_begun
    except SkillfitError:
        return False


async def act(studio: Studio, request: Request) -> Response:
    """One change to a run. The answer leads back with a message."""
    name = str(request.path_params["name"])
    form = await studio.form(request)
    do, target = str(form.get("do", "")), str(form.get("target", ""))
    text = str(form.get("text", "")).replace("\r\n", "\n")
    run = studio.find(request)
    back = run_url("run", name)
    try:
        if do in _STEERING:
            if do not in ("approve", "decline"):  # the run's page has the others to review
                back = run_url("edit", name, id=target)
            message = await asyncio.to_thread(_steer, run, do, target, text)
        elif do == "stop":
            await asyncio.to_thread(stop_run, run)
            message = "Stopping: what is in progress finishes and is saved."
        elif do == "budget":
            message = await asyncio.to_thread(_budget, studio, run, target, text)
        elif do == "resume":
            message = await asyncio.to_thread(_resume, studio, run, [])
        elif do in ("apply", "undo"):
            back = run_url("apply", name)
            message = await _apply(studio, run, do)
        elif do == "answer":
            back = run_url("handoff", name)
            left = await asyncio.to_thread(answer_prompt, run, target, text)
            rest = f"{quantity(left, 'prompt')} left." if left else "Resume the run now."
            message = f"Answered {target}. {rest}"
        else:
            raise HTTPException(400, f"Unknown action {do!r}.")
    except SkillfitError as error:
        return studio.go_to(back, str(error), failed=True)
    return studio.go_to(back, message)


def _steer(run: Path, do: str, target: str, text: str) -> str:
    request = steer_run(run, do, target, text)
    when = "after its current step" if in_use(run) else "when it is resumed"
    return f"Recorded: {request.command(run.name)}. The run follows it {when}."


def _budget(studio: Studio, run: Path, cap: str, amount: str) -> str:
    """A higher cap: the running loop takes it up; a stopped run is resumed with it."""
    steer_run(run, "budget", cap, amount)
    if in_use(run):
        return f"The run takes up the budget of {amount} {cap} after its current step."
    return _resume(studio, run, [f"budget.{cap}={amount}"])


def _resume(studio: Studio, run: Path, overrides: list[str]) -> str:
    if studio.library.follow(run).story().is_ablation:
        arguments = ["ablate", str(run / "config.json"), "--run", str(run), "--json"]
    else:
        arguments = ["resume", str(run), *overrides, "--json"]
    studio.starter.start(run, arguments, folder=studio.project)
    return f"Resumed with: {as_typed(arguments)}"


async def _apply(studio: Studio, run: Path, do: str) -> str:
    story = await asyncio.to_thread(studio.library.follow(run).story)
    studio.folders.resolve(story.data.skill)
    arguments = ["apply", str(run), "--undo" if do == "undo" else "--yes"]
    result = await run_command(arguments, folder=studio.project)
    if result.error:
        raise InputError(result.error)
    done = "Put back the former text" if do == "undo" else "Changed the skill"
    return f"{done}: {story.data.skill}. The same as: {result.command}"


async def apply_page(studio: Studio, request: Request) -> Response:
    """What applying would change, and the buttons to do it and to undo it."""
    name = str(request.path_params["name"])

    def make() -> Response:
        story = studio.story(request)
        return studio.page(
            request,
            "apply.html.j2",
            name=name,
            story=story,
            hunks=diff_hunks(story.initial_skill, story.best_skill),
            inside=bool(story.data.skill) and studio.folders.holds(story.data.skill),
            applied=_applied(story),
        )

    return await asyncio.to_thread(make)


def _applied(story: RunStory) -> bool:
    return any((Path(story.path) / "applied").glob("*.json"))


@dataclass(frozen=True, slots=True)
class WaitingPrompt:
    """A handoff prompt with the answer that is in its file so far."""

    id: str
    text: str
    answer: str
    problem: str  # why that answer cannot be used


def _waiting(prompt: Pending) -> WaitingPrompt:
    text = prompt.prompt.read_text(encoding="utf-8", errors="replace")
    answer = ""
    if prompt.answer.is_file():
        answer = prompt.answer.read_text(encoding="utf-8", errors="replace")
    return WaitingPrompt(prompt.id, text, answer, prompt.problem)


async def handoff(studio: Studio, request: Request) -> Response:
    """The prompts that wait for an answer."""
    name = str(request.path_params["name"])

    def make() -> Response:
        story = studio.story(request)
        prompts = [_waiting(prompt) for prompt in waiting_prompts(Path(story.path))]
        return studio.page(request, "handoff.html.j2", name=name, story=story, prompts=prompts)

    return await asyncio.to_thread(make)
