"""A task: items, how they are run, and how they are graded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from skillfit.errors import InputError
from skillfit.models.protocol import Model
from skillfit.tasks.evaluator import Evaluator, FunctionEvaluator
from skillfit.tasks.garbage import collector_paused
from skillfit.tasks.graders import build_grader, check_items, golds, without_judges
from skillfit.tasks.item import Attempt, Grader, Item, Score, TaskFailure, stable_hash
from skillfit.tasks.rows import Row, items_of
from skillfit.tasks.splits import Splits, SplitSettings, split_items


class Task:
    """Items and their grading, in one of three forms:

    - `Task(items, grade="exact")`: the agent of the config runs the items;
    - `Task(items, run=…, grade=…)`: your function `run(skill, item)` returns the answer;
    - `Task(items, evaluate=…)`: your function `evaluate(skill, item)` runs and scores the item.

    Items are dicts (`input`, `answer`, …) or `Item`s. `grade` is a grader's name or settings, or a
    function of item and answer.
    """

    def __init__(
        self,
        items: Iterable[Item | Mapping[str, Any]],
        *,
        run: Callable[..., Any] | None = None,
        grade: str | Mapping[str, Any] | Grader | Callable[..., Any] | None = None,
        evaluate: Callable[..., Any] | None = None,
        evaluator: Evaluator | None = None,
        splits: SplitSettings | None = None,
        fields: Mapping[str, str] | None = None,
        judge: Model | None = None,
        base: Path = Path(),
    ) -> None:
        if (evaluate or evaluator) and (run or grade):
            raise InputError(
                "Task: `evaluate` runs and scores items, so it excludes `run` and `grade`."
            )
        self.items: tuple[Item, ...] = tuple(_as_items(items, fields or {}, base))
        if not self.items:
            raise InputError("Task: there are no items.")
        self.grader: Grader | None = None
        self.evaluator: Evaluator | None = evaluator
        if evaluate is not None:
            self.evaluator = FunctionEvaluator(evaluate)
        if self.evaluator is None:
            self.grader = build_grader(grade or "exact", judge=judge, base=base)
            self.evaluator = FunctionEvaluator(run, self.grader) if run else None
            check_items(self.grader, self.items)
        self.split_settings = splits or SplitSettings()

    @cached_property
    def splits(self) -> Splits:
        """Computed on first use: evaluating all items needs no splits."""
        whole_rows = self.evaluator is not None
        with collector_paused():
            return split_items(self.items, self.split_settings, whole_rows=whole_rows)

    @property
    def train(self) -> tuple[Item, ...]:
        return self.splits.train

    @property
    def selection(self) -> tuple[Item, ...]:
        return self.splits.selection

    @property
    def test(self) -> tuple[Item, ...]:
        return self.splits.test

    @property
    def fit_only(self) -> bool:
        """Selection is the train split again, because there were too few items: results are
        unverified.
        """
        return self.splits.fit_only

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know about the splits."""
        return self.splits.warnings

    def with_splits(self, settings: SplitSettings) -> Task:
        """The same task with other split settings."""
        other = copy(self)
        other.split_settings = settings
        vars(other).pop("splits", None)
        return other

    def with_grader(self, grader: Grader) -> Task:
        """The same items with another grader."""
        other = copy(self)
        other.grader = grader
        return other

    def identity(self) -> str:
        """Changes when items, splits, grader or evaluator change. The order of the items does not
        matter.
        """
        parts = {
            name: sorted(item.fingerprint() for item in getattr(self, name))
            for name in ("train", "selection", "test")
        }
        how = [part.describe() if part else None for part in (self.grader, self.evaluator)]
        return stable_hash([parts, how, self.fit_only])


@dataclass(frozen=True, slots=True)
class GoldProblem:
    """A gold answer that its own grader does not score 1."""

    item_id: str
    score: Score | None
    why: str


async def prove_gold(task: Task, *, judges: bool = False) -> list[GoldProblem]:
    """Grade every gold answer with the task's own grader; empty when all score 1. Judge models are
    called only with `judges=True`.
    """
    grader = task.grader if judges or task.grader is None else without_judges(task.grader)
    if grader is None:
        return []
    problems = []
    for item in task.items:
        for gold in golds(grader, item):
            problem = await _grade_gold(grader, item, gold)
            if problem is not None:
                problems.append(problem)
    return problems


async def _grade_gold(grader: Grader, item: Item, gold: str) -> GoldProblem | None:
    try:
        score = await grader.grade(item, Attempt(gold, bare=True))
    except TaskFailure as failure:
        return GoldProblem(item.id, None, str(failure))
    if score.hard >= 1:
        return None
    reason = score.feedback or "no reason given"
    why = f"the gold answer {gold!r:.100} scores {score.hard:g}: {reason}"
    return GoldProblem(item.id, score, why)


def _as_items(
    items: Iterable[Item | Mapping[str, Any]], fields: Mapping[str, str], base: Path
) -> list[Item]:
    listed = list(items)
    ready = [item for item in listed if isinstance(item, Item)]
    if not ready:
        rows = cast(list[Mapping[str, Any]], listed)
        return items_of((Row(row, f"items[{at}]", base) for at, row in enumerate(rows)), fields)
    if len(ready) < len(listed):
        raise InputError("Task: give all items as dicts, or all as Item.")
    if fields:
        raise InputError("env.fields: these items have their fields already.")
    twice, count = Counter(item.id for item in ready).most_common(1)[0]
    if count > 1:
        raise InputError(f"Task: id {twice!r} is used twice.")
    return ready
