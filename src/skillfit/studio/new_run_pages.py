"""A new run: its form, made from the schema of the config with one input per key, and the page
until its process has started.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal, TypedDict

import yaml
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from skillfit.atomic_write import write_whole
from skillfit.config import Config, load_config
from skillfit.errors import InputError, SkillfitError
from skillfit.extensions import JsonValue
from skillfit.plain_text import shorten
from skillfit.report.html_report import PageData
from skillfit.run.store import JOURNAL, in_use
from skillfit.studio.commands import (
    PATH_KEYS,
    CommandResult,
    Folders,
    check_run_name,
    check_settings,
    run_command,
    start_log,
)
from skillfit.studio.site import Studio, run_url

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
_MADE_HERE = "# Made in skillfit studio."
_CHECK_SECONDS = 1_800.0


async def new_page(studio: Studio, request: Request) -> Response:
    """The form; with POST, its estimate, its check, or the start of the run."""
    if request.method == "GET":
        filled = NewRun(_free_name(studio), request.query_params.get("config", ""))
        return _form(studio, request, filled)
    form = await studio.form(request)
    texts = {key: str(value) for key, value in form.items()}
    do = texts.get("do", "")
    try:
        filled = NewRun.from_form(texts)
        if do == "show":
            return _form(studio, request, filled)
        filled.check(studio.folders)
        run = studio.folders.resolve(studio.library.folder / filled.name)
        config = filled.config_path(studio.folders, studio.project)
    except SkillfitError as error:
        filled = NewRun(texts.get("name", ""), texts.get("config", ""), _given(texts))
        return _form(studio, request, filled, problem=str(error))
    settings = filled.overrides() if filled.config else []
    words = [studio.folders.shown(config), *settings]
    if do == "start":
        return await _start(studio, request, filled, run, words, force="force" in texts)
    if do == "check":
        arguments = ["check", *words, "--run", str(run)]
    else:
        arguments = ["estimate", *words]
    try:
        result = await run_command(arguments, folder=studio.project, timeout=_CHECK_SECONDS)
    except InputError as error:
        return _form(studio, request, filled, problem=str(error))
    return _form(studio, request, filled, result=result, kind=do)


def _given(texts: dict[str, str]) -> dict[str, str]:
    return {key.removeprefix("set:"): text for key, text in texts.items() if key.startswith("set:")}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRunPage(PageData):
    template: ClassVar = "new.html.j2"

    filled: NewRun
    given: Mapping[str, str]  # settings of the config file to start from
    problem: str
    result: CommandResult | None  # of an estimate or a check
    kind: str  # estimate or check
    fields: Sequence[FormField]
    sections: Mapping[str, Sequence[FormField]]
    skills: Sequence[str]
    tasks: Sequence[str]
    configs: Sequence[str]


def _form(
    studio: Studio,
    request: Request,
    filled: NewRun,
    *,
    problem: str = "",
    result: CommandResult | None = None,
    kind: str = "",
) -> Response:
    folders = studio.folders
    given: dict[str, str] = {}
    if filled.config:
        try:
            given = file_values(folders, filled.config)
        except SkillfitError as error:
            problem = problem or str(error)
    page = NewRunPage(
        filled=filled,
        given=given,
        problem=problem,
        result=result,
        kind=kind,
        fields=main_fields(),
        sections=form_sections(),
        skills=[folders.shown(path) for path in folders.skills()],
        tasks=[folders.shown(path) for path in folders.tasks()],
        configs=[folders.shown(path) for path in folders.configs()],
    )
    return studio.page(request, page, 400 if problem else 200)


def _free_name(studio: Studio) -> str:
    taken = {run.name for run in studio.library.index().runs}
    number = len(taken) + 1
    while f"run-{number}" in taken or (studio.library.folder / f"run-{number}").exists():
        number += 1
    return f"run-{number}"


async def _start(
    studio: Studio, request: Request, filled: NewRun, run: Path, words: list[str], *, force: bool
) -> Response:
    if await asyncio.to_thread(_has_started, studio, filled.name):  # not only checked
        problem = f"There is a run named {filled.name} already. Give this one another name."
        return _form(studio, request, filled, problem=problem)
    forced = ["--force"] if force else []
    arguments = ["train", *words, "--run", str(run), "--json", *forced]
    try:
        studio.starter.start(run, arguments, folder=studio.project)
    except InputError as error:
        return _form(studio, request, filled, problem=str(error))
    return studio.go_to(run_url("starting", filled.name))


@dataclass(frozen=True, slots=True)
class StartingPage(PageData):
    template: ClassVar = "starting.html.j2"

    name: str
    alive: bool  # its process runs
    log: str
    config: str  # the file that the form wrote; empty when it started from another file


def starting_page(studio: Studio, request: Request) -> Response:
    """The page until the run has its journal: its process is starting, or failed with a reason."""
    name = str(request.path_params["name"])
    try:
        run = studio.folders.resolve(studio.library.folder / check_run_name(name))
    except InputError as error:
        raise HTTPException(404, str(error)) from error
    if (run / JOURNAL).is_file() and _has_started(studio, name):
        return studio.go_to(run_url("run", name))
    alive = studio.starter.is_starting(run) or in_use(run)
    written = studio.project / f"{name}.yaml"  # by the form, when it did not start from a file
    config = studio.folders.shown(written) if written.is_file() else ""
    return studio.page(request, StartingPage(name, alive, start_log(run), config))


def _has_started(studio: Studio, name: str) -> bool:
    try:
        return studio.library.story(name).has_begun
    except SkillfitError:
        return False


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


# A JSON schema, as far as pydantic uses it for the config.
_Schema = TypedDict(
    "_Schema",
    {
        "$ref": str,
        "anyOf": "list[_Schema]",
        "default": JsonValue,
        "description": str,
        "enum": list[str],
        "properties": "dict[str, _Schema]",
        "type": str,
    },
    total=False,
)


def _fields(
    properties: Mapping[str, _Schema], definitions: Mapping[str, _Schema], prefix: str
) -> Iterator[FormField]:
    for name, described in properties.items():
        key = f"{prefix}{name}"
        section = _section(described, definitions)
        if section is not None and not key.startswith("model."):
            yield from _fields(section["properties"], definitions, f"{key}.")
        else:
            yield _field(key, described)


def _section(described: _Schema, definitions: Mapping[str, _Schema]) -> _Schema | None:
    return definitions.get(described.get("$ref", "").rpartition("/")[2])


def _field(key: str, described: _Schema) -> FormField:
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


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def form_sections() -> dict[str, list[FormField]]:
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
        value: JsonValue = given
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
    settings: Mapping[str, JsonValue] = field(default_factory=dict)

    @classmethod
    def from_form(cls, form: Mapping[str, str]) -> NewRun:
        """What was filled in. Empty inputs are left to the defaults."""
        known = {one.key: one for one in form_fields()}
        settings: dict[str, JsonValue] = {}
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
        nested: dict[str, JsonValue] = {}
        for key, value in self.settings.items():
            place = nested
            *parents, last = key.split(".")
            for parent in parents:
                below = place.setdefault(parent, {})
                assert isinstance(below, dict)  # no key of a form is also a section
                place = below
            place[last] = value
        body = yaml.safe_dump(nested, sort_keys=False, allow_unicode=True)
        return f"{_MADE_HERE}\n{body}"

    def config_path(self, folders: Folders, folder: Path) -> Path:
        """The config to use. A form without a base config is written to a file of its name."""
        if self.config:
            return folders.resolve(self.config)
        path = folders.resolve(folder / f"{self.name}.yaml")
        text = self.yaml_text()
        if path.exists():
            present = path.read_text(encoding="utf-8")
            if present != text and not present.startswith(_MADE_HERE):
                raise InputError(
                    f"{path.name} exists already.",
                    hint="Choose another name, or start from that file.",
                )
        write_whole(path, text.encode())
        return path


def _parsed(one: FormField, text: str) -> JsonValue:
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
            value: JsonValue = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InputError(
                f"{one.key}: {shorten(text, 60)!r} cannot be read: {error}."
            ) from error
        return value
    return text
