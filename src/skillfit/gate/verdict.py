"""The vocabulary of the gate: candidates and observations go in, verdicts come out.

A gate decides how training continues: which edits enter the skill, and which skill is carried to
the next step. `ScreeningGate` (default) measures every edit in every rollout; `StrictGate` is
SkillOpt's rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args

from skillfit.config.schema import Config
from skillfit.rollout.outcome import Arm, Outcome, Tally
from skillfit.run.control import EditAction
from skillfit.run.records import (
    CandidateComparison,
    Decision,
    EditEffect,
    EditStatus,
    Evidence,
    GateAction,
    ScoreEstimate,
)
from skillfit.skill import Edit, Skill
from skillfit.tasks.item import Item

__all__ = [
    "Arm",
    "Candidate",
    "CandidateComparison",
    "Decision",
    "EditEffect",
    "EditStatus",
    "Evidence",
    "Gate",
    "GateAction",
    "GateSettings",
    "Judgement",
    "Measure",
    "Observation",
    "Ruling",
    "ScoreEstimate",
    "Verdict",
]


class Measure(Protocol):
    """Runs selection rollouts for a gate.

    One rollout for each (arm, item) pair, in that order. The same arguments give the same
    outcomes, because the journal records each rollout under its skill, item, repeat and series.
    """

    async def __call__(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> list[Outcome]: ...


@dataclass(frozen=True, slots=True)
class GateSettings:
    """The settings of the run, and what a gate is told of the run's items and plan.

    The screening thresholds are constants of `pool.py`.
    """

    config: Config = field(default_factory=Config)
    weights: Mapping[str, float] = field(default_factory=dict)  # item id -> weight; default 1
    subsets: int = 16  # screening: distinct subsets of the pending edits per step
    passes: int = 1  # screening: rollouts of each selection item per step


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a step proposes: a skill, and the edits that make it from the incumbent.

    A candidate without edits is a rewrite of the whole document.
    """

    skill: Skill
    edits: tuple[Edit, ...] = ()
    sources: tuple[tuple[str, ...], ...] = ()  # per edit: training items it was written from
    step: int = 0
    label: str = "patch"  # as people read it
    gated: bool = False  # decide by the rule even where `use_gate` is off
    removes_initial_text: bool = False  # its edits are promoted unless they cost score


@dataclass(frozen=True, slots=True)
class Observation:
    """One finished rollout as evidence. Rollouts without a score are ignored."""

    item_id: str
    arm: Arm
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a rule says about a candidate."""

    decision: Decision
    reason: str

    def __post_init__(self) -> None:
        if self.decision not in get_args(Decision):
            allowed = ", ".join(get_args(Decision))
            raise ValueError(f"A gate decided {self.decision!r}; a decision is one of: {allowed}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a gate decided in one judgement, and what the decision rests on."""

    decision: Decision  # screening: accept = an edit was promoted, or a promoted one was dropped
    action: GateAction
    winner: Skill  # what the loop carries on with
    reason: str
    evidence: Evidence
    incumbent_score: float  # before the judgement
    candidate_score: float | None  # of the candidate; of the winner when edits were judged
    candidate_tally: Tally | None  # of the candidate's own rollouts; None: not measured alone
    score: ScoreEstimate  # of the winner
    effects: tuple[EditEffect, ...] = ()  # screening: the whole pool, dropped edits included
    standings: tuple[CandidateComparison, ...] = ()  # strict

    @property
    def accepted(self) -> bool:
        return self.decision == "accept"


class Judgement(Protocol):
    """A judgement that has begun. Its selection rollouts may run while training rollouts do."""

    @property
    def running(self) -> asyncio.Future[Any] | None:
        """The selection rollouts that have started; None: they wait for `decide`."""
        ...

    async def decide(self, training: Sequence[Observation] = ()) -> Verdict:
        """`training`: the finished training rollouts of the step."""
        ...


class Gate(Protocol):
    """Decides how training continues. All is a function of seed, names and measured scores.

    `BaseGate` (base.py) has all of this but the rule itself. A gate may also have
    `checks_must_pass = True`; without it `evaluation.must_pass` is refused.
    """

    async def baseline(self, skill: Skill) -> Tally:
        """Measure the initial skill on the selection items; it is incumbent and best from here."""
        ...

    def assign(self, name: str, items: Sequence[Item], repeats: int = 1) -> list[Arm]:
        """The arm of each training rollout: all items of the first repeat, then of the next."""
        ...

    def begin(self, name: str, candidate: Candidate | None) -> Judgement:
        """Begin to judge a step. No candidate: the step proposed nothing new.

        Selection rollouts that do not depend on the step's training scores may start here: the
        loop may then start the training rollouts of the next step beside them.
        """
        ...

    async def adopt(self, skill: Skill, like: Skill | None = None) -> Tally:
        """Adopt a skill that no verdict chose. `like` is a skill with the same meaning for
        the agent: a gate may use its measurements for both.
        """
        ...

    async def compose(self) -> list[Skill]:
        """The skills worth the ship test, most promising first; never the initial skill."""
        ...

    @property
    def pools_edits(self) -> bool:
        """True: edits wait in a pool and are decided one by one. False: a candidate is accepted or
        rejected as a whole in its own step.
        """
        ...

    @property
    def incumbent(self) -> Skill: ...

    @property
    def best(self) -> Skill: ...

    @property
    def best_score(self) -> float: ...

    def tally(self, skill: Skill) -> Tally:
        """The measurements of a skill. Raises NotMeasured for a skill that has none."""
        ...

    def noise(self) -> float | None:
        """Variance between rollouts of one item under one skill; None when nothing was repeated."""
        ...

    def effects(self) -> tuple[EditEffect, ...]:
        """All edits of the pool; empty for gates without one."""
        ...

    def steer(self, action: EditAction, key: str, text: str = "") -> None:
        """Carry out a user's request about an edit of the pool; `text` is its new wording. Only
        called for gates that pool edits.
        """
        ...
