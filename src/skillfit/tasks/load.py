"""From what a person wrote under `env` to a task: files, folders, evals.json, Python, commands,
Inspect.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from skillfit.errors import InputError, did_you_mean
from skillfit.models.protocol import Model
from skillfit.tasks.evaluator import CommandEvaluator
from skillfit.tasks.item import Grader, Item
from skillfit.tasks.rows import Row, folder_rows, items_of, parse_json, read_rows
from skillfit.tasks.sources import (
    LoadContext,
    SourceItems,
    find_source,
    is_source,
    source_names,
)
from skillfit.tasks.splits import SplitSettings
from skillfit.tasks.task import Task
from skillfit.tasks.user_code import errors_in, load_object


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What says which task it is. `tasks`: a string as in env.tasks, or a Task."""

    tasks: str | Task
    base: Path = Path()  # the config's folder: paths are relative to it
    grader: str | Mapping[str, Any] | Grader | None = None  # None: exact, for evals.json checklist
    fields: Mapping[str, str] = field(default_factory=dict)
    splits: SplitSettings = field(default_factory=SplitSettings)
    task_args: Mapping[str, Any] = field(default_factory=dict)  # options of a named source
    timeout: float = 120.0  # seconds one command may take
    skill_as: Literal["message", "file"] = "message"  # how Inspect tasks are given the skill


def load_task(
    settings: TaskSettings, *, judge: Model | None = None, model: Model | None = None
) -> Task:
    """The task. `judge` is the model for graders that need one; `model` is the agent's, for
    evaluators that call it themselves.
    """
    tasks = settings.tasks
    _refuse_unused_settings(settings)
    if isinstance(tasks, Task):
        return _resplit(tasks, settings)
    if tasks.startswith("command:"):
        line, _, items = tasks.removeprefix("command:").partition("<")
        return _command(line, items.strip(), settings)
    source = find_source(tasks, base=settings.base, options=settings.task_args)
    if source is not None:
        context = LoadContext(model, judge, settings.skill_as)
        return _from_source(source.load(context), settings, judge)
    if ".py:" in tasks:
        return _python(tasks, settings)
    path = settings.base / tasks
    if not tasks or not path.exists():
        raise InputError(
            f"env.tasks: {tasks or 'nothing'!r} is neither a file nor a folder in {settings.base.resolve()}.",
            hint=_known_sources(tasks),
        )
    if (evals := _evals_file(path)) is not None:
        return _from_rows(
            _eval_rows(evals), replace(settings, grader=settings.grader or "checklist"), judge
        )
    return _from_rows(folder_rows(path) if path.is_dir() else read_rows(path), settings, judge)


def _from_rows(rows: Iterator[Row], settings: TaskSettings, judge: Model | None) -> Task:
    items = items_of(rows, settings.fields)
    return Task(
        items,
        grade=settings.grader or "exact",
        splits=settings.splits,
        judge=judge,
        base=settings.base,
    )


def _evals_file(path: Path) -> Path | None:
    if path.is_file():
        return path if path.name == "evals.json" else None
    return next(
        (file for file in (path / "evals.json", path / "evals" / "evals.json") if file.is_file()),
        None,
    )


def _eval_rows(path: Path) -> Iterator[Row]:
    """The Agent Skills format: prompts with files, an expected output, assertions. Paths are
    relative to the skill's folder.
    """
    document = parse_json(path.read_bytes(), str(path))
    evals = document.get("evals") if isinstance(document, dict) else None
    if not isinstance(evals, list) or not evals or not all(isinstance(one, dict) for one in evals):
        raise InputError(
            f"{path}: no list of objects under `evals`.",
            hint="See the evals.json of the Agent Skills format.",
        )
    base = path.parent.parent if path.parent.name == "evals" else path.parent
    for number, one in enumerate(evals, 1):
        row = {
            ("reference" if name == "expected_output" else name): value
            for name, value in one.items()
        }
        yield Row(row, f"{path}: eval {number}", base)


def _command(line: str, items: str, settings: TaskSettings) -> Task:
    """`command: ./grade.sh < items.jsonl`; without `<`, the items.jsonl beside the config."""
    _refuse_grader(settings, "a command")
    rows = read_rows(settings.base / (items or "items.jsonl"))
    evaluator = CommandEvaluator.parse(line, settings.base, settings.timeout)
    return Task(items_of(rows, settings.fields), evaluator=evaluator, splits=settings.splits)


def _python(reference: str, settings: TaskSettings) -> Task:
    """`file.py:name`: a Task, a function without arguments that makes one, or an evaluate function
    with `items` beside it.
    """
    found = load_object(reference, settings.base)
    file = (settings.base / reference.rpartition(":")[0]).resolve()
    if inspect.isfunction(found) and not inspect.signature(found).parameters:
        with errors_in(file):
            found = found()
    if isinstance(found, Task):
        return _resplit(found, settings)
    if not callable(found):
        raise InputError(
            f"{reference} is a {type(found).__name__}.",
            hint="Expected a Task, a function that makes one, or evaluate(skill, item).",
        )
    _refuse_grader(settings, "an evaluate function")
    return Task(_items_beside(file, settings), evaluate=found, splits=settings.splits)


def _items_beside(file: Path, settings: TaskSettings) -> list[Item]:
    beside = next(
        (
            path
            for path in (file.with_suffix(".jsonl"), file.parent / "items.jsonl")
            if path.is_file()
        ),
        None,
    )
    if beside is not None:
        return items_of(read_rows(beside), settings.fields)
    items = load_object(f"{file}:items")
    with errors_in(file):
        listed = list(items() if callable(items) else items)
    return items_of(
        (Row(row, f"{file.name}: items[{at}]", file.parent) for at, row in enumerate(listed)),
        settings.fields,
    )


def _from_source(loaded: SourceItems, settings: TaskSettings, judge: Model | None) -> Task:
    if loaded.evaluator is not None:
        _refuse_grader(settings, f"env.tasks: {settings.tasks}")
    return Task(
        loaded.items,
        grade=None if loaded.evaluator else settings.grader or loaded.grader or "exact",
        evaluator=loaded.evaluator,
        splits=settings.splits,
        fields=settings.fields,
        judge=judge,
        base=settings.base,
    )


def _refuse_unused_settings(settings: TaskSettings) -> None:
    tasks = settings.tasks
    if settings.skill_as == "file" and not (
        isinstance(tasks, str) and tasks.startswith("inspect:")
    ):
        raise InputError(
            "env.skill_as: file is for Inspect tasks.",
            hint="Leave it out; env.agent: cli is given the skill as files by itself.",
        )
    if settings.task_args and not (isinstance(tasks, str) and is_source(tasks)):
        raise InputError(
            "env.task_args: these tasks take no arguments.",
            hint="They are options of a named source, such as inspect:file.py@task.",
        )


def _known_sources(tasks: str) -> str:
    names = source_names()
    return did_you_mean(tasks.partition(":")[0], names) or (
        "Give a .jsonl, .json or .csv file, a folder with train/ val/ test/, evals.json, "
        f"file.py:name, command: PROGRAM, or one of: {', '.join(names)}."
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
