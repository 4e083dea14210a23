"""What a run is asked for, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.real.world import World


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
    verdict: str
    rollouts: int
    optimizer_calls: int
    seconds: float  # of CPU, without the models of peers' runs
    kept: Mapping[str, int]  # lines of the skill by role
    problem: str = ""

    @classmethod
    def of(
        cls,
        job: Job,
        world: World,
        skill: str,
        verdict: str,
        calls: Mapping[str, int],
        seconds: float,
        problem: str = "",
    ) -> Run:
        kept: dict[str, int] = {}
        for at in world.lines_in(skill):
            kept[world.lines[at].role] = kept.get(world.lines[at].role, 0) + 1
        return cls(
            job,
            world.true(world.start),
            world.true(skill),
            verdict,
            calls["agent"],
            calls["optimizer"],
            seconds,
            kept,
            problem,
        )
