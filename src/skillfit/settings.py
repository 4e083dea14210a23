"""Values that a user sets: the base class of config sections, models and built-in graders, and
what is wrong with a value, in plain words.

`setting_problems` translates pydantic's errors. Each sentence names the setting, what was found and
what is expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails, PydanticKnownError

from skillfit.errors import did_you_mean
from skillfit.plain_text import shorten

_LONGEST_VALUE = 200  # characters of a refused value in a message
# What pydantic expects, by the type of its error. Names in braces are in the error's context.
_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "greater than {gt:g}",
    "greater_than_equal": "greater than or equal to {ge:g}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number with fewer digits",
    "int_type": "a whole number",
    "invalid_key": "a mapping whose keys are text",
    "less_than": "less than {lt:g}",
    "less_than_equal": "less than or equal to {le:g}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_type": "a mapping",
    "string_type": "text",
    "string_unicode": "valid Unicode",
    "tuple_type": "a list",
}


def _refuse_boolean(value: Any) -> Any:
    """Refuse `true`, which is not the number 1."""
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


Number = Annotated[float, BeforeValidator(_refuse_boolean)]
"""A number inside a mapping. Fields of `Settings` need no annotation."""


class Settings(BaseModel):
    """Immutable values. Unknown keys, infinite numbers, and `true` where a number is expected are
    refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        kinds = set(get_args(annotation) or (annotation,))
        if isinstance(value, bool) and kinds <= {int, float, NoneType}:
            raise PydanticKnownError("int_type" if int in kinds else "float_type")
        return value


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """What is wrong with one setting. `key` is dotted. `shows_value` is False where the value may
    be a secret: the sentence does not contain it, and nothing beside it may.
    """

    key: str
    sentence: str
    unknown: bool = False  # no setting has this name
    beside: tuple[str, ...] = ()  # of an unknown key: the names that the schema has there
    shows_value: bool = True


def setting_problems(
    error: ValidationError, kind: type[BaseModel], data: Any, prefix: str = ""
) -> Iterator[SettingProblem]:
    """Yield one problem per key. `data` is what was validated as a `kind`, and `prefix` the key of
    it.
    """
    by_key: dict[str, list[ErrorDetails]] = {}
    for found in error.errors():
        key = ".".join(filter(None, (prefix, *_location(found, data))))
        by_key.setdefault(key, []).append(found)
    for key, here in by_key.items():
        yield _problem(key, here, kind)


def _problem(key: str, errors: Sequence[ErrorDetails], kind: type[BaseModel]) -> SettingProblem:
    """Join the errors of one key: where several types are allowed, pydantic reports one for
    each.
    """
    first = errors[0]
    if first["type"] == "extra_forbidden":
        beside = tuple(_names_beside(kind, first["loc"]))
        return SettingProblem(key, f"unknown key {key}.", unknown=True, beside=beside)
    if first["type"] == "missing":
        return SettingProblem(key, f"{key} is missing.")
    if first["type"] == "value_error":  # from a check of ours
        name = f"{key}: " if key else ""
        return SettingProblem(key, f"{name}{first['ctx']['error']}.", shows_value=False)
    expected = " or ".join(dict.fromkeys(expected_value(error) for error in errors))
    found = f"{key} = {_found_value(first['input'])}".removeprefix(" = ")
    near = _near_choice(errors)
    return SettingProblem(key, f"{found} is not valid: it should be {expected}.{near}")


def expected_value(error: ErrorDetails) -> str:
    """Return what an error of pydantic says should be there."""
    if error["type"] in _EXPECTED:
        return _EXPECTED[error["type"]].format_map(error.get("ctx", {}))
    message = error["msg"].removeprefix("Input should be ").removesuffix(".")
    return message[0].lower() + message[1:]


def _found_value(value: Any) -> str:
    """Return a value as a config file has it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return shorten(repr(value), _LONGEST_VALUE)


def _near_choice(errors: Sequence[ErrorDetails]) -> str:
    """Suggest the allowed value that is similar to one that may be a typo."""
    for error in errors:
        if error["type"] == "literal_error" and isinstance(error["input"], str):
            hint = did_you_mean(error["input"], re.findall(r"'(.*?)'", error["ctx"]["expected"]))
            return f" {hint}" if hint else ""
    return ""


def _location(error: ErrorDetails, data: Any) -> list[str]:
    """Return the parts of the key of an error. Where several types are allowed, pydantic appends
    the name of the type to the location, and where one value stands for a list its index. These are
    not in the data and are left out.
    """
    location = error["loc"]
    if error["type"] == "missing":
        return [str(part) for part in location]
    parts: list[str] = []
    for part in location:
        is_entry = isinstance(data, (list, tuple)) and isinstance(part, int)
        if is_entry or (isinstance(data, Mapping) and part in data):
            data = data[part]
            parts.append(str(part))
        elif not isinstance(part, int):
            break
    return parts or [str(part) for part in location]


def _names_beside(kind: type[BaseModel], location: Sequence[int | str]) -> Iterator[str]:
    """Yield the names that the schema has at the place of an unknown key."""
    for part in location[:-1]:
        for name, info in kind.model_fields.items():
            if part in (name, info.alias):
                kind = nested_model(info.annotation) or kind
                break
    for name, info in kind.model_fields.items():
        yield info.alias or name


def nested_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field holds, if it holds one."""
    for kind in get_args(annotation) or (annotation,):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
