"""What the skill must be good at: items, splits, graders, and the loaders that bring them."""

from skillfit.tasks.graders import build_grader
from skillfit.tasks.item import Attempt, Grader, Item, RowAt, Score, Split, Step, TaskFailure
from skillfit.tasks.load import (
    LoadContext,
    SourceItems,
    SourceReference,
    TaskSettings,
    TaskSource,
    load_task,
)
from skillfit.tasks.splits import MIN_SELECTION, SplitSettings
from skillfit.tasks.task import Evaluator, GoldProblem, Task, prove_gold

__all__ = [
    "MIN_SELECTION",
    "Attempt",
    "Evaluator",
    "GoldProblem",
    "Grader",
    "Item",
    "LoadContext",
    "RowAt",
    "Score",
    "SourceItems",
    "SourceReference",
    "Split",
    "SplitSettings",
    "Step",
    "Task",
    "TaskFailure",
    "TaskSettings",
    "TaskSource",
    "build_grader",
    "load_task",
    "prove_gold",
]
