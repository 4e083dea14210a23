"""What happened in a rollout, turn by turn, ready for a page. A report cuts long texts and says how
much it left out; the studio shows everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from skillfit.report.story_items import ItemSummary
from skillfit.rollout.outcome import Outcome
from skillfit.run.journal import Journal
from skillfit.tasks.item import Step

_TEXT = 2_000  # characters of one turn in a report
_TURNS = 24  # of one trajectory in a report: the first and the last ones
_FILE = 1_500_000  # characters of all trajectories of a report

Speaker = Literal["agent", "user", "system", "call", "result", "note", "answer"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message, tool call or tool result."""

    speaker: Speaker
    who: str  # as a heading
    text: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    turns: tuple[Turn, ...]
    feedback: str = ""
    evidence: tuple[str, ...] = ()  # what the grader looked at; never shown to the optimizer
    failure: str = ""
    cut: int = 0  # characters left out


def full_trajectory(outcome: Outcome) -> Trajectory:
    """Everything that was recorded."""
    attempt, score = outcome.attempt, outcome.score
    turns = [_turn(step) for step in attempt.steps] if attempt else []
    if attempt and attempt.answer:
        repeated = turns and turns[-1].text.strip() == attempt.answer.strip()
        if not repeated:
            turns.append(Turn("answer", "answer", attempt.answer))
    failure = outcome.failure
    return Trajectory(
        turns=tuple(turns),
        feedback=score.feedback if score else "",
        evidence=score.evidence if score else (),
        failure=f"{failure.kind}: {failure.message}" if failure else "",
    )


def short_trajectory(outcome: Outcome) -> Trajectory:
    """The beginning and the end of the turns and of each text."""
    full = full_trajectory(outcome)
    turns = full.turns
    if len(turns) > _TURNS:
        turns = (*turns[: _TURNS // 2], *turns[-_TURNS // 2 :])
    before = sum(len(turn.text) for turn in full.turns)
    after = sum(min(len(turn.text), _TEXT) for turn in turns)
    return Trajectory(
        turns=tuple(Turn(turn.speaker, turn.who, _cut(turn.text)) for turn in turns),
        feedback=_cut(full.feedback),
        evidence=tuple(_cut(line) for line in full.evidence[:5]),
        failure=_cut(full.failure),
        cut=before - after,
    )


def read_trajectories(journal: Journal, items: Iterable[ItemSummary]) -> dict[str, Trajectory]:
    """By rollout key, in the items' order until the report's room is used up."""
    found: dict[str, Trajectory] = {}
    room = _FILE
    for item in items:
        for side in (item.before, item.after):
            if not side.rollout or side.rollout in found:
                continue
            outcome = journal.get(side.rollout, Outcome)
            if outcome is None:
                continue
            trajectory = short_trajectory(outcome)
            room -= sum(len(turn.text) for turn in trajectory.turns)
            if room < 0:
                return found
            found[side.rollout] = trajectory
    return found


def _turn(step: Step) -> Turn:
    if step.kind == "tool_call":
        return Turn("call", f"calls {step.name}", _readable(step.text))
    if step.kind == "tool_result":
        return Turn("result", f"{step.name} returned", step.text)
    if step.kind == "note":
        return Turn("note", "note", step.text)
    speaker: Speaker = "agent"
    if step.role in ("user", "system"):
        speaker = "user" if step.role == "user" else "system"
    return Turn(speaker, "agent" if step.role == "assistant" else step.role, step.text)


def _readable(arguments: str) -> str:
    """Tool arguments are JSON on one line; indented they can be read."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(value, dict):
        return arguments
    if len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return json.dumps(value, ensure_ascii=False, indent=2)


def _cut(text: str) -> str:
    if len(text) <= _TEXT:
        return text
    return f"{text[: _TEXT * 2 // 3]}\n…\n{text[-_TEXT // 3 :]}"
