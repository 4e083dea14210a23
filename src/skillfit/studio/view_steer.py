"""Pages that change a run: decisions about edits, stop and resume, handoff answers, apply and undo.
Each does what a command does, and says which.
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
from skillfit.plain_text import budget_amount, quantity
from skillfit.report import RunStory
from skillfit.run.control import EDIT_ACTIONS, in_use, stop_run
from skillfit.skill import diff_hunks
from skillfit.studio.commands import (
    answer_prompt,
    as_typed,
    run_command,
    steer_run,
    waiting_prompts,
)
from skillfit.studio.site import Studio, run_url


async def act(studio: Studio, request: Request) -> Response:
    """One change to a run. The answer leads back to the page it was made on, with a message."""
    name = str(request.path_params["name"])
    form = await studio.form(request)
    do, target = str(form.get("do", "")), str(form.get("target", ""))
    text = str(form.get("text", "")).replace("\r\n", "\n")
    run = studio.find(request)
    back = _page_of(name, do, target)
    try:
        message = await _carry_out(studio, run, do, target, text)
    except SkillfitError as error:
        if do == "budget":  # the form keeps what was typed
            back = run_url("run", name, cap=target, amount=text)
        return studio.go_to(back, str(error), failed=True)
    return studio.go_to(back, message, while_running=do == "stop")


def _page_of(name: str, do: str, target: str) -> str:
    """The address of the page that has the form of an action."""
    if do in ("veto", "pin", "reword"):
        return run_url("edit", name, id=target)
    if do in ("apply", "undo"):
        return run_url("apply", name)
    return run_url("handoff" if do == "answer" else "run", name)


async def _carry_out(studio: Studio, run: Path, do: str, target: str, text: str) -> str:
    """Do what was asked for; returns what to tell the person."""
    if do in EDIT_ACTIONS:
        return await asyncio.to_thread(_steer, run, do, target, text)
    if do == "stop":
        await asyncio.to_thread(stop_run, run)
        return "Stopping: what is in progress finishes and is saved."
    if do == "budget":
        return await asyncio.to_thread(_raise_budget, studio, run, target, text)
    if do == "resume":
        return await asyncio.to_thread(_resume, studio, run, [])
    if do in ("apply", "undo"):
        return await _apply(studio, run, do)
    if do == "answer":
        left = await asyncio.to_thread(answer_prompt, run, target, text)
        rest = f"{quantity(left, 'prompt')} left." if left else "Resume the run now."
        return f"Answered {target}. {rest}"
    raise HTTPException(400, f"Unknown action {do!r}.")


def _steer(run: Path, do: str, target: str, text: str) -> str:
    request = steer_run(run, do, target, text)
    when = "after its current step" if in_use(run) else "when it is resumed"
    return f"Recorded: {request.command(run.name)}. The run follows it {when}."


def _raise_budget(studio: Studio, run: Path, cap: str, amount: str) -> str:
    """A higher cap: the running loop takes it up; a stopped run is resumed with it."""
    _refuse_lower_cap(studio.library.follow(run).story(), cap, amount)
    steer_run(run, "budget", cap, amount)
    if in_use(run):
        return f"The run takes up the budget of {amount} {cap} after its current step."
    return _resume(studio, run, [f"budget.{cap}={amount}"])


def _refuse_lower_cap(story: RunStory, cap: str, typed: str) -> None:
    """Refuse an amount with which the run would stop at once."""
    try:
        amount = float(typed)
    except ValueError:
        return  # `steer_run` says what a budget is
    asked = [
        float(decision.text)
        for decision in story.decisions
        if decision.action == "budget" and decision.target == cap and not decision.done
    ]
    present = max([story.caps.get(cap, 0.0), *asked])
    refused = f"A budget of {budget_amount(cap, amount)} is not higher than"
    if amount <= present:
        raise InputError(f"{refused} the present one ({budget_amount(cap, present)}).")
    # The time of a story includes pauses between resumes, which no budget counts.
    used = {"usd": story.total.usd, "calls": story.total.calls, "tokens": story.total.tokens}
    spent = used.get(cap) or 0.0
    if amount <= spent:
        raise InputError(f"{refused} what the run has used ({budget_amount(cap, spent)}).")


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
    done = "Restored the former text" if do == "undo" else "Changed the skill"
    return f"{done}: {story.data.skill}. The same as: {result.command}"


def apply_page(studio: Studio, request: Request) -> Response:
    """What applying would change, and the buttons to do it and to undo it."""
    name = str(request.path_params["name"])
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


def handoff(studio: Studio, request: Request) -> Response:
    """The prompts that wait for an answer."""
    name = str(request.path_params["name"])
    story = studio.story(request)
    prompts = [_waiting(prompt) for prompt in waiting_prompts(Path(story.path))]
    return studio.page(request, "handoff.html.j2", name=name, story=story, prompts=prompts)
