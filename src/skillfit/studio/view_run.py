"""A run and its parts: overview, pool, step, edit, skill, report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from skillfit.report import RunStory, open_run
from skillfit.report.charts import ForestRow, edit_row, effect_history, forest_plot, score_chart
from skillfit.report.html_report import (
    html_report,
    settings_of_config,
    skill_lines,
    unit_forest,
    unit_lines,
)
from skillfit.report.run_text import (
    RAISABLE,
    cap_uses,
    facts,
    fullest_cap,
    next_commands,
    time_left,
)
from skillfit.report.story import EditSummary, SkillVersion
from skillfit.report.story_evidence import by_effect
from skillfit.run.events import (
    CandidateBuilt,
    Discarded,
    EditsSelected,
    Event,
    GateDecided,
    PatchMerged,
    ReflectionFinished,
    RolloutFinished,
    StepFinished,
)
from skillfit.skill import diff_hunks, estimate_tokens
from skillfit.studio.site import Studio, number_in, page_of, run_url, stream_parts

_EDITS = 60  # of the pool on the overview
_FIRST_EDITS = 15  # that are seen without opening the rest
_OPERATIONS = {
    "append": "Adds text at the end",
    "insert_after": "Inserts text",
    "insert_before": "Inserts text",
    "replace": "Replaces text",
    "delete": "Deletes text",
}
_GATES = 15
_ROLLOUTS = 60
_PARTS = ("tabs", "head", "stages", "scores", "pool", "gates", "notices", "cost", "about")


def run_context(studio: Studio, name: str, story: RunStory) -> dict[str, object]:
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
        "pool": _pool(name, story, pool[:_FIRST_EDITS]),
        "pool_rest": _forest(name, pool[_FIRST_EDITS:_EDITS]),
        "pool_rest_count": max(0, len(pool) - _FIRST_EDITS),
        "dropped": _forest(name, dropped[:_EDITS]),
        "dropped_count": len(dropped),
        "gates": story.gates[::-1][:_GATES],
        "gates_cut": max(0, len(story.gates) - _GATES),
        "caps": cap_uses(story.total, story.seconds, story.caps, story.rollouts),
        "raisable": RAISABLE,
        "fullest_cap": fullest_cap(story),
        "time_left": time_left(story),
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


async def run(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])

    def make() -> Response:
        story = studio.story(request)
        if not story.has_begun and story.state == "running" and "/" not in name:
            return studio.go_to(run_url("starting", name))
        context = run_context(studio, name, story)
        context["settings"] = settings_of_config(story.config)
        return studio.page(request, "run.html.j2", 200, **context)

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
            context |= {"csrf": studio.session.csrf, "here": "run"}
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
            reflections = events.found(ReflectionFinished, number)
            rollouts = events.found(RolloutFinished, "rollout", number)
            gate_rollouts = events.found(RolloutFinished, "gate", number)
            found: dict[str, object] = {
                "reflections": reflections,
                "merged": _first(events.found(PatchMerged, number)),
                "selected": _first(events.found(EditsSelected, number)),
                "candidate": _first(events.found(CandidateBuilt, number)),
                "gate": _first(events.found(GateDecided, f"step_{number:04d}")),
                "discarded": events.found(Discarded, number),
                "finished": _first(events.found(StepFinished, number)),
            }
        if not rollouts and not found["finished"] and not reflections and not gate_rollouts:
            raise HTTPException(404, f"The run has no step {number}.")
        summary = next((gate for gate in story.gates if gate.step == number), None)
        rows = sorted(rollouts, key=lambda row: (row.hard is not None, row.hard or 0.0, row.item))
        return studio.page(
            request,
            "step.html.j2",
            200,
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


def _first(events: Sequence[Event]) -> Event | None:
    return events[0] if events else None


async def edit(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])

    def make() -> Response:
        story = studio.story(request)
        found = story.edit(request.query_params.get("id", ""))
        if found is None:
            raise HTTPException(404, "The run has no such edit.")
        with open_run(Path(story.path)) as view:
            batch = view.events.found(RolloutFinished, "rollout", found.step)
        return studio.page(
            request,
            "edit.html.j2",
            name=name,
            story=story,
            edit=found,
            plot=forest_plot([edit_row(found)], longest=4000),
            history=effect_history(found.history, 640, 200),
            small_history=effect_history(found.history, 340, 160),
            operation=_OPERATIONS.get(found.edit.op, found.edit.op),
            behind={row.item: row for row in batch if row.item in found.items},
            decisions=[one for one in story.decisions if one.target == found.id],
            review=story.config.settings.review,
        )

    return await asyncio.to_thread(make)


async def skill(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])

    def make() -> Response:
        story = studio.story(request)
        query = request.query_params
        usual = "unproven" if story.unproven_skill else "initial" if story.is_ablation else "best"
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
            tokens=estimate_tokens(version.text),
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


async def report(studio: Studio, request: Request) -> Response:
    """The report as a page of its own. It brings a policy with the hashes of its script."""

    def make() -> Response:
        text = html_report(studio.story(request))
        return HTMLResponse(text, headers={"Content-Security-Policy": "frame-ancestors 'none'"})

    return await asyncio.to_thread(make)
