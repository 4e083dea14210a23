"""Pages about a folder of runs: the list, several runs side by side, and the form for a new run.

- The address says how the list is filtered, searched and sorted. Its table is updated while the
  page is open.
- The comparison shows settings that differ, measured edits, and the skills of two runs.
- The form has one input per key of the config; it is made from the config's schema. A filled form
  is written as a config file, or overrides the settings of a file that was chosen. Estimate, check
  and start are the commands of that name, in a process of their own. `starting_page` is shown until
  the started run has its journal.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import ClassVar, Literal, TypedDict, get_args
from urllib.parse import urlencode

import yaml
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from skillfit.atomic_write import write_whole
from skillfit.config import Config, load_config
from skillfit.config.reading import text_keys, write_override
from skillfit.config.yaml_source import read_text
from skillfit.errors import InputError, SkillfitError
from skillfit.extensions import JsonValue
from skillfit.intervals import Interval, interval
from skillfit.models import known_providers
from skillfit.models.protocol import ROLES
from skillfit.models.registry import Readiness
from skillfit.plain_text import budget_amount, display_name, points, shorten, visible
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
    ListPage,
    NamedRun,
    NoSuchRun,
    RunIndex,
    Studio,
    number_in,
    page_of,
    run_url,
    stream_parts,
)
from skillfit.record.record import EditRecord, Record, RunState, by_effect
from skillfit.report.charts import ForestRow, compare_chart, forest_plot
from skillfit.report.html_report import PageData, flat_settings
from skillfit.report.run_details import ItemSummary
from skillfit.run.store import JOURNAL, in_use
from skillfit.skill import Hunk, Skill, diff_hunks, estimate_tokens
from skillfit.skill.lint import LintProblem, lint
from skillfit.tasks.recognise import RecognisedTasks, recognise
from skillfit.tasks.rows import FILE_SUFFIXES

_RUNS_PER_PAGE = 50
_STATES = (*get_args(RunState), "failed", "checked")
_SORTS: dict[str, Callable[[NamedRun], float | None]] = {
    "date": lambda row: row.card.ended,
    "gain": lambda row: row.card.gain,
    "score": lambda row: row.card.score,
    "cost": lambda row: row.card.usage.usd,
    "tokens": lambda row: row.card.usage.tokens,
}
_COMPARED_RUNS = 8  # runs side by side at most
_COMPARED_ITEMS = 40
_COMPARED_EDITS = 20
_UNSET = ("null", "{}", "[]", '""')  # as flat_settings writes them
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
_DEMO_LOG = ".demo"  # the folder for the output of the demo's process
_MADE_HERE = "# Made in skillfit studio."
_CHECK_SECONDS = 1_800.0


def index_page(studio: Studio, request: Request) -> Response:
    return studio.page(request, RunsPage(run_list(_index(studio), request)))


def _index(studio: Studio) -> RunIndex:
    """The runs of the folder, and why the demo did not start."""
    index = studio.library.index()
    failure = studio.starter.failure(studio.library.folder / _DEMO_LOG)
    return replace(index, problems=(*index.problems, failure)) if failure else index


def index_live(studio: Studio, request: Request) -> Response:
    def look() -> dict[str, str]:
        return {"runs": studio.render(RunsTable(run_list(_index(studio), request)))}

    return stream_parts(studio, request, look)


@dataclass(frozen=True, slots=True)
class RunsPage(PageData):
    template: ClassVar = "runs.html.j2"

    runs: RunList


@dataclass(frozen=True, slots=True)
class RunsTable(PageData):
    """The part of the page that is updated."""

    template: ClassVar = "runs_table.html.j2"

    runs: RunList


@dataclass(frozen=True, slots=True)
class RunList:
    """The rows that were asked for, and how many there are of each state."""

    page: ListPage[NamedRun]
    counts: dict[str, int]
    problems: tuple[str, ...]
    state: str
    search: str
    sort: str
    backwards: bool

    def sorted_by(self, sort: str) -> str:
        """The address of this list in another order, or in the opposite one."""
        turned = f"-{sort}" if sort == self.sort and not self.backwards else sort
        chosen = {"q": self.search, "state": self.state, "sort": turned}
        return "/?" + urlencode({key: value for key, value in chosen.items() if value})


def run_list(index: RunIndex, request: Request) -> RunList:
    """Filter, search and sort as the address says."""
    query = request.query_params
    state, search = query.get("state", ""), query.get("q", "").strip()
    given = query.get("sort", "date")
    sort, backwards = given.removeprefix("-"), given.startswith("-")
    rows = [*index.runs]
    counts = dict.fromkeys(_STATES, 0)
    for row in rows:
        counts[row.state] += 1
    if state in _STATES:
        rows = [row for row in rows if row.state == state]
    if search:
        rows = [row for row in rows if _matches(row, search.lower())]
    rows.sort(key=lambda row: row.name, reverse=sort == "name" and backwards)
    if sort != "name":
        value = _SORTS.get(sort, _SORTS["date"])
        known = [(found, row) for row in rows if (found := value(row)) is not None]
        known.sort(key=lambda pair: pair[0], reverse=not backwards)
        rows = [row for _, row in known] + [row for row in rows if value(row) is None]
    page = page_of(rows, number_in(request, "page"), _RUNS_PER_PAGE, query)
    return RunList(page, counts, index.problems, state, search, sort, backwards)


def _matches(row: NamedRun, wanted: str) -> bool:
    texts = (row.name, row.card.skill_name, row.card.tasks, row.models, row.card.finish_reason)
    return all(any(word in text.lower() for text in texts) for word in wanted.split())


def compare_page(studio: Studio, request: Request) -> Response:
    asked = list(dict.fromkeys(request.query_params.getlist("run")))
    names = asked[:_COMPARED_RUNS]
    if len(names) < 2:
        return studio.go_to("/", "Choose two or more runs to compare.")
    try:
        followed = [studio.library.follow(studio.library.find(name)) for name in names]
        runs = [
            ComparedRun(name, run.record(), {item.id: item for item in run.items()})
            for name, run in zip(names, followed, strict=True)
        ]
    except NoSuchRun as error:
        raise HTTPException(404, str(error)) from error
    records, query = [run.record for run in runs], request.query_params
    left, right = (
        _chosen_run(names, query.get(side, ""), at) for side, at in (("old", 0), ("new", -1))
    )
    edits, items = compared_edits(records), compared_items(runs)
    curves = {visible(run.name): run.record for run in runs}
    page = ComparePage(
        runs=runs,
        left_out=len(asked) - len(names),
        gains=forest_plot([_gain_row(run) for run in runs], heading="Run", longest=80),
        chart=compare_chart(curves),
        small_chart=compare_chart(curves, 340, 260, names=False),
        settings=differing_settings(records),
        edits=edits[:_COMPARED_EDITS],
        edits_cut=max(0, len(edits) - _COMPARED_EDITS),
        items=items[:_COMPARED_ITEMS],
        items_cut=max(0, len(items) - _COMPARED_ITEMS),
        left=names[left],
        right=names[right],
        paired=paired_difference(runs[left], runs[right]),
        hunks=diff_hunks(records[left].found_skill, records[right].found_skill),
    )
    return studio.page(request, page)


def _gain_row(run: ComparedRun) -> ForestRow:
    """The gain of a run over its own initial skill, where fresh rollouts compared the two."""
    record, ship = run.record, run.record.compared
    effect = Interval(ship.difference, *ship.interval) if ship and ship.interval else None
    notes = [f"{record.skill_name} for {record.agent or 'your own agent'}"]
    if effect is None and run.gain is not None:
        notes.append(f"{points(run.gain)} points on the selection split, not verified")
    status = display_name(record.finish_reason) if record.finish_reason else record.state
    return ForestRow(
        label=run.name,
        effect=effect,
        status=f"{status}, {record.doubt}" if record.doubt and effect else status,
        note="; ".join(notes),
        href=run_url("run", run.name),
        rollouts=2 * ship.pairs if ship else None,
    )


@dataclass(frozen=True, slots=True)
class ItemRow:
    """An item under the latest skill of each compared run; None where a run did not measure it."""

    id: str
    input: str
    scores: tuple[float | None, ...]

    @property
    def order(self) -> tuple[float, float, str]:
        """Items on which the runs differ most come first, then those with low scores."""
        known = [score for score in self.scores if score is not None]
        return min(known) - max(known), sum(known) / len(known), self.id


def compared_items(runs: Sequence[ComparedRun]) -> list[ItemRow]:
    """The items that two runs or more have measured."""
    rows = []
    for item in dict.fromkeys(item for run in runs for item in run.items):
        found = [run.items.get(item) for run in runs]
        scores = tuple(one.result.mean if one else None for one in found)
        if sum(score is not None for score in scores) > 1:
            rows.append(ItemRow(item, next(one.input for one in found if one), scores))
    return sorted(rows, key=lambda row: row.order)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How the skills of two runs differ on the items that both have measured."""

    items: int
    difference: Interval  # 90 %


def paired_difference(left: ComparedRun, right: ComparedRun) -> PairedDifference | None:
    """None where they have no item in common."""
    differences = []
    for item, first in left.items.items():
        second = right.items.get(item)
        before, after = first.result.mean, second.result.mean if second else None
        if before is not None and after is not None:
            differences.append(after - before)
    return PairedDifference(len(differences), interval(differences)) if differences else None


def _chosen_run(names: Sequence[str], wanted: str, usual: int) -> int:
    return names.index(wanted) if wanted in names else usual


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePage(PageData):
    template: ClassVar = "compare.html.j2"

    runs: Sequence[ComparedRun]
    left_out: int  # runs that were chosen too
    gains: Markup
    chart: Markup
    small_chart: Markup
    settings: Sequence[SettingRow]
    edits: Sequence[EditRow]
    edits_cut: int
    items: Sequence[ItemRow]
    items_cut: int
    left: str  # names of the two runs whose skills are compared
    right: str
    paired: PairedDifference | None
    hunks: Sequence[Hunk]


@dataclass(frozen=True, slots=True)
class ComparedRun:
    name: str
    record: Record
    items: Mapping[str, ItemSummary]

    @property
    def gain(self) -> float | None:
        """The gain; of a run that has not ended, the best score so far minus the first one."""
        scores = self.record.selection_scores()
        if self.record.finish_reason or scores is None or not self.record.changed:
            return self.record.gain
        initial, best = scores
        return best - initial


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting that differs between runs; empty where it is not set."""

    key: str
    values: tuple[str, ...]


def differing_settings(records: Sequence[Record]) -> list[SettingRow]:
    """Settings whose values differ. Not set and null are the same; what a run did not record has
    its default.
    """
    flat = [
        {one.key: "" if one.value in _UNSET else one.value.strip('"') for one in settings}
        for settings in (
            flat_settings(record.config.settings.model_dump(mode="json")) for record in records
        )
    ]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = [SettingRow(key, tuple(one.get(key, "") for one in flat)) for key in keys]
    return [row for row in rows if len(set(row.values)) > 1]


@dataclass(frozen=True, slots=True)
class EditRow:
    """An edit with the same text in some of the compared runs; None where it was not tried."""

    text: str
    found: tuple[EditRecord | None, ...]

    @property
    def largest(self) -> float:
        return max(abs(edit.mean or 0.0) for edit in self.found if edit)


def compared_edits(records: Sequence[Record]) -> list[EditRow]:
    """Measured edits: those that several runs tried first, then the ones furthest from 0."""
    texts: dict[str, dict[int, EditRecord]] = {}
    for at, record in enumerate(records):
        for edit in by_effect(record.edits):
            if edit.effect:
                texts.setdefault(edit.text.strip(), {}).setdefault(at, edit)
    rows = [
        EditRow(text, tuple(found.get(at) for at in range(len(records))))
        for text, found in texts.items()
    ]
    rows.sort(key=lambda row: (row.found.count(None), -row.largest, row.text))
    return rows


async def new_page(studio: Studio, request: Request) -> Response:
    """The form; with POST its price, its check, or the start of the run. Only a check or a start
    write: the price is that of a file that is removed again.
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
    filled = NewRun(texts.get("name", ""), texts.get("config", ""), _setting_texts(texts))
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
    studio.starter.start(folder / _DEMO_LOG, arguments)
    return studio.go_to("/", "The demo is starting. It appears here in a few seconds.")


async def _estimated(studio: Studio, filled: NewRun, project: Path) -> CommandResult:
    """What `skillfit estimate` says about the form, which is written for this time only."""
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
    """Why no run can be started here, and the command for a studio in which that is possible."""
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
        project=str(studio.project),
        problem=problem,
        wrong=named_settings(problem),
        result=result,
        kind=kind,
        changed=changed,
        limited=limited,
        start_label=_start_label({**given, **filled.settings}, limited=limited),
        digest=filled.digest if kind and not problem else "",
        preview=await preview_of(folders, {**given, **filled.settings}),
        by_key={one.key: one for one in form_fields()},
        sections=form_sections(),
        skills=[folders.shown(path) for path in folders.skills()],
        tasks=[folders.shown(path) for path in folders.tasks()],
        configs=configs,
    )
    return studio.page(request, page, 400 if problem else 200)


def named_settings(problem: str) -> set[str]:
    """The settings that a message names, to mark their inputs."""
    keys = (one.key for one in form_fields())
    found = {key for key in keys if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w])", problem)}
    return {key for key in found if not any(other.startswith(f"{key}.") for other in found)}


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
    problem: str = ""  # why the tasks cannot be read
    models: Mapping[str, Readiness] = field(default_factory=dict)  # role -> whether it can be used


async def preview_of(folders: Folders, settings: Mapping[str, JsonValue]) -> Preview:
    """Only data files inside the folders are read, and only graders of skillfit are tried."""
    skill, tasks = str(settings.get("env.skill", "")), str(settings.get("env.tasks", ""))
    tokens, problems = await asyncio.to_thread(_previewed_skill, folders, skill)
    found, problem = None, ""
    path = folders.resolve(tasks) if tasks and folders.holds(tasks) else None
    if path is not None and path.is_file() and path.suffix in FILE_SUFFIXES:
        grader = settings.get("env.grader")
        plain = isinstance(grader, str) and not re.search(r"[:{\[]", grader)
        try:
            found = await recognise(path, grader=str(grader) if plain and grader else None)
        except SkillfitError as error:
            problem = str(error)
    return Preview(tokens, problems, found, problem, _readiness(settings))


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
    """The page until the run has its journal: its process is starting, or failed with a reason."""
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

    @classmethod
    def from_form(cls, form: Mapping[str, str]) -> NewRun:
        """What was filled in. Empty inputs are left to the defaults."""
        known = {one.key: one for one in form_fields()}
        settings: dict[str, JsonValue] = {}
        for key, text in form.items():
            one = known.get(key.removeprefix("set:"))
            if one is None or not key.startswith("set:") or not text.strip():
                continue
            settings[one.key] = _parse_field(one, text.strip())
        return cls(form.get("name", "").strip(), form.get("config", "").strip(), settings)

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
        """The config and the settings on top of it, for a command line."""
        return [folders.shown(config), *(self.overrides() if self.config else [])]

    def overrides(self) -> list[str]:
        """The settings as words of a command line."""
        return [write_override(key, value) for key, value in self.settings.items()]

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


def _parse_field(one: FormField, text: str) -> JsonValue:
    """A field's text as the value that goes into the config."""
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
    """The fields that are not asked for at the top, by section."""
    grouped: dict[str, list[FormField]] = {}
    for one in form_fields():
        if one.key not in _MAIN_KEYS and "." in one.key:
            grouped.setdefault(one.key.partition(".")[0], []).append(one)
    return grouped


@cache
def form_fields() -> tuple[FormField, ...]:
    """Every key of the config that a form can set, in the schema's order."""
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
