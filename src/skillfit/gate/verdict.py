"""The gate's vocabulary: candidates go in, a verdict with its evidence comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from skillfit.rollout.outcome import Metric, Outcome, Tally
from skillfit.skill import Edit, Skill
from skillfit.tasks.item import Item

Decision = Literal["accept", "reject", "inconclusive"]
Action = Literal["accept_new_best", "accept", "reject", "force_accept", "inconclusive"]


class Measure(Protocol):
    """One rollout of each item under a skill, in the items' order. Same arguments, same outcomes:
    the journal sees to it.
    """

    async def __call__(
        self, skill: Skill, items: Sequence[Item], *, repeat: int, series: str
    ) -> list[Outcome]: ...


@dataclass(frozen=True, slots=True)
class GateSettings:
    metric: Metric = "hard"
    mixed_weight: float = 0.5
    candidates: int = 4  # of one step, at the most
    rollout_budget: int = (
        0  # selection rollouts one step may use; 0 = sized from split and candidates
    )
    coverage_floor: float = 0.6
    must_pass: tuple[str, ...] = ()
    use_gate: bool = True
    max_skill_tokens: int | None = None  # a stack of winners may not grow beyond it
    seed: int = 42
    weights: Mapping[str, float] = field(
        default_factory=dict
    )  # item id -> how much it counts; 1 where not named

    def value(self, hard: float, soft: float) -> float:
        """One number under the metric."""
        weight = {"hard": 0.0, "soft": 1.0, "mixed": self.mixed_weight}[self.metric]
        return (1 - weight) * hard + weight * soft


@dataclass(frozen=True, slots=True)
class Candidate:
    """A skill that asks to replace the incumbent. `edits` made it from the incumbent; empty for
    rewrites.
    """

    skill: Skill
    edits: tuple[Edit, ...] = ()
    label: str = "whole patch"


@dataclass(frozen=True, slots=True)
class Evidence:
    """How a candidate and the incumbent met: items paired, rollouts that failed left out. An item
    counts as solved from 0.5 on.
    """

    fixed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    both: tuple[str, ...] = ()
    neither: tuple[str, ...] = ()
    difference: float = 0.0  # mean over items, candidate minus incumbent
    interval: tuple[float, float] = (0.0, 0.0)  # 90 %
    probability: float = 0.5  # that the candidate is better
    rollouts: int = 0  # asked for by this verdict, all candidates and the incumbent together
    coverage: float = 0.0  # share of them that was scored


@dataclass(frozen=True, slots=True)
class Standing:
    """One candidate's line in the verdict's table."""

    label: str
    skill_hash: str
    items: int  # paired with the incumbent
    rollouts: int
    score: float
    difference: float
    probability: float
    fate: str  # winner, dropped, vetoed, unchanged, not measured, beaten, rejected


@dataclass(frozen=True, slots=True)
class Verdict:
    decision: Decision
    action: Action
    winner: Skill  # what the loop carries on with
    chosen: Candidate | None  # the accepted candidate
    reason: str
    evidence: Evidence
    standings: tuple[Standing, ...]
    incumbent_score: float
    candidate_score: float | None  # of the candidate that was decided on
    tally: Tally | None  # of that candidate
    shown: Candidate | None = None  # that candidate

    @property
    def accepted(self) -> bool:
        return self.decision == "accept"


class Gate(Protocol):
    """Accept, reject, or say that it can't be told. Remembers what it measured; decides by planned
    order only.
    """

    async def baseline(self, skill: Skill) -> Tally: ...

    async def judge(
        self, name: str, incumbent: Skill, candidates: Sequence[Candidate]
    ) -> Verdict: ...

    @property
    def best(self) -> Skill: ...

    @property
    def best_score(self) -> float: ...

    def finalists(self, limit: int) -> list[Skill]:
        """Skills worth the ship test, most promising first; never the initial skill."""
        ...

    async def adopt(self, skill: Skill, like: Skill | None = None) -> Tally:
        """Measure a skill that is carried on without a verdict; it becomes the best one if it
        scores so. `like` says the same to an agent: a gate may let its record stand for both.
        """
        ...

    def tally(self, skill: Skill) -> Tally: ...

    def discordant(self, one: Skill, other: Skill) -> list[str]: ...

    def noise(self) -> float | None: ...
