"""A gate that measures nothing: the way of somebody who pastes failures into a chat."""

from __future__ import annotations

from skillfit.gate.base import BaseGate, Ruling, SelectionNeed
from skillfit.gate.samples import Samples
from skillfit.rollout.outcome import Tally
from skillfit.skill import Skill


class UnmeasuredGate(BaseGate):
    """Take every candidate as it is."""

    async def baseline(self, skill: Skill) -> Tally | None:
        await super().baseline(skill)
        return None

    async def last_tally(self) -> Tally | None:
        return None

    def need(self, selection: int) -> SelectionNeed:
        return SelectionNeed()

    def uncovered(self, coverage: float) -> Ruling | None:
        return None

    def decide(self, new: Samples, old: Samples) -> Ruling:
        return Ruling("accept", "taken as it is")

    async def record(self, skill: Skill) -> Samples:
        return self._samples.setdefault(skill.hash, Samples(self.settings))

    def make_incumbent(self, skill: Skill, samples: Samples) -> bool:
        super().make_incumbent(skill, samples)
        self._best = skill
        return True
