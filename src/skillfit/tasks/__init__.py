"""Tasks: items, splits, graders and loaders."""

from skillfit.errors import TaskFailure
from skillfit.extensions import SourceReference, TaskSource
from skillfit.tasks.graders import build_grader
from skillfit.tasks.item import Attempt, Item, RowAt, Score, ScoredAttempt
from skillfit.tasks.task import Evaluator, LoadContext, SourceItems, Task, load_task, prove_gold

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
