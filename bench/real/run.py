"""The jobs of the bench and the runs that came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bench.real.play import Players


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a system, in a world, with an optimizer of some quality and a budget."""

    system: str
    world: str
    optimizer: str
    budget: int  # rollouts in all
    seed: int


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run and the skill that it handed back."""

    job: Job
    start: float  # true score of the initial skill
    score: float  # true score of the skill handed back
    verdict: str  # empty: the system gives none
    rollouts: int
    optimizer_calls: int
    seconds: float  # of CPU, without the models of peers' runs
    kept: Mapping[str, int]  # lines of the skill by role
    problem: str = ""

    @classmethod
    def of(
        cls,
        job: Job,
        players: Players,
        skill: str,
        verdict: str,
        seconds: float,
        problem: str = "",
    ) -> Run:
        """Return the record of a run that handed back `skill`."""
        world = players.world
        return cls(
            job,
            world.true(world.start),
            world.true(skill),
            verdict,
            min(players.rollouts, job.budget) if not verdict else players.rollouts,
            sum(count <= job.budget for count in players.proposed_after),
            seconds,
            dict(Counter(world.lines[line].role for line in world.lines_in(skill))),
            problem,
        )
