"""The task source `inspect:`: find an Inspect AI task in a file or an installed package, and make
items of its samples.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from contextvars import copy_context
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from skillfit.errors import InputError, did_you_mean
from skillfit.models.protocol import Model
from skillfit.plugins.inspect_bridge import (
    AGENT,
    JUDGE,
    PROVIDER,
    InspectRole,
    asks_for_own_model,
    register_provider,
    without_markup,
)
from skillfit.plugins.inspect_evaluator import InspectEvaluator, InspectSettings
from skillfit.tasks.item import Item
from skillfit.tasks.load import LoadContext, SourceItems, SourceReference, TaskSource
from skillfit.tasks.rows import Row, items_of
from skillfit.tasks.splits import SPLIT_NAMES
from skillfit.tasks.user_code import errors_in

_WRITE = "Write inspect:file.py@task or inspect:package/task."


def inspect_source(reference: SourceReference, **task_args: Any) -> TaskSource:
    """`inspect:package/task` or `inspect:file.py@task`. Options are arguments of the task."""

    def load(context: LoadContext) -> SourceItems:
        task = _find(reference.argument, reference.base, task_args)
        settings = InspectSettings(
            reference.argument, task_args, context.skill_as, context.model_roles
        )
        _refuse_missing_judge(context)
        return _items(task, settings, context)

    return TaskSource(load)


def _items(task: Any, settings: InspectSettings, context: LoadContext) -> SourceItems:
    samples: dict[str, Any] = {}
    for number, sample in enumerate(task.dataset, 1):
        sample.id = sample.id if sample.id is not None else number
        samples[str(sample.id)] = sample
        if settings.skill_as == "file" and not (task.sandbox or sample.sandbox):
            raise InputError(
                f"env.skill_as: file: sample {sample.id} of {settings.reference} has no sandbox to "
                "put the skill in.",
                hint="Set env.skill_as: message, or give the task a sandbox.",
            )
    given: dict[InspectRole, Model | None] = {AGENT: context.model, JUDGE: context.judge}
    models = {role: model for role, model in given.items() if model is not None}
    evaluator = InspectEvaluator(task, samples, models, settings)
    return SourceItems(_with_splits(samples), evaluator=evaluator)


def _with_splits(samples: Mapping[str, Any]) -> list[Item]:
    """The samples as items. If every sample's metadata names its split, the items have splits."""
    splits = [(sample.metadata or {}).get("split") for sample in samples.values()]
    named = all(isinstance(split, str) and split in SPLIT_NAMES for split in splits)
    rows = []
    for (name, sample), split in zip(samples.items(), splits, strict=True):
        row = _row(name, sample)
        rows.append(Row(row | {"split": split} if named else row, f"sample {name}"))
    return items_of(rows, {})


def _row(name: str, sample: Any) -> dict[str, Any]:
    """What is known of a sample. Everything in it tells samples apart when they are split."""
    turns = [] if isinstance(sample.input, str) else sample.input
    text = sample.input if isinstance(sample.input, str) else _joined(turns, ("user",))
    other_turns = _joined(turns, ("system", "assistant", "tool"))
    answers = [sample.target] if isinstance(sample.target, str) else list(sample.target)
    row = {
        "id": name,
        "input": text or other_turns or "(the task's own code makes the input)",
        "answers": [answer for answer in answers if answer],
        "other_turns": other_turns,
        "choices": sample.choices,
        "metadata": sample.metadata,
        "sandbox_files": sample.files,
        "setup": sample.setup,
    }
    return {key: value for key, value in row.items() if value}


def _joined(turns: Iterable[Any], roles: tuple[str, ...]) -> str:
    return "\n\n".join(turn.text for turn in turns if turn.role in roles)


def _refuse_missing_judge(context: LoadContext) -> None:
    roles = [role for role, model in context.model_roles.items() if model == "judge"]
    if roles and context.judge is None:
        raise InputError(
            f"env.model_roles: {roles[0]} is the judge, but model.judge is not set.",
            hint="Set model.judge, or use the agent's model for this role.",
        )


def _find(reference: str, base: Path, task_args: Mapping[str, Any]) -> Any:
    """The Inspect task, made with its arguments."""
    try:
        from inspect_ai._util.error import PrerequisiteError
    except ImportError as error:
        raise InputError(
            "Inspect AI is not installed.", hint="pip install 'skillfit[inspect]'"
        ) from error
    file, at, name = reference.partition("@")
    path, hint = (base / file).resolve(), "Fix the error in this file."
    if not at and not file.endswith(".py"):
        _refuse_unknown(reference)
        path = Path(reference)
        hint = "The package's own task failed; its documentation may say what it needs."
    elif not path.is_file():
        raise InputError(f"inspect: {path} does not exist.", hint=_WRITE)
    else:
        reference = f"{path}@{name or _only_task(path)}"
    try:
        with errors_in(path, PrerequisiteError, hint=hint):
            found = copy_context().run(_load_tasks, reference, task_args)
    except PrerequisiteError as error:
        raise _prerequisite_missing(str(error.message)) from error
    if len(found) != 1:
        raise InputError(f"inspect: {reference!r} names {len(found)} tasks.", hint=_WRITE)
    _refuse_unknown_arguments(found[0], task_args)
    return found[0]


def _load_tasks(reference: str, task_args: Mapping[str, Any]) -> list[Any]:
    """Runs in a context of its own, in which the agent's model is the model of the eval: some tasks
    ask for it when they are made.
    """
    from inspect_ai._eval.loader import load_tasks
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.model._model import init_active_model

    register_provider()
    init_active_model(get_model(f"{PROVIDER}/{AGENT}", memoize=False), GenerateConfig())
    tasks: list[Any] = load_tasks([reference], dict(task_args))
    return tasks


def _prerequisite_missing(message: str) -> InputError:
    plain = without_markup(message)
    hint = f"Is there a @task of this name? {_WRITE}"
    if asks_for_own_model(plain):
        hint = (
            "The task creates a model of its own. If an argument names it, set it to one of ours: "
            "env.task_args: {ARGUMENT: skillfit/judge}."
        )
    return InputError(f"inspect: {plain}", hint=hint)


def _only_task(path: Path) -> str:
    from inspect_ai import list_tasks

    names = [task.name for task in list_tasks([path.name], root_dir=path.parent)]
    if len(names) != 1:
        known = "has none, or does not compile"
        if names:
            known = f"has {len(names)} of them: {', '.join(names)}"
        raise InputError(f"inspect: {path} names no @task, and the file {known}.", hint=_WRITE)
    return names[0]


def _refuse_unknown(reference: str) -> None:
    """Inspect would take an unknown name for a pattern of file names. Packages offer their tasks
    through an entry point.
    """
    from inspect_ai._util.registry import registry_find, registry_info

    package, _, name = reference.partition("/")
    offered = entry_points(group="inspect_ai", name=package)
    if package == "hf":
        return
    if not name or not offered:
        raise InputError(
            f"inspect: no installed package offers Inspect tasks as {package!r}.",
            hint=f"Install it, as in pip install {package}. {_WRITE}",
        )
    for entry in offered:
        try:
            entry.load()
        except ImportError as error:
            raise InputError(
                f"inspect: {package} cannot be imported: {error}.",
                hint="It may need an extra of its own.",
            ) from error
    known = [registry_info(task).name for task in registry_find(lambda info: info.type == "task")]
    if reference not in known:
        offered_here = [task for task in known if task.startswith(f"{package}/")]
        near = difflib.get_close_matches(reference, offered_here, n=5, cutoff=0)
        raise InputError(
            f"inspect: {package} has no task {name!r}.",
            hint=f"It has, for example: {', '.join(near) or 'none'}.",
        )


def _refuse_unknown_arguments(task: Any, task_args: Mapping[str, Any]) -> None:
    """Inspect drops arguments that the task does not have."""
    from inspect_ai._util.registry import registry_info, registry_lookup

    task_name = registry_info(task).name
    function: Any = registry_lookup("task", task_name)
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in task_args:
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise InputError(
                f"inspect: the task {task_name} has no argument {name!r}.",
                hint=did_you_mean(name, parameters) or f"Its arguments: {known}.",
            )
