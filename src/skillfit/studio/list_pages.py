"""The list of runs, and several runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from skillfit.plain_text import visible
from skillfit.report import RunStory
from skillfit.report.charts import compare_chart, sparkline
from skillfit.report.html_report import PageData, flat_settings
from skillfit.report.story import EditSummary
from skillfit.report.story_evidence import by_effect
from skillfit.run.view import RunCard, RunState, ShipGain
from skillfit.skill import Hunk, diff_hunks
from skillfit.studio.site import (
    ListPage,
    NamedRun,
    NoSuchRun,
    RunIndex,
    Studio,
    number_in,
    page_of,
    stream_parts,
)

_PAGE = 50
_COMPARED = 6  # runs side by side at most
_COMPARED_EDITS = 20
_UNSET = ("null", "{}", "[]", '""')
STATES = (*get_args(RunState), "failed")


@dataclass(frozen=True, slots=True)
class RunRow:
    """One line of the list."""

    name: str
    state: str
    card: RunCard
    curve: Markup

    @property
    def ship(self) -> ShipGain | None:
        """The result on fresh rollouts, if there were some."""
        return self.card.ship if self.card.ship is not None and self.card.ship.repeats else None

    @property
    def gain(self) -> float | None:
        """On fresh rollouts if there were some, else on the selection split; None when nothing
        better was found that could be compared.
        """
        if self.card.ship is not None:
            return self.ship.difference if self.ship else None
        pair = self.card.selection
        if pair.baseline is None or pair.best is None:
            return None
        return pair.best - pair.baseline

    @property
    def models(self) -> str:
        return " ← ".join(
            self.card.models[role] for role in ("agent", "optimizer") if role in self.card.models
        )


def _row(run: NamedRun) -> RunRow:
    listed, card = run.listed, run.listed.card
    state = "failed" if card.finish_reason == "infrastructure" else listed.state
    curve = sparkline([point.score for point in card.points])
    return RunRow(run.name, state, card, curve)


def _number(value: float | None) -> float:
    return float("-inf") if value is None else value


SORTS: dict[str, Callable[[RunRow], tuple[float, str]]] = {
    "date": lambda row: (row.card.updated_at, row.name),
    "gain": lambda row: (_number(row.gain), row.name),
    "score": lambda row: (_number(row.card.score), row.name),
    "cost": lambda row: (_number(row.card.usd), row.name),
    "tokens": lambda row: (row.card.tokens, row.name),
}


@dataclass(frozen=True, slots=True)
class RunList:
    """The rows that were asked for, and how many there are of each state."""

    page: ListPage[RunRow]
    counts: dict[str, int]
    problems: tuple[str, ...]
    state: str
    search: str
    sort: str

    def sorted_by(self, sort: str) -> str:
        """The address of this list in another order."""
        chosen = {"q": self.search, "state": self.state, "sort": sort}
        return "/?" + urlencode({key: value for key, value in chosen.items() if value})


def run_list(index: RunIndex, request: Request) -> RunList:
    """Filter, search and sort as the address says."""
    query = request.query_params
    state, search = query.get("state", ""), query.get("q", "").strip()
    sort = query.get("sort", "date")
    rows = [_row(run) for run in index.runs]
    counts = dict.fromkeys(STATES, 0)
    for row in rows:
        counts[row.state] += 1
    if state in STATES:
        rows = [row for row in rows if row.state == state]
    if search:
        rows = [row for row in rows if _matches(row, search.lower())]
    if sort == "name":
        rows.sort(key=lambda row: row.name)
    else:
        rows.sort(key=SORTS.get(sort, SORTS["date"]), reverse=True)
    page = page_of(rows, number_in(request, "page"), _PAGE, query)
    return RunList(page, counts, index.problems, state, search, sort)


def _matches(row: RunRow, wanted: str) -> bool:
    texts = (row.name, row.card.skill, row.card.task, row.models, row.card.finish_reason)
    return all(any(word in text.lower() for text in texts) for word in wanted.split())


@dataclass(frozen=True, slots=True)
class RunsPage(PageData):
    template: ClassVar = "runs.html.j2"

    runs: RunList


@dataclass(frozen=True, slots=True)
class RunsTable(PageData):
    """The part of the page that is updated."""

    template: ClassVar = "runs_table.html.j2"

    runs: RunList


def index_page(studio: Studio, request: Request) -> Response:
    return studio.page(request, RunsPage(run_list(studio.library.index(), request)))


def index_live(studio: Studio, request: Request) -> Response:
    def look() -> dict[str, str]:
        return {"runs": studio.render(RunsTable(run_list(studio.library.index(), request)))}

    return stream_parts(request, look)


@dataclass(frozen=True, slots=True)
class ComparedRun:
    name: str
    story: RunStory

    @property
    def gain(self) -> float | None:
        if self.story.ship is not None:
            return self.story.ship.difference
        scores = self.story.selected()
        return scores.best - scores.initial if scores and self.story.changed else None


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting that differs between runs; empty where it is not set."""

    key: str
    values: tuple[str, ...]


def differing_settings(stories: Sequence[RunStory]) -> list[SettingRow]:
    """Settings whose values differ. Not set and null are the same."""
    flat = [
        {one.key: "" if one.value in _UNSET else one.value.strip('"') for one in settings}
        for settings in (flat_settings(story.config.root) for story in stories)
    ]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = [SettingRow(key, tuple(one.get(key, "") for one in flat)) for key in keys]
    return [row for row in rows if len(set(row.values)) > 1]


@dataclass(frozen=True, slots=True)
class EditRow:
    """An edit with the same text in some of the compared runs; None where it was not tried."""

    text: str
    found: tuple[EditSummary | None, ...]

    @property
    def largest(self) -> float:
        return max(abs(edit.mean or 0.0) for edit in self.found if edit)


def compared_edits(stories: Sequence[RunStory]) -> list[EditRow]:
    """Measured edits: those that several runs tried first, then the ones furthest from 0."""
    texts: dict[str, dict[int, EditSummary]] = {}
    for at, story in enumerate(stories):
        for edit in by_effect(story.edits):
            if edit.measured:
                texts.setdefault(edit.text.strip(), {}).setdefault(at, edit)
    rows = [
        EditRow(text, tuple(found.get(at) for at in range(len(stories))))
        for text, found in texts.items()
    ]
    rows.sort(key=lambda row: (row.found.count(None), -row.largest, row.text))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePage(PageData):
    template: ClassVar = "compare.html.j2"

    runs: Sequence[ComparedRun]
    chart: Markup
    small_chart: Markup
    settings: Sequence[SettingRow]
    edits: Sequence[EditRow]
    edits_cut: int
    left: str  # names of the two runs whose skills are compared
    right: str
    hunks: Sequence[Hunk]


def compare_page(studio: Studio, request: Request) -> Response:
    names = list(dict.fromkeys(request.query_params.getlist("run")))[:_COMPARED]
    if len(names) < 2:
        return studio.go_to("/", "Choose two or more runs to compare.")
    try:
        stories = [studio.library.story(name) for name in names]
    except NoSuchRun as error:
        raise HTTPException(404, str(error)) from error
    runs = [ComparedRun(name, story) for name, story in zip(names, stories, strict=True)]
    query = request.query_params
    left, right = (
        _chosen(names, query.get(side, ""), at) for side, at in (("old", 0), ("new", -1))
    )
    edits = compared_edits(stories)
    curves = {visible(run.name): run.story for run in runs}
    page = ComparePage(
        runs=runs,
        chart=compare_chart(curves),
        small_chart=compare_chart(curves, 340, 260, names=False),
        settings=differing_settings(stories),
        edits=edits[:_COMPARED_EDITS],
        edits_cut=max(0, len(edits) - _COMPARED_EDITS),
        left=names[left],
        right=names[right],
        hunks=diff_hunks(stories[left].found_skill, stories[right].found_skill),
    )
    return studio.page(request, page)


def _chosen(names: Sequence[str], wanted: str, usual: int) -> int:
    return names.index(wanted) if wanted in names else usual
