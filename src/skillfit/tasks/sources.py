"""Named task sources: what `env.tasks: searchqa` or `env.tasks: inspect:file.py@task` refers to.

A source is a function that returns a `TaskSource`. It is registered under a name, either in
`skillfit.config.task_sources` (sources that come with skillfit) or by another package as an entry
point of group `skillfit.tasks`. It is imported only when its name is used:

    def capitals(reference: SourceReference, *, continent: str = "all") -> TaskSource:
        def load(context: LoadContext) -> SourceItems:
            return SourceItems(read_countries(continent))

        return TaskSource(load, config={"env": {"grader": "normalized"}})

The text after the name and a colon is the argument (`textworld:coin`, `inspect:file.py@task`).
Keyword parameters of the function are its options. Users set them in the reference
(`capitals?continent=africa`) or in `env.task_args`; options the function does not have are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from skillfit.config.task_sources import (
    SourceReference,
    TaskSource,
    find_source,
    is_source,
    source_module,
    source_names,
)
from skillfit.models.protocol import Model
from skillfit.tasks.evaluator import Evaluator
from skillfit.tasks.item import Grader, Item

__all__ = [
    "LoadContext",
    "SourceItems",
    "SourceReference",
    "TaskSource",
    "find_source",
    "is_source",
    "source_module",
    "source_names",
]


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What the run provides when the items are loaded."""

    model: Model | None = None  # the agent's model, for evaluators that call it themselves
    judge: Model | None = None
    skill_as: Literal["message", "file"] = "message"
    # Inspect: its name for a model -> which of our models it is
    model_roles: Mapping[str, Literal["agent", "judge"]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceItems:
    """The items of a source, and how to grade them where a config value cannot say it.

    `grader` is used unless the user sets `env.grader`. A source with an `evaluator` runs and scores
    its items itself and has no grader.
    """

    items: Iterable[Item | Mapping[str, Any]]
    grader: str | Mapping[str, Any] | Grader | Callable[..., Any] | None = None
    evaluator: Evaluator | None = None
