"""Graders in Python: a function of the item's content and the answer, as `file.py:grade` or given to `Task`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import PrivateAttr

from skillfit.tasks.attempt import Attempt, Score, as_score
from skillfit.tasks.function import call, described, load_object, plain
from skillfit.tasks.graders.base import BuiltIn, Given
from skillfit.tasks.item import Item, stable_hash


@dataclass(frozen=True, slots=True)
class FunctionGrader:
    """A user's `grade(item, answer)` given from Python."""

    function: Callable[..., Any]
    name: str  # in messages

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        given = await call(self.function, plain(item), attempt.answer, kind="grader", where=f"{self.name} on item {item.id}")
        return as_score(given, source=self.name)

    def patterns(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> dict[str, Any]:
        return {"function": described(self.function)}


class Python(BuiltIn, name="python", short="path"):
    """`def grade(item: dict, answer: str) -> float | Score`, sync or async; what `as_score` takes may come back."""

    path: str
    _grader: FunctionGrader = PrivateAttr()
    _source: str = PrivateAttr()

    def model_post_init(self, given: Given) -> None:
        self._grader = FunctionGrader(load_object(self.path, given.base), self.path)
        self._source = stable_hash((given.base / self.path.rpartition(":")[0]).read_text(encoding="utf-8"))

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        return await self._grader.grade(item, attempt)

    def describe(self) -> dict[str, Any]:
        return {"python": self.path, "source": self._source}
