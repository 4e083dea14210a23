"""The reports of runs: one HTML file that loads nothing from elsewhere, or markdown for a pull
request. `skillfit ablate` has its own report.

The studio's pages use the same parts: the template environment with its filters, the lines of a
skill with their margin, and the settings of a run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from skillfit.atomic_write import write_whole
from skillfit.config import Config, map_paths
from skillfit.errors import InputError
from skillfit.extensions import JsonValue
from skillfit.intervals import Interval
from skillfit.models.protocol import ROLES
from skillfit.models.registry import ModelSpec
from skillfit.plain_text import (
    display_name,
    dollars,
    duration,
    percent,
    points,
    quantity,
    shorten,
    visible,
    work_name,
)
from skillfit.record.evidence import TriedFailure
from skillfit.record.fold import read_record
from skillfit.record.record import (
    EditRecord,
    GateSummary,
    Record,
    RunNotice,
    by_effect,
)
from skillfit.record.text import (
    UNPRICED,
    Fact,
    ScoreComparison,
    ablation_sentence,
    comparisons,
    facts,
    lift_sentence,
    next_commands,
    verdict_in_short,
)
from skillfit.report.card import card_url, share_card
from skillfit.report.charts import (
    ForestRow,
    axis_span,
    candidates_plot,
    edit_row,
    effect_bar,
    forest_plot,
    kind_points,
    score_chart,
)
from skillfit.report.run_details import (
    ItemChange,
    ItemResult,
    ItemSummary,
    Trajectory,
    count_changes,
    open_details,
    types_of,
    worst_first,
)
from skillfit.run.events import AblationFinished, Discarded
from skillfit.run.records import EvidenceWord, RecordedConfig, TypeSummary, UnitWorth
from skillfit.skill import MOVE_OP, Skill, diff
from skillfit.skill.regions import code_fence, scan

_ITEMS = 600  # listed in the file
_PAGE = 25  # items or rows shown at once
_EDITS = 60  # rows of the forest plot
_FAILURES = 60
_REJECTIONS = 200
_ABSOLUTE_PATH = re.compile(r"""(?<=["':=\s])/(?!/)[^\s:"',]+""")  # in settings as JSON
_MARKDOWN_EDITS = 20
_MARKDOWN_NOTICES = 30
ASSETS = Path(__file__).parent / "assets"
PagedRow = TypeVar("PagedRow")


@dataclass(frozen=True)
class PageData:
    """Base class: the data of a page. Its fields are the names that the template uses."""

    template: ClassVar[str]

    def render(self, environment: Environment, part: str = "", **shared: object) -> str:
        """Render the page, or a part of it with a template of its own. `shared`: names of all
        pages.
        """
        names = {one.name: getattr(self, one.name) for one in fields(self)}
        return environment.get_template(part or self.template).render({**names, **shared})


def write_report(
    run_dir: Path, out: Path | None = None, *, format: str = "html", share: bool = False
) -> Path:
    """Write the report of the run in `run_dir`, finished or not, and return its path: `out`, by
    default report.html or report.md in the run. `share` leaves out the paths of this machine.
    """
    if format not in ("html", "md"):
        raise InputError(f"Unknown report format {format!r}.", hint="Use html or md.")
    record = read_record(run_dir)
    text = markdown_report(record) if format == "md" else html_report(record)
    if share:
        text = without_paths(text, record)
    path = out or Path(run_dir) / f"report.{format}"
    write_whole(path, text.encode())
    return path


def html_report(record: Record) -> str:
    """Render the self-contained page, with the trajectories of the items it lists."""
    if record.ablation is not None:
        return ablation_report(record.ablation, record.skill_name, record.initial_skill)
    with open_details(Path(record.path)) as details:
        items = worst_first(details.compared_items(record))
        trajectories = details.trajectories(items[:_ITEMS])
    return _report_page(record, items, trajectories).render(report_environment())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage(PageData):
    template: ClassVar = "report.html.j2"

    record: Record
    title: str
    facts: Sequence[Fact]
    chart: Markup
    small_charts: Sequence[Markup]
    sections: Mapping[str, str]  # id -> title, of those that the page has
    forest: Markup
    candidates: Markup
    shown_edits: Sequence[EditRecord]
    edits_cut: int
    edits_measured: bool
    lines: Sequence[SkillLine]
    files: Mapping[str, Sequence[SkillLine]]  # of the skill that changed
    failing: Sequence[ItemSummary]
    items_compared: int
    places: Mapping[str, int]  # of listed items, by id
    types: Sequence[TypeSummary]
    changes: Mapping[ItemChange, int]
    compared: bool
    items: Sequence[ItemSummary]
    item_pages: Sequence[Sequence[ItemSummary]]
    items_cut: int
    gate_pages: Sequence[Sequence[GateSummary]]
    failures: Sequence[TriedFailure]
    failures_cut: int
    rejections: Sequence[Discarded]
    rejections_cut: int
    settings: ShownSettings
    commands: Sequence[str]
    trajectories: Mapping[str, Trajectory]
    card: str
    script: Markup
    style: Markup


def _report_page(
    record: Record, items: Sequence[ItemSummary], trajectories: Mapping[str, Trajectory]
) -> ReportPage:
    edits = by_effect(record.edits)
    failures = record.failures
    listed = items[:_ITEMS]
    failing = [item for item in items if item.fails]
    types = types_of(items) or record.types
    trained = not record.only_measures
    sections = {
        "scores": trained and "Scores",
        "failing": bool(failing) and "What still fails",
        "edits": trained and "Edits",
        "skill": "The skill",
        "types": bool(types) and "By type",
        "items": bool(items) and "Items",
        "steps": trained and "Steps",
        "failures": bool(failures) and "Failures in training",
        "rejections": bool(record.rejections) and "Rejected proposals",
        "decisions": bool(record.decisions) and "Decisions by people",
        "notices": bool(record.notices) and "Notices",
        "cost": "Cost",
        "about": "About this run",
    }
    return ReportPage(
        record=record,
        title=f"{record.skill_name}: skillfit report",
        facts=facts(record),
        chart=score_chart(record),
        small_charts=[
            score_chart(record, 340, 260, ["selection"]),
            score_chart(record, 340, 260, ["ship", "test"]),
        ],
        sections={key: title for key, title in sections.items() if title},
        forest=forest_plot([edit_row(edit) for edit in _main_edits(edits)]),
        candidates=candidates_plot(record.gates),
        shown_edits=_main_edits(edits),
        edits_cut=max(0, len(edits) - _EDITS),
        edits_measured=any(edit.effect for edit in edits),
        lines=skill_lines(record.found_skill, record.edits),
        files={
            name: skill_lines(text, record.edits, name) for name, text in record.found_files.items()
        },
        failing=failing,
        items_compared=len(items),
        places={item.id: at for at, item in enumerate(listed)},
        types=types,
        changes=count_changes(items),
        compared=any(item.difference is not None for item in items),
        items=listed,
        item_pages=_pages(listed),
        items_cut=len(items) - len(listed),
        gate_pages=_pages(record.gates),
        failures=failures[:_FAILURES],
        failures_cut=max(0, len(failures) - _FAILURES),
        rejections=record.rejections[:_REJECTIONS],
        rejections_cut=max(0, len(record.rejections) - _REJECTIONS),
        settings=settings_of_config(record.config),
        commands=next_commands(record),
        trajectories=trajectories,
        card=card_url(share_card(record)),
        script=asset("report.js"),
        style=asset("base.css") + asset("report.css"),
    )


def _main_edits(edits: Sequence[EditRecord]) -> Sequence[EditRecord]:
    """Choose the rows of the plot: when there are too many, those in the skill and those furthest
    from 0, in the given order.
    """
    if len(edits) <= _EDITS:
        return edits
    strongest = sorted(edits, key=lambda edit: (not edit.in_best, -abs(edit.mean or 0.0)))[:_EDITS]
    kept = {edit.id for edit in strongest}
    return [edit for edit in edits if edit.id in kept]


def _pages(rows: Sequence[PagedRow]) -> list[Sequence[PagedRow]]:
    return [rows[at : at + _PAGE] for at in range(0, len(rows), _PAGE)]


def without_paths(text: str, record: Record) -> str:
    """Remove the folders of this machine from the page: only file names are left."""
    folders = {str(Path(record.path).parent), str(Path.home()), str(Path.cwd())}
    for path in (record.data.skill, record.data.tasks, *_named_paths(record.config)):
        if path.startswith("/"):
            folders.add(str(Path(path).parent))
    for folder in sorted(folders, key=len, reverse=True):
        if len(folder) < 2:
            continue
        for written in {folder, html.escape(folder), json.dumps(folder)[1:-1]}:
            text = text.replace(f"{written}/", "").replace(written, "…")
    return text.replace("~/", "")


def _named_paths(config: RecordedConfig) -> list[str]:
    """Return the paths that the settings name, also those inside commands and names of task
    sources.
    """
    paths: list[str] = []

    def collect(_: str, path: str) -> str:
        paths.append(path)
        return path

    map_paths(config.root, collect)
    # local/PATH.gguf names a file of this machine
    paths += [spec.id.partition("/")[2] for spec in config.settings.model.by_role().values()]
    for setting in flat_settings(config.root):
        paths += _ABSOLUTE_PATH.findall(setting.value)
    return paths


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkdownPage(PageData):
    template: ClassVar = "report.md.j2"

    record: Record
    rows: Sequence[ScoreComparison]
    fence: str
    diff: str
    cost: str
    edits: Sequence[EditRecord]
    notices: Sequence[RunNotice]


def markdown_report(record: Record) -> str:
    text = diff(record.initial, record.found)
    cost = dollars(record.usage.usd) or UNPRICED
    used = (
        f"{quantity(record.usage.calls, 'call')}, {quantity(record.usage.tokens, 'token')}, {cost}"
    )
    page = MarkdownPage(
        record=record,
        rows=comparisons(record),
        fence=code_fence(text),
        diff=text,
        cost=used,
        edits=[edit for edit in by_effect(record.edits) if edit.effect][:_MARKDOWN_EDITS],
        notices=record.notices[:_MARKDOWN_NOTICES],
    )
    return page.render(report_environment().overlay(autoescape=False))


def write_ablation_report(
    event: AblationFinished, skill_name: str, out: Path, skill: str = ""
) -> Path:
    """Write the page of an ablation and return its path. `skill`: the whole text, to show it with
    the worth of each part in the margin.
    """
    write_whole(out, ablation_report(event, skill_name, skill).encode())
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationPage(PageData):
    template: ClassVar = "ablation.html.j2"

    title: str
    skill_name: str
    event: AblationFinished
    verdict: str
    forest: Markup
    lines: Sequence[SkillLine]
    script: Markup
    style: Markup


def ablation_report(event: AblationFinished, skill_name: str, skill: str = "") -> str:
    page = AblationPage(
        title=f"{skill_name}: what each part is worth",
        skill_name=skill_name,
        event=event,
        verdict=ablation_sentence(event),
        forest=unit_forest(event),
        lines=unit_lines(skill, event.units) if skill else (),
        script=asset("report.js"),
        style=asset("base.css") + asset("report.css"),
    )
    return page.render(report_environment())


def unit_forest(event: AblationFinished) -> Markup:
    """Draw the parts from the most to the least valuable."""
    units = sorted(event.units, key=lambda unit: (-unit.mean, unit.start))
    return forest_plot(
        [_unit_row(unit) for unit in units], heading="Part of the skill", longest=240
    )


def _unit_row(unit: UnitWorth) -> ForestRow:
    return ForestRow(
        label=unit.text,
        effect=unit.worth,
        status=unit.decision,
        note="; ".join([f"{unit.id}, {unit.tokens} tokens", *map(kind_points, unit.kinds)]),
        id=unit.id,
        rollouts=unit.rollouts,
    )


@dataclass(frozen=True, slots=True)
class SkillLine:
    """One line of a skill."""

    number: int
    text: str
    edit: EditRecord | None = None  # the edit that wrote it; None: initial text
    first: bool = False  # the first line of its edit or part, where the margin has its text
    label: str = ""  # for the margin: where the line comes from, or what is to be done with it
    evidence: EvidenceWord | None = None  # of its edit; None: initial text that was not measured
    worth: Interval | None = None  # of its edit or part: a difference of the mean score, 80 %
    mark: str = ""  # added: by an edit; removed: it can be cut
    region: str = ""  # protected, slow_update, appendix, examples; empty: free text
    frontmatter: bool = False
    unmeasured: bool = False  # the first line of free text of which no worth is known


def skill_lines(text: str, edits: Iterable[EditRecord], file: str = "") -> tuple[SkillLine, ...]:
    """Return the document, or another file of the skill, with the origin and worth of each line."""
    origins = _origins(edits, file)
    regions = _regions(text)
    head_lines = Skill.from_text(text).head.count("\n")
    lines, last, unknown = [], "", False
    for number, line in enumerate(_split(text), 1):
        edit = origins.get(line.strip()) if line.strip() else None
        free = number > head_lines and number not in regions and not line.startswith("#")
        measurable = bool(line.strip()) and free and edit is None
        lines.append(
            SkillLine(
                number=number,
                text=line,
                edit=edit,
                first=edit is not None and edit.id != last,
                label=_origin(edit),
                evidence=edit.text_evidence if edit else None,
                worth=edit.worth if edit else None,
                mark="added" if edit is not None and edit.step else "",
                region=regions.get(number, ""),
                frontmatter=number <= head_lines,
                unmeasured=measurable and not unknown,
            )
        )
        if line.strip():
            last, unknown = edit.id if edit else "", measurable
    return tuple(lines)


def unit_lines(text: str, units: Iterable[UnitWorth], file: str = "") -> tuple[SkillLine, ...]:
    """Return the document of an ablation, or another file of the skill, with the worth of each part
    beside its first line.
    """
    of_file = [unit for unit in units if unit.file == file]
    parts = {number: unit for unit in of_file for number in range(unit.start, unit.end + 1)}
    regions = _regions(text)
    head_lines = Skill.from_text(text).head.count("\n")
    lines = []
    for number, line in enumerate(_split(text), 1):
        unit = parts.get(number)
        lines.append(
            SkillLine(
                number=number,
                text=line,
                first=unit is not None and unit.start == number,
                label=unit.decision if unit else "",
                worth=unit.worth if unit else None,
                mark="removed" if unit and unit.decision == "cut" else "",
                region=regions.get(number, ""),
                frontmatter=number <= head_lines,
            )
        )
    return tuple(lines)


def _origin(edit: EditRecord | None) -> str:
    if edit is None:
        return ""
    return f"step {edit.step}" if edit.step else "initial text"


def _split(text: str) -> Sequence[str]:
    lines = text.split("\n")
    return lines[:-1] if lines and lines[-1] == "" else lines


def _origins(edits: Iterable[EditRecord], file: str) -> dict[str, EditRecord]:
    """Return the edit that wrote each line of a file. Of several edits with the same line it is the
    one in the skill. Text that moved is in its new file, and its pointer in the body.
    """
    origins: dict[str, EditRecord] = {}
    for edit in sorted(edits, key=lambda edit: (not edit.in_best, edit.rank)):
        moves = edit.edit.op == MOVE_OP
        if edit.edit.file != file and not (moves and not file):
            continue
        initial_text = (edit.step == 0 and edit.edit.op == "delete") or (moves and file)
        for line in (edit.edit.target if initial_text else edit.edit.content).splitlines():
            if line.strip():
                origins.setdefault(line.strip(), edit)
    return origins


def _regions(text: str) -> dict[int, str]:
    """Map the numbers of protected lines to the kind of region they are in."""
    found: dict[int, str] = {}
    for region in scan(text):
        first = text.count("\n", 0, region.start) + 1
        last = text.count("\n", 0, region.end) + 1
        found |= dict.fromkeys(range(first, last + 1), region.kind)
    return found


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class ShownSettings:
    """The settings of a run: those that differ from the defaults, and the others."""

    changed: tuple[Setting, ...]
    default: tuple[Setting, ...]


def settings_of_config(config: RecordedConfig) -> ShownSettings:
    usual = {
        setting.key: setting.value for setting in flat_settings(Config().model_dump(mode="json"))
    }
    for role in ROLES:
        for setting in flat_settings(ModelSpec(id="").model_dump(mode="json"), f"model.{role}."):
            usual.setdefault(setting.key, setting.value)
    home = str(Path.home())
    changed: list[Setting] = []
    default: list[Setting] = []
    for setting in flat_settings(config.root):
        shown = Setting(setting.key, setting.value.replace(home, "~").strip('"'))
        same = usual.get(setting.key) == setting.value
        (default if same else changed).append(shown)
    return ShownSettings(tuple(changed), tuple(default))


def flat_settings(settings: Mapping[str, JsonValue], prefix: str = "") -> list[Setting]:
    """Flatten the settings to dotted keys with their values as JSON."""
    rows: list[Setting] = []
    for name, item in settings.items():
        if isinstance(item, Mapping) and item:
            rows += flat_settings(item, f"{prefix}{name}.")
        else:
            rows.append(Setting(prefix + name, json.dumps(item, ensure_ascii=False, default=str)))
    return rows


def _visible_text(value: object) -> object:
    """Replace hidden characters in the value of a template by visible escapes. Our own markup is
    left alone.
    """
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value


def _code_marks(text: str) -> Markup:
    """Render `backticks` as code."""
    parts = visible(text).split("`")
    shown = [
        Markup("<code>{}</code>" if at % 2 else "{}").format(part) for at, part in enumerate(parts)
    ]
    return Markup("").join(shown)


def _item_score(result: ItemResult) -> str:
    """Format an item's result: "2/3" for 0 and 1 scores, a percentage for graded ones."""
    if not result.scores:
        return "failed" if result.failures else "–"
    if set(result.scores) <= {0.0, 1.0}:
        return f"{sum(result.scores):.0f}/{len(result.scores)}"
    return percent(result.mean or 0.0)


def _date(at: float | None) -> str:
    """Format a time as this machine's clock shows it."""
    if at is None:
        return ""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")


def _content_hash(text: str) -> str:
    """Return the hash with which a Content-Security-Policy allows an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_FILTERS: dict[str, Callable[..., Any]] = {
    "bar": effect_bar,
    "span": lambda lines: axis_span([line.worth for line in lines]),
    "kind_points": kind_points,
    "code": _code_marks,
    "in_short": verdict_in_short,
    "content_hash": _content_hash,
    "words": display_name,
    "work": work_name,
    "short": shorten,
    "line": lambda text: " ".join(text.split()),
    "percent": percent,
    "points": points,
    "score": _item_score,
    "dollars": dollars,
    "quantity": quantity,
    "duration": duration,
    "date": _date,
    "lift": lift_sentence,
    "thousands": lambda number: f"{number:,}",
}


def make_environment(*packages: str) -> Environment:
    """Load templates from these packages' `assets` folders, the first that has a name winning.
    Every text is escaped, and hidden characters are shown.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "assets") for package in packages]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_visible_text,
    )
    environment.filters.update(_FILTERS)
    return environment


@cache
def report_environment() -> Environment:
    return make_environment("skillfit.report")


@cache
def asset(name: str) -> Markup:
    """Return a file of this package as markup that is not escaped."""
    return Markup((ASSETS / name).read_text(encoding="utf-8"))
