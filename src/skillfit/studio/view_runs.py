"""The list of runs, and several runs side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from skillfit.plain_text import visible
from skillfit.report import RunStory
from skillfit.report.html_report import flat_settings
from skillfit.report.score_chart import compare_chart, sparkline
from skillfit.report.story_evidence import by_effect
from skillfit.run.card import RunCard
from skillfit.skill import diff_hunks
from skillfit.studio.library import NamedRun, NoSuchRun, RunIndex
from skillfit.studio.site import Page, Studio, number_in, page_of, stream_parts

_PAGE = 50
_COMPARED = 6  # runs side by side at most
STATES = ("running", "waiting", "stopped", "finished", "failed")


@dataclass(frozen=True, slots=True)
class RunRow:
    """One line of the list."""

    name: str
    state: str
    card: RunCard
    curve: Markup

    @property
    def gain(self) -> float | None:
        """On fresh rollouts if there were some, else on the selection split."""
        if self.card.ship is not None:
            return self.card.ship.difference
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
    return RunRow(run.name, state, card, sparkline([point.score for point in card.points]))


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

    page: Page[RunRow]
    counts: dict[str, int]
    problems: tuple[str, ...]
    state: str
    search: str
    sort: str


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


async def index(studio: Studio, request: Request) -> Response:
    runs = await asyncio.to_thread(studio.library.index)
    return studio.page(request, "runs.html.j2", runs=run_list(runs, request))


async def index_live(studio: Studio, request: Request) -> Response:
    def look() -> dict[str, str]:
        runs = run_list(studio.library.index(), request)
        return {"runs": studio.render("runs_table.html.j2", runs=runs)}

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
        return scores.best - scores.initial if scores else None


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting that differs between runs."""

    key: str
    values: tuple[str, ...]


def differing_settings(stories: Sequence[RunStory]) -> list[SettingRow]:
    flat = [{one.key: one.value for one in flat_settings(story.config)} for story in stories]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = [SettingRow(key, tuple(one.get(key, "") for one in flat)) for key in keys]
    return [row for row in rows if len(set(row.values)) > 1]


async def compare(studio: Studio, request: Request) -> Response:
    names = list(dict.fromkeys(request.query_params.getlist("run")))[:_COMPARED]
    if len(names) < 2:
        return studio.go_to("/", "Choose two or more runs to compare.")
    try:
        stories = [await asyncio.to_thread(studio.library.story, name) for name in names]
    except NoSuchRun as error:
        raise HTTPException(404, str(error)) from error
    runs = [ComparedRun(name, story) for name, story in zip(names, stories, strict=True)]
    first, last = stories[0], stories[-1]
    return studio.page(
        request,
        "compare.html.j2",
        runs=runs,
        chart=compare_chart([(visible(run.name), run.story) for run in runs]),
        settings=differing_settings(stories),
        edits=[[edit for edit in by_effect(story.edits) if edit.measured][:8] for story in stories],
        hunks=diff_hunks(first.found_skill, last.found_skill),
    )
