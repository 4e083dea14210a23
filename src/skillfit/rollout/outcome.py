"""Rollouts as data: requests, outcomes, means over them, and waiting for many of them.

An outcome is scored, failed (the infrastructure broke) or skipped. Failed ones never enter a mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from skillfit.intervals import weighted_mean
from skillfit.models.protocol import Usage
from skillfit.run.control import Interrupted
from skillfit.run.records import RolloutStatus
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Score

_K = TypeVar("_K")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Arm:
    """The skill that one rollout runs under.

    With screening it is the incumbent plus some pending edits; `edits` holds the ids of all edits
    of the pool that are in effect in the skill, promoted ones too.
    """

    skill: Skill
    edits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One rollout to make. Equal requests of one series share one rollout."""

    arm: Arm
    item: Item
    repeat: int = 0


def requests_for(
    skill: Skill, items: Iterable[Item], repeats: Iterable[int] = range(1)
) -> list[RolloutRequest]:
    """Request all items under one skill: all items of the first repeat, then all of the next."""
    listed, arm = list(items), Arm(skill)
    return [RolloutRequest(arm, item, repeat) for repeat in repeats for item in listed]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rollout has no score."""

    kind: str  # a key of POLICIES (models/failures.py), or a kind of the user's own code
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one rollout: an attempt with its score, or the failure that prevented one."""

    item_id: str
    repeat: int
    status: RolloutStatus
    score: Score | None = None
    failure: Failure | None = None
    attempt: Attempt | None = None
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Full marks on the hard score. A fraction below 1 is a failure to learn from."""
        return self.score is not None and self.score.hard >= 1.0

    @property
    def hard(self) -> float | None:
        """The hard score, None when there is no score."""
        return None if self.score is None else self.score.hard

    @property
    def soft(self) -> float | None:
        return None if self.score is None else self.score.soft


@dataclass(frozen=True, slots=True)
class Tally:
    """Means over the scored outcomes, and how many of the planned rollouts they are."""

    hard: float
    soft: float
    scored: int
    planned: int
    items: int  # distinct ones among the scored

    @property
    def coverage(self) -> float:
        return self.scored / self.planned if self.planned else 0.0

    @classmethod
    def of(cls, outcomes: Iterable[Outcome], weights: Mapping[str, float] | None = None) -> Tally:
        """Count the outcomes and average their scores. `weights`: item id -> how much it counts, 1
        where not named.
        """
        listed = list(outcomes)
        scores = {
            at: outcome.score for at, outcome in enumerate(listed) if outcome.score is not None
        }
        counts = {at: (weights or {}).get(listed[at].item_id, 1.0) for at in scores}
        return cls(
            hard=weighted_mean({at: score.hard for at, score in scores.items()}, counts),
            soft=weighted_mean({at: score.soft for at, score in scores.items()}, counts),
            scored=len(scores),
            planned=sum(outcome.status != "skipped" for outcome in listed),
            items=len({listed[at].item_id for at in scores}),
        )


@dataclass(frozen=True, slots=True)
class StepRollouts:
    """What was asked for and the tasks that run it, one list per accumulation batch."""

    requests: tuple[tuple[RolloutRequest, ...], ...]
    running: tuple[tuple[asyncio.Future[Outcome], ...], ...]

    def all_running(self) -> list[asyncio.Future[Outcome]]:
        return [task for batch in self.running for task in batch]

    async def outcomes(self) -> tuple[tuple[Outcome, ...], ...]:
        """Wait for all rollouts: their outcomes per batch, in planned order."""
        await gather(self.all_running())
        return tuple(tuple(task.result() for task in batch) for batch in self.running)


async def gather(work: Iterable[Awaitable[_T]]) -> list[_T]:
    """Return the results in the order given.

    All work finishes before the first failure (in that order) is raised. So everything that a stage
    has paid for is recorded, and all its handoff prompts are written. When the caller is cancelled,
    so is the work.
    """
    tasks = [asyncio.ensure_future(awaitable) for awaitable in work]
    try:
        await settle(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await settle(tasks)
        raise
    return [task.result() for task in tasks]


async def settle(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until all tasks have ended. Their exceptions stay in the tasks and are not logged."""
    listed = list(tasks)
    try:
        if listed:
            await asyncio.wait(listed)
    finally:
        for task in listed:
            if task.done():
                mark_retrieved(task)
            else:
                task.add_done_callback(mark_retrieved)


def mark_retrieved(task: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging the exception of a task whose result is never read."""
    if not task.cancelled():
        task.exception()


def raise_if_skipped(outcomes: Sequence[Outcome]) -> None:
    """Raise `Interrupted` if a stop request kept a rollout from running: nothing is decided
    then.
    """
    if any(outcome.status == "skipped" for outcome in outcomes):
        raise Interrupted
