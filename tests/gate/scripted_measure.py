"""A Measure whose outcomes are a fixed function of series, skill, item and repeat, as with a
journal.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from skillfit.config.schema import Config
from skillfit.gate import Arm, Candidate, GateSettings
from skillfit.rollout.outcome import Failure, Outcome
from skillfit.skill import Edit, Skill, apply_edits
from skillfit.tasks.item import Item, Score

BASE = Skill.from_text("# Skill\n\nDo the task.\n")


def items(count: int) -> list[Item]:
    return [Item(f"i{number:03d}", {"input": f"question {number}"}) for number in range(count)]


def settings_of(*, subsets: int = 16, **sections: Any) -> GateSettings:
    """The settings of a gate under a config with these sections."""
    return GateSettings(Config.model_validate(sections), subsets=subsets)


def candidate(*rules: str, incumbent: Skill = BASE) -> Candidate:
    edits = tuple(Edit("append", content=f"- {rule}") for rule in rules)
    return Candidate(apply_edits(incumbent, edits).skill, edits, label=" ".join(rules))


def uniform(*parts: object) -> float:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7]) / 2**56


class Scripted:
    def __init__(
        self,
        chance: Callable[[Skill, str], float],
        *,
        fails: Callable[[Skill, str, int], bool] = lambda skill, item, repeat: False,
        graded: bool = False,
        shuffle: str = "",
        salt: object = 0,
    ) -> None:
        self._chance, self._fails, self._graded, self._shuffle, self._salt = (
            chance,
            fails,
            graded,
            shuffle,
            salt,
        )
        self.asked: list[tuple[str, str, str, int]] = []  # series, skill hash, item, repeat

    async def __call__(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> list[Outcome]:
        self.asked += [(series, arm.skill.hash, item.id, repeat) for arm, item in arms]
        if self._shuffle:
            skill, item = arms[0][0].skill, arms[0][1]
            for _ in range(int(10 * uniform(self._shuffle, skill.hash, item.id, repeat))):
                await asyncio.sleep(0)
        return [self._outcome(arm.skill, item.id, repeat, series) for arm, item in arms]

    def _outcome(self, skill: Skill, item: str, repeat: int, series: str) -> Outcome:
        if self._fails(skill, item, repeat):
            return Outcome(item, repeat, "failed", failure=Failure("timeout", "scripted"))
        chance, draw = (
            self._chance(skill, item),
            uniform(self._salt, series, skill.hash, item, repeat),
        )
        if self._graded:
            return Outcome(
                item, repeat, "scored", Score(0.0, min(1.0, max(0.0, chance + 0.2 * (draw - 0.5))))
            )
        return Outcome(item, repeat, "scored", Score(float(draw < chance)))


def by_rule(base: float, **effects: float) -> Callable[[Skill, str], float]:
    """The same chance for every item: `base`, plus the effect of each rule the skill has."""
    return lambda skill, item: (
        base + sum(change for rule, change in effects.items() if f"- {rule}" in skill.body)
    )
