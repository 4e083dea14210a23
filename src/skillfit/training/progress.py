"""Where training stands: the incumbent and its score, what was accepted, what is remembered. And
the ways a skill gets carried on: the first one, one the gate decided on, one that came past it;
each is measured, and its score is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from skillfit.gate import Candidate, ShipResult, Verdict
from skillfit.optimize.memory import StepMemory
from skillfit.rollout.outcome import Tally
from skillfit.run.events import EvaluationFinished, GateDecided
from skillfit.skill import Edit, Skill
from skillfit.training.parts import Parts


@dataclass(frozen=True, slots=True)
class AcceptedEdit:
    step: int
    edit: Edit


@dataclass(frozen=True, slots=True)
class Scores:
    """The initial skill and the one handed back, on the selection split and on rollouts that can be
    compared.
    """

    baseline: Tally
    best: Tally


@dataclass(frozen=True, slots=True)
class Ending:
    """What the last stages found; whatever a run that ended early did not reach stays empty."""

    best: Skill
    scores: Scores | None = None
    ship: ShipResult | None = None
    final: Tally | None = None  # the carried skill on the selection split
    tests: dict[str, Tally] | None = None  # baseline, best, final


@dataclass(slots=True)
class Progress:
    skill: Skill  # the incumbent
    baseline: Tally | None = None  # None: not measured yet
    score: float = 0.0  # the incumbent's, under the gate's metric
    baseline_score: float = 0.0
    origin: str = "initial"
    best_origin: str = "initial"
    best_step: int = 0
    meta_skill: str = ""
    epoch_start: Skill = field(init=False)  # what this epoch began with
    memory: list[StepMemory] = field(default_factory=list)  # of this epoch
    records: list[dict[str, Any]] = field(default_factory=list)
    accepted: list[AcceptedEdit] = field(default_factory=list)
    proposed: int = 0  # proposals after merging, over the run
    valid_edits: int = 0  # of these, those that made a candidate
    ending: Ending | None = None  # once the ship test is made

    def open_epoch(self) -> None:
        self.epoch_start = self.skill
        self.memory.clear()

    def carry(self, skill: Skill, origin: str, score: float) -> None:
        self.skill, self.origin, self.score = skill, origin, score

    def track_best(self, parts: Parts) -> None:
        """Say where the best skill came from, when it is the one just carried on."""
        if parts.gate.best.hash == self.skill.hash and self.best_origin != self.origin:
            self.best_origin, self.best_step = self.origin, parts.at.step

    def standing(self, parts: Parts) -> dict[str, Any]:
        """The fields of a record that say where the run stands."""
        return {
            "current_score": self.score,
            "current_origin": self.origin,
            "best_score": parts.gate.best_score,
            "best_step": self.best_step,
            "best_origin": self.best_origin,
        }


async def begin(parts: Parts, progress: Progress) -> None:
    """Measure the initial skill on the selection split."""
    with parts.stage("baseline", len(parts.task.selection)):
        progress.baseline = await parts.gate.baseline(parts.initial)
    say_score(parts, "baseline", parts.initial, progress.baseline)
    progress.score = progress.baseline_score = parts.gate.best_score


async def judge(
    parts: Parts, progress: Progress, name: str, candidates: Sequence[Candidate]
) -> Verdict:
    """Let the gate decide, say what it decided and why, and carry the winner on."""
    verdict = await parts.gate.judge(name, progress.skill, candidates)
    parts.emit(
        GateDecided(
            name=name,
            step=parts.at.step,
            decision=verdict.decision,
            reason=verdict.reason,
            evidence=asdict(verdict.evidence),
            candidates=[asdict(standing) for standing in verdict.standings],
        )
    )
    if verdict.tally is not None:
        say_score(parts, name, (verdict.shown or candidates[0]).skill, verdict.tally)
    if verdict.chosen is not None:
        progress.carry(verdict.winner, name, verdict.candidate_score or 0.0)
    return verdict


async def adopt(
    parts: Parts, progress: Progress, skill: Skill, origin: str, like: Skill | None = None
) -> Tally:
    """Carry a skill that no gate decided on. It is measured all the same: the score carried is
    always the carried skill's own, or that of one which says the same.
    """
    tally = await parts.gate.adopt(skill, like)
    say_score(parts, origin, skill, tally)
    progress.carry(skill, origin, parts.gate_settings.value(tally.hard, tally.soft))
    return tally


def say_score(
    parts: Parts,
    name: str,
    skill: Skill,
    tally: Tally,
    split: str = "selection",
    by_type: Mapping[str, Tally] | None = None,
) -> None:
    parts.emit(
        EvaluationFinished(
            name=name,
            split=split,
            skill_hash=skill.hash,
            hard=tally.hard,
            soft=tally.soft,
            scored=tally.scored,
            planned=tally.planned,
            by_type={
                kind: {"total": one.scored, "hard_acc": one.hard}
                for kind, one in (by_type or {}).items()
            },
        )
    )


def hard_and_soft(name: str, tally: Tally | None) -> dict[str, float | None]:
    """The two fields of a record or summary that hold a skill's scores; None where it was not
    measured.
    """
    return {
        f"{name}_hard": tally.hard if tally else None,
        f"{name}_soft": tally.soft if tally else None,
    }
