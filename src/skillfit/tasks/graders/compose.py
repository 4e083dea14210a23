"""Graders of graders: `{all: […]}`, `{any: […]}`, `{mean: […], weights: […]}`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from skillfit.tasks.attempt import Attempt, Grader, Score
from skillfit.tasks.item import Item


@dataclass(frozen=True, slots=True)
class Composed:
    """all: every part must pass, soft is their mean. any: the best part counts. mean: the weighted mean of both scores."""

    how: Literal["all", "any", "mean"]
    parts: tuple[Grader, ...]
    weights: tuple[float, ...]

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        scores = [await part.grade(item, attempt) for part in self.parts]
        hards, softs = [score.hard for score in scores], [score.soft for score in scores]
        hard, soft = {
            "all": (min(hards), self._mean(softs)),
            "any": (max(hards), max(softs)),
            "mean": (self._mean(hards), self._mean(softs)),
        }[self.how]
        feedback = "" if hard >= 1 else "\n".join(dict.fromkeys(score.feedback for score in scores if score.feedback))
        return Score(hard, soft, feedback, tuple(line for score in scores for line in score.evidence))

    def _mean(self, values: Sequence[float]) -> float:
        return sum(value * weight for value, weight in zip(values, self.weights, strict=True)) / sum(self.weights)

    def patterns(self) -> tuple[str, ...]:
        return tuple(pattern for part in self.parts for pattern in part.patterns())

    def describe(self) -> dict[str, Any]:
        return {self.how: [part.describe() for part in self.parts], "weights": list(self.weights)}
