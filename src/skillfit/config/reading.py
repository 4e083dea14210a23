"""From YAML, overrides and recipe to a checked `Config`.

`load_config` reads the settings, refuses secrets, makes paths absolute, adds the defaults of recipe
and benchmark, and checks the result. Errors name the place (file and line, or override), the key,
and what is allowed there.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError

from skillfit.config.schema import RECIPES, SECTIONS, Config, describe_keys
from skillfit.config.yaml_source import (
    PlacedSettings,
    SettingPlace,
    read_overrides,
    read_source,
    walk,
)
from skillfit.errors import InputError
from skillfit.extensions import JsonValue, find_source, is_source
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import ROLES
from skillfit.models.registry import LOCAL, map_file, names_cli_program, split_id
from skillfit.plain_text import note_text, one_line, shorten, visible
from skillfit.plugins.skillopt.skillopt_config import is_skillopt, table, translate
from skillfit.settings import setting_problems

# How a chat model is called. A benchmark's values for these do not suit a command-line agent.
_CHAT_SETTINGS = ("agent", "prompt", "max_turns", "max_rollout_tokens")
_FILE_FUNCTION = re.compile(r"^(?P<file>[^:\s]+\.py):(?P<name>[\w.]+)$")
_TEXT_FILE = re.compile(r".*\.(md|txt)", re.IGNORECASE)
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

# What JSON may contain as it is, and YAML not or with another meaning.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


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

    Relative paths of skill, tasks, graders, scripted models and run start in the folder of the file
    that names them; in overrides, in the current folder. A relative `local/FILE.gguf` is looked for
    in the current folder first, and then in that of the config. Warnings go to `warn`, by default
    to Python's `warnings`.
    """
    settings = read_source(source)
    above = read_overrides(overrides, text_keys())
    if is_skillopt(settings.data):
        settings = translate(settings, above, warn or _python_warning)
    else:
        _keep_endpoints(above.data, settings.data)
        settings = above.over(settings)
    _refuse_secrets(settings)
    _refuse_infinite(settings)
    data = {}
    for key, value in settings.data.items():
        is_empty_section = value is None and key in SECTIONS
        data[key] = {} if is_empty_section else value
    _resolve_paths(data, settings)
    _read_guidance(data, settings)
    _read_feedback(data, settings)
    given = PlacedSettings(data, settings.places)
    filled = given.over(_recipe_defaults(data)).over(_source_defaults(data))
    try:
        return Config.model_validate(filled.data)
    except ValidationError as error:
        raise InputError("\n".join(_error_sentences(error, settings))) from error


@cache
def text_keys() -> frozenset[str]:
    """Return the settings that hold only text."""
    return frozenset(key.key for key in describe_keys() if key.type in ("str", "str | null"))


def parse_override(word: str) -> tuple[str, Any]:
    """Split a `key.sub=value` text into key and value, as `load_config` reads it."""
    settings = read_overrides([word], text_keys())
    key = next(iter(settings.places))
    value: Any = settings.data
    for part in key.split("."):
        value = value[part]
    return key, value


def write_override(key: str, value: Any) -> str:
    """Return the `key.sub=value` text that `load_config` reads as exactly this value."""
    as_json = _NOT_IN_YAML.sub(_escaped, json.dumps(value, ensure_ascii=False))
    for text in (value, as_json):
        word = f"{key}={text}"
        with suppress(InputError):  # compared as texts, because 1, 1.0 and true are equal
            if isinstance(text, str) and repr(parse_override(word)) == repr((key, value)):
                return word
    raise InputError(f"{key} has a value that cannot be written: {shorten(repr(value), 80)}.")


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _python_warning(message: str) -> None:
    warnings.warn(message, ConfigWarning, stacklevel=3)


def _keep_endpoints(above: Mapping[str, Any], below: Mapping[str, Any]) -> None:
    """Let an override like `model.agent=openai/other` change the model and keep where it is called.

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
        if split_id(new)[0] == split_id(str(old.get("id", "")))[0]:
            models[role] = {"id": new}


def _refuse_secrets(settings: PlacedSettings) -> None:
    for key, value in walk(settings.data):
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
                hint="Put it into an environment variable"
                + (", and name that variable with key_env." if key.startswith("model.") else "."),
            )


def _refuse_infinite(settings: PlacedSettings) -> None:
    """Refuse settings that are infinite or NaN, also inside the settings of graders, sources and
    providers: a run records its settings as JSON, which has no such numbers.
    """
    for key, value in walk(settings.data):
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(
                f"{settings.place(key)}: {key} = {value} is not valid: it should be a finite "
                "number."
            )


def _recipe_defaults(data: Mapping[str, Any]) -> PlacedSettings:
    recipe = data.get("recipe", "default")
    sections = RECIPES.get(recipe, {}) if isinstance(recipe, str) else {}
    return PlacedSettings({name: dict(values) for name, values in sections.items()})


def _source_defaults(data: Mapping[str, Any]) -> PlacedSettings:
    """Return the config values of the named task source of `env.tasks`. The settings for chat
    models are left out when the agent is a command-line agent.
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
    if not isinstance(model, dict):
        return ""
    several = model.get("agents")
    agent = model.get("agent") or (several[0] if isinstance(several, list) and several else None)
    return str(agent.get("id", "") if isinstance(agent, dict) else agent or "")


def _resolve_paths(data: JsonObject, settings: PlacedSettings) -> None:
    """Make paths in the settings absolute, so that they do not depend on the current folder."""
    data |= map_paths(data, lambda key, path: _absolute_path(path, settings.place(key)))
    _find_model_files(data, settings)
    env = data.get("env")
    if isinstance(env, dict) and env.get("tasks") and not env.get("folder"):
        # Where commands and Inspect tasks run: by default in the folder of the config.
        data["env"] = {**env, "folder": _absolute_path(".", settings.place("env.tasks"))}


def _read_guidance(data: JsonObject, settings: PlacedSettings) -> None:
    """Put the text of the file that `optimizer.guidance` names in its place."""
    optimizer = data.get("optimizer")
    given = optimizer.get("guidance") if isinstance(optimizer, dict) else None
    if not isinstance(given, str) or not _TEXT_FILE.fullmatch(given):
        return
    place = settings.place("optimizer.guidance")
    path = Path(_absolute_path(given, place))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if any(character.isspace() for character in given):
            return  # a sentence that ends with the name of a file
        raise InputError(
            f"{place.without_value}: optimizer.guidance names the file {path}, which cannot be "
            f"read: {error}.",
            hint="Give the name of a text file, or the text itself.",
        ) from error
    data["optimizer"] = {**data["optimizer"], "guidance": text.strip()}


class _Note(BaseModel):
    """An entry of feedback.json, as far as it is read."""

    item: str
    verdict: Literal["right", "wrong"]
    text: str = ""


_NOTES = TypeAdapter(list[_Note])


def _read_feedback(data: JsonObject, settings: PlacedSettings) -> None:
    """Put the notes of the file that `optimizer.feedback` names in its place, by item."""
    optimizer = data.get("optimizer")
    given = optimizer.get("feedback") if isinstance(optimizer, dict) else None
    if not isinstance(given, str):
        return
    place = settings.place("optimizer.feedback")
    path = Path(_absolute_path(given, place))
    try:
        notes = _NOTES.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:  # a ValueError, too, where the name can be no file's
        raise InputError(
            f"{place.without_value}: optimizer.feedback names the file {visible(str(path))}, which "
            f"cannot be read as notes of people: {one_line(visible(str(error)), 200)}.",
            hint="`skillfit export RUN` writes a feedback.json.",
        ) from error
    said: dict[str, JsonValue] = {}
    for note in notes:
        text = note_text(note.verdict, note.text)
        said[note.item] = f"{said[note.item]}; {text}" if note.item in said else text
    data["optimizer"] = {**data["optimizer"], "feedback": said}


def _find_model_files(data: JsonObject, settings: PlacedSettings) -> None:
    """Give a `local/FILE.gguf` its whole path where the current folder does not have the file and
    the folder of the config does. Other ids stay as they are: an id is part of a run's identity.
    """
    model = data.get("model")
    if isinstance(model, dict):
        data["model"] = _each_model(model, lambda spec, key: _with_model_file(spec, key, settings))


def _with_model_file(spec: Any, key: str, settings: PlacedSettings) -> Any:
    is_mapping = isinstance(spec, dict)
    model_id = str(spec.get("id", "") if is_mapping else spec)
    provider, _, name = model_id.partition("/")
    if provider != LOCAL or Path(name).expanduser().is_file():
        return spec
    path = _absolute_path(name, settings.place(f"{key}.id" if is_mapping else key))
    if not Path(path).is_file():
        return spec
    found = f"{LOCAL}/{path}"
    return {**spec, "id": found} if is_mapping else found


def _absolute_path(path: str, place: SettingPlace) -> str:
    return os.path.normpath(place.folder / Path(path).expanduser())


def map_paths(settings: JsonObject, convert: Callable[[str, str], str]) -> JsonObject:
    """Return the settings with every path in them converted, also the files of `file.py:name`, of
    scripted models and of command-line agents. `convert` is given the key of the setting and the
    path.
    """
    mapped = dict(settings)
    for key, map_setting in _PATH_SETTINGS.items():
        title, _, name = key.rpartition(".")
        section = mapped.get(title) if title else mapped
        if isinstance(section, dict) and section.get(name):
            changed = {**section, name: map_setting(section[name], partial(convert, key))}
            mapped |= {title: changed} if title else changed
    model = mapped.get("model")
    if isinstance(model, dict):
        mapped["model"] = _each_model(model, lambda spec, key: _map_model(spec, key, convert))
    return mapped


def _each_model(models: JsonObject, change: Callable[[Any, str], Any]) -> JsonObject:
    """Return the section `model` with each model in it changed. `change` gets its key, too."""
    return {
        role: [change(one, f"model.{role}") for one in spec]
        if isinstance(spec, list)
        else change(spec, f"model.{role}")
        for role, spec in models.items()
    }


def _map_model(spec: Any, key: str, convert: Callable[[str, str], str]) -> Any:
    """Return the files that a model's id and options name."""
    if isinstance(spec, str):
        return map_file(spec, partial(convert, key))
    if not isinstance(spec, dict):
        return spec
    if isinstance(spec.get("id"), str):
        spec = {**spec, "id": map_file(spec["id"], partial(convert, f"{key}.id"))}
    return _map_programs(spec, key, convert)


def _map_programs(spec: JsonObject, key: str, convert: Callable[[str, str], str]) -> JsonObject:
    """Return the files that options of a command-line agent name. A program without a slash is
    looked up on the PATH.
    """
    options = spec.get("options")
    if not isinstance(options, dict) or not names_cli_program(str(spec.get("id", ""))):
        return spec
    mapped = dict(options)
    for name in ("file", "program"):
        value = options.get(name)
        if isinstance(value, str) and (name == "file" or "/" in value):
            mapped[name] = convert(f"{key}.options.{name}", value)
    if readable := options.get("readable"):
        paths = readable if isinstance(readable, list) else [readable]
        convert_readable = partial(convert, f"{key}.options.readable")
        mapped["readable"] = [_map_path(path, convert_readable) for path in paths]
    return {**spec, "options": mapped}


def _map_tasks(value: Any, convert: Callable[[str], str]) -> Any:
    """Return a path or `file.py:name`; commands, named sources and addresses stay as they are."""
    if not isinstance(value, str) or value.startswith("command:") or is_source(value):
        return value
    if "://" in value:
        return value
    if _FILE_FUNCTION.match(value):
        return _map_functions(value, convert)
    path = convert(value)
    return path if Path(path).exists() or "/" in value or Path(value).suffix else value


def _map_functions(value: Any, convert: Callable[[str], str]) -> Any:
    """Return the files of `file.py:name`, also inside lists and mappings."""
    if isinstance(value, dict):
        return {key: _map_functions(item, convert) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_functions(item, convert) for item in value]
    if isinstance(value, str) and (match := _FILE_FUNCTION.match(value)):
        return f"{convert(match['file'])}:{match['name']}"
    return value


def _map_path(value: Any, convert: Callable[[str], str]) -> Any:
    return convert(value) if isinstance(value, str) else value


# Settings that name files, each with the function that converts the paths in it. The files of
# models are in `_map_model`.
_PATH_SETTINGS: Mapping[str, Callable[[Any, Callable[[str], str]], Any]] = {
    "run": _map_path,
    "executor": _map_functions,
    "env.skill": _map_path,
    "env.tasks": _map_tasks,
    "env.folder": _map_path,
    "env.grader": _map_functions,
    "env.agent": _map_functions,
    "env.corpus": _map_path,
    "train.sampler": _map_functions,
    "optimizer.proposer": _map_functions,
    "optimizer.memory": _map_path,
    "evaluation.gate": _map_functions,
    "evaluation.ship_grader": _map_functions,
}


def _error_sentences(error: ValidationError, settings: PlacedSettings) -> Iterator[str]:
    for problem in setting_problems(error, Config, settings.data):
        place = settings.place(problem.key)
        where = str(place) if problem.shows_value else place.without_value
        suggestion = _key_suggestion(problem.key) if problem.unknown else ""
        yield f"{where}: {problem.sentence}{suggestion}"


def _key_suggestion(key: str) -> str:
    """Return what to write instead of an unknown key."""
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
