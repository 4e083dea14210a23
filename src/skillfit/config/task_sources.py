"""Find a named task source: what `env.tasks: searchqa` or `env.tasks: inspect:file.py@task` names.

A config needs this to read the options and default values that a source has, so the lookup is in
this layer. `skillfit.tasks.load` says how a source is written; it is imported only when its name
is used.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from skillfit.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from skillfit.tasks.load import LoadContext, SourceItems

ENTRY_POINT_GROUP = "skillfit.tasks"

BENCHMARKS = (
    "alfworld",
    "babyvision",
    "docvqa",
    "livemathematicianbench",
    "mathverse",
    "mmrb",
    "officeqa",
    "reasoning_gym",
    "sealqa",
    "searchqa",
    "spreadsheetbench",
    "swebench",
    "textworld",
)
# Name -> "module:function". Given as text, because these modules import from higher layers.
BUILT_IN_SOURCES: dict[str, str] = {
    "inspect": "skillfit.plugins.inspect_tasks:inspect_source",
    **{name: f"skillfit.benchmarks.{name}:{name}" for name in BENCHMARKS},
}


@dataclass(frozen=True, slots=True)
class SourceReference:
    """How a config names a source, without the options."""

    name: str
    argument: str = ""  # what follows the colon
    base: Path = Path()  # the folder that relative paths in the argument and options start from


@dataclass(frozen=True, slots=True)
class TaskSource:
    """What a source brings to a run.

    `config` holds default values for config keys, by section, for everything the user leaves unset:
    `{"env": {"skill": "/…/initial.md", "grader": "normalized", "agent": "tools", "prompt": "…"}}`.
    Paths in it must be absolute. Making a `TaskSource` must be cheap: `load` does the work.
    """

    load: Callable[[LoadContext], SourceItems]
    config: Mapping[str, Any] = field(default_factory=dict)


def find_source(
    tasks: str, *, base: Path = Path(), options: Mapping[str, Any] | None = None
) -> TaskSource | None:
    """The source that `env.tasks` names; None if it is something else (a file, a command)."""
    reference, _, query = tasks.partition("?")
    name, _, argument = reference.partition(":")
    if not is_source(tasks):
        return None
    given = _merged_options(name, options or {}, _query_options(tasks, query))
    function = _import(name)
    _check_options(name, function, given)
    source = function(SourceReference(name, argument, base), **given)
    if not isinstance(source, TaskSource):
        raise InputError(
            f"env.tasks: the function registered as {name!r} returned {type(source).__name__}.",
            hint="It must return a skillfit.tasks.load.TaskSource.",
        )
    return source


def is_source(tasks: str) -> bool:
    """Whether this value of `env.tasks` begins with a registered name."""
    name = tasks.partition("?")[0].partition(":")[0]
    return name in BUILT_IN_SOURCES or bool(_entry_points(name))


def source_names() -> list[str]:
    """Every registered name, sorted."""
    installed = {entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return sorted(installed | set(BUILT_IN_SOURCES))


def source_options(name: str) -> tuple[str, ...]:
    """The options that a registered source can be given in `env.task_args`."""
    return tuple(_named_options(_import(name)))


def source_module(name: str) -> str:
    """The module that a registered name refers to; empty for a name that is not registered."""
    installed = [entry.value for entry in _entry_points(name)]
    target = BUILT_IN_SOURCES.get(name) or next(iter(installed), "")
    return target.partition(":")[0]


def _entry_points(name: str) -> list[EntryPoint]:
    return list(entry_points(group=ENTRY_POINT_GROUP, name=name))


def _import(name: str) -> Callable[..., TaskSource]:
    """The registered function. A name that is registered more than once is refused."""
    installed = _entry_points(name)
    targets = {entry.value for entry in installed} | (
        {BUILT_IN_SOURCES[name]} if name in BUILT_IN_SOURCES else set()
    )
    if len(targets) > 1:
        raise InputError(
            f"env.tasks: {name!r} is registered more than once: {', '.join(sorted(targets))}.",
            hint="Uninstall one of these packages, or rename its entry point.",
        )
    target = targets.pop()
    module, _, attribute = target.partition(":")
    try:
        function = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"env.tasks: {name!r} ({target}) cannot be imported: {error}.",
            hint="Install what its package needs, or fix the package.",
        ) from error
    if not callable(function):
        raise InputError(f"env.tasks: {name!r} ({target}) is not a function.")
    checked: Callable[..., TaskSource] = function
    return checked


def _query_options(tasks: str, query: str) -> dict[str, Any]:
    """`a=1&b=text` as options. Values that are JSON (numbers, true, lists) are read as such."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise InputError(
            f"env.tasks: {tasks!r}: {error}.", hint="Write options as ?name=value&name=value."
        ) from error
    return {key: _value(text) for key, text in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _merged_options(
    name: str, arguments: Mapping[str, Any], query: Mapping[str, Any]
) -> dict[str, Any]:
    if twice := sorted(set(arguments) & set(query)):
        raise InputError(
            f"env.tasks: the option {twice[0]!r} of {name} is also set in env.task_args.",
            hint="Set it in one place.",
        )
    return {**arguments, **query}


def _check_options(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = _named_options(function)
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known) or (
                f"Its options: {', '.join(known)}." if known else "It has no options."
            )
            raise InputError(f"env.tasks: {name} has no option {option!r}.", hint=hint)


def _named_options(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
