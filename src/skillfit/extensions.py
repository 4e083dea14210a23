"""Code that users name or write: find it, build it, call it.

Parts that can be replaced (gates, proposers, batch samplers, graders, agents, executors, trackers)
are named in one of three ways: by one of skillfit's own names, by an entry point of another package
(group `skillfit.gates`, `skillfit.proposers`, …), or as `file.py:name`. In a config, file.py is
relative to the config file; on the command line, to the current folder. Nothing is imported before
its name is used.

Task sources (`env.tasks: searchqa`, `env.tasks: inspect:file.py@task`) are named by one of
skillfit's own names or by an entry point of group `skillfit.tasks`. Their lookup is in this layer,
because reading a config needs their options and default values. `skillfit.tasks.task` says how one
is written.

Errors in the code of users become failures with file and line.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import importlib.util
import inspect
import json
import math
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from skillfit.errors import InputError, SkillfitError, TaskFailure, did_you_mean

if TYPE_CHECKING:
    from skillfit.tasks.task import LoadContext, SourceItems

T = TypeVar("T")

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)
SourceOptions = Mapping[str, JsonValue]  # of a task source, as the user wrote them
PartDescription = Mapping[str, JsonValue]
"""What a grader, agent, evaluator or other part says about itself: what tells it from others of its
kind. It is recorded in the run's identity and holds nothing secret. Each part has its own keys:
`{"exact": {}}`, `{"agent": "chat", "prompt": "…"}`, `{"python": "Name", "source": "hash"}`.
"""

# Name of a benchmark and of its function -> the module in skillfit.plugins.benchmarks.
BENCHMARKS: Mapping[str, str] = {
    "alfworld": "games",
    "babyvision": "questions",
    "docvqa": "questions",
    "livemathematicianbench": "questions",
    "mathverse": "questions",
    "mmrb": "questions",
    "officeqa": "officeqa",
    "reasoning_gym": "reasoning_gym",
    "sealqa": "questions",
    "searchqa": "questions",
    "spreadsheetbench": "spreadsheetbench",
    "swebench": "swebench",
    "textworld": "games",
}
# Name -> "module:function". Given as text, because these modules import from higher layers.
BUILT_IN_SOURCES: dict[str, str] = {
    "inspect": "skillfit.plugins.inspect.inspect_source:inspect_source",
    "trigger": "skillfit.plugins.trigger.source:trigger_source",
    **{name: f"skillfit.plugins.benchmarks.{module}:{name}" for name, module in BENCHMARKS.items()},
}
_REFERENCE = re.compile(r"^(?P<file>.+\.py):(?P<name>\w+)$")


def is_reference(name: str) -> bool:
    """Return whether a name refers to a file of the user: `file.py:name`."""
    return _REFERENCE.match(name) is not None


def find_extension(
    kind: str,
    name: str,
    built_in: Mapping[str, type | str],
    base: Path = Path(),
    *,
    setting: str = "",
) -> Any:
    """Return the object that `name` stands for. `kind` is the word in messages and groups: "gate".

    `built_in` maps names to classes, or to "module:attribute" if they are imported only when they
    are used. `base` is the folder that file.py is relative to. `setting` is the key that the user
    wrote the name at, for messages.
    """
    if name in built_in:
        target = built_in[name]
        return _imported(kind, name, target) if isinstance(target, str) else target
    if is_reference(name):
        return load_object(name, base, setting=setting)
    installed = _installed(kind, name)
    if not installed:
        raise unknown_extension(kind, name, built_in, setting=setting)
    if len({entry.value for entry in installed}) > 1:
        packages = ", ".join(sorted(entry.dist.name if entry.dist else "?" for entry in installed))
        raise InputError(
            f"The {kind} {name!r} is registered by more than one package: {packages}.",
            hint="Uninstall one of them, or name the class as file.py:name.",
        )
    return _loaded(kind, installed[0])


def is_extension(kind: str, name: str) -> bool:
    """Return whether a name that is not built in can be looked up: file.py:name or an entry
    point.
    """
    return is_reference(name) or bool(_installed(kind, name))


def extension_names(kind: str) -> list[str]:
    """Return the names that other packages offer."""
    return sorted(entry_points(group=_group(kind)).names)


def unknown_extension(
    kind: str, name: str, built_in: Iterable[str], *, setting: str = ""
) -> InputError:
    """Make the error for an unknown name, with the names that exist."""
    known = sorted({*built_in, *extension_names(kind)})
    hint = did_you_mean(name, known) or f"Available: {', '.join(known)}, or file.py:name."
    if name.endswith(".py"):
        hint = f"Write the name of the {kind} in that file too: {name}:NAME."
    where = f" ({setting})" if setting else ""
    return InputError(f"Unknown {kind} {name!r}{where}.", hint=hint)


def _group(kind: str) -> str:
    return f"skillfit.{kind}s"


def _installed(kind: str, name: str) -> list[EntryPoint]:
    return list(entry_points(group=_group(kind), name=name))


def import_attribute(target: str) -> Any:
    """Return the object that `module:attribute` names."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def _imported(kind: str, name: str, target: str) -> Any:
    try:
        return import_attribute(target)
    except ModuleNotFoundError as error:
        raise InputError(
            f"The {kind} {name!r} needs the package {error.name!r}.",
            hint=f"pip install 'skillfit[{name}]'",
        ) from error


def _loaded(kind: str, entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:  # importing a package runs its code
        package = entry.dist.name if entry.dist else entry.module
        raise InputError(
            f"The {kind} {entry.name!r} ({entry.value}) of the package {package} cannot be "
            f"imported: {type(error).__name__}: {error}",
            hint="Install what the package needs, or fix the package.",
        ) from error


def build_part(kind: str, found: Any, protocol: type, *arguments: Any, source: str = "") -> Any:
    """Return the part itself. `found` is a class or function that makes it, or the part as an
    object.

    A class or function is called with `arguments`, or with none if it takes none. The result must
    have the members of `protocol`. `source` is what the user wrote, for messages.
    """
    source = source or name_of(found)
    part = found
    if isinstance(found, type) or (callable(found) and missing_members(found, protocol)):
        part = call_factory(kind, found, arguments, source)
    if missing := missing_members(part, protocol):
        expected = f"an object with {', '.join(_members(protocol))}"
        raise InputError(
            f"The {kind} {source} has no {missing[0]!r}: it is {type(part).__name__}.",
            hint=f"Give {expected}, or a class or function that makes one (docs/extending.md).",
        )
    check_methods(kind, part, protocol, source)
    return part


def check_methods(kind: str, part: Any, protocol: type, source: str) -> None:
    """Raise when a method of a user's part cannot be called as `protocol` or a base class of
    skillfit says, with all parameters. `part` may also be its class. Members that it lacks are not
    looked at.
    """
    for name, expected in _expected_members(part, protocol).items():
        member = inspect.getattr_static(part, name, None)
        if isinstance(expected, property):
            if inspect.isfunction(member):
                problem = "is a method, and is read as an attribute"
                raise _wrong_method(kind, source, name, problem, f"@property above def {name}")
        elif member is not None and not isinstance(member, property):
            needs_self = isinstance(part, type) and inspect.isfunction(member)
            if problem := _problem_of(getattr(part, name), expected, needs_self):
                raise _wrong_method(kind, source, f"{name}()", problem, _written(expected))


def _expected_members(part: Any, protocol: type) -> dict[str, Callable[..., Any] | property]:
    """Return the public methods and properties that skillfit calls, or that its base classes
    call.
    """
    own = part if isinstance(part, type) else type(part)
    bases = [base for base in own.__mro__ if base.__module__.partition(".")[0] == "skillfit"]
    expected: dict[str, Callable[..., Any] | property] = {}
    for kind in (protocol, *bases):
        for name in _members(kind):
            member = inspect.getattr_static(kind, name)
            if inspect.isfunction(member) or isinstance(member, property):
                expected.setdefault(name, member)
    return expected


def _wrong_method(kind: str, source: str, member: str, problem: str, expected: str) -> InputError:
    return InputError(
        f"The {kind} {source}: {member} {problem}.",
        hint=f"Write: {expected} (docs/extending.md).",
    )


def _problem_of(method: Any, expected: Callable[..., Any], needs_self: bool) -> str:
    """Say why a method cannot be called like the expected one; empty when it can."""
    if not callable(method):
        return f"is {type(method).__name__}, not a method"
    wanted = list(inspect.signature(expected).parameters.values())[1:]
    by_name = [parameter.name for parameter in wanted if parameter.kind is parameter.KEYWORD_ONLY]
    names = [parameter.name for parameter in wanted if parameter.name not in by_name]
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # written in C
        return ""
    instance = [None] if needs_self else []
    called_with = f"takes {signature}, and is called with ({', '.join([*names, *by_name])})"
    if not can_be_called_with(method, *instance, *names, **dict.fromkeys(by_name)):
        return called_with
    own = list(signature.parameters)[len(instance) :]
    if any(name in own and own.index(name) != at for at, name in enumerate(names)):
        return f"{called_with}, in this order"
    if _is_async(inspect.unwrap(method)) != _is_async(expected):
        return "is not async" if _is_async(expected) else "is async, and its result is not awaited"
    return ""


def _written(method: Callable[..., Any]) -> str:
    """Return the first line of a method, without annotations."""
    names = []
    for parameter in inspect.signature(method).parameters.values():
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        names.append(parameter.name + default)
    before = "async def" if _is_async(method) else "def"
    return f"{before} {method.__name__}({', '.join(names)})"


def call_factory(
    kind: str, make: Callable[..., Any], arguments: tuple[Any, ...], source: str
) -> Any:
    """Call a user's class or function with the arguments, or with none if it takes none. Errors
    in its code become an `InputError`.
    """
    for given in (arguments, ()):
        if can_be_called_with(make, *given):
            break
    else:
        types = ", ".join(type(argument).__name__ for argument in arguments)
        raise InputError(
            f"The {kind} {source} cannot be made: it takes {inspect.signature(make)}.",
            hint=f"It is called with ({types}) or without arguments (docs/extending.md)."
            if types
            else "It is called without arguments (docs/extending.md).",
        )
    try:
        return make(*given)
    except (SkillfitError, ModuleNotFoundError, OSError):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"The {kind} {source} cannot be made: {type(error).__name__}: {error} "
            f"({Path(last.filename).name}:{last.lineno})",
            hint="Fix the error in its code.",
        ) from error


def can_be_called_with(make: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
    """Return whether a class or function can be called with these arguments."""
    try:
        inspect.signature(make).bind(*arguments, **named)
    except TypeError:
        return False
    except ValueError:  # a built-in type without a signature
        return True
    return True


def missing_members(part: Any, protocol: type) -> list[str]:
    """Return the members of a protocol that an object lacks. Properties are not evaluated."""
    if hasattr(type(part), "__getattr__"):
        return []  # it may delegate to another object
    absent = object()
    return [
        name for name in _members(protocol) if inspect.getattr_static(part, name, absent) is absent
    ]


def _members(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]


def is_built_in(part: Any) -> bool:
    """Return whether skillfit itself defines the part's class. A class derived from ours is the
    user's.
    """
    return type(part).__module__.partition(".")[0] == "skillfit"


def describe_part(part: Any, name: str, base: Path = Path()) -> PartDescription | None:
    """Return what tells a replaced part from others, for the run's identity.

    For `file.py:name` it is the content of the file; for an object given from Python, its
    `describe()` or its name. None: the name in the settings is enough.
    """
    if part is None:
        match = _REFERENCE.match(name)
        if match is None:
            return None
        path = base / match["file"]
        content = path.read_bytes() if path.is_file() else b""  # commands that only measure
        return {"python": match["name"], "source": hashlib.sha256(content).hexdigest()[:16]}
    if not isinstance(part, type) and hasattr(part, "describe"):
        described: PartDescription = part.describe()
        return described
    kind = part if hasattr(part, "__qualname__") else type(part)
    return {"python": f"{kind.__module__}:{kind.__qualname__}"}


def name_of(function: Any) -> str:
    """Return the name of a function, class or object in messages."""
    return getattr(function, "__name__", type(function).__name__)


def qualified_name(function: Callable[..., Any]) -> str:
    """Return the function's name in the run's identity."""
    return getattr(function, "__qualname__", repr(type(function)))


@dataclass(frozen=True, slots=True)
class SourceReference:
    """How a config names a source, without the options."""

    name: str
    argument: str = ""  # what follows the colon
    base: Path = Path()  # the folder that relative paths in the argument and options start from


SourceDefaults = Mapping[str, Mapping[str, JsonValue]]
"""Values for config keys, by section: `{"env": {"agent": "tools"}}`."""


@dataclass(frozen=True, slots=True)
class TaskSource:
    """What a source brings to a run.

    `config` holds default values for config keys, by section, for everything the user leaves unset:
    `{"env": {"skill": "/…/initial.md", "grader": "normalized", "agent": "tools", "prompt": "…"}}`.
    Paths in it must be absolute. Making a `TaskSource` must be cheap: `load` does the work.
    """

    load: Callable[[LoadContext], SourceItems]
    config: SourceDefaults = field(default_factory=dict)


def find_source(
    tasks: str, *, base: Path = Path(), options: SourceOptions | None = None
) -> TaskSource | None:
    """Return the source that `env.tasks` names; None if it is something else (a file, a
    command).
    """
    reference, _, query = tasks.partition("?")
    name, _, argument = reference.partition(":")
    if not is_source(tasks):
        return None
    given = _merged_options(name, options or {}, _query_options(tasks, query))
    function = _source_function(name)
    _check_options(name, function, given)
    source = function(SourceReference(name, argument, base), **given)
    if not isinstance(source, TaskSource):
        raise InputError(
            f"env.tasks: the function registered as {name!r} returned {type(source).__name__}.",
            hint="It must return a skillfit.tasks.TaskSource.",
        )
    return source


def is_source(tasks: str) -> bool:
    """Return whether this value of `env.tasks` begins with a registered name."""
    name = tasks.partition("?")[0].partition(":")[0]
    return name in BUILT_IN_SOURCES or bool(_installed("task", name))


def source_names() -> list[str]:
    """Return every registered name, sorted."""
    return sorted({*extension_names("task"), *BUILT_IN_SOURCES})


def source_options(name: str) -> tuple[str, ...]:
    """Return the options that a registered source can be given in `env.task_args`."""
    return tuple(_named_options(_source_function(name)))


def source_module(name: str) -> str:
    """Return the module that a registered name refers to; empty for a name that is not
    registered.
    """
    installed = [entry.value for entry in _installed("task", name)]
    target = BUILT_IN_SOURCES.get(name) or next(iter(installed), "")
    return target.partition(":")[0]


def _source_function(name: str) -> Callable[..., TaskSource]:
    """Return the registered function. A name that is registered more than once is refused."""
    installed = _installed("task", name)
    targets = {entry.value for entry in installed} | (
        {BUILT_IN_SOURCES[name]} if name in BUILT_IN_SOURCES else set()
    )
    if len(targets) > 1:
        raise InputError(
            f"env.tasks: {name!r} is registered more than once: {', '.join(sorted(targets))}.",
            hint="Uninstall one of these packages, or rename its entry point.",
        )
    target = targets.pop()
    try:
        function = import_attribute(target)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"env.tasks: {name!r} ({target}) cannot be imported: {error}.",
            hint="Install what its package needs, or fix the package.",
        ) from error
    if not callable(function):
        raise InputError(f"env.tasks: {name!r} ({target}) is not a function.")
    checked: Callable[..., TaskSource] = function
    return checked


def _query_options(tasks: str, query: str) -> SourceOptions:
    """Parse options written as `a=1&b=text`. Values that are JSON (numbers, true, lists) are read
    as such.
    """
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise InputError(
            f"env.tasks: {tasks!r}: {error}.", hint="Write options as ?name=value&name=value."
        ) from error
    options = {key: _option_value(text) for key, text in pairs}
    for key, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(
                f"env.tasks: the option {key} = {value} is not valid: it should be a finite number."
            )
    return options


def _option_value(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _merged_options(name: str, arguments: SourceOptions, query: SourceOptions) -> SourceOptions:
    if twice := sorted(set(arguments) & set(query)):
        raise InputError(
            f"env.tasks: the option {twice[0]!r} of {name} is also set in env.task_args.",
            hint="Set it in one place.",
        )
    return {**arguments, **query}


def _check_options(name: str, function: Callable[..., Any], options: SourceOptions) -> None:
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


def load_object(reference: str, base: Path = Path(), *, setting: str = "") -> Any:
    """Return the object that `file.py:name` refers to. The file is executed once per process.
    `setting` is named in messages.
    """
    file, _, name = reference.rpartition(":")
    if not file:
        raise InputError(
            f"{setting or reference}: the name of the function is missing.",
            hint="Write path/to/file.py:name.",
        )
    path = (base / file).resolve()
    if not path.is_file():
        raise InputError(
            f"{setting or reference}: {path} does not exist.", hint="Write path/to/file.py:name."
        )
    if path.suffix != ".py":  # Python loads compiled code of other suffixes too
        raise InputError(
            f"{setting or reference}: {path} is not a Python file.",
            hint="Write path/to/file.py:name.",
        )
    module = _load_module(path, path.stat().st_mtime_ns)
    if not hasattr(module, name):
        own = [
            key
            for key, value in vars(module).items()
            if not key.startswith("_") and not _is_imported(value, module)
        ]
        raise InputError(
            f"{setting}{': ' if setting else ''}{path.name} has no {name!r}.",
            hint=f"It has: {', '.join(own)}." if own else "Write path/to/file.py:name.",
        )
    return getattr(module, name)


def _is_imported(value: object, module: ModuleType) -> bool:
    """Return whether it is a module, or a class or function of another module."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__module__ != module.__name__
    return inspect.ismodule(value)


@cache
def _load_module(path: Path, version: int) -> Any:
    """Return the file as a module. A new `version` (modification time) loads it again. It is
    registered in `sys.modules` under a unique name, which dataclasses and pickle need.
    """
    name = f"skillfit_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be loaded as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # so that it can import files beside it
    with errors_in(path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def errors_in(
    path: Path, *passing: type[Exception], hint: str = "Fix the error in this file."
) -> Iterator[None]:
    """Turn whatever a user's file raises into an `InputError` with file and line. Exceptions of the
    types `passing` are left as they are.
    """
    try:
        yield
    except passing:
        raise
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path)
        ]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        raise InputError(f"{where}: {type(error).__name__}: {error}", hint=hint) from error


async def call_user_code(
    function: Callable[..., Any], *arguments: Any, kind: str, where: str, **named: Any
) -> Any:
    """Call a user's function. Whatever it raises, even `SystemExit`, is a `TaskFailure` of this
    kind; skillfit's own errors pass through. A function that is not async runs in a thread. If the
    call is cancelled, the thread runs on and its result is dropped.
    """
    running = asyncio.ensure_future(_run_user_code(partial(function, *arguments, **named)))
    try:
        await asyncio.wait([running])
    finally:
        running.cancel()
    error = running.exception()
    if error is None:
        return running.result()
    if isinstance(error, SkillfitError):
        raise error
    raised = error.__cause__ if isinstance(error, _Intercepted) and error.__cause__ else error
    last = traceback.extract_tb(raised.__traceback__)[-1]
    message = f"{type(raised).__name__}: {raised}".removesuffix(": ")
    raise TaskFailure(
        kind, f"{where}: {message} ({Path(last.filename).name}:{last.lineno})"
    ) from raised


class _Intercepted(Exception):
    """Wraps what the user's function raised (the cause) if asyncio would treat it specially:
    `SystemExit`, `KeyboardInterrupt`, `CancelledError`, `StopIteration`.
    """


async def _run_user_code(function: partial[Any]) -> Any:
    """Run the function. A KeyboardInterrupt on the main thread comes from the user and passes
    through; in a worker thread it comes from the function.
    """
    called, task = function.func, asyncio.current_task()
    try:
        if _is_async(called):
            return await function()
        value = await in_thread(partial(_guarded, function))
        return await value if inspect.isawaitable(value) else value
    except SystemExit as error:
        raise _Intercepted from error
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raise _Intercepted from error


def _is_async(function: Callable[..., Any]) -> bool:
    call_method = getattr(type(function), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call_method)


def _guarded(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        raise _Intercepted from error


def in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Run the function in a new thread. It is a daemon thread, because a thread cannot be stopped
    and must not keep the process from ending.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # cancelling the asyncio future must not cancel this one
    threading.Thread(
        target=contextvars.copy_context().run,
        args=(_set_result, done, function),
        daemon=True,
        name="skillfit-user",
    ).start()
    return asyncio.wrap_future(done)


def _set_result(done: Future[T], function: Callable[[], T]) -> None:
    try:
        done.set_result(function())
    except BaseException as error:  # noqa: BLE001  # raised again where the result is awaited
        done.set_exception(error)
