"""From YAML, overrides and recipe to a checked `Config`. Every problem is named with its place, key
and a way out.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from skillfit.config.keys import SECTIONS, describe_keys
from skillfit.config.schema import RECIPES, Config
from skillfit.config.skillopt import is_reference, translate
from skillfit.config.yaml_source import Place, Settings, read_overrides, read_source, walk
from skillfit.errors import InputError
from skillfit.tasks.sources import find_source, is_source

_FUNCTION = re.compile(r"^(?P<file>[^:\s]+\.py):(?P<name>[\w.]+)$")
_SECRET_NAME = re.compile(
    r"(?i)(api[-_]?key|secret|password|passwd|authorization|cookie|credentials?|(access|auth)[-_]?token)$"
    r"|^model\..*[-._](key|token)$"
)
_PREFIX = r"(sk|pk|rk|gsk|hf|xai|ghp|github_pat|xox[abp])[-_]"
_SECRET_VALUE = re.compile(
    rf"^(Bearer\s+\S+|{_PREFIX}[A-Za-z0-9_\-]{{12,}}|AIza[\w\-]{{20,}}|AKIA[A-Z0-9]{{12,}})$"
)
_MODEL_SECRET = re.compile(
    rf"^{_PREFIX}\S+$"
)  # here it is no skill's or column's name, however short
_IN_ADDRESS = re.compile(
    r"^[a-z]+://([^/@\s]+@|\S*[?&][^=&#\s]*(key|token|secret|password|signature)=)", re.IGNORECASE
)


class ConfigWarning(UserWarning):
    """A setting was read that has no meaning here."""


def load_config(
    source: Path | str | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    warn: Callable[[str], None] | None = None,
) -> Config:
    """The config in a YAML file (or a mapping), with `key.sub=value` overrides (or a mapping of
    these) on top and its recipe below.

    Relative paths of skill, tasks and grader files belong to the folder of the file that names
    them; in overrides, to the current folder. Warnings go to `warn`, or to Python's own.
    """
    settings = read_source(source)
    above = read_overrides(
        overrides, {key.key for key in describe_keys() if key.type in ("str", "str | null")}
    )
    if is_reference(settings.data):
        settings = translate(settings, above, warn or _python_warning)
    else:
        _keep_endpoints(above.data, settings.data)
        settings = above.over(settings)
    _refuse_secrets(settings)
    data = {
        key: {} if value is None and key in SECTIONS else value
        for key, value in settings.data.items()
    }
    _resolve_paths(data, settings)
    recipe = data.get("recipe", "default")
    filled = (
        Settings(data)
        .over(Settings(RECIPES.get(recipe, {}) if isinstance(recipe, str) else {}))
        .over(_source_defaults(data))
        .data
    )
    try:
        return Config.model_validate(filled)
    except ValidationError as error:
        raise InputError("\n".join(_sentences(error.errors(), settings))) from error


def _keep_endpoints(above: Mapping[str, Any], below: Mapping[str, Any]) -> None:
    """An override like `model.agent=openai/other` changes the model and keeps where it is called.

    It replaces only the id of a model that the config gives as a mapping (with base_url and so
    on), when both ids have the same provider: another provider has another address.
    """
    models, known = above.get("model"), below.get("model")
    if not isinstance(models, dict) or not isinstance(known, dict):
        return
    for role in ("agent", "optimizer", "judge"):
        new, old = models.get(role), known.get(role)
        if not isinstance(new, str) or not isinstance(old, dict):
            continue
        if new.partition("/")[0] == str(old.get("id", "")).partition("/")[0]:
            models[role] = {"id": new}


def _source_defaults(data: Mapping[str, Any]) -> Settings:
    """Config values that the named task source of `env.tasks` brings with it. How a chat model is
    called is left out when the agent is a command-line agent.
    """
    env = data.get("env")
    if not isinstance(env, dict) or not isinstance(env.get("tasks"), str):
        return Settings({})
    options = env.get("task_args")
    source = find_source(
        env["tasks"],
        base=Path(str(env.get("folder", ""))),
        options=options if isinstance(options, dict) else {},
    )
    defaults = read_source(source.config).data if source is not None else {}
    if _agent_id(data).startswith("cli/"):
        chat_settings = ("agent", "prompt", "max_turns", "max_rollout_tokens")
        kept = {k: v for k, v in defaults.get("env", {}).items() if k not in chat_settings}
        defaults = {**defaults, "env": kept}
    return Settings(defaults)


def _agent_id(data: Mapping[str, Any]) -> str:
    model = data.get("model")
    agent = model.get("agent") if isinstance(model, dict) else None
    return str(agent.get("id", "") if isinstance(agent, dict) else agent or "")


def _python_warning(message: str) -> None:
    warnings.warn(message, ConfigWarning, stacklevel=3)


def _refuse_secrets(settings: Settings) -> None:
    for key, value in walk(settings.data):
        if not isinstance(value, str) or not value:
            continue
        where = settings.place(key).without_value
        if _IN_ADDRESS.match(value):
            raise InputError(
                f"{where}: {key} carries a user name or key inside its address.",
                hint="Give the address alone; put the key into an environment variable and name it with key_env.",
            )
        in_model = key.startswith("model.") and _MODEL_SECRET.match(value)
        if in_model or _SECRET_VALUE.match(value) or _SECRET_NAME.search(key):
            raise InputError(
                f"{where}: {key} looks like a secret, and settings are written to disk.",
                hint="Put it into an environment variable and give that variable's name with key_env.",
            )


def _resolve_paths(data: dict[str, Any], settings: Settings) -> None:
    """Make the files that settings name independent of where the command is run."""
    for section, name, resolved in (
        ("env", "skill", _absolute),
        ("env", "tasks", _resolved_tasks),
        ("env", "grader", _resolved_functions),
        ("env", "agent", _resolved_functions),
        ("env", "corpus", _absolute),
        ("evaluation", "ship_grader", _resolved_functions),
    ):
        held = data.get(section)
        if isinstance(held, dict) and held.get(name):
            data[section] = {
                **held,
                name: resolved(held[name], settings.place(f"{section}.{name}")),
            }
    env = data.get("env")
    if isinstance(env, dict) and env.get("tasks"):
        named, folder = ("env.folder", env["folder"]) if env.get("folder") else ("env.tasks", ".")
        data["env"] = {**env, "folder": _absolute(folder, settings.place(named))}
    model = data.get("model")
    if isinstance(model, dict):
        data["model"] = {
            role: _resolved_programs(spec, settings, f"model.{role}")
            for role, spec in model.items()
        }


def _resolved_programs(spec: Any, settings: Settings, key: str) -> Any:
    """The files that options of a command-line agent name. A program without a slash is looked up
    on the PATH.
    """
    options = spec.get("options") if isinstance(spec, dict) else None
    if not isinstance(options, dict) or not str(spec.get("id", "")).startswith("cli/"):
        return spec
    resolved = dict(options)
    for name in ("file", "program"):
        value = options.get(name)
        if isinstance(value, str) and (name == "file" or "/" in value):
            resolved[name] = _absolute(value, settings.place(f"{key}.options.{name}"))
    if readable := options.get("readable"):
        place = settings.place(f"{key}.options.readable")
        paths = readable if isinstance(readable, list) else [readable]
        resolved["readable"] = [_absolute(path, place) for path in paths]
    return {**spec, "options": resolved}


def _absolute(value: Any, place: Place) -> Any:
    return (
        os.path.normpath(place.folder / Path(value).expanduser())
        if isinstance(value, str)
        else value
    )


def _resolved_tasks(value: Any, place: Place) -> Any:
    """A path or `file.py:name` becomes absolute; commands and named sources stay as they are."""
    if not isinstance(value, str) or value.startswith("command:") or is_source(value):
        return value
    if _FUNCTION.match(value):
        return _resolved_functions(value, place)
    path = _absolute(value, place)
    return path if Path(path).exists() or "/" in value or Path(value).suffix else value


def _resolved_functions(value: Any, place: Place) -> Any:
    if isinstance(value, dict):
        return {key: _resolved_functions(item, place) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved_functions(item, place) for item in value]
    if isinstance(value, str) and (match := _FUNCTION.match(value)):
        return f"{_absolute(match['file'], place)}:{match['name']}"
    return value


def _sentences(errors: Sequence[ErrorDetails], settings: Settings) -> Iterator[str]:
    """One sentence a key: a union's branches each complain, the person made one mistake."""
    by_key: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        by_key.setdefault(_key(error, settings), []).append(error)
    for key, complaints in by_key.items():
        where, first = settings.place(key), complaints[0]
        if first["type"] == "extra_forbidden":
            yield f"{where}: unknown key {key}.{_suggestion(key)}"
        elif first["type"] == "missing":
            yield f"{where}: {key} is missing."
        elif first["type"] == "value_error":  # said by a check of our own, about what may be secret
            yield f"{where.without_value}: {key}: {first['ctx']['error']}."
        else:
            allowed = dict.fromkeys(_allowed(error) for error in complaints)
            yield f"{where}: {key} = {first['input']!r} is not valid: it should be {' or '.join(allowed)}."


def _key(error: ErrorDetails, settings: Settings) -> str:
    """The dotted key of an error: pydantic's location up to where the settings end and its own
    union names begin.
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


def _suggestion(key: str) -> str:
    known = [*Config.model_fields, *(described.key for described in describe_keys())]
    section, _, leaf = key.rpartition(".")
    beside = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == section}
    elsewhere = [name for name in known if name.rpartition(".")[2] == leaf]
    if near := [beside[name] for name in difflib.get_close_matches(leaf, beside, n=1)] or elsewhere:
        return f" Did you mean {near[0]}?"
    return f" Allowed here: {', '.join(beside)}."


def _allowed(error: ErrorDetails) -> str:
    message = error["msg"].removeprefix("Input should be ").removesuffix(".")
    return (
        "a mapping"
        if message.startswith("a valid dictionary")
        else message[0].lower() + message[1:]
    )
