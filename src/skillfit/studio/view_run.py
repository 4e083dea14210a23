"""A run and its parts: overview, pool, step, edit, skill, report; its items, the rollouts of an
item, and the trajectory of a rollout.

Events keep long texts cut, so the full text and the images of an item come from the data file of
the run. Only data files are read: tasks that are programs or Python code are never run for a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from skillfit.errors import SkillfitError
from skillfit.models.wire import image_media_type
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
    cap_uses,
    facts,
    fullest_cap,
    next_commands,
    time_left,
)
from skillfit.report.story import EditSummary, SkillVersion
from skillfit.report.story_evidence import by_effect
from skillfit.report.story_items import (
    ItemSummary,
    Side,
    count_changes,
    full_trajectory,
    listed_items,
    read_items,
    read_matrix,
    rollouts_of_item,
    types_of,
    worst_first,
)
from skillfit.rollout.outcome import Outcome
from skillfit.run.control import RAISABLE
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
from skillfit.run.records import step_name
from skillfit.skill import diff_hunks, estimate_tokens
from skillfit.studio.commands import Folders
from skillfit.studio.site import Studio, number_in, page_of, run_url, stream_parts
from skillfit.tasks.item import Item
from skillfit.tasks.rows import items_of, read_rows

_EDITS = 60  # of the pool on the overview
_FIRST_EDITS = 15  # shown before the rest is opened
_OPERATIONS = {
    "append": "Adds text at the end",
    "insert_after": "Inserts text",
    "insert_before": "Inserts text",
    "replace": "Replaces text",
    "delete": "Deletes text",
}
_GATES = 15
_ROLLOUTS = 60  # of a page
_ITEMS = 50  # of a page
_DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")
_LARGEST_FILE = 64_000_000  # bytes
_LARGEST_IMAGE = 20_000_000
_PARTS = ("tabs", "head", "stages", "scores", "pool", "gates", "notices", "cost", "about")


def run_context(studio: Studio, request: Request, story: RunStory) -> dict[str, object]:
    """What the parts of a run's page need. After a refused budget, `cap` and `amount` of the query
    are what was typed.
    """
    name, query = str(request.path_params["name"]), request.query_params
    typed = {key: query[key] for key in ("cap", "amount") if key in query}
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
        "chosen_cap": typed.get("cap") or fullest_cap(story),
        "typed_amount": typed.get("amount", ""),
        "live_url": run_url("live", name, **typed),
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


def run(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])
    story = studio.story(request)
    if not story.has_begun and story.state == "running" and "/" not in name:
        return studio.go_to(run_url("starting", name))
    context = run_context(studio, request, story)
    context["settings"] = settings_of_config(story.config)
    return studio.page(request, "run.html.j2", 200, **context)


def run_live(studio: Studio, request: Request) -> Response:
    followed = studio.library.follow(studio.find(request))
    seen: list[object] = []
    kept: dict[str, str] = {}

    def look() -> Mapping[str, str]:
        story = followed.story()
        now = [story, studio.starter.is_starting(followed.path)]
        if seen != now:
            seen[:] = now
            context = run_context(studio, request, story)
            context |= {"csrf": studio.csrf, "here": "run"}
            for part in _PARTS:
                kept[part] = studio.render(f"run_{part}.html.j2", **context)
        return kept

    return stream_parts(request, look)


def pool(studio: Studio, request: Request) -> Response:
    """The pool of edits as it was after a step."""
    name = str(request.path_params["name"])
    step = number_in(request, "step")
    story = studio.story(request)
    return HTMLResponse(studio.render("pool.html.j2", pool=pool_after(name, story, step)))


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


def step(studio: Studio, request: Request) -> Response:
    name, number = str(request.path_params["name"]), int(request.path_params["number"])
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
            "gate": _first(events.found(GateDecided, step_name(number))),
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


def _first(events: Sequence[Event]) -> Event | None:
    return events[0] if events else None


def edit(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])
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


def skill(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])
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


def _version(story: RunStory, name: str) -> SkillVersion:
    found = story.version_of(name)
    if found is None and name.isdecimal():  # a step that left the skill as it was
        earlier = [one for one in story.versions if one.name.isdecimal()]
        before = [one for one in earlier if int(one.name) <= int(name)]
        found = before[-1] if before else story.version_of("initial")
    if found is None:
        raise HTTPException(404, f"The run has no skill version {name!r}.")
    return found


def report(studio: Studio, request: Request) -> Response:
    """The report as a separate page. It brings a policy with the hashes of its script."""
    text = html_report(studio.story(request))
    return HTMLResponse(text, headers={"Content-Security-Policy": "frame-ancestors 'none'"})


def items(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])
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
    matching = _filtered(every, query.get("q", ""), query.get("change", ""), query.get("type", ""))
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
        types=types_of(found),
        type_names=sorted({item.type for item in every if item.type}),
        query={key: query.get(key, "") for key in ("q", "change", "type")},
    )


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


def item(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])
    item_id = request.query_params.get("id", "")
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


def rollout(studio: Studio, request: Request) -> Response:
    name, query = str(request.path_params["name"]), request.query_params
    key, phase = query.get("key", ""), query.get("phase", "")
    story = studio.story(request)
    with open_run(Path(story.path)) as view:
        rows = view.events.found(RolloutFinished, phase, number_in(request, "step", 0, 0), key)
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


def image(studio: Studio, request: Request) -> Response:
    """An image of an item, by its number."""
    item_id, number = request.query_params.get("id", ""), number_in(request, "number", 0, 0)
    found = full_item(studio.folders, studio.story(request), item_id)
    if found is None or number >= len(found.images):
        raise HTTPException(404, "There is no such image.")
    file = read_image(studio.folders, found.images[number])
    if file is None:
        raise HTTPException(404, "The image cannot be shown.")
    return Response(file.data, media_type=file.media_type)


@dataclass(frozen=True, slots=True)
class FullItem:
    """An item as the agent was given it."""

    input: str
    images: tuple[Path, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageFile:
    media_type: str
    data: bytes


def full_item(folders: Folders, story: RunStory, item_id: str) -> FullItem | None:
    """The item, or None when its file is not there, not inside the folders, or no data file."""
    path = Path(story.data.tasks)
    if path.suffix not in _DATA_SUFFIXES or not folders.holds(path) or not path.is_file():
        return None
    found = path.stat()
    if found.st_size > _LARGEST_FILE:
        return None
    fields = story.config.settings.env.fields
    try:
        items = _read_items(path, found.st_mtime_ns, tuple(sorted(fields.items())))
    except SkillfitError:  # the file changed since the run; its events are all there is
        return None
    item = items.get(item_id)
    if item is None:
        return None
    images = tuple(image.path for image in item.images)
    return FullItem(item.input, images, tuple(item.files))


@lru_cache(maxsize=4)
def _read_items(path: Path, modified: int, fields: tuple[tuple[str, str], ...]) -> dict[str, Item]:
    """`modified` makes a changed file another entry of the cache."""
    return {item.id: item for item in items_of(read_rows(path), dict(fields))}


def read_image(folders: Folders, path: Path) -> ImageFile | None:
    """An image inside the folders, recognised by its first bytes; None for anything else."""
    if not folders.holds(path) or not path.is_file() or path.stat().st_size > _LARGEST_IMAGE:
        return None
    data = path.read_bytes()
    media_type = image_media_type(data)
    return ImageFile(media_type, data) if media_type else None
