"""Tasks: items, splits, graders and loaders."""

from skillfit.errors import TaskFailure
from skillfit.tasks.graders import build_grader
from skillfit.tasks.item import Attempt, Item, RowAt, Score, ScoredAttempt
from skillfit.tasks.load import (
    LoadContext,
    SourceItems,
    SourceReference,
    TaskSource,
    load_task,
)
from skillfit.tasks.task import Evaluator, Task, prove_gold

__all__ = [
    "Attempt",
    "Evaluator",
    "Item",
    "LoadContext",
    "RowAt",
    "Score",
    "ScoredAttempt",
    "SourceItems",
    "SourceReference",
    "Task",
    "TaskFailure",
    "TaskSource",
    "build_grader",
    "load_task",
    "prove_gold",
]
