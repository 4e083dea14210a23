"""What the built-in graders share: settings that are checked, and an answer that is found before it
is compared.

Graders of graders: `{all: […]}`, `{any: […]}`, `{mean: […], weights: […]}`.
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

_LONG = 10_000  # characters


@dataclass(frozen=True, slots=True)
class Given:
    """What a grader is built with besides its settings."""

    judge: Model | None
    base: Path


class BuiltIn(BaseModel):
    """A grader whose settings are its fields. `short` is the field that a bare value sets: `regex: ^\\d+$`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]
    short: ClassVar[str]

    def __init_subclass__(cls, name: str = "", short: str = "", **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.name, cls.short = name, short

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        raise NotImplementedError

    def problem(self, item: Item) -> str:
        """Why this grader cannot grade this item; empty when it can. Asked once per item, before
        anything is paid for.
        """
        return ""

    def golds(self, item: Item) -> tuple[str, ...]:
        """Answers that must get full marks."""
        return item.answers or ((item.reference,) if item.reference else ())

    def patterns(self) -> tuple[str, ...]:
        return ()

    def patterns_of(self, item: Item) -> tuple[str, ...]:
        """The same for what this item brings to the grader (its own regex, checks, tests)."""
        return ()

    def describe(self) -> dict[str, Any]:
        return {self.name: self.model_dump(mode="json", exclude_defaults=True)}


class TextGrader(BuiltIn):
    """Finds the answer (`extract`: one way, or several of which the first that finds something
    counts), then compares it.
    """

    extract: tuple[Extract, ...] = ()

    @field_validator("extract", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return value if isinstance(value, (list, tuple)) else [value]

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        graded = partial(self._graded, item, attempt)
        return await in_thread(graded) if self.takes_time(attempt) else graded()

    def takes_time(self, attempt: Attempt) -> bool:
        """Whether others should not have to wait for it: then it is graded in a thread."""
        return len(attempt.answer) > _LONG or any(way.regex is not None for way in self.extract)

    def _graded(self, item: Item, attempt: Attempt) -> Score:
        if not self.extract or attempt.bare:
            return self.compare(item, attempt.answer.strip())
        found = [text for way in self.extract if (text := way.find(attempt.answer)) is not None]
        return (
            self.compare(item, found[0]) if found else Score(0.0, feedback=self.extract[0].missing)
        )

    def compare(self, item: Item, text: str) -> Score:
        raise NotImplementedError

    def problem(self, item: Item) -> str:
        return (
            "" if item.answers else f"has no answer, which the grader {self.name!r} compares with"
        )


def verdict(passed: bool, soft: float = 0.0, *, wrong: str = "The answer does not match.") -> Score:
    """Full marks, or what is nearly right and a word on what is wrong."""
    return Score(1.0) if passed else Score(0.0, soft, wrong)


def listed(value: Any) -> list[Any]:
    """A column that holds one text, several, or none."""
    return ([value] if isinstance(value, str) else list(value)) if value else []


@dataclass(frozen=True, slots=True)
class Composed:
    """all: every part must pass, soft is their mean. any: the best part counts. mean: the weighted
    mean of both scores.
    """

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
        feedback = (
            ""
            if hard >= 1
            else "\n".join(dict.fromkeys(score.feedback for score in scores if score.feedback))
        )
        return Score(
            hard, soft, feedback, tuple(line for score in scores for line in score.evidence)
        )

    def _mean(self, values: Sequence[float]) -> float:
        return sum(
            value * weight for value, weight in zip(values, self.weights, strict=True)
        ) / sum(self.weights)

    def patterns(self) -> tuple[str, ...]:
        return tuple(pattern for part in self.parts for pattern in part.patterns())

    def describe(self) -> dict[str, Any]:
        return {self.how: [part.describe() for part in self.parts], "weights": list(self.weights)}
