"""skillfit trains agent skills: the markdown that tells a frozen LLM agent how to do a kind of
work.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skillfit.api import Run, evaluate, evaluate_async, train, train_async
    from skillfit.errors import SkillfitError
    from skillfit.skill import Skill
    from skillfit.tasks.item import Item, Score
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
    "Score": "skillfit.tasks.item",
    "Item": "skillfit.tasks.item",
    "Task": "skillfit.tasks.task",
}


def __getattr__(name: str) -> Any:
    """Names are imported on first use, so that `import skillfit` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'skillfit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
