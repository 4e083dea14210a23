"""Load the task that `env` describes: files, folders, evals.json, Python, a command, or a named
source.

A named source (`env.tasks: searchqa`, `env.tasks: inspect:file.py@task`) is a function that returns
a `TaskSource`. It is registered under a name, either in `skillfit.extensions` (sources
that come with skillfit) or by another package as an entry point of group `skillfit.tasks`. It is
imported only when its name is used:

    def capitals(reference: SourceReference, *, continent: str = "all") -> TaskSource:
        def load(context: LoadContext) -> SourceItems:
            return SourceItems(read_countries(continent))

        return TaskSource(load, config={"env": {"grader": "normalized"}})

The text after the name and a colon is the argument (`textworld:coin`, `inspect:file.py@task`).
Keyword parameters of the function are its options. Users set them in the reference
(`capitals?continent=africa`) or in `env.task_args`; options the function does not have are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError, did_you_mean
from skillfit.extensions import (
    SourceReference,
    TaskSource,
    errors_in,
    find_source,
    is_source,
    load_object,
    source_names,
)
from skillfit.models.protocol import Model
from skillfit.tasks.item import GraderLike, Item
from skillfit.tasks.rows import Row, folder_rows, items_of, parse_row_json, read_rows
from skillfit.tasks.splits import SplitSettings
from skillfit.tasks.task import CommandEvaluator, Evaluator, Task, collector_paused

__all__ = [
    "LoadContext",
    "SourceItems",
    "SourceReference",
    "TaskSettings",
    "TaskSource",
    "eval_rows",
    "evals_file",
    "find_source",
    "load_task",
    "source_names",
]


_ENV = EnvSection()


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings of `env` that say which task it is, with the same defaults. `tasks`: a string
    as in env.tasks, or a Task.
    """

    tasks: str | Task
    base: Path = Path()  # the folder that relative paths start from: the config's
    grader: GraderLike | None = None  # None: exact; for evals.json checklist
    fields: Mapping[str, str] = field(default_factory=dict)
    splits: SplitSettings = field(default_factory=SplitSettings)
    task_args: Mapping[str, Any] = field(default_factory=dict)  # options of a named source
    corpus: Path | None = None  # shared documents, where files of items may also be
    timeout: float = _ENV.exec_timeout  # seconds one command may take
    skill_as: Literal["message", "file"] = _ENV.skill_as  # how Inspect tasks get the skill
    model_roles: Mapping[str, Literal["agent", "judge"]] = field(default_factory=dict)


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
    grader: GraderLike | None = None
    evaluator: Evaluator | None = None


def load_task(
    settings: TaskSettings, *, judge: Model | None = None, model: Model | None = None
) -> Task:
    """The task. `judge` is the model for graders that need one; `model` is the agent's, for
    evaluators that call it themselves.
    """
    with collector_paused():
        return _load(settings, judge, model)


def _load(settings: TaskSettings, judge: Model | None, model: Model | None) -> Task:
    tasks = settings.tasks
    _refuse_unused_settings(settings)
    if isinstance(tasks, Task):
        return _resplit(tasks, settings)
    if tasks.startswith("command:"):
        return _command_task(tasks, settings)
    source = find_source(tasks, base=settings.base, options=settings.task_args)
    if source is not None:
        context = LoadContext(model, judge, settings.skill_as, settings.model_roles)
        return _source_task(source, context, settings)
    if ".py:" in tasks:
        return _python_task(tasks, settings)
    return _file_task(tasks, settings, judge)


def _file_task(tasks: str, settings: TaskSettings, judge: Model | None) -> Task:
    path = settings.base / tasks
    if not tasks or not path.exists():
        raise InputError(
            f"env.tasks: {tasks or 'nothing'!r} is neither a file nor a folder in "
            f"{settings.base.resolve()}.",
            hint=_known_sources(tasks),
        )
    grader = settings.grader
    if (evals := evals_file(path)) is not None:
        rows, grader = eval_rows(evals), grader or "checklist"
    else:
        rows = folder_rows(path) if path.is_dir() else read_rows(path)
    return Task(
        items_of(rows, settings.fields, corpus=settings.corpus),
        grade=grader or "exact",
        splits=settings.splits,
        judge=judge,
        base=settings.base,
    )


def evals_file(path: Path) -> Path | None:
    """The evals.json that this path is, or that it contains."""
    if path.is_file():
        return path if path.name == "evals.json" else None
    for file in (path / "evals.json", path / "evals" / "evals.json"):
        if file.is_file():
            return file
    return None


def eval_rows(path: Path) -> Iterator[Row]:
    """The Agent Skills format: prompts with files, an expected output, assertions. Paths are
    relative to the skill's folder.
    """
    document = parse_row_json(path.read_bytes(), str(path))
    evals = document.get("evals") if isinstance(document, dict) else None
    if not isinstance(evals, list) or not evals or not all(isinstance(one, dict) for one in evals):
        raise InputError(
            f"{path}: no list of objects under `evals`.",
            hint="See the evals.json of the Agent Skills format.",
        )
    base = path.parent.parent if path.parent.name == "evals" else path.parent
    for number, entry in enumerate(evals, 1):
        row = dict(entry)
        if "expected_output" in row:
            row["reference"] = row.pop("expected_output")
        yield Row(row, f"{path}: eval {number}", base, root=base)


def _command_task(tasks: str, settings: TaskSettings) -> Task:
    """`command: ./grade.sh < items.jsonl`; without `<`, the items.jsonl beside the config."""
    _refuse_grader(settings, "a command")
    line, _, items = tasks.removeprefix("command:").partition("<")
    rows = read_rows(settings.base / (items.strip() or "items.jsonl"))
    evaluator = CommandEvaluator.parse(line, settings.base, settings.timeout)
    return Task(items_of(rows, settings.fields), evaluator=evaluator, splits=settings.splits)


def _python_task(reference: str, settings: TaskSettings) -> Task:
    """`file.py:name`: a Task, a function without arguments that returns one, or an evaluate
    function with `items` beside it.
    """
    named = load_object(reference, settings.base)
    file = (settings.base / reference.rpartition(":")[0]).resolve()
    if inspect.isfunction(named) and not inspect.signature(named).parameters:
        with errors_in(file):
            named = named()
    if isinstance(named, Task):
        return _resplit(named, settings)
    if not callable(named):
        raise InputError(
            f"{reference} is a {type(named).__name__}.",
            hint="Expected a Task, a function that returns one, or evaluate(skill, item).",
        )
    _refuse_grader(settings, "an evaluate function")
    return Task(_items_beside(file, settings), evaluate=named, splits=settings.splits)


def _items_beside(file: Path, settings: TaskSettings) -> list[Item]:
    for path in (file.with_suffix(".jsonl"), file.parent / "items.jsonl"):
        if path.is_file():
            return items_of(read_rows(path), settings.fields)
    items = load_object(f"{file}:items")
    with errors_in(file):
        listed = list(items() if callable(items) else items)
    rows = (Row(row, f"{file.name}: items[{at}]", file.parent) for at, row in enumerate(listed))
    return items_of(rows, settings.fields)


def _source_task(source: TaskSource, context: LoadContext, settings: TaskSettings) -> Task:
    loaded = source.load(context)
    if loaded.evaluator is not None:
        _refuse_grader(settings, f"env.tasks: {settings.tasks}")
    return Task(
        loaded.items,
        grade=None if loaded.evaluator else settings.grader or loaded.grader or "exact",
        evaluator=loaded.evaluator,
        splits=settings.splits,
        fields=settings.fields,
        judge=context.judge,
        base=settings.base,
    )


def _resplit(task: Task, settings: TaskSettings) -> Task:
    _refuse_grader(settings, "a Task")
    if settings.fields:
        raise InputError(
            "env.fields: the items of a Task have their fields already.",
            hint="Give Task(…, fields=…) instead.",
        )
    capped = any(settings.splits.caps.values())
    unchanged = not capped and replace(settings.splits, caps={}) == SplitSettings()
    return task if unchanged else task.with_splits(settings.splits)


def _refuse_grader(settings: TaskSettings, what: str) -> None:
    if settings.grader is not None:
        raise InputError(f"env.grader: {what} brings its own scores.", hint="Leave env.grader out.")


def _refuse_unused_settings(settings: TaskSettings) -> None:
    tasks = settings.tasks if isinstance(settings.tasks, str) else ""
    inspect_only = {
        "env.skill_as: file": settings.skill_as == "file",
        "env.model_roles": bool(settings.model_roles),
    }
    for name, given in inspect_only.items():
        if given and not tasks.startswith("inspect:"):
            raise InputError(f"{name} is for Inspect tasks.", hint="Leave it out.")
    if settings.task_args and not is_source(tasks):
        raise InputError(
            "env.task_args: these tasks take no arguments.",
            hint="They are options of a named source, such as inspect:file.py@task.",
        )


def _known_sources(tasks: str) -> str:
    names = source_names()
    return did_you_mean(tasks.partition(":")[0], names) or (
        "Give a .jsonl, .json, .csv or .yaml file, a folder with train/ val/ test/, evals.json, "
        f"file.py:name, command: PROGRAM, or one of: {', '.join(names)}."
    )
