"""The items of a run, the rollouts of one item, and the trajectory of one rollout.

Events keep long texts cut, so the full text and the images of an item come from the data file of
the run. Only data files are read: tasks that are programs or Python code are never run for a page.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from skillfit.errors import SkillfitError
from skillfit.models.wire import image_media_type
from skillfit.report import RunStory, open_run
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
from skillfit.run.events import RolloutFinished
from skillfit.studio.commands import Folders
from skillfit.studio.site import Studio, number_in, page_of
from skillfit.tasks.item import Item
from skillfit.tasks.rows import items_of, read_rows

_ITEMS = 50  # of a page
_ROLLOUTS = 60


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


_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")
_LARGEST_FILE = 64_000_000  # bytes
_LARGEST_IMAGE = 20_000_000


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
    if path.suffix not in _SUFFIXES or not folders.holds(path) or not path.is_file():
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
