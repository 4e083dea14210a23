"""Where training stands: the incumbent and its score, what was accepted, what is remembered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from skillfit.optimize.memory import StepMemory
from skillfit.rollout.outcome import Tally
from skillfit.run.events import EvaluationFinished
from skillfit.skill import Edit, Skill
from skillfit.train.parts import Parts


@dataclass(frozen=True, slots=True)
class AcceptedEdit:
    step: int
    edit: Edit


@dataclass(slots=True)
class Progress:
    skill: Skill  # the incumbent
    baseline: Tally | None = None  # None: not measured yet
    score: float = 0.0  # the incumbent's, under the gate's metric
    baseline_score: float = 0.0
    origin: str = "initial"
    best_origin: str = "initial"
    best_step: int = 0
    step: int = 0
    meta_skill: str = ""
    epoch_start: Skill | None = None  # what this epoch began with
    last_step_skill: Skill | None = None  # before the epoch's slow update
    memory: list[StepMemory] = field(default_factory=list)  # of this epoch
    records: list[dict[str, Any]] = field(default_factory=list)
    accepted: list[AcceptedEdit] = field(default_factory=list)
    proposed: int = 0  # proposals after merging, over the run
    valid_edits: int = 0  # of these, those that made a candidate

    def open_epoch(self) -> None:
        self.epoch_start = self.skill
        self.memory.clear()

    def track_best(self, best: Skill) -> None:
        """Say where the best skill came from, when it is the one just carried on."""
        if best.hash == self.skill.hash and self.best_origin != self.origin:
            self.best_origin, self.best_step = self.origin, self.step

    def carry(self, skill: Skill, origin: str, score: float) -> None:
        self.skill, self.origin, self.score = skill, origin, score


async def begin(parts: Parts, progress: Progress) -> None:
    """Measure the initial skill on the selection split."""
    with parts.stage("baseline", len(parts.task.selection)):
        tally = await parts.gate.baseline(parts.initial)
    parts.emit(evaluation("baseline", parts.initial, tally))
    progress.baseline = tally
    progress.score = progress.baseline_score = parts.gate.best_score


async def adopt(parts: Parts, progress: Progress, skill: Skill, origin: str) -> Tally:
    """Carry a skill that no gate decided on. It is measured all the same: the score carried is always the carried skill's own."""
    tally = await parts.gate.adopt(skill)
    parts.emit(evaluation(origin, skill, tally))
    progress.carry(skill, origin, parts.gate_settings.value(tally.hard, tally.soft))
    return tally


def evaluation(name: str, skill: Skill, tally: Tally, split: str = "selection") -> EvaluationFinished:
    return EvaluationFinished(
        name=name,
        split=split,
        skill_hash=skill.hash,
        hard=tally.hard,
        soft=tally.soft,
        scored=tally.scored,
        planned=tally.planned,
    )
