"""From YAML, overrides and recipe to a checked `Config`.

`load_config` reads the settings, refuses secrets, makes paths absolute, adds the defaults of recipe
and benchmark, and checks the result. Errors name the place (file and line, or override), the key,
and what is allowed there.

Below it is where settings come from: YAML files with `_base_`, mappings, and `key=value` overrides.
`PlacedSettings` keeps the place that set a key, so that errors can name it. YAML is read strictly:
with the plain values of version 1.2, without keys that are set twice, and with limits on size and
depth.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from skillfit.config.schema import RECIPES, SECTIONS, Config, describe_keys
from skillfit.errors import InputError
from skillfit.extensions import find_source, is_source
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import ROLES
from skillfit.models.registry import names_cli_program
from skillfit.plain_text import shorten
from skillfit.skill.document import read_regular_file

_BASE = "_base_"
_FROM_PYTHON = "the settings"  # the name of the place of settings that are in no file
# Settings that are one value also where they are a mapping, {name: settings}: they are not merged.
_WHOLE_VALUES = ("env.grader", "evaluation.ship_grader")
# Keys of earlier versions that no longer do anything.
_RETIRED_KEYS = ("candidates", "finest", "rollout_budget", "prune")
# How a chat model is called. A benchmark's values for these do not suit a command-line agent.
_CHAT_SETTINGS = ("agent", "prompt", "max_turns", "max_rollout_tokens")
# Settings whose file.py:name earlier versions recorded relative to env.folder.
_ONCE_RELATIVE = ("train.sampler", "optimizer.proposer")
_FILE_FUNCTION = re.compile(r"^(?P<file>[^:\s]+\.py):(?P<name>[\w.]+)$")
_SECRET_NAME = re.compile(
    r"(api[-_]?key|secret|password|passwd|authorization|cookie|credentials?"
    r"|(access|auth)[-_]?token)$"
    r"|^model\..*[-._](key|token)$",
    re.IGNORECASE,
)
_SECRET_PREFIX = r"(sk|pk|rk|gsk|hf|xai|ghp|github_pat|xox[abp])[-_]"
_SECRET_VALUE = re.compile(
    rf"^(Bearer\s+\S+|{_SECRET_PREFIX}[A-Za-z0-9_\-]{{12,}}|AIza[\w\-]{{20,}}|AKIA[A-Z0-9]{{12,}})$"
)
# In the section `model` no skill or column has such a name, so a short value is suspicious too.
_MODEL_SECRET = re.compile(rf"^{_SECRET_PREFIX}\S+$")
_SECRET_IN_ADDRESS = re.compile(
    r"^[a-z]+://([^/@\s]+@|\S*[?&][^=&#\s]*(key|token|secret|password|signature)=)", re.IGNORECASE
)
# Far above any real config. YAML aliases can make a few lines stand for billions of values.
_FILE_LIMIT = 1_000_000
_VALUE_LIMIT = 20_000
_DEPTH_LIMIT = 50
_LONGEST_NUMBER = 400


class ConfigWarning(UserWarning):
    """A setting was read that has no meaning here."""


def load_config(
    source: Path | str | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    warn: Callable[[str], None] | None = None,
) -> Config:
    """Read a config from a YAML file or a mapping.

    `overrides` are `key.sub=value` texts, or a mapping of dotted keys to values; they replace what
    the file says. Keys that neither sets come from the recipe, then from the benchmark that
    `env.tasks` names, then from the defaults.

    Relative paths of skill, tasks, graders and run start in the folder of the file that names them;
    in overrides, in the current folder. Warnings go to `warn`, by default to Python's `warnings`.
    """
    from skillfit.config import skillopt  # here: it reads its files with the functions below

    settings = read_source(source)
    text_keys = {key.key for key in describe_keys() if key.type in ("str", "str | null")}
    above = read_overrides(overrides, text_keys)
    if skillopt.is_skillopt(settings.data):
        settings = skillopt.translate(settings, above, warn or _python_warning)
    else:
        _keep_endpoints(above.data, settings.data)
        settings = above.over(settings)
    _refuse_secrets(settings)
    _refuse_infinite(settings)
    _drop_retired(settings.data, warn or _python_warning)
    data = {}
    for key, value in settings.data.items():
        is_empty_section = value is None and key in SECTIONS
        data[key] = {} if is_empty_section else value
    _resolve_paths(data, settings)
    given = PlacedSettings(data, settings.places)
    filled = given.over(_recipe_defaults(data)).over(_source_defaults(data))
    try:
        return Config.model_validate(filled.data)
    except ValidationError as error:
        raise InputError("\n".join(_error_sentences(error.errors(), settings))) from error


def _python_warning(message: str) -> None:
    warnings.warn(message, ConfigWarning, stacklevel=3)


def _keep_endpoints(above: Mapping[str, Any], below: Mapping[str, Any]) -> None:
    """An override like `model.agent=openai/other` changes the model and keeps where it is called.

    It replaces only the id of a model that the config gives as a mapping (with base_url and so
    on), when both ids have the same provider: another provider has another address.
    """
    models, known = above.get("model"), below.get("model")
    if not isinstance(models, dict) or not isinstance(known, dict):
        return
    for role in ROLES:
        new, old = models.get(role), known.get(role)
        if not isinstance(new, str) or not isinstance(old, dict):
            continue
        if new.partition("/")[0] == str(old.get("id", "")).partition("/")[0]:
            models[role] = {"id": new}


def _refuse_secrets(settings: PlacedSettings) -> None:
    for key, value in _walk(settings.data):
        if not isinstance(value, str) or not value:
            continue
        where = settings.place(key).without_value
        if _SECRET_IN_ADDRESS.match(value):
            raise InputError(
                f"{where}: {key} has a user name or key inside its address.",
                hint="Give the address alone. Put the key into an environment variable, and name "
                "that variable with key_env.",
            )
        in_model = key.startswith("model.") and _MODEL_SECRET.match(value)
        if in_model or _SECRET_VALUE.match(value) or _SECRET_NAME.search(key):
            raise InputError(
                f"{where}: {key} looks like a secret, and settings are written to disk.",
                hint="Put it into an environment variable, and name that variable with key_env.",
            )


def _refuse_infinite(settings: PlacedSettings) -> None:
    """No setting may be infinite or NaN, also inside the settings of graders, sources and
    providers: a run records its settings as JSON, which has no such numbers.
    """
    for key, value in _walk(settings.data):
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(
                f"{settings.place(key)}: {key} = {value} is not valid: it should be a finite "
                "number."
            )


def _drop_retired(data: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Settings of the race gate, which screening replaced, are left out with a warning."""
    evaluation = data.get("evaluation")
    if not isinstance(evaluation, dict):
        return
    for name in _RETIRED_KEYS:
        if evaluation.pop(name, None) is not None:
            warn(f"evaluation.{name} has no effect any more: the screening gate replaced the race.")
    if evaluation.get("gate") == "race":
        evaluation["gate"] = "screening"
        warn("evaluation.gate: race was replaced by screening.")


def _recipe_defaults(data: Mapping[str, Any]) -> PlacedSettings:
    recipe = data.get("recipe", "default")
    sections = RECIPES.get(recipe, {}) if isinstance(recipe, str) else {}
    return PlacedSettings({name: dict(values) for name, values in sections.items()})


def _source_defaults(data: Mapping[str, Any]) -> PlacedSettings:
    """Config values of the named task source of `env.tasks`. The settings for chat models are left
    out when the agent is a command-line agent.
    """
    env = data.get("env")
    if not isinstance(env, dict) or not isinstance(env.get("tasks"), str):
        return PlacedSettings({})
    options = env.get("task_args")
    source = find_source(
        env["tasks"],
        base=Path(str(env.get("folder", ""))),
        options=options if isinstance(options, dict) else {},
    )
    defaults = read_source(source.config).data if source is not None else {}
    if names_cli_program(_agent_id(data)):
        for name in _CHAT_SETTINGS:
            defaults.get("env", {}).pop(name, None)
    return PlacedSettings(defaults)


def _agent_id(data: Mapping[str, Any]) -> str:
    model = data.get("model")
    agent = model.get("agent") if isinstance(model, dict) else None
    return str(agent.get("id", "") if isinstance(agent, dict) else agent or "")


def _resolve_paths(data: JsonObject, settings: PlacedSettings) -> None:
    """Make paths in the settings absolute, so that they do not depend on the current folder."""
    for key, resolve in _PATH_SETTINGS.items():
        title, _, name = key.rpartition(".")
        section = data.get(title) if title else data
        if isinstance(section, dict) and section.get(name):
            place = settings.place(key)
            if key in _ONCE_RELATIVE and place.name == _FROM_PYTHON:
                place = _place_in_folder(place, data.get("env"))
            resolved = {**section, name: resolve(section[name], place)}
            data |= {title: resolved} if title else resolved
    env, model = data.get("env"), data.get("model")
    if isinstance(env, dict) and env.get("tasks"):
        data["env"] = {**env, "folder": _task_folder(env, settings)}
    if isinstance(model, dict):
        data["model"] = {
            role: _resolve_programs(spec, settings, f"model.{role}") for role, spec in model.items()
        }


def _place_in_folder(place: SettingPlace, env: Any) -> SettingPlace:
    """The place of a setting that a run of an earlier version recorded: in env.folder."""
    folder = env.get("folder") if isinstance(env, dict) else None
    recorded = isinstance(folder, str) and Path(folder).is_absolute()
    return replace(place, folder=Path(str(folder))) if recorded else place


def _task_folder(env: Mapping[str, Any], settings: PlacedSettings) -> Any:
    """Where commands and Inspect tasks run: env.folder, by default the folder of the config."""
    if env.get("folder"):
        return _absolute_path(env["folder"], settings.place("env.folder"))
    return _absolute_path(".", settings.place("env.tasks"))


def _resolve_programs(spec: Any, settings: PlacedSettings, key: str) -> Any:
    """The files that options of a command-line agent name. A program without a slash is looked up
    on the PATH.
    """
    options = spec.get("options") if isinstance(spec, dict) else None
    if not isinstance(options, dict) or not names_cli_program(str(spec.get("id", ""))):
        return spec
    resolved = dict(options)
    for name in ("file", "program"):
        value = options.get(name)
        if isinstance(value, str) and (name == "file" or "/" in value):
            resolved[name] = _absolute_path(value, settings.place(f"{key}.options.{name}"))
    if readable := options.get("readable"):
        place = settings.place(f"{key}.options.readable")
        paths = readable if isinstance(readable, list) else [readable]
        resolved["readable"] = [_absolute_path(path, place) for path in paths]
    return {**spec, "options": resolved}


def _resolve_tasks(value: Any, place: SettingPlace) -> Any:
    """A path or `file.py:name` becomes absolute; commands and named sources stay as they are."""
    if not isinstance(value, str) or value.startswith("command:") or is_source(value):
        return value
    if _FILE_FUNCTION.match(value):
        return _resolve_functions(value, place)
    path = _absolute_path(value, place)
    return path if Path(path).exists() or "/" in value or Path(value).suffix else value


def _resolve_functions(value: Any, place: SettingPlace) -> Any:
    """Make the files of `file.py:name` absolute, also inside lists and mappings."""
    if isinstance(value, dict):
        return {key: _resolve_functions(item, place) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve_functions(item, place) for item in value]
    if isinstance(value, str) and (match := _FILE_FUNCTION.match(value)):
        return f"{_absolute_path(match['file'], place)}:{match['name']}"
    return value


def _absolute_path(value: Any, place: SettingPlace) -> Any:
    if not isinstance(value, str):
        return value
    return os.path.normpath(place.folder / Path(value).expanduser())


# Settings that name files, each with the function that makes its paths absolute.
_PATH_SETTINGS: Mapping[str, Callable[[Any, SettingPlace], Any]] = {
    "run": _absolute_path,
    "executor": _resolve_functions,
    "env.skill": _absolute_path,
    "env.tasks": _resolve_tasks,
    "env.grader": _resolve_functions,
    "env.agent": _resolve_functions,
    "env.corpus": _absolute_path,
    "train.sampler": _resolve_functions,
    "optimizer.proposer": _resolve_functions,
    "evaluation.gate": _resolve_functions,
    "evaluation.ship_grader": _resolve_functions,
}


def _error_sentences(errors: Sequence[ErrorDetails], settings: PlacedSettings) -> Iterator[str]:
    """One sentence per key. Where several types are allowed, pydantic reports an error for each."""
    by_key: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        by_key.setdefault(_error_key(error, settings), []).append(error)
    for key, errors_here in by_key.items():
        where, first = settings.place(key), errors_here[0]
        if first["type"] == "extra_forbidden":
            yield f"{where}: unknown key {key}.{_key_suggestion(key)}"
        elif first["type"] == "missing":
            yield f"{where}: {key} is missing."
        elif first["type"] == "value_error":  # from a check of ours; the value may be a secret
            yield f"{where.without_value}: {key}: {first['ctx']['error']}."
        else:
            allowed = " or ".join(dict.fromkeys(_allowed_value(error) for error in errors_here))
            value = repr(first["input"])
            yield f"{where}: {key} = {value} is not valid: it should be {allowed}."


def _error_key(error: ErrorDetails, settings: PlacedSettings) -> str:
    """The dotted key of an error. Where several types are allowed, pydantic appends the name of the
    type to the location; that part is not in the settings and is left out.
    """
    location = error["loc"]
    if error["type"] == "missing":
        return ".".join(str(part) for part in location)
    data: Any = settings.data
    parts: list[str] = []
    for part in location:
        if isinstance(data, Mapping):
            if part not in data:
                break
            data = data[part]
        elif not (isinstance(part, int) and isinstance(data, (list, tuple))):
            break
        parts.append(str(part))
    return ".".join(parts) or ".".join(str(part) for part in location)


def _key_suggestion(key: str) -> str:
    """What to write instead of an unknown key."""
    from skillfit.config.skillopt import table  # here: as in load_config

    if ours := table().key_here(key):
        return f" SkillOpt's {key} is {ours} here."
    known = [*Config.model_fields, *(described.key for described in describe_keys())]
    section, _, leaf = key.rpartition(".")
    beside = {}
    elsewhere = []
    for name in known:
        parent, _, last = name.rpartition(".")
        if parent == section:
            beside[last] = name
        if last == leaf:
            elsewhere.append(name)
    near = [beside[name] for name in difflib.get_close_matches(leaf, beside, n=1)] or elsewhere
    if near:
        return f" Did you mean {near[0]}?"
    return f" Allowed here: {', '.join(beside)}."


def _allowed_value(error: ErrorDetails) -> str:
    message = error["msg"].removeprefix("Input should be ").removesuffix(".")
    if message.startswith("a valid dictionary"):
        return "a mapping"
    return message[0].lower() + message[1:]


@dataclass(frozen=True, slots=True)
class SettingPlace:
    """What set a key: a line of a file, an override, or the caller of the Python API."""

    name: str
    folder: Path  # relative paths in the value start here
    line: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name

    @property
    def without_value(self) -> str:
        """The place, for a message about a possible secret. The name of an override contains its
        value, which must not be shown.
        """
        return str(self) if self.line else self.name.partition("=")[0]


@dataclass(frozen=True, slots=True)
class PlacedSettings:
    """Nested settings, and for each dotted key the place that set it last.

    `origin` is named for keys without a recorded place.
    """

    data: JsonObject
    places: dict[str, SettingPlace] = field(default_factory=dict)
    origin: SettingPlace | None = None

    @classmethod
    def of(cls, key: str, value: Any, place: SettingPlace) -> PlacedSettings:
        """Settings with one dotted key."""
        for part in reversed(key.split(".")):
            value = {part: value}
        return cls(value, {key: place})

    def over(self, base: PlacedSettings) -> PlacedSettings:
        """These settings on top of `base`: sections are merged, other values replaced.

        A grader replaces the one in `base`. A key inside it, as of the override
        `env.grader.exact.ignore_case=false`, changes the one in `base`.
        """
        replaced = tuple(key for key in _WHOLE_VALUES if self._sets_whole(key))
        inside = tuple(f"{key}." for key in replaced)
        below = {key: place for key, place in base.places.items() if not key.startswith(inside)}
        return PlacedSettings(
            _merge_settings(base.data, self.data, replaced),
            {**below, **self.places},
            self.origin or base.origin,
        )

    def _sets_whole(self, key: str) -> bool:
        """Whether the value of a key is set here, not only keys inside it."""
        section, _, name = key.rpartition(".")
        values = self.data.get(section)
        if not isinstance(values, dict) or name not in values:
            return False
        if key in self.places:
            return True
        return section in self.places and not any(
            place.startswith(f"{key}.") for place in self.places
        )

    def place(self, key: str) -> SettingPlace:
        """The place that set a key, or something inside it, or else the section around it."""
        if key in self.places:
            return self.places[key]
        for name in reversed(self.places):
            if name.startswith(f"{key}."):
                return self.places[name]
        while key:
            key = key.rpartition(".")[0]
            if key in self.places:
                return self.places[key]
        return self.origin or SettingPlace(_FROM_PYTHON, Path.cwd())


def _merge_settings(
    base: Mapping[str, Any], top: Mapping[str, Any], whole: Container[str], section: str = ""
) -> JsonObject:
    """`top` on top of `base`. `whole` are dotted keys whose values replace those of `base`."""
    merged = dict(base)
    for key, value in top.items():
        below, dotted = merged.get(key), f"{section}{key}"
        if isinstance(below, str) and key in ROLES and isinstance(value, dict):
            below = {"id": below}  # `agent: openai/x` below, `agent: {temperature: 0}` on top
        if isinstance(below, dict) and isinstance(value, dict) and dotted not in whole:
            merged[key] = _merge_settings(below, value, whole, f"{dotted}.")
        else:
            merged[key] = value
    return merged


def read_source(source: Path | str | Mapping[str, Any]) -> PlacedSettings:
    """The settings of a YAML file with everything it inherits, or of a mapping."""
    if not isinstance(source, Mapping):
        return _read_with_bases(Path(source).absolute(), ())
    data = _plain_copy(source)
    place = SettingPlace(_FROM_PYTHON, Path.cwd())
    return PlacedSettings(data, {key: place for key, _ in _walk(data)}, place)


def read_overrides(
    overrides: Sequence[str] | Mapping[str, Any], text_keys: Container[str] = ()
) -> PlacedSettings:
    """Settings from `a.b=c` texts, or from a mapping of dotted keys to values.

    In texts, values are YAML: numbers, lists and null mean what they look like. For `text_keys`,
    which hold only text, a value such as `command: ./x` is not read as a mapping. Relative paths
    start in the current folder.
    """
    settings = PlacedSettings({})
    if isinstance(overrides, Mapping):
        place = SettingPlace(_FROM_PYTHON, Path.cwd())
        for key, value in overrides.items():
            settings = PlacedSettings.of(key, _plain_copy(value), place).over(settings)
        return settings
    for text in overrides:
        key, equals, value = text.partition("=")
        shown = shorten(text, 100)
        if not equals or not all(key.split(".")):
            raise InputError(f"The override {shown!r} is not of the form key.sub=value.")
        place = SettingPlace(f"command-line override {shown}", Path.cwd())
        parsed = _override_value(shown, value, key in text_keys)
        settings = PlacedSettings.of(key, parsed, place).over(settings)
    return settings


def _override_value(shown: str, value: str, is_text: bool) -> Any:
    try:
        parsed = _parse_yaml(value).data if value.strip() else ""
    except _NotYaml as error:
        if not is_text:
            raise InputError(
                f"The override {shown!r} has a value that is not valid YAML: {error.problem}."
            ) from error
        return value.strip()
    return value.strip() if is_text and isinstance(parsed, (dict, list)) else _plain_copy(parsed)


def _walk(data: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in nested data with its dotted key, sections included. Entries of a list have the
    key of the list.
    """
    if isinstance(data, Mapping):
        for name, value in data.items():
            below = f"{key}.{name}" if key else str(name)
            yield below, value
            yield from _walk(value, below)
    elif isinstance(data, list):
        for value in data:
            yield key, value
            yield from _walk(value, key)


def _plain_copy(value: Any) -> Any:
    """A copy with plain dicts and lists, string keys, and paths as strings."""
    if isinstance(value, Mapping):
        return {str(key): _plain_copy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_copy(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _read_with_bases(path: Path, chain: tuple[Path, ...]) -> PlacedSettings:
    """A file on top of the files that its `_base_` names. `chain` are the files that led here."""
    if path in chain:
        names = " -> ".join(str(step) for step in (*chain, path))
        raise InputError(f"Circular {_BASE}: {names}.", hint=f"Remove one of the {_BASE} lines.")
    own = _read_own(path)
    bases = own.data.pop(_BASE, [])
    settings = PlacedSettings({})
    for base in bases if isinstance(bases, list) else [bases]:
        if not isinstance(base, str):
            raise InputError(
                f"{own.place(_BASE)}: {_BASE} must be a path or a list of paths, not {base!r}."
            )
        target = (path.parent / base).resolve()
        if not target.is_file():
            raise InputError(
                f"{own.place(_BASE)}: {_BASE} names {base}, but there is no file {target}."
            )
        settings = _read_with_bases(target, (*chain, path)).over(settings)
    return own.over(settings)


def _read_own(path: Path) -> PlacedSettings:
    """The settings in one file, without what it inherits."""
    parsed = _parse_file(path, "config")
    if parsed.data is None:
        return PlacedSettings({}, origin=SettingPlace(str(path), path.parent))
    if not isinstance(parsed.data, dict):
        kind = type(parsed.data).__name__
        raise InputError(f"{path}: a config is a mapping of sections, not {kind}.")
    places = {
        key: SettingPlace(str(path), path.parent, line)
        for key, line in _key_lines(parsed.node, path)
    }
    return PlacedSettings(_plain_copy(parsed.data), places, SettingPlace(str(path), path.parent))


def _key_lines(node: yaml.Node | None, path: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Dotted keys and their lines. A key that is set twice is refused: one value would be lost."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _key_lines(item, path, prefix)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        key, line = f"{prefix}{key_node.value}", key_node.start_mark.line + 1
        if key in seen and key_node.value != "<<":
            raise InputError(f"{path}:{line}: {key} is set twice (before on line {seen[key]}).")
        seen[key] = line
        yield key, line
        yield from _key_lines(value_node, path, f"{key}.")


def read_yaml(path: Path) -> Any:
    """The value in a YAML file that is no config, read as strictly as one."""
    return _plain_copy(_parse_file(path, "file").data)


def _parse_file(path: Path, what: str) -> _ParsedYaml:
    try:
        data = read_regular_file(path, _FILE_LIMIT)
        if data is None:
            raise InputError(f"The {what} {path} is larger than {_FILE_LIMIT:,} bytes.")
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        hint = ""
        if isinstance(error, FileNotFoundError) and what == "config":
            hint = "Check the path, or write a config with: skillfit init"
        elif isinstance(error, IsADirectoryError):
            hint = f"Give a file, such as {path / 'skillfit.yaml'}"
        raise InputError(f"Cannot read the {what} {path}: {reason}.", hint=hint) from error
    try:
        return _parse_yaml(text)
    except _NotYaml as error:
        where = f"{path}:{error.line}:{error.column}" if error.line else str(path)
        raise InputError(f"{where}: not valid YAML: {error.problem}.") from error


@dataclass(frozen=True, slots=True)
class _ParsedYaml:
    data: Any
    node: yaml.Node | None


class _NotYaml(Exception):
    """The text is not YAML that a config may contain. `line` and `column` are 0 when unknown."""

    def __init__(self, problem: str, mark: yaml.Mark | None = None) -> None:
        super().__init__(problem)
        self.problem = problem.rstrip(".")
        self.line = mark.line + 1 if mark else 0
        self.column = mark.column + 1 if mark else 0


def _parse_yaml(text: str) -> _ParsedYaml:
    try:
        loader = _YamlLoader(text)
        node = loader.get_single_node()
        if node is None:
            return _ParsedYaml(None, None)
        _expanded_size(node, {}, 0)
        return _ParsedYaml(loader.construct_document(node), node)
    except yaml.MarkedYAMLError as error:
        raise _NotYaml(error.problem or str(error), error.problem_mark) from error
    except yaml.YAMLError as error:
        raise _NotYaml(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise _NotYaml("it is nested too deeply") from error


def _expanded_size(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """How many values a node stands for when all aliases in it are replaced by what they name.

    Raises when there are too many, when they are nested too deeply, or when a node contains itself.
    `known` holds the sizes of finished nodes, and 0 for those that this call is inside of.
    """
    if id(node) in known:
        if known[id(node)] == 0:
            raise _NotYaml("a value contains itself", node.start_mark)
        return known[id(node)]
    if depth > _DEPTH_LIMIT:
        raise _NotYaml("it is nested too deeply", node.start_mark)
    known[id(node)] = 0
    size = 1
    children: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    for child in children:
        size += _expanded_size(child, known, depth + 1)
        if size > _VALUE_LIMIT:
            raise _NotYaml(
                f"with its aliases it has more than {_VALUE_LIMIT:,} values", node.start_mark
            )
    known[id(node)] = size
    return size


class _YamlLoader(yaml.SafeLoader):
    """YAML with the plain values of version 1.2: `off` and `4:4:2` are text, `1e-4` is a number.
    Tags for anything but text, numbers, booleans, null, lists and mappings are refused.
    """

    def number(self, node: yaml.Node) -> int | float:
        text = str(self.construct_scalar(node)) if isinstance(node, yaml.ScalarNode) else ""
        if len(text) > _LONGEST_NUMBER:
            raise yaml.constructor.ConstructorError(
                None, None, f"a number with {len(text)} characters", node.start_mark
            )
        try:
            if node.tag.endswith(":float"):
                return float(text.lower().replace(".inf", "inf"))
            return int(text, 16 if text.startswith("0x") else 10)
        except ValueError as error:
            raise yaml.constructor.ConstructorError(
                None, None, f"{text!r} is not a number", node.start_mark
            ) from error

    def boolean(self, node: yaml.Node) -> bool:
        text = str(self.construct_scalar(node)) if isinstance(node, yaml.ScalarNode) else ""
        if text.lower() not in ("true", "false"):
            raise yaml.constructor.ConstructorError(
                None, None, f"{text!r} is neither true nor false", node.start_mark
            )
        return text.lower() == "true"


def _yaml_tag(name: str) -> str:
    return f"tag:yaml.org,2002:{name}"


_YamlLoader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    _YamlLoader.add_implicit_resolver(_yaml_tag(_name), re.compile(f"^(?:{_pattern})$"), _first)

_YamlLoader.yaml_constructors = {
    tag: yaml.SafeLoader.yaml_constructors[tag]
    for tag in (_yaml_tag("null"), _yaml_tag("str"), _yaml_tag("seq"), _yaml_tag("map"), None)
}
_YamlLoader.add_constructor(_yaml_tag("int"), _YamlLoader.number)
_YamlLoader.add_constructor(_yaml_tag("float"), _YamlLoader.number)
_YamlLoader.add_constructor(_yaml_tag("bool"), _YamlLoader.boolean)
