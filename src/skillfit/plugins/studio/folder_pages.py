"""Pages about a folder of runs: the list, and several runs side by side.

- The address says how the list is filtered, searched and sorted. Its table is updated while the
  page is open.
- The comparison shows gains, curves, settings that differ, items, measured edits, and the skills of
  two runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, get_args
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from skillfit.intervals import Interval, interval
from skillfit.plain_text import display_name, points, visible
from skillfit.plugins.studio.new_run import DEMO_LOG
from skillfit.plugins.studio.site import (
    ListPage,
    NamedRun,
    NoSuchRun,
    RunIndex,
    Studio,
    number_in,
    page_of,
    run_url,
    steps_in,
    stream_parts,
)
from skillfit.record.record import EditRecord, Record, RunState, by_effect
from skillfit.report.charts import ForestRow, StepRange, compare_chart, forest_plot
from skillfit.report.html_report import PageData, flat_settings
from skillfit.report.run_details import ItemSummary
from skillfit.skill import Hunk, diff_hunks

_RUNS_PER_PAGE = 50
_STATES = (*get_args(RunState), "failed", "checked")
_ARCHIVED = "archived"  # as a state: other lists leave these runs out
_SORTS: dict[str, Callable[[NamedRun], float | None]] = {
    "date": lambda row: row.card.ended,
    "gain": lambda row: row.card.gain,
    "score": lambda row: row.card.listed_scores.best or row.card.score,
    "cost": lambda row: row.card.usage.usd,
    "tokens": lambda row: row.card.usage.tokens,
}
_COMPARED_RUNS = 8  # runs side by side at most
_COMPARED_ITEMS = 40
_COMPARED_EDITS = 20
_UNSET = ("null", "{}", "[]", '""')  # as flat_settings writes them


def index_page(studio: Studio, request: Request) -> Response:
    return studio.page(request, RunsPage(run_list(_index(studio), request)))


def _index(studio: Studio) -> RunIndex:
    """Return the runs of the folder, and why the demo did not start."""
    index = studio.library.index()
    failure = studio.starter.failure(studio.library.folder / DEMO_LOG)
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
        """Return the address of this list in another order, or in the opposite one."""
        turned = f"-{sort}" if sort == self.sort and not self.backwards else sort
        chosen = {"q": self.search, "state": self.state, "sort": turned}
        return "/?" + urlencode({key: value for key, value in chosen.items() if value})


def run_list(index: RunIndex, request: Request) -> RunList:
    """Filter, search and sort as the address says."""
    query = request.query_params
    state, search = query.get("state", ""), query.get("q", "").strip()
    given = query.get("sort", "date")
    sort, backwards = given.removeprefix("-"), given.startswith("-")
    rows = [row for row in index.runs if row.card.archived == (state == _ARCHIVED)]
    counts = dict.fromkeys(_STATES, 0) | {_ARCHIVED: sum(row.card.archived for row in index.runs)}
    for row in index.runs:
        counts[row.state] += not row.card.archived
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
    card = row.card
    texts = (row.name, card.skill_name, card.tasks, row.models, card.finish_reason, *card.tags)
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
    steps, curves = steps_in(request), {visible(run.name): run.record for run in runs}
    page = ComparePage(
        runs=runs,
        left_out=len(asked) - len(names),
        gains=forest_plot([_gain_row(run) for run in runs], heading="Run", longest=80),
        chart=compare_chart(curves, steps=steps),
        small_chart=compare_chart(curves, 340, 260, names=False, steps=steps),
        steps=steps,
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
    """Show the gain of a run over its own initial skill, where fresh rollouts compared the two."""
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
class ComparedItem:
    """An item under the latest skill of each compared run; None where a run did not measure it."""

    id: str
    input: str
    scores: tuple[float | None, ...]

    @property
    def order(self) -> tuple[float, float, str]:
        """Items on which the runs differ most come first, then those with low scores."""
        known = [score for score in self.scores if score is not None]
        return min(known) - max(known), sum(known) / len(known), self.id


def compared_items(runs: Sequence[ComparedRun]) -> list[ComparedItem]:
    """Return the items that two runs or more have measured."""
    rows = []
    for item in dict.fromkeys(item for run in runs for item in run.items):
        found = [run.items.get(item) for run in runs]
        scores = tuple(one.result.mean if one else None for one in found)
        if sum(score is not None for score in scores) > 1:
            rows.append(ComparedItem(item, next(one.input for one in found if one), scores))
    return sorted(rows, key=lambda row: row.order)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How the skills of two runs differ on the items that both have measured."""

    items: int
    difference: Interval  # 90 %


def paired_difference(left: ComparedRun, right: ComparedRun) -> PairedDifference | None:
    """Compare two runs by the items that both measured; None where they have none in common."""
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
    steps: StepRange | None  # that the chart shows; None: all
    settings: Sequence[SettingRow]
    edits: Sequence[EditRow]
    edits_cut: int
    items: Sequence[ComparedItem]
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
    """Return the settings whose values differ. Not set and null are the same; what a run did not
    record has its default.
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
    """Return measured edits: those that several runs tried first, then the ones furthest from 0."""
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
