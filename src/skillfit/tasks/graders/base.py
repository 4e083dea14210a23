"""What the built-in graders share: settings that are checked, and an answer that is found before it is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from skillfit.models.protocol import Model
from skillfit.tasks.attempt import Attempt, Score
from skillfit.tasks.graders.extract import Extract
from skillfit.tasks.item import Item


class BuiltIn(BaseModel):
    """A grader whose settings are its fields. `short` is the field that a bare value sets: `regex: ^\\d+$`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]
    short: ClassVar[str] = ""
    _judge: Model | None = PrivateAttr(default=None)
    _base: Path = PrivateAttr(default=Path())

    def model_post_init(self, context: Any) -> None:
        if context is not None:
            self._judge, self._base = context["judge"], context["base"]

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        raise NotImplementedError

    def problem(self, item: Item) -> str:
        """Why this grader cannot grade this item; empty when it can. Asked once per item, before anything is paid for."""
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
    """Finds the answer (`extract`: one way, or several of which the first that finds something counts), then compares it."""

    extract: tuple[Extract, ...] = Field(default=())

    @field_validator("extract", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return value if isinstance(value, (list, tuple)) else [value]

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        text: str | None = attempt.answer.strip()
        if self.extract and not attempt.bare:
            text = next((found for way in self.extract if (found := way.find(attempt.answer)) is not None), None)
        if text is None:
            return Score(0.0, feedback=self.extract[0].missing)
        return self.compare(item, text)

    def compare(self, item: Item, text: str) -> Score:
        raise NotImplementedError

    def problem(self, item: Item) -> str:
        return "" if item.answers else f"has no answer, which the grader {self.name!r} compares with"
