"""Base classes of the built-in graders, and compositions of graders: `{all: […]}`, `{any: […]}`,
`{mean: […], weights: […]}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from skillfit.models.protocol import Model
from skillfit.tasks.graders.extract import Extract
from skillfit.tasks.item import Attempt, Grader, Item, Score
from skillfit.tasks.user_code import in_thread

_LONG = 10_000  # characters; longer answers are graded in a thread


@dataclass(frozen=True, slots=True)
class Given:
    """What a grader gets besides its settings."""

    judge: Model | None
    base: Path


class BuiltIn(BaseModel):
    """A grader whose settings are its fields. `short` is the field that a bare value sets, as in
    `regex: ^\\d+$`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]
    short: ClassVar[str]

    def __init_subclass__(cls, name: str = "", short: str = "", **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.name, cls.short = name, short

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        raise NotImplementedError

    def problem(self, item: Item) -> str:
        """Why this grader cannot grade this item; empty if it can. Called once per item when the
        task is loaded.
        """
        return ""

    def golds(self, item: Item) -> tuple[str, ...]:
        """Answers that must score 1."""
        return item.answers or ((item.reference,) if item.reference else ())

    def patterns(self) -> tuple[str, ...]:
        """Texts that would reveal the grader if a skill contained them; see `Grader.patterns`."""
        return ()

    def patterns_of(self, item: Item) -> tuple[str, ...]:
        """The same for the grading rules that are part of the item (its regex, checks, tests)."""
        return ()

    def describe(self) -> dict[str, Any]:
        return {self.name: self.model_dump(mode="json", exclude_defaults=True)}


class TextGrader(BuiltIn):
    """Extracts the answer from the reply, then compares it with the gold answers. `extract` is one
    way to find it, or several that are tried in order.
    """

    extract: tuple[Extract, ...] = ()

    @field_validator("extract", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return value if isinstance(value, (list, tuple)) else [value]

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        grade = partial(self._grade, item, attempt)
        return await in_thread(grade) if self.takes_time(attempt) else grade()

    def takes_time(self, attempt: Attempt) -> bool:
        """Whether to grade in a thread, so that the event loop is not blocked."""
        return len(attempt.answer) > _LONG or any(way.regex is not None for way in self.extract)

    def _grade(self, item: Item, attempt: Attempt) -> Score:
        if not self.extract or attempt.bare:
            return self.compare(item, attempt.answer.strip())
        for way in self.extract:
            answer = way.find(attempt.answer)
            if answer is not None:
                return self.compare(item, answer)
        return Score(0.0, feedback=self.extract[0].missing)

    def compare(self, item: Item, text: str) -> Score:
        """Score the extracted answer."""
        raise NotImplementedError

    def problem(self, item: Item) -> str:
        if item.has_answers:
            return ""
        return f"has no answer, which the grader {self.name!r} compares with"


def verdict(passed: bool, soft: float = 0.0, *, wrong: str = "The answer does not match.") -> Score:
    """A score of 1, or a score of 0 with partial credit and feedback."""
    return Score(1.0) if passed else Score(0.0, soft, wrong)


def listed(value: Any) -> list[Any]:
    """The values of a column that holds one text, several, or none."""
    if not value:
        return []
    return [value] if isinstance(value, str) else list(value)


@dataclass(frozen=True, slots=True)
class Composed:
    """Several graders as one. all: the lowest hard score and the mean of the soft ones; any: the
    highest scores; mean: the weighted mean of both.
    """

    how: Literal["all", "any", "mean"]
    parts: tuple[Grader, ...]
    weights: tuple[float, ...]

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        scores = [await part.grade(item, attempt) for part in self.parts]
        hards, softs = [score.hard for score in scores], [score.soft for score in scores]
        if self.how == "all":
            hard, soft = min(hards), self._mean(softs)
        elif self.how == "any":
            hard, soft = max(hards), max(softs)
        else:
            hard, soft = self._mean(hards), self._mean(softs)
        feedback = dict.fromkeys(score.feedback for score in scores if score.feedback)
        evidence = tuple(line for score in scores for line in score.evidence)
        return Score(hard, soft, "" if hard >= 1 else "\n".join(feedback), evidence)

    def _mean(self, values: Sequence[float]) -> float:
        weighted = (value * weight for value, weight in zip(values, self.weights, strict=True))
        return sum(weighted) / sum(self.weights)

    def patterns(self) -> tuple[str, ...]:
        return tuple(pattern for part in self.parts for pattern in part.patterns())

    def describe(self) -> dict[str, Any]:
        return {self.how: [part.describe() for part in self.parts], "weights": list(self.weights)}
