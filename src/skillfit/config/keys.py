"""The settings as a list: every key with its type, default and meaning, and which of them make a
run the run it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from skillfit.config.schema import Config
from skillfit.models.spec import ModelSpec

# What may change between two starts of one run: how fast and how far it goes, never what it does.
# Skill and tasks are compared by what is in them, not by where they lie.
_FREE = frozenset(
    {
        "budget",
        "executor",
        "model.concurrency",
        "model.prices",
        "gradient.analyst_workers",
        "env.exec_timeout",
        "env.sandbox",
        "env.corpus",
        "env.skill",
        "env.tasks",
        "env.folder",
    }
)
_FREE_OF_A_MODEL = frozenset({"timeout", "retries", "key_env"})


@dataclass(frozen=True, slots=True)
class Key:
    key: str  # dotted
    type: str
    default: Any  # None also for what must be given
    doc: str


def describe_keys() -> Iterator[Key]:
    """Every key of the schema, in its order. A role's model is described once a role."""
    yield from _describe(Config, "")


def identity(config: Config) -> dict[str, Any]:
    """The part of a config that must stay the same for a run to go on."""
    data: dict[str, Any] = config.model_dump(mode="json")
    for key in _FREE:
        section, _, name = key.rpartition(".")
        (data[section] if section else data).pop(name)
    for role in ("agent", "optimizer", "judge"):
        for name in _FREE_OF_A_MODEL:
            (data["model"][role] or {}).pop(name, None)
    return data


def _describe(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        nested = _nested(field.annotation)
        if nested is None or nested is ModelSpec:
            yield Key(key, _type(field.annotation), _default(field), field.description or "")
        if nested is not None:
            yield from _describe(nested, f"{key}.")


def _nested(annotation: Any) -> type[BaseModel] | None:
    candidates = get_args(annotation) or (annotation,)
    return next(
        (kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)),
        None,
    )


def _default(field: FieldInfo) -> Any:
    default = field.get_default(call_default_factory=True)
    return None if default is PydanticUndefined else default


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(argument) for argument in arguments)
    if annotation is NoneType:
        return "null"
    if annotation is ModelSpec:
        return "string or mapping"
    if arguments and origin not in (dict, tuple, list):
        return " | ".join(_type(argument) for argument in arguments)
    return str(annotation) if arguments else getattr(annotation, "__name__", str(annotation))


SECTIONS = tuple(name for name, field in Config.model_fields.items() if _nested(field.annotation))
