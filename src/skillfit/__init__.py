"""skillfit trains agent skills: the markdown that tells a frozen LLM agent how to do a kind of work."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skillfit.api import Run, evaluate, evaluate_async, train, train_async
    from skillfit.errors import SkillfitError
    from skillfit.skill import Skill
    from skillfit.tasks.attempt import Score
    from skillfit.tasks.item import Item
    from skillfit.tasks.task import Task

__version__ = "0.1.0"
__all__ = [
    "Item",
    "Run",
    "Score",
    "Skill",
    "SkillfitError",
    "Task",
    "__version__",
    "evaluate",
    "evaluate_async",
    "train",
    "train_async",
]

_HOMES = {
    **dict.fromkeys(("Run", "evaluate", "evaluate_async", "train", "train_async"), "skillfit.api"),
    "Skill": "skillfit.skill",
    "SkillfitError": "skillfit.errors",
    "Score": "skillfit.tasks.attempt",
    "Item": "skillfit.tasks.item",
    "Task": "skillfit.tasks.task",
}


def __getattr__(name: str) -> Any:
    """Names come when they are asked for, so that `import skillfit` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'skillfit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


class _Package(ModuleType):
    """`skillfit.train` is the function. Importing the room of that name would put the module in its place."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
