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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillfit.config.schema import EnvSection, SplitSection
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
from skillfit.tasks.item import GraderLike, Item, Split
from skillfit.tasks.rows import Row, folder_rows, items_of, parse_row_json, read_rows
from skillfit.tasks.task import CommandEvaluator, Evaluator, Task, collector_paused

__all__ = [
    "LoadContext",
    "SourceItems",
    "SourceReference",
    "TaskSource",
    "eval_rows",
    "evals_file",
    "find_source",
    "load_task",
    "source_names",
    "task_from_python",
]


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What the run provides when the items are loaded."""

    model: Model | None = None  # the agent's model, for evaluators that call it themselves
    judge: Model | None = None
    env: EnvSection = field(default_factory=EnvSection)


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
    env: EnvSection,
    *,
    caps: Mapping[Split, int] | None = None,
    grader: GraderLike | None = None,
    judge: Model | None = None,
    model: Model | None = None,
) -> Task:
    """The task that `env.tasks` names. Relative paths start from `env.folder`.

    `caps` limits the items of single splits; 0 = all. `grader` replaces `env.grader` and may be an
    object. `judge` is the model for graders that need one; `model` is the agent's, for evaluators
    that call it themselves.
    """
    _refuse_unused_settings(env, env.tasks)
    with collector_paused():
        task = _load(env, grader or env.grader, LoadContext(model, judge, env))
    return _capped(task, caps)


def task_from_python(
    given: Task | Iterable[Item | Mapping[str, Any]],
    env: EnvSection,
    *,
    caps: Mapping[Split, int] | None = None,
    grader: GraderLike | None = None,
    judge: Model | None = None,
) -> Task:
    """A task or its rows made in Python, under the settings of `env`. The arguments are those of
    `load_task`. A Task keeps its own splits unless `env` sets them.
    """
    _refuse_unused_settings(env, "")
    grader = grader or env.grader
    if isinstance(given, Task):
        task = _with_settings(given, env, grader)
    else:
        task = Task(given, grade=grader, fields=env.fields, splits=env, judge=judge)
    return _capped(task, caps)


def _capped(task: Task, caps: Mapping[Split, int] | None) -> Task:
    used = {name: cap for name, cap in (caps or {}).items() if cap}
    return task.with_splits(task.split_settings, {**task.caps, **used}) if used else task


def _load(env: EnvSection, grader: GraderLike | None, context: LoadContext) -> Task:
    if env.tasks.startswith("command:"):
        return _command_task(env, grader)
    source = find_source(env.tasks, base=Path(env.folder), options=env.task_args)
    if source is not None:
        return _source_task(source, env, grader, context)
    if ".py:" in env.tasks:
        return _python_task(env, grader)
    return _file_task(env, grader, context.judge)


def _file_task(env: EnvSection, grader: GraderLike | None, judge: Model | None) -> Task:
    base = Path(env.folder)
    path = base / env.tasks
    if not env.tasks or not path.exists():
        raise InputError(
            f"env.tasks: {env.tasks or 'nothing'!r} is neither a file nor a folder in "
            f"{base.resolve()}.",
            hint=_known_sources(env.tasks),
        )
    if (evals := evals_file(path)) is not None:
        rows, grader = eval_rows(evals), grader or "checklist"
    else:
        rows = folder_rows(path) if path.is_dir() else read_rows(path)
    corpus = Path(env.corpus) if env.corpus else None
    return Task(
        items_of(rows, env.fields, corpus=corpus),
        grade=grader or "exact",
        splits=env,
        judge=judge,
        base=base,
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


def _command_task(env: EnvSection, grader: GraderLike | None) -> Task:
    """`command: ./grade.sh < items.jsonl`; without `<`, the items.jsonl beside the config."""
    _refuse_grader(grader, "a command")
    base = Path(env.folder)
    line, _, items = env.tasks.removeprefix("command:").partition("<")
    rows = read_rows(base / (items.strip() or "items.jsonl"))
    evaluator = CommandEvaluator.parse(line, base, env.exec_timeout)
    return Task(items_of(rows, env.fields), evaluator=evaluator, splits=env)


def _python_task(env: EnvSection, grader: GraderLike | None) -> Task:
    """`file.py:name`: a Task, a function without arguments that returns one, or an evaluate
    function with `items` beside it.
    """
    base = Path(env.folder)
    named = load_object(env.tasks, base)
    file = (base / env.tasks.rpartition(":")[0]).resolve()
    if inspect.isfunction(named) and not inspect.signature(named).parameters:
        with errors_in(file):
            named = named()
    if isinstance(named, Task):
        return _with_settings(named, env, grader)
    if not callable(named):
        raise InputError(
            f"{env.tasks} is a {type(named).__name__}.",
            hint="Expected a Task, a function that returns one, or evaluate(skill, item).",
        )
    _refuse_grader(grader, "an evaluate function")
    return Task(_items_beside(file, env.fields), evaluate=named, splits=env)


def _items_beside(file: Path, fields: Mapping[str, str]) -> list[Item]:
    for path in (file.with_suffix(".jsonl"), file.parent / "items.jsonl"):
        if path.is_file():
            return items_of(read_rows(path), fields)
    items = load_object(f"{file}:items")
    with errors_in(file):
        listed = list(items() if callable(items) else items)
    rows = (Row(row, f"{file.name}: items[{at}]", file.parent) for at, row in enumerate(listed))
    return items_of(rows, fields)


def _source_task(
    source: TaskSource, env: EnvSection, grader: GraderLike | None, context: LoadContext
) -> Task:
    loaded = source.load(context)
    if loaded.evaluator is not None:
        _refuse_grader(grader, f"env.tasks: {env.tasks}")
    return Task(
        loaded.items,
        grade=None if loaded.evaluator else grader or loaded.grader or "exact",
        evaluator=loaded.evaluator,
        splits=env,
        fields=env.fields,
        judge=context.judge,
        base=Path(env.folder),
    )


def _with_settings(task: Task, env: EnvSection, grader: GraderLike | None) -> Task:
    """A Task from Python. Its own splits count unless `env` sets them."""
    _refuse_grader(grader, "a Task")
    if env.fields:
        raise InputError(
            "env.fields: the items of a Task have their fields already.",
            hint="Give Task(…, fields=…) instead.",
        )
    splits = env.model_dump(include=set(SplitSection.model_fields))
    return task if splits == SplitSection().model_dump() else task.with_splits(env, task.caps)


def _refuse_grader(grader: GraderLike | None, what: str) -> None:
    if grader is not None:
        raise InputError(f"env.grader: {what} brings its own scores.", hint="Leave env.grader out.")


def _refuse_unused_settings(env: EnvSection, tasks: str) -> None:
    """`tasks`: as in `env.tasks`; empty for a task made in Python."""
    inspect_only = {
        "env.skill_as: file": env.skill_as == "file",
        "env.model_roles": bool(env.model_roles),
    }
    for name, given in inspect_only.items():
        if given and not tasks.startswith("inspect:"):
            raise InputError(f"{name} is for Inspect tasks.", hint="Leave it out.")
    if env.task_args and not is_source(tasks):
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
