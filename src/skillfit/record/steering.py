"""Decisions of a person about a run, checked against the run before they are recorded, and answers
to its handoff prompts. `skillfit steer`, the studio and the MCP server use these functions;
`control.py` has the file of requests and how a run reads it.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from skillfit.atomic_write import write_whole
from skillfit.errors import InputError
from skillfit.models.providers.handoff import Pending, pending
from skillfit.plain_text import shorten
from skillfit.record.lists import read_card
from skillfit.run.control import (
    EDIT_ACTIONS,
    NOTE_ACTIONS,
    SteeringRequest,
    decision_about,
    request_steering,
)
from skillfit.run.store import HANDOFF, in_use
from skillfit.run.view import RunView

STOPPING = "Stopping: what is in progress finishes and is saved."
_LISTED_EDITS = 30  # ids in a message, of those that were proposed last


def steer_run(
    run: Path, action: str, target: str = "", text: str = "", rollout: str = ""
) -> SteeringRequest:
    """Ask a run to follow a decision about an edit or a budget, or note what a person says about an
    answer. A finished run only takes notes. A folder without a run is refused, and nothing is
    written there.
    """
    if action in NOTE_ACTIONS:
        _refuse_unknown_rollout(run, target, rollout)
    elif read_card(run).is_over:
        raise InputError(
            "The run has finished and can no longer be steered.",
            hint="Change the skill yourself, or start a new run from it.",
        )
    if action in EDIT_ACTIONS and target:
        _refuse_unknown_edit(run, target)
    if action == "release" and target and decision_about(run, target) is None:
        raise InputError(f"No person has decided about the edit {shorten(target, 80)!r}.")
    return request_steering(run, action, target, text, rollout)


def when_followed(run: Path) -> str:
    """Say when a run follows a decision, as a sentence."""
    if read_card(run).is_over:
        return "It is kept with the run, for the next one."
    when = "after its current step" if in_use(run) else "when it is resumed"
    return f"The run follows it {when}."


def _refuse_unknown_rollout(run: Path, item: str, rollout: str) -> None:
    with closing(RunView.open(run)) as view:
        found = view.events.rollouts_of_item(item)
    if not any(rollout in ("", row.rollout) for row in found):
        named = shorten(rollout or item, 80)
        raise InputError(f"The run in {run} has no rollout {named!r} of this item.")


def _refuse_unknown_edit(run: Path, edit: str) -> None:
    """Raise an error for an edit that the run does not have. Without a pool, it may come yet."""
    with closing(RunView.open(run)) as view:
        pool = view.pool_ids
    if pool and edit not in pool:
        known = f"Its edits: {', '.join(pool[-_LISTED_EDITS:])}"
        more = f" and {len(pool) - _LISTED_EDITS} older ones" if len(pool) > _LISTED_EDITS else ""
        named = shorten(edit, 80)
        raise InputError(f"The run in {run} has no edit {named!r}.", hint=f"{known}{more}.")


def waiting_prompts(run: Path) -> list[Pending]:
    """List the handoff prompts without an answer. Links to files elsewhere are left out."""
    inside = run.resolve()
    return [
        prompt
        for prompt in pending(run / HANDOFF)
        if all(path.resolve().is_relative_to(inside) for path in (prompt.prompt, prompt.answer))
    ]


def answer_prompt(run: Path, prompt_id: str, text: str) -> int:
    """Answer a handoff prompt of a run, and record that a person did. Returns how many are left."""
    prompt = find_prompt(run, prompt_id)
    if not text.strip():
        raise InputError("The answer is empty.", hint="Write it in the form the prompt asks for.")
    write_whole(prompt.answer, text.encode())
    request_steering(run, "answer", prompt_id)
    left = waiting_prompts(run)
    problem = next((one.problem for one in left if one.id == prompt_id), "")
    if problem:
        raise InputError(f"The answer to {prompt_id} cannot be used: {problem}")
    return len(left)


def find_prompt(run: Path, prompt_id: str) -> Pending:
    """Return a handoff prompt that waits for an answer, by its id."""
    waiting = {prompt.id: prompt for prompt in waiting_prompts(run)}
    if prompt_id not in waiting:
        known = ", ".join(waiting) or "none"
        raise InputError(f"No prompt {prompt_id!r} waits for an answer.", hint=f"Waiting: {known}.")
    return waiting[prompt_id]
