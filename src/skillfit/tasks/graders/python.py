"""A grader in Python: `file.py:grade`, a function of the item's content and the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import PrivateAttr

from skillfit.tasks.attempt import Attempt, Score, as_score
from skillfit.tasks.function import call, load_object
from skillfit.tasks.graders.base import BuiltIn
from skillfit.tasks.item import Item, stable_hash


class Python(BuiltIn):
    """`def grade(item: dict, answer: str) -> float | Score`, sync or async; what `as_score` takes may come back."""

    name: ClassVar[str] = "python"
    short: ClassVar[str] = "path"
    path: str
    _function: Callable[..., Any] = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._function = load_object(self.path, self._base)

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        given = await call(
            self._function, {**item.content(), "id": item.id}, attempt.answer, kind="grader", where=f"{self.path} on item {item.id}"
        )
        return as_score(given, source=self.path)

    def describe(self) -> dict[str, Any]:
        source = (self._base / self.path.rpartition(":")[0]).read_text(encoding="utf-8")
        return {"python": self.path, "source": stable_hash(source)}
