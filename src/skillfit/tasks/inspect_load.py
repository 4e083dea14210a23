"""Finding an Inspect task, in a file or an installed package, and making items of its samples."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from skillfit.errors import InputError
from skillfit.models.protocol import Model
from skillfit.tasks.function import errors_in
from skillfit.tasks.inspect_ai import InspectEvaluator, SkillAs
from skillfit.tasks.item import Item
from skillfit.tasks.rows import Row, items_of

_WRITE = "Write inspect:file.py@task or inspect:package/task."


def load_inspect_task(reference: str, *, base: Path, model: Model | None, skill_as: SkillAs) -> tuple[list[Item], InspectEvaluator]:
    """The samples of `package/task` or `file.py@task` as items, and the evaluator that runs them."""
    task = _find(reference, base)
    samples: dict[str, Any] = {}
    for number, sample in enumerate(task.dataset, 1):
        sample.id = sample.id if sample.id is not None else number
        samples[str(sample.id)] = sample
    bare = next((name for name, sample in samples.items() if not (task.sandbox or sample.sandbox)), None)
    if skill_as == "file" and bare is not None:
        raise InputError(
            f"env.skill_as: file: sample {bare} of {reference} has no sandbox to put the skill in.",
            hint="Set env.skill_as: message, or give the task a sandbox.",
        )
    items = items_of((Row(_row(name, sample), f"sample {name}") for name, sample in samples.items()), {})
    return items, InspectEvaluator(task, samples, model, reference, skill_as)


def _find(reference: str, base: Path) -> Any:
    try:
        from inspect_ai._eval.loader import load_tasks
        from inspect_ai._util.error import PrerequisiteError
    except ImportError as error:
        raise InputError("Inspect AI is not installed.", hint="pip install 'skillfit[inspect]'") from error
    file, at, name = reference.partition("@")
    path, hint = (base / file).resolve(), "Mend the file."
    if not at and not file.endswith(".py"):
        _refuse_unknown(reference)
        path, hint = Path(reference), "The package's own task failed; its documentation may say what it needs."
    elif not path.is_file():
        raise InputError(f"inspect: {path} does not exist.", hint=_WRITE)
    else:
        reference = f"{path}@{name or _only_task(path)}"
    try:
        with errors_in(path, PrerequisiteError, hint=hint):
            found = load_tasks([reference])
    except PrerequisiteError as error:
        raise InputError(f"inspect: {error.message}", hint=f"Is there a @task of this name? {_WRITE}") from error
    if len(found) != 1:
        raise InputError(f"inspect: {reference!r} names {len(found)} tasks.", hint=_WRITE)
    return found[0]


def _only_task(path: Path) -> str:
    from inspect_ai import list_tasks

    names = [task.name for task in list_tasks([path.name], root_dir=path.parent)]
    if len(names) != 1:
        known = f"has {len(names)} of them: {', '.join(names)}" if names else "has none, or does not compile"
        raise InputError(f"inspect: {path} names no @task, and the file {known}.", hint=_WRITE)
    return names[0]


def _refuse_unknown(reference: str) -> None:
    """Inspect would take a name it does not know for a pattern of file names. Packages offer tasks through an entry point."""
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
            raise InputError(f"inspect: {package} cannot be imported: {error}.", hint="It may need an extra of its own.") from error
    known = [registry_info(one).name for one in registry_find(lambda info: info.type == "task")]
    if reference not in known:
        near = difflib.get_close_matches(reference, [one for one in known if one.startswith(f"{package}/")], n=5, cutoff=0)
        raise InputError(f"inspect: {package} has no task {name!r}.", hint=f"It has, for example: {', '.join(near) or 'none'}.")


def _row(name: str, sample: Any) -> dict[str, Any]:
    text = sample.input if isinstance(sample.input, str) else "\n\n".join(turn.text for turn in sample.input if turn.role == "user")
    answers = [sample.target] if isinstance(sample.target, str) else list(sample.target)
    more = {"choices": sample.choices, "metadata": sample.metadata}
    row = {"id": name, "input": text, "answers": [one for one in answers if one]}
    return row | {key: value for key, value in more.items() if value}
