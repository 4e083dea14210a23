"""Trajectories for a page: read from the journal, cut so that the file stays small, and what was cut is said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from skillfit.report.story import ItemTold
from skillfit.rollout.outcome import Outcome
from skillfit.run.journal import Journal

_TEXT = 2_000  # characters of one turn
_TURNS = 24  # of one trajectory: the first and the last ones
_FILE = 1_500_000  # characters of all of them together


@dataclass(frozen=True, slots=True)
class Turn:
    who: str
    text: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    steps: tuple[Turn, ...]
    feedback: str = ""
    failure: str = ""
    cut: int = 0  # characters left out


def read_trajectories(journal: Journal, items: Iterable[ItemTold]) -> dict[str, Trajectory]:
    """By rollout key, in the items' order until the file's room is used up."""
    found: dict[str, Trajectory] = {}
    room = _FILE
    for key in (side.rollout for item in items for side in (item.before, item.after)):
        outcome = journal.get(key, Outcome) if key and key not in found else None
        if outcome is None:
            continue
        trajectory = shorten(outcome)
        room -= sum(len(turn.text) for turn in trajectory.steps)
        if room < 0:
            break
        found[key] = trajectory
    return found


def shorten(outcome: Outcome) -> Trajectory:
    attempt, score = outcome.attempt, outcome.score
    turns = [Turn(_who(step.kind, step.role, step.name), step.text) for step in attempt.steps] if attempt else []
    if attempt and attempt.answer and (not turns or turns[-1].text.strip() != attempt.answer.strip()):
        turns.append(Turn("answer", attempt.answer))
    kept = turns if len(turns) <= _TURNS else [*turns[: _TURNS // 2], *turns[-_TURNS // 2 :]]
    shown = tuple(Turn(turn.who, _cut(turn.text)) for turn in kept)
    feedback = "\n".join(filter(None, [score.feedback, *score.evidence])) if score else ""
    return Trajectory(
        steps=shown,
        feedback=_cut(feedback),
        failure=f"{outcome.failure.kind}: {_cut(outcome.failure.message)}" if outcome.failure else "",
        cut=sum(len(turn.text) for turn in turns) - sum(min(len(turn.text), _TEXT) for turn in kept),
    )


def _who(kind: str, role: str, name: str) -> str:
    return {"message": role, "tool_call": f"calls {name}", "tool_result": f"{name} gave"}.get(kind, kind)


def _cut(text: str) -> str:
    """The beginning and the end: what was asked for, and what came of it."""
    return text if len(text) <= _TEXT else f"{text[: _TEXT * 2 // 3]}\n…\n{text[-_TEXT // 3 :]}"
