"""The form for a new run, made from the schema of the config: one input per key, with its meaning
and default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from skillfit.atomic_write import write_whole
from skillfit.config import Config, load_config
from skillfit.errors import InputError
from skillfit.plain_text import shorten
from skillfit.studio.commands import PATH_KEYS, Folders, check_run_name, check_settings

# Asked for at the top of the form, in this order; all other keys are below, by section.
MAIN_KEYS = (
    "recipe",
    "env.skill",
    "env.tasks",
    "env.grader",
    "model.agent",
    "model.optimizer",
    "model.judge",
    "budget.usd",
    "budget.rollouts",
    "budget.calls",
    "budget.tokens",
    "budget.minutes",
)
MARK = "# Made in skillfit studio."


@dataclass(frozen=True, slots=True)
class FormField:
    """One input of the form."""

    key: str
    kind: Literal["text", "number", "choice", "switch"]
    doc: str
    default: str = ""
    choices: tuple[str, ...] = ()
    step: str = "any"  # of a number: "1" for whole ones

    @property
    def label(self) -> str:
        return self.key.rpartition(".")[2].replace("_", " ")


@cache
def form_fields() -> tuple[FormField, ...]:
    """Every key of the config that a form can set, in the schema's order."""
    schema = Config.model_json_schema()
    return tuple(_fields(schema["properties"], schema["$defs"], ""))


def _fields(
    properties: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str
) -> Iterator[FormField]:
    for name, described in properties.items():
        key = f"{prefix}{name}"
        section = _section(described, definitions)
        if section is not None and not key.startswith("model."):
            yield from _fields(section["properties"], definitions, f"{key}.")
        else:
            yield _field(key, described)


def _section(described: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    reference = described.get("$ref", "")
    return definitions.get(str(reference).rpartition("/")[2])


def _field(key: str, described: Mapping[str, Any]) -> FormField:
    doc = " ".join(str(described.get("description", "")).split())
    default = described.get("default")
    shown = "" if default in (None, "", [], {}) else _as_text(default)
    kinds = [described.get("type"), *(part.get("type") for part in described.get("anyOf", ()))]
    if "enum" in described:
        return FormField(key, "choice", doc, shown, tuple(map(str, described["enum"])))
    if "boolean" in kinds:
        return FormField(key, "switch", doc, shown, ("true", "false"))
    if "integer" in kinds or "number" in kinds:
        return FormField(key, "number", doc, shown, step="1" if "integer" in kinds else "any")
    return FormField(key, "text", doc, shown)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def sections() -> dict[str, list[FormField]]:
    """The fields that are not asked for at the top, by section."""
    grouped: dict[str, list[FormField]] = {}
    for one in form_fields():
        if one.key not in MAIN_KEYS and "." in one.key:
            grouped.setdefault(one.key.partition(".")[0], []).append(one)
    return grouped


def main_fields() -> list[FormField]:
    by_key = {one.key: one for one in form_fields()}
    return [by_key[key] for key in MAIN_KEYS if key in by_key]


def file_values(folders: Folders, config: str) -> dict[str, str]:
    """The settings of a config file that differ from the defaults, by dotted key, as texts."""
    path = folders.resolve(config)
    loaded = load_config(path, warn=lambda message: None)
    given = loaded.model_dump(mode="json", exclude_defaults=True)
    values: dict[str, str] = {}
    for one in form_fields():
        value: Any = given
        for part in one.key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and set(value) == {"id"}:  # a model without options
            value = value["id"]
        if value not in (None, "", [], {}):
            text = _as_text(value)
            inside = one.key in PATH_KEYS and folders.holds(text)
            values[one.key] = folders.shown(folders.resolve(text)) if inside else text
    return values


@dataclass(frozen=True, slots=True)
class NewRun:
    """A filled form: the settings that were given, by dotted key."""

    name: str
    config: str = ""  # a config file to start from; empty: the form is the whole config
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_form(cls, form: Mapping[str, str]) -> NewRun:
        """What was filled in. Empty inputs are left to the defaults."""
        known = {one.key: one for one in form_fields()}
        settings: dict[str, Any] = {}
        for key, text in form.items():
            one = known.get(key.removeprefix("set:"))
            if one is None or not key.startswith("set:") or not text.strip():
                continue
            settings[one.key] = _parsed(one, text.strip())
        return cls(form.get("name", "").strip(), form.get("config", "").strip(), settings)

    def check(self, folders: Folders) -> None:
        """Refuse names, paths and programs that a form may not give."""
        check_run_name(self.name)
        check_settings(folders, self.settings)
        if self.config:
            folders.resolve(self.config)

    def overrides(self) -> list[str]:
        """The settings as words of a command line."""
        return [f"{key}={_as_text(value)}" for key, value in self.settings.items()]

    def yaml_text(self) -> str:
        """The settings as a config file."""
        nested: dict[str, Any] = {}
        for key, value in self.settings.items():
            place = nested
            *parents, last = key.split(".")
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        body = yaml.safe_dump(nested, sort_keys=False, allow_unicode=True)
        return f"{MARK}\n{body}"

    def config_path(self, folders: Folders, folder: Path) -> Path:
        """The config to use. A form without a base config is written to a file of its name."""
        if self.config:
            return folders.resolve(self.config)
        path = folders.resolve(folder / f"{self.name}.yaml")
        text = self.yaml_text()
        if path.exists():
            present = path.read_text(encoding="utf-8")
            if present != text and not present.startswith(MARK):
                raise InputError(
                    f"{path.name} exists already.",
                    hint="Choose another name, or start from that file.",
                )
        write_whole(path, text.encode())
        return path


def _parsed(one: FormField, text: str) -> Any:
    """A field's text as the value that goes into the config."""
    if one.kind == "number":
        try:
            number = float(text)
        except ValueError as error:
            raise InputError(f"{one.key}: {text!r} is not a number.") from error
        return int(number) if number.is_integer() else number
    if one.kind == "switch":
        return text == "true"
    if one.kind == "choice" and text not in one.choices:
        raise InputError(f"{one.key}: {text!r} is none of {', '.join(one.choices)}.")
    if text.startswith(("{", "[")):
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InputError(
                f"{one.key}: {shorten(text, 60)!r} cannot be read: {error}."
            ) from error
    return text
