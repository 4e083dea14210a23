"""Tasks: items, splits, graders and loaders."""

from skillfit.extensions import SourceReference, TaskSource
from skillfit.tasks.item import Attempt, Item, Score, ScoredAttempt
from skillfit.tasks.task import Evaluator, LoadContext, SourceItems, Task, load_task

__all__ = [
    "Attempt",
    "Evaluator",
    "Item",
    "LoadContext",
    "Score",
    "ScoredAttempt",
    "SourceItems",
    "SourceReference",
    "Task",
    "TaskSource",
    "load_task",
]
