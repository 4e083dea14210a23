"""A small setup for rollouts: arithmetic items, agents made of a function, and a run's journal
and events on disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillfit.agents.agent import AttemptContext
from skillfit.rollout import RolloutEngine
from skillfit.run.events import EventLog, RolloutFinished
from skillfit.run.journal import Journal
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Score

SKILL = Skill.from_text("# Sums\n\nAdd the numbers.\n")
Solve = Callable[[Item, AttemptContext], Awaitable[str]]


def items(count: int) -> list[Item]:
    return [
        Item(f"sum-{number:03d}", {"input": f"{number} + 1", "answers": [str(number + 1)]})
        for number in range(count)
    ]


def right(item: Item) -> str:
    return item.answers[0]


@dataclass(frozen=True)
class SolvingAgent:
    """An agent that is one async function."""

    solve: Solve

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        answer = await self.solve(item, context)
        return answer if isinstance(answer, Attempt) else Attempt(answer)

    def describe(self) -> dict[str, Any]:
        return {"agent": "solving"}


class SameAnswer:
    async def grade(self, item: Item, attempt: Attempt) -> Score:
        return Score(float(attempt.answer in item.answers))

    def patterns(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> dict[str, Any]:
        return {"grader": "same answer"}


@dataclass(frozen=True)
class Sums:
    """A task as the engine sees it."""

    grader: SameAnswer | None = field(default_factory=SameAnswer)
    evaluator: Any = None


class RolloutSetup:
    """A run directory's journal and events. `engine` makes a new engine on them, as a resumed run
    does.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.db"
        self.journal = Journal(self.path)
        self.events = EventLog(self.path)

    def engine(
        self, solve: Solve | None, task: Sums | None = None, **settings: Any
    ) -> RolloutEngine:
        agent = None if solve is None else SolvingAgent(solve)
        return RolloutEngine(task or Sums(), agent, self.journal, self.events, **settings)

    def finished(self) -> list[RolloutFinished]:
        return [
            stored.event
            for stored in self.events.read()
            if isinstance(stored.event, RolloutFinished)
        ]

    def losses(self) -> int:
        return int(sqlite3.connect(self.path).execute("SELECT count(*) FROM losses").fetchone()[0])

    def close(self) -> None:
        self.journal.close()
        self.events.close()
