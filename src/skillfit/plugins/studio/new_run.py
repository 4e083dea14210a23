"""The form for a new run: skill, tasks, models and price, and then its start.

- It has one input per key of the config; it is made from the config's schema. A filled form is
  written as a config file, or overrides the settings of a file that was chosen.
- Estimate, check and start are the commands of that name, in a process of their own.
  `starting_page` is shown until the started run has its journal.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import ClassVar, Literal, TypedDict

import yaml
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from skillfit.atomic_write import write_whole
from skillfit.config import Config, load_config
from skillfit.config.reading import text_keys, write_override
from skillfit.config.schema import SplitSection
from skillfit.config.yaml_source import read_text
from skillfit.errors import InputError, SkillfitError
from skillfit.extensions import JsonValue
from skillfit.models import known_providers
from skillfit.models.protocol import ROLES
from skillfit.models.registry import Readiness
from skillfit.plain_text import budget_amount, shorten
from skillfit.plugins.studio.commands import (
    CommandResult,
    Folders,
    as_typed,
    check_run_name,
    check_settings,
    run_command,
    start_log,
)
from skillfit.plugins.studio.site import (
    Studio,
    run_url,
)
from skillfit.report.html_report import PageData
from skillfit.run.store import JOURNAL, in_use
from skillfit.skill import Skill, estimate_tokens
from skillfit.skill.lint import LintProblem, lint
from skillfit.tasks.recognise import RecognisedTasks, recognise
from skillfit.tasks.rows import FILE_SUFFIXES
from skillfit.tasks.task import load_task
from skillfit.training.inputs import split_caps

# Asked for at the top of the form, in this order; all other keys are below, by section.
_MAIN_KEYS = (
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
# Without the programs and Python code that only a config file may name.
_FORM_DOCS = {
    "env.tasks": "A JSONL, JSON or CSV file, a folder with train/ val/ test/, or a benchmark.",
    "env.grader": "The name of a grader, or {name: settings}. Default: exact; for evals.json,"
    " checklist.",
}
DEMO_LOG = ".demo"  # the folder for the output of the demo's process
_YAML = "YAML"  # how messages name the field for settings as YAML
_MOST_DIVIDED = 20_000  # items of which a page says how they are divided
_MADE_HERE = "# Made in skillfit studio."
_CHECK_SECONDS = 1_800.0


async def new_page(studio: Studio, request: Request) -> Response:
    """Show the form; with POST its price, its check, or the start of the run. Only a check or a
    start write: the price is that of a file that is removed again.
    """
    project = studio.project
    if project is None or studio.library.is_run:
        page = await asyncio.to_thread(_no_new_run, studio)
        return studio.page(request, page, 200 if request.method == "GET" else 400)
    if request.method == "GET":
        query = request.query_params
        filled = NewRun(query.get("name") or _free_name(studio), query.get("config", ""))
        return await _form_page(studio, request, filled)
    texts = await studio.form(request)
    do, limited = texts.get("do", ""), "no_limit" not in texts
    filled = NewRun(
        texts.get("name", ""), texts.get("config", ""), _setting_texts(texts), texts.get("yaml", "")
    )
    show = partial(_form_page, studio, request, limited=limited)
    try:
        filled = NewRun.from_form(texts)
        if do == "show":
            return await show(filled)
        filled.check(studio.folders)
        if await asyncio.to_thread(_has_started, studio, filled.name):
            raise InputError(f"There is a run named {filled.name} already. Choose another name.")
        estimated = texts.get("estimated") == filled.digest
        if do != "start" or not estimated:
            result = await _estimated(studio, filled, project)
            if result.error or do == "estimate":
                return await show(filled, problem=result.error, result=result, kind="estimate")
        if do == "start" and limited and not await asyncio.to_thread(_has_budget, studio, filled):
            raise InputError(
                "budget.usd: set a budget, in dollars or in one of the other units, or choose"
                " “no limit”."
            )
        if do == "start" and not estimated:
            return await show(filled, result=result, kind="estimate", changed=True)
        run = studio.folders.resolve(studio.library.folder / filled.name)
        words = filled.words(studio.folders, filled.write_config(studio.folders, project))
        if do == "check":
            arguments = ["check", *words, "--run", str(run)]
            result = await run_command(arguments, folder=project, timeout=_CHECK_SECONDS)
            return await show(filled, result=result, kind="check")
        forced = ["--force"] if "force" in texts else []
        arguments = ["train", *words, "--run", str(run), "--json", *forced]
        studio.starter.start(run, arguments, folder=project)
    except (SkillfitError, OSError) as error:
        return await show(filled, problem=str(error))
    return studio.go_to(run_url("starting", filled.name))


async def start_demo(studio: Studio, request: Request) -> Response:
    """Start the demo. Its project is a folder of the runs, and it appears in the list."""
    await studio.form(request)
    folder = studio.library.folder
    arguments = ["demo", "--dir", str(folder / "demo"), "--json"]
    studio.starter.start(folder / DEMO_LOG, arguments)
    return studio.go_to("/", "The demo is starting. It appears here in a few seconds.")


async def _estimated(studio: Studio, filled: NewRun, project: Path) -> CommandResult:
    """Run `skillfit estimate` on the form, which is written for this time only."""
    if filled.config:
        config = studio.folders.resolve(filled.config)
        words = filled.words(studio.folders, config)
        return await run_command(["estimate", *words], folder=project, timeout=_CHECK_SECONDS)
    path = studio.folders.resolve(project / f".{filled.name}.{secrets.token_hex(4)}.yaml")
    try:
        write_whole(path, filled.yaml_text().encode())
        words = ["estimate", studio.folders.shown(path)]
        result = await run_command(words, folder=project, timeout=_CHECK_SECONDS)
    finally:
        path.unlink(missing_ok=True)
    return result.renamed(path.name, f"{filled.name}.yaml")


def _has_budget(studio: Studio, filled: NewRun) -> bool:
    given = file_values(studio.folders, filled.config) if filled.config else {}
    return any(key.startswith("budget.") for key in (*filled.settings, *given))


def _no_new_run(studio: Studio) -> NoNewRunPage:
    """Say why no run can be started here, and give the command for a studio in which that is
    possible.
    """
    runs = studio.library.folder
    if studio.library.is_run:
        reason = "This studio was started for a single run. A new one needs a folder of runs."
        runs = runs.parent
    else:
        reason = (
            "This studio does not know the project: the folder with the skills, tasks and config"
            " files of these runs."
        )
    words = ["studio", str(runs)]
    if studio.project is None:
        words += ["--project", str(next(studio.library.config_folders(), "PROJECT"))]
    return NoNewRunPage(reason, as_typed(words))


@dataclass(frozen=True, slots=True)
class NoNewRunPage(PageData):
    template: ClassVar = "no_new_run.html.j2"

    reason: str
    command: str


def _setting_texts(texts: dict[str, str]) -> dict[str, str]:
    return {key.removeprefix("set:"): text for key, text in texts.items() if key.startswith("set:")}


def _free_name(studio: Studio) -> str:
    taken = {run.name for run in studio.library.index().runs}
    number = len(taken) + 1
    while f"run-{number}" in taken or (studio.library.folder / f"run-{number}").exists():
        number += 1
    return f"run-{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRunPage(PageData):
    """The form in four steps, each with what is known about what was filled in."""

    template: ClassVar = "new.html.j2"

    filled: NewRun
    given: Mapping[str, str]  # settings of the config file to start from
    project: str
    problem: str
    wrong: Collection[str]  # keys of the settings that the problem names
    result: CommandResult | None  # of an estimate or a check
    kind: str  # estimate or check
    changed: bool  # the settings are not those of the last estimate
    limited: bool  # a budget is wanted
    start_label: str
    digest: str  # of the settings that were estimated
    preview: Preview
    by_key: Mapping[str, FormField]
    sections: Mapping[str, Sequence[FormField]]
    skills: Sequence[str]
    tasks: Sequence[str]
    configs: Sequence[str]


async def _form_page(
    studio: Studio,
    request: Request,
    filled: NewRun,
    *,
    problem: str = "",
    result: CommandResult | None = None,
    kind: str = "",
    changed: bool = False,
    limited: bool = True,
) -> Response:
    folders = studio.folders
    given: dict[str, str] = {}
    if filled.config:
        try:
            given = await asyncio.to_thread(file_values, folders, filled.config)
        except SkillfitError as error:
            problem = problem or str(error)
    configs = [folders.shown(path) for path in folders.configs()]
    if filled.config and filled.config not in configs:
        configs.append(filled.config)
    page = NewRunPage(
        filled=filled,
        given=given,
        project=str(studio.project).replace(str(Path.home()), "~"),
        problem=problem,
        wrong=filled.wrong_yaml(problem) or named_settings(problem),
        result=result,
        kind=kind,
        changed=changed,
        limited=limited,
        start_label=_start_label({**given, **filled.settings}, limited=limited),
        digest=filled.digest if kind and not problem else "",
        preview=await preview_of(folders, {**given, **filled.settings}, filled),
        by_key={one.key: one for one in form_fields()},
        sections=form_sections(),
        skills=[folders.shown(path) for path in folders.skills()],
        tasks=[folders.shown(path) for path in folders.tasks()],
        configs=configs,
    )
    return studio.page(request, page, 400 if problem else 200)


def named_settings(problem: str) -> set[str]:
    """Return the settings that a message names, to mark their inputs."""
    found = {one.key for one in form_fields() if _names(problem, one.key)}
    return {key for key in found if not any(other.startswith(f"{key}.") for other in found)}


def _names(problem: str, key: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w])", problem) is not None


def _start_label(settings: Mapping[str, JsonValue], *, limited: bool) -> str:
    for name in ("usd", "rollouts", "calls", "tokens", "minutes"):
        amount = settings.get(f"budget.{name}")
        with suppress(TypeError, ValueError):
            return f"Start, at most {budget_amount(name, float(str(amount)))}"
    return "Start" if limited else "Start without a limit"


@dataclass(frozen=True, slots=True)
class Preview:
    """What is known of a skill, tasks and models before anything is spent."""

    tokens: int | None = None
    lint: Sequence[LintProblem] = ()
    tasks: RecognisedTasks | None = None
    splits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # type -> split -> items
    problem: str = ""  # why the tasks cannot be read or divided
    models: Mapping[str, Readiness] = field(default_factory=dict)  # role -> whether it can be used


async def preview_of(
    folders: Folders, settings: Mapping[str, JsonValue], filled: NewRun
) -> Preview:
    """Preview the skill, tasks and splits of the form. Only data files inside the folders are read,
    and only graders of skillfit are tried.
    """
    skill, tasks = str(settings.get("env.skill", "")), str(settings.get("env.tasks", ""))
    tokens, problems = await asyncio.to_thread(_previewed_skill, folders, skill)
    found, problem = None, ""
    splits: Mapping[str, Mapping[str, int]] = {}
    path = folders.resolve(tasks) if tasks and folders.holds(tasks) else None
    if path is not None and path.is_file() and path.suffix in FILE_SUFFIXES:
        grader = settings.get("env.grader")
        plain = isinstance(grader, str) and not re.search(r"[:{\[]", grader)
        try:
            found = await recognise(path, grader=str(grader) if plain and grader else None)
            if found.count <= _MOST_DIVIDED:
                splits = await asyncio.to_thread(_divided, folders, filled, found)
        except SkillfitError as error:
            problem = str(error)
    return Preview(tokens, problems, found, splits, problem, _readiness(settings))


def _divided(
    folders: Folders, filled: NewRun, found: RecognisedTasks
) -> Mapping[str, Mapping[str, int]]:
    """Count the items of each type in each split, as the run will divide them."""
    base: Path | dict[str, JsonValue] = folders.resolve(filled.config) if filled.config else {}
    settings = {key: value for key, value in filled.settings.items() if _decides_splits(key)}
    config = load_config(base, settings, warn=lambda message: None)
    env = config.env.model_copy(update={"tasks": str(found.path), "grader": None})
    task = load_task(env, caps=split_caps(config), grader=found.grader.setting)
    items = {"train": task.train, "selection": task.selection, "test": task.test}
    counts = {split: Counter(item.type for item in found) for split, found in items.items()}
    types = sorted({name for of_split in counts.values() for name in of_split})
    return {name: {split: counts[split][name] for split in counts} for name in types}


def _decides_splits(key: str) -> bool:
    """Return whether items are read or divided by this setting. The others may still be wrong."""
    own = ("train.train_size", "evaluation.sel_env_num", "evaluation.test_env_num")
    return key in own or key.removeprefix("env.") in (*SplitSection.model_fields, "fields")


def _previewed_skill(folders: Folders, skill: str) -> tuple[int | None, Sequence[LintProblem]]:
    if not skill or not folders.holds(skill) or not folders.resolve(skill).exists():
        return None, ()
    path = folders.resolve(skill)
    try:
        return estimate_tokens(Skill.load(path).text), lint(path)
    except (SkillfitError, OSError):  # the estimate says why
        return None, ()


def _readiness(settings: Mapping[str, JsonValue]) -> dict[str, Readiness]:
    known = {provider.name: provider for provider in known_providers()}
    found: dict[str, Readiness] = {}
    for role in ROLES:
        provider = known.get(str(settings.get(f"model.{role}", "")).partition("/")[0])
        if provider is not None:
            found[role] = provider.readiness()
    return found


def starting_page(studio: Studio, request: Request) -> Response:
    """Show a page until the run has its journal: its process is starting, or failed with a
    reason.
    """
    name = str(request.path_params["name"])
    try:
        run = studio.folders.resolve(studio.library.folder / check_run_name(name))
    except InputError as error:
        raise HTTPException(404, str(error)) from error
    if (run / JOURNAL).is_file() and _has_started(studio, name):
        return studio.go_to(run_url("run", name))
    alive = studio.starter.is_alive(run) or in_use(run)
    log = start_log(run)
    if not alive and not log:
        studio.find_name(name)  # 404
        return studio.go_to(run_url("run", name))
    config = ""
    if studio.project is not None:
        written = studio.project / f"{name}.yaml"  # by the form, when it did not start from a file
        config = studio.folders.shown(written) if written.is_file() else ""
    return studio.page(request, StartingPage(name, alive, log, config))


@dataclass(frozen=True, slots=True)
class StartingPage(PageData):
    template: ClassVar = "starting.html.j2"

    name: str
    alive: bool  # its process runs
    log: str
    config: str  # the file that the form wrote; empty when it started from another file


def _has_started(studio: Studio, name: str) -> bool:
    """Return whether training has begun. The run of a check waits for it."""
    try:
        record = studio.library.record(name)
    except SkillfitError:
        return False
    return record.has_begun and not record.only_checked


@dataclass(frozen=True, slots=True)
class NewRun:
    """A filled form: the settings that were given, by dotted key."""

    name: str
    config: str = ""  # a config file to start from; empty: the form is the whole config
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    yaml: str = ""  # settings that were written as YAML; `settings` has them too
    from_yaml: Collection[str] = ()  # their keys

    @classmethod
    def from_form(cls, form: Mapping[str, str]) -> NewRun:
        """Read what was filled in. Empty inputs are left to the defaults."""
        known = {one.key: one for one in form_fields()}
        settings: dict[str, JsonValue] = {}
        for key, text in form.items():
            one = known.get(key.removeprefix("set:"))
            if one is None or not key.startswith("set:") or not text.strip():
                continue
            settings[one.key] = _parse_field(one, text.strip())
        yaml = form.get("yaml", "").replace("\r\n", "\n")
        written = dict(_yaml_settings(yaml))
        if both := settings.keys() & written:
            raise InputError(f"{_YAML}: {min(both)} is set in the form too.")
        name, config = form.get("name", "").strip(), form.get("config", "").strip()
        return cls(name, config, settings | written, yaml, written.keys())

    def wrong_yaml(self, problem: str) -> set[str]:
        """Mark the YAML field where a message is about it."""
        return {_YAML} if any(_names(problem, key) for key in (_YAML, *self.from_yaml)) else set()

    def check(self, folders: Folders) -> None:
        """Refuse names, paths and programs that a form may not give."""
        check_run_name(self.name)
        check_settings(folders, self.settings)
        if self.config:
            folders.resolve(self.config)

    @property
    def digest(self) -> str:
        """Tells whether the form was changed since it was estimated."""
        text = json.dumps([self.config, self.settings], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def words(self, folders: Folders, config: Path) -> list[str]:
        """Return the config and the settings on top of it, for a command line."""
        return [folders.shown(config), *(self.overrides() if self.config else [])]

    def overrides(self) -> list[str]:
        """Return the settings as words of a command line."""
        return [write_override(key, value) for key, value in self.settings.items()]

    def yaml_text(self) -> str:
        """Return the settings as a config file."""
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

    def write_config(self, folders: Folders, folder: Path) -> Path:
        """Write a form without a base config to a file of its name. Returns the config to use."""
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


def _yaml_settings(text: str) -> Iterator[tuple[str, JsonValue]]:
    """Yield the settings of a YAML text by dotted key, as a form has them."""
    if not text.strip():
        return
    try:
        data: JsonValue = read_text(text)
    except InputError as error:
        raise InputError(f"{_YAML}: {error.message}") from error
    usage = f"{_YAML}: write settings as `section:` and below it `key: value`."
    if not isinstance(data, Mapping):
        raise InputError(usage)
    sections = {one.key.rpartition(".")[0] for one in form_fields()}
    for key, value in data.items():
        below = value if key in sections and isinstance(value, Mapping) else {}
        if (key in sections and not below) or not all(map(_is_name, (key, *below))):
            raise InputError(usage)
        if below:
            yield from ((f"{key}.{name}", inner) for name, inner in below.items())
        else:
            yield key, value


def _is_name(key: JsonValue) -> bool:
    return isinstance(key, str) and key.isidentifier()


def _parse_field(one: FormField, text: str) -> JsonValue:
    """Convert a field's text to the value that goes into the config."""
    if one.kind == "number":
        try:
            number = float(text)
        except ValueError as error:
            raise InputError(f"{one.key}: {shorten(text, 60)!r} is not a number.") from error
        if not math.isfinite(number):
            raise InputError(f"{one.key}: {shorten(text, 60)!r} is not a finite number.")
        return int(number) if number.is_integer() else number
    if one.choices and text not in one.choices:
        raise InputError(f"{one.key}: {shorten(text, 60)!r} is none of {', '.join(one.choices)}.")
    if one.kind == "switch":
        return text == "true"
    if text.startswith(("{", "[")) and one.key not in text_keys():
        try:
            value: JsonValue = read_text(text)
        except InputError as error:
            raise InputError(f"{one.key}: {error.message}") from error
        return value
    return text


def file_values(folders: Folders, config: str) -> dict[str, str]:
    """Return the settings of a config file that differ from the defaults, by dotted key, as
    texts.
    """
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
            text = _value_text(value)
            inside = Path(text).is_absolute() and folders.holds(text)
            values[one.key] = folders.shown(folders.resolve(text)) if inside else text
    return values


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


def form_sections() -> dict[str, list[FormField]]:
    """Group the fields that are not asked for at the top by section."""
    grouped: dict[str, list[FormField]] = {}
    for one in form_fields():
        if one.key not in _MAIN_KEYS and "." in one.key:
            grouped.setdefault(one.key.partition(".")[0], []).append(one)
    return grouped


@cache
def form_fields() -> tuple[FormField, ...]:
    """Return every key of the config that a form can set, in the schema's order."""
    schema = Config.model_json_schema()
    return tuple(_schema_fields(schema["properties"], schema["$defs"], ""))


# A JSON schema, as far as pydantic uses it for the config.
_JsonSchema = TypedDict(
    "_JsonSchema",
    {
        "$ref": str,
        "anyOf": "list[_JsonSchema]",
        "default": JsonValue,
        "description": str,
        "enum": list[str],
        "properties": "dict[str, _JsonSchema]",
        "type": str,
    },
    total=False,
)


def _schema_fields(
    properties: Mapping[str, _JsonSchema], definitions: Mapping[str, _JsonSchema], prefix: str
) -> Iterator[FormField]:
    for name, described in properties.items():
        key = f"{prefix}{name}"
        section = _schema_section(described, definitions)
        if section is not None and not key.startswith("model."):
            yield from _schema_fields(section["properties"], definitions, f"{key}.")
        else:
            yield _form_field(key, described)


def _schema_section(
    described: _JsonSchema, definitions: Mapping[str, _JsonSchema]
) -> _JsonSchema | None:
    return definitions.get(described.get("$ref", "").rpartition("/")[2])


def _form_field(key: str, described: _JsonSchema) -> FormField:
    doc = _FORM_DOCS.get(key) or " ".join(str(described.get("description", "")).split())
    default = described.get("default")
    shown = "" if default in (None, "", [], {}) else _value_text(default)
    kinds = [described.get("type"), *(part.get("type") for part in described.get("anyOf", ()))]
    if "enum" in described:
        return FormField(key, "choice", doc, shown, tuple(map(str, described["enum"])))
    if "boolean" in kinds:
        return FormField(key, "switch", doc, shown, ("true", "false"))
    if "integer" in kinds or "number" in kinds:
        return FormField(key, "number", doc, shown, step="1" if "integer" in kinds else "any")
    return FormField(key, "text", doc, shown)


def _value_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
