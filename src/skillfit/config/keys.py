"""The settings as a list: every key with its type, default and meaning, and which of them must stay
the same for a run to be resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from skillfit.config.schema import RECIPES, Config
from skillfit.models.provider import ModelSpec

# What may change between two starts of one run: limits, speed and places. The contents of skill and
# tasks are compared instead of their paths.
_FREE = frozenset(
    {
        "budget",
        "executor",
        "run",
        "model.concurrency",
        "model.prices",
        "gradient.analyst_workers",
        "env.exec_timeout",
        "env.rollout_usd",
        "env.sandbox",
        "env.corpus",
        "env.skill",
        "env.tasks",
        "env.folder",
    }
)
# Options of command-line agents that say where and how a program runs on this machine.
_OF_HERE = frozenset({"file", "program", "login", "readable", "isolation", "concurrency"})
_ROLES = ("agent", "optimizer", "judge")
_FREE_OF_A_MODEL = frozenset({"timeout", "retries", "key_env"})
_MODEL_DEFAULTS = {
    name: value
    for name, value in ModelSpec(id="any/model").model_dump(mode="json").items()
    if name != "id" and name not in _FREE_OF_A_MODEL
}


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `key` is dotted, for example `train.batch_size`."""

    key: str
    type: str
    default: Any  # None also for settings without a default
    doc: str
    limits: str = ""  # of a number, for example `>= 1`
    recipes: Mapping[str, Any] = field(default_factory=dict)  # values in recipes that set the key

    @property
    def section(self) -> str:
        """The section that the key belongs to; empty for keys at the top level."""
        return self.key.partition(".")[0] if "." in self.key else ""


def describe_keys() -> Iterator[Key]:
    """Every key of the schema, in its order. The settings of a model appear once for each role."""
    yield from _describe(Config, "")


def identity(config: Config) -> dict[str, Any]:
    """The part of a config that must stay the same for a run to be resumed."""
    data: dict[str, Any] = config.model_dump(mode="json")
    for key in _FREE:
        section, _, name = key.rpartition(".")
        (data[section] if section else data).pop(name)
    for role in _ROLES:
        spec = data["model"][role] or {}
        for name in _FREE_OF_A_MODEL:
            spec.pop(name, None)
        if str(spec.get("id", "")).startswith("cli/"):
            kept = {name: value for name, value in spec["options"].items() if name not in _OF_HERE}
            spec["options"] = kept
    # A file of Python is compared by its content, like skill and tasks.
    data["env"]["agent"] = Path(data["env"]["agent"]).name
    return data


def completed_identity(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded identity with exactly the settings that this version compares. A setting that was
    added since the run started has its default: that is how the run was made.
    """
    whole = identity(Config())
    for section, values in recorded.items():
        known = whole.get(section)
        if isinstance(known, dict) and isinstance(values, Mapping):
            whole[section] = {**known, **values}
        else:
            whole[section] = values
    for role in _ROLES:
        if isinstance(spec := whole["model"][role], Mapping):
            whole["model"][role] = {**_MODEL_DEFAULTS, **spec}
    for key in _FREE:
        section, _, name = key.rpartition(".")
        (whole[section] if section else whole).pop(name, None)
    return whole


def _describe(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, info in model.model_fields.items():
        key = f"{prefix}{name}"
        nested = _nested(info.annotation)
        if nested is None or nested is ModelSpec:
            yield Key(
                key,
                _type(info.annotation),
                _default(info),
                " ".join((info.description or "").split()),
                _limits(info),
                _recipes(key),
            )
        if nested is not None:
            yield from _describe(nested, f"{key}.")


def _nested(annotation: Any) -> type[BaseModel] | None:
    """The section or model spec that a field holds, if it holds one."""
    for kind in get_args(annotation) or (annotation,):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _default(info: FieldInfo) -> Any:
    default = info.get_default(call_default_factory=True)
    return None if default is PydanticUndefined else default


def _limits(info: FieldInfo) -> str:
    """The limits of a number, as a text."""
    limits = []
    for rule in info.metadata:
        if isinstance(rule, annotated_types.Ge):
            limits.append(f">= {rule.ge}")
        elif isinstance(rule, annotated_types.Gt):
            limits.append(f"> {rule.gt}")
        elif isinstance(rule, annotated_types.Le):
            limits.append(f"<= {rule.le}")
    return " and ".join(limits)


def _recipes(key: str) -> dict[str, Any]:
    section, _, name = key.partition(".")
    return {
        recipe: settings[section][name]
        for recipe, settings in RECIPES.items()
        if name and name in settings.get(section, {})
    }


def _type(annotation: Any) -> str:
    """A type in the words of YAML."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(argument) for argument in arguments)
    if annotation is NoneType:
        return "null"
    if annotation is ModelSpec:
        return "string or mapping"
    if origin is dict:
        return "mapping"
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    if arguments:
        return " | ".join(_type(argument) for argument in arguments)
    return getattr(annotation, "__name__", str(annotation))


SECTIONS = tuple(name for name, info in Config.model_fields.items() if _nested(info.annotation))
