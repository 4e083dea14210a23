"""A run and its parts: overview, step, edit, skill, items, item, rollout, image, report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from skillfit.report import RunStory, open_run
from skillfit.report.ablation_report import unit_forest
from skillfit.report.forest import ForestRow, edit_row, effect_history, forest_plot
from skillfit.report.html_report import html_report
from skillfit.report.report_facts import facts, next_commands
from skillfit.report.report_settings import settings_of_config
from skillfit.report.score_chart import score_chart
from skillfit.report.skill_margin import skill_lines, unit_lines
from skillfit.report.story_edits import by_effect
from skillfit.report.story_items import (
    CHANGES,
    ItemSummary,
    Side,
    count_changes,
    listed_items,
    read_items,
    read_matrix,
    rollouts_of_item,
    types_of,
    worst_first,
)
from skillfit.report.story_parts import EditSummary, SkillVersion
from skillfit.report.trajectory import full_trajectory
from skillfit.report.verdict_text import dollars, duration
from skillfit.rollout.outcome import Outcome
from skillfit.run.events import (
    CandidateBuilt,
    Discarded,
    EditsSelected,
    Event,
    EventLog,
    GateDecided,
    PatchMerged,
    ReflectionFinished,
    RolloutFinished,
    StepFinished,
)
from skillfit.skill import diff_hunks
from skillfit.studio.item_files import full_item, read_image
from skillfit.studio.live import stream_parts
from skillfit.studio.paging import page_of
from skillfit.studio.site import Studio, number_in, run_url

E = TypeVar("E", bound=Event)

_WAITING = "waiting for approval"  # how the reason of an edit under review begins
_EDITS = 60  # of the pool on the overview
_GATES = 15
_ITEMS = 50  # of a page
_ROLLOUTS = 60
_PARTS = ("head", "stages", "scores", "pool", "gates", "notices", "cost")


def run_context(studio: Studio, name: str, story: RunStory) -> dict[str, Any]:
    """What the parts of a run's page need."""
    pool = [edit for edit in by_effect(story.edits) if edit.status != "dropped"]
    dropped = [edit for edit in by_effect(story.edits) if edit.status == "dropped"]
    return {
        "name": name,
        "story": story,
        "facts": facts(story),
        "chart": score_chart(story),
        "small_charts": [
            score_chart(story, 340, 260, ["selection"]),
            score_chart(story, 340, 260, ["ship", "test"]),
        ],
        "pool": _pool(name, story, pool[:_EDITS]),
        "to_review": [edit for edit in pool if edit.reason.startswith(_WAITING)],
        "dropped": _forest(name, dropped[:_EDITS]),
        "dropped_count": len(dropped),
        "gates": story.gates[::-1][:_GATES],
        "gates_cut": max(0, len(story.gates) - _GATES),
        "caps": spending(story),
        "commands": next_commands(story),
        "starting": studio.starter.is_starting(Path(story.path)),
        "start_failure": studio.starter.failure(Path(story.path)),
        "pool_steps": sorted({point.step for edit in story.edits for point in edit.history}),
    }


def _pool(name: str, story: RunStory, edits: list[EditSummary]) -> str:
    if story.ablation is not None:
        return unit_forest(story.ablation)
    return _forest(name, edits)


def _forest(name: str, edits: list[EditSummary]) -> str:
    rows = [edit_row(edit, run_url("edit", name, id=edit.id)) for edit in edits]
    return forest_plot(rows)


def spending(story: RunStory) -> list[dict[str, Any]]:
    """What was used, beside the cap where one is set."""
    used: dict[str, float | None] = {
        "usd": story.total.usd,
        "calls": story.total.calls,
        "tokens": story.total.tokens,
        "minutes": story.seconds / 60,
        "rollouts": story.rollouts,
    }
    texts = {
        "usd": dollars(story.total.usd) or "no price known",
        "calls": f"{story.total.calls:,} calls",
        "tokens": f"{story.total.tokens:,} tokens",
        "minutes": duration(story.seconds),
        "rollouts": f"{story.rollouts:,} rollouts",
    }
    return [
        {"name": cap, "text": texts[cap], "used": used[cap] or 0.0, "cap": story.caps.get(cap)}
        for cap in texts
    ]


async def run(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])

    def make() -> Response:
        story = studio.story(request)
        context = run_context(studio, name, story)
        context["settings"] = settings_of_config(story.config)
        return studio.page(request, "run.html.j2", **context)

    return await asyncio.to_thread(make)


async def run_live(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])
    followed = studio.library.follow(studio.find(request))
    seen: list[object] = []
    kept: dict[str, str] = {}

    def look() -> Mapping[str, str]:
        story = followed.story()
        now = [story, studio.starter.is_starting(followed.path)]
        if seen != now:
            seen[:] = now
            context = run_context(studio, name, story)
            context["csrf"] = studio.session.csrf
            for part in _PARTS:
                kept[part] = studio.render(f"run_{part}.html.j2", **context)
        return kept

    return stream_parts(request, look)


async def pool(studio: Studio, request: Request) -> Response:
    """The pool of edits as it was after a step."""
    name = str(request.path_params["name"])
    step = number_in(request, "step")

    def make() -> Response:
        story = studio.story(request)
        return HTMLResponse(studio.render("pool.html.j2", pool=pool_after(name, story, step)))

    return await asyncio.to_thread(make)


def pool_after(name: str, story: RunStory, step: int) -> str:
    rows: list[ForestRow] = []
    for edit in story.edits:
        point = next((point for point in edit.history if point.step == step), None)
        if point is not None:
            rows.append(
                ForestRow(
                    label=edit.text,
                    mean=point.mean,
                    low=point.low,
                    high=point.high,
                    status=point.status,
                    href=run_url("edit", name, id=edit.id),
                    id=edit.id,
                    rollouts=point.rollouts,
                )
            )
    rows.sort(key=lambda row: (row.mean is None, -(row.mean or 0.0)))
    return forest_plot(rows)


async def step(studio: Studio, request: Request) -> Response:
    name, number = str(request.path_params["name"]), int(request.path_params["number"])

    def make() -> Response:
        story = studio.story(request)
        with open_run(Path(story.path)) as view:
            events = view.events
            reflections = _of(events, ReflectionFinished, number)
            rollouts = _of(events, RolloutFinished, "rollout", number)
            gate_rollouts = _of(events, RolloutFinished, "gate", number)
            found: dict[str, Any] = {
                "reflections": reflections,
                "merged": _first(_of(events, PatchMerged, number)),
                "selected": _first(_of(events, EditsSelected, number)),
                "candidate": _first(_of(events, CandidateBuilt, number)),
                "gate": _first(_of(events, GateDecided, f"step_{number:04d}")),
                "discarded": _of(events, Discarded, number),
                "finished": _first(_of(events, StepFinished, number)),
            }
        if not rollouts and not found["finished"] and not reflections and not gate_rollouts:
            raise HTTPException(404, f"The run has no step {number}.")
        summary = next((gate for gate in story.gates if gate.step == number), None)
        rows = sorted(rollouts, key=lambda row: (row.hard is not None, row.hard or 0.0, row.item))
        return studio.page(
            request,
            "step.html.j2",
            name=name,
            story=story,
            number=number,
            summary=summary,
            batch=page_of(rows, number_in(request, "page"), _ROLLOUTS, request.query_params),
            scored=[row.hard for row in rollouts if row.hard is not None],
            gate_rollouts=len(gate_rollouts),
            pool=pool_after(name, story, number),
            **found,
        )

    return await asyncio.to_thread(make)


def _of(events: EventLog, kind: type[E], *identity: object) -> list[E]:
    found = [stored.event for stored in events.of_kind(kind, *identity)]
    return [event for event in found if isinstance(event, kind)]


def _first(events: list[E]) -> E | None:
    return events[0] if events else None


async def edit(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])

    def make() -> Response:
        story = studio.story(request)
        found = story.edit(request.query_params.get("id", ""))
        if found is None:
            raise HTTPException(404, "The run has no such edit.")
        return studio.page(
            request,
            "edit.html.j2",
            name=name,
            story=story,
            edit=found,
            plot=forest_plot([edit_row(found)], longest=4000),
            history=effect_history(found.history, 640, 200),
            decisions=[one for one in story.decisions if one.target == found.id],
            review=bool(story.config.get("review")),
        )

    return await asyncio.to_thread(make)


async def skill(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])

    def make() -> Response:
        story = studio.story(request)
        query = request.query_params
        usual = "unproven" if story.unproven_skill else "best"
        version = _version(story, query.get("version", usual))
        other = _version(story, query["against"]) if query.get("against") else None
        if story.ablation is not None and version.text == story.initial_skill:
            lines = unit_lines(version.text, story.ablation.units)
        else:
            lines = skill_lines(version.text, story.edits)
        return studio.page(
            request,
            "skill.html.j2",
            name=name,
            story=story,
            version=version,
            other=other,
            lines=lines,
            tokens=sum(line.tokens for line in lines),
            hunks=diff_hunks(other.text, version.text) if other else (),
        )

    return await asyncio.to_thread(make)


def _version(story: RunStory, name: str) -> SkillVersion:
    found = story.version_of(name)
    if found is None and name.isdecimal():  # a step that left the skill as it was
        earlier = [one for one in story.versions if one.name.isdecimal()]
        before = [one for one in earlier if int(one.name) <= int(name)]
        found = before[-1] if before else story.version_of("initial")
    if found is None:
        raise HTTPException(404, f"The run has no skill version {name!r}.")
    return found


async def items(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])

    def make() -> Response:
        story = studio.story(request)
        query = request.query_params
        with open_run(Path(story.path)) as view:
            found = read_items(view.events, story)
            matrix = read_matrix(view.events, story)
            records = listed_items(view.events)
        compared = {item.id: item for item in found}
        every = list(compared.values())
        for record in records.values():
            if record.id in matrix.cells and record.id not in compared:
                every.append(_bare(record.id, record.split, record.type, record.input))
        matching = _filtered(
            every, query.get("q", ""), query.get("change", ""), query.get("type", "")
        )
        shown = worst_first(matching, {item.id: matrix.mean(item.id) for item in matching})
        return studio.page(
            request,
            "items.html.j2",
            name=name,
            story=story,
            items=page_of(shown, number_in(request, "page"), _ITEMS, query),
            matrix=matrix,
            compared=compared,
            changes=count_changes(found),
            change_names=CHANGES,
            types=types_of(found),
            type_names=sorted({item.type for item in every if item.type}),
            query={key: query.get(key, "") for key in ("q", "change", "type")},
        )

    return await asyncio.to_thread(make)


def _bare(item_id: str, split: str, kind: str, text: str) -> ItemSummary:
    """An item that was rolled out but not compared under two skills."""
    return ItemSummary(item_id, split, Side(), Side(), kind, text)


def _filtered(items: list[ItemSummary], search: str, change: str, kind: str) -> list[ItemSummary]:
    words = search.lower().split()
    found = []
    for item in items:
        text = f"{item.id} {item.type} {item.input}".lower()
        if all(word in text for word in words) and kind in ("", item.type):
            flaky = change == "flaky" and item.flaky
            if flaky or change in ("", item.change):
                found.append(item)
    return found


async def item(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])
    item_id = request.query_params.get("id", "")

    def make() -> Response:
        story = studio.story(request)
        with open_run(Path(story.path)) as view:
            record = listed_items(view.events).get(item_id)
            rollouts = rollouts_of_item(view.events, item_id)
        if record is None and not rollouts:
            raise HTTPException(404, "The run has no such item.")
        rollouts.reverse()
        return studio.page(
            request,
            "item.html.j2",
            name=name,
            story=story,
            item_id=item_id,
            record=record,
            full=full_item(studio.folders, story, item_id),
            rollouts=page_of(rollouts, number_in(request, "page"), _ROLLOUTS, request.query_params),
        )

    return await asyncio.to_thread(make)


async def rollout(studio: Studio, request: Request) -> Response:
    name, query = str(request.path_params["name"]), request.query_params
    key, phase = query.get("key", ""), query.get("phase", "")

    def make() -> Response:
        story = studio.story(request)
        with open_run(Path(story.path)) as view:
            rows = _of(view.events, RolloutFinished, phase, number_in(request, "step", 0, 0), key)
            outcome = view.journal.get(key, Outcome) if rows else None
            record = listed_items(view.events).get(rows[0].item) if rows else None
        if not rows:
            raise HTTPException(404, "The run has no such rollout.")
        return studio.page(
            request,
            "rollout.html.j2",
            name=name,
            story=story,
            row=rows[0],
            record=record,
            full=full_item(studio.folders, story, rows[0].item),
            trajectory=full_trajectory(outcome) if outcome else None,
            isolation=outcome.attempt.isolation if outcome and outcome.attempt else "",
            carried=[one for one in map(story.edit, rows[0].edits) if one is not None],
        )

    return await asyncio.to_thread(make)


async def image(studio: Studio, request: Request) -> Response:
    """An image of an item, by its number."""
    item_id, number = request.query_params.get("id", ""), number_in(request, "number", 0, 0)

    def read() -> Response:
        found = full_item(studio.folders, studio.story(request), item_id)
        if found is None or number >= len(found.images):
            raise HTTPException(404, "There is no such image.")
        file = read_image(studio.folders, found.images[number])
        if file is None:
            raise HTTPException(404, "The image cannot be shown.")
        return Response(file.data, media_type=file.media_type)

    return await asyncio.to_thread(read)


async def report(studio: Studio, request: Request) -> Response:
    """The report as a page of its own. It brings a policy with the hashes of its script."""

    def make() -> Response:
        text = html_report(studio.story(request))
        return HTMLResponse(text, headers={"Content-Security-Policy": "frame-ancestors 'none'"})

    return await asyncio.to_thread(make)
