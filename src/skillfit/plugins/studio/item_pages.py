"""The items of a run with those that fail first, their rollouts, and what people say about them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlencode

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from skillfit.plain_text import shorten, work_name
from skillfit.plugins.studio.site import (
    FullItem,
    ListPage,
    Studio,
    full_item,
    image_file,
    number_in,
    page_of,
    run_url,
)
from skillfit.record.record import (
    EditRecord,
    Record,
    SkillVersion,
)
from skillfit.report import open_details
from skillfit.report.html_report import (
    PageData,
)
from skillfit.report.run_details import (
    ITEM_GROUPS,
    ItemMatrix,
    ItemResult,
    ItemSummary,
    PersonNote,
    Trajectory,
    full_trajectory,
    types_of,
    worst_first,
)
from skillfit.run.events import RolloutFinished
from skillfit.run.records import ItemRecord, TypeSummary
from skillfit.run.store import FEEDBACK

_ITEMS = 50  # of a page


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a page with what is chosen on it."""

    path: str
    query: Mapping[str, str]

    def with_(self, changes: Mapping[str, object]) -> str:
        """Return the address of the same page with other choices. Another list begins at its first
        page and item.
        """
        kept = {**self.query, **changes}
        if "item" not in changes:
            kept |= {"page": "", "item": ""}
        words = {key: value for key, value in kept.items() if value not in ("", None)}
        return f"{self.path}?{urlencode(words)}" if words else self.path

    def is_set(self, choices: Mapping[str, str]) -> bool:
        return all(self.query.get(key, "") == value for key, value in choices.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsPage(PageData):
    """Items with those that fail first, and one of them with its rollouts beside the list."""

    template: ClassVar = "items.html.j2"

    name: str
    record: Record
    address: Address
    query: Mapping[str, str]
    groups: Mapping[str, int]
    failing_types: Mapping[str, int]
    failing_messages: Mapping[str, int]
    types: Sequence[TypeSummary]
    items: ListPage[ItemSummary]
    chosen: ChosenItem | None
    map: bool  # all rollouts of the run by item and step, instead of one item
    matrix: ItemMatrix | None
    compared: Mapping[str, ItemSummary]
    type_names: Sequence[str]
    notes: Sequence[PersonNote]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenItem:
    """One item, its rollouts and the one that is shown."""

    id: str
    item: ItemRecord | None
    full: FullItem | None
    rollouts: Sequence[RolloutFinished]  # the latest first
    row: RolloutFinished | None
    trajectory: Trajectory | None
    isolation: str
    version: SkillVersion | None  # the skill it ran with, where the run has it as a whole
    carried: Sequence[EditRecord]
    before: str  # ids of its neighbours in the list; empty: none
    behind: str
    versions: Mapping[str, SkillVersion]

    def label(self, row: RolloutFinished) -> str:
        """Say which rollout of the item it is: "step 3", "ship test, initial skill"."""
        version = self.versions.get(row.skill_hash)
        named = f", {version.label}" if version and not row.step else ""
        return f"{self.where(row)}{named}{f', repeat {row.repeat + 1}' if row.repeat else ''}"

    def where(self, row: RolloutFinished) -> str:
        """Say where in the run the rollout was made."""
        return f"step {row.step}" if row.step else work_name(row.phase)

    def place(self, row: RolloutFinished) -> dict[str, object]:
        return {"item": self.id, "key": row.rollout}


_ITEM_CHOICES = ("group", "type", "message", "q", "view", "page", "raw")
_MOST_MESSAGES = 8
_OWN_WORDS = re.compile(r"""'[^']*'|"[^"]*"|“[^”]*”|`[^`]*`|\d+([.,]\d+)*""")


def message_kind(feedback: str) -> str:
    """Return what a grader says about many items: the message without what it quotes and counts."""
    return shorten(_OWN_WORDS.sub("…", " ".join(feedback.split())), 90)


def items_page(studio: Studio, request: Request) -> Response:
    name, query = str(request.path_params["name"]), request.query_params
    followed = studio.library.follow(studio.find(request))
    record, summaries = followed.record(), followed.items()
    given = {key: query.get(key, "") for key in _ITEM_CHOICES}
    compared = {item.id: item for item in summaries}
    every, matrix = [*summaries], None
    shows_map = given["view"] == "map" or (not summaries and not query.get("item"))
    with open_details(Path(record.path)) as details:
        notes = details.notes()
        known = details.item_records() if shows_map else {}
    if shows_map:
        matrix = followed.matrix()
        # An ablation records no texts of its items.
        others = [known.get(item) or ItemRecord(item, "") for item in matrix.cells]
        every += [_bare(item) for item in others if item.id not in compared]
    matching = [item for item in every if _matches_choices(item, given)]
    shown = worst_first(matching, {item.id: matrix.mean(item.id) for item in matching if matrix})
    listed = page_of(shown, number_in(request, "page"), _ITEMS, query)
    wanted = query.get("item") or (listed.rows[0].id if listed.rows and not shows_map else "")
    failing = [item for item in summaries if item.group in ("still fails", "broken")]
    counts = Counter(item.group for item in summaries)
    page = ItemsPage(
        name=name,
        record=record,
        address=Address(run_url("items", name), given),
        query=given,
        groups={group: counts[group] for group in ITEM_GROUPS},
        failing_types=_most_common(item.type for item in failing),
        failing_messages=_most_common(message_kind(item.result.feedback) for item in failing),
        types=types_of(summaries),
        items=listed,
        chosen=_chosen_item(studio, request, record, wanted, shown) if wanted else None,
        map=shows_map,
        matrix=matrix,
        compared=compared,
        type_names=sorted({item.type for item in every if item.type}),
        notes=notes,
    )
    return studio.page(request, page)


def _most_common(words: Iterable[str]) -> dict[str, int]:
    return dict(Counter(word for word in words if word).most_common(_MOST_MESSAGES))


def _bare(item: ItemRecord) -> ItemSummary:
    """Summarize an item that was rolled out but not compared under two skills."""
    return ItemSummary(item.id, item.split, ItemResult(), ItemResult(), item.type, item.input)


def _matches_choices(item: ItemSummary, given: Mapping[str, str]) -> bool:
    text = f"{item.id} {item.type} {item.input}".lower()
    return (
        given["group"] in ("", item.group)
        and given["type"] in ("", item.type)
        and given["message"] in ("", message_kind(item.result.feedback))
        and all(word in text for word in given["q"].lower().split())
    )


def _chosen_item(
    studio: Studio, request: Request, record: Record, item_id: str, shown: Sequence[ItemSummary]
) -> ChosenItem:
    """Return the item with the rollout that the address names, else with its lowest one under the
    skill that was measured last.
    """
    query = request.query_params
    places = [item.id for item in shown]
    at = places.index(item_id) if item_id in places else None
    with open_details(Path(record.path)) as details:
        item = details.item_records().get(item_id)
        rollouts = details.rollouts_of_item(item_id)[::-1]
        if item is None and not rollouts:
            raise HTTPException(404, "The run has no such item.")
        key = query.get("key", "")
        if key:
            rows = [one for one in rollouts if one.rollout == key]
            if not rows:
                raise HTTPException(404, "The run has no such rollout.")
        else:
            lowest = shown[at].result.rollout if at is not None else ""
            rows = [one for one in rollouts if one.rollout == lowest] or rollouts
        row = rows[0] if rows else None
        outcome = details.outcome(row.rollout) if row else None
    versions = {one.skill_hash: one for one in record.versions if one.skill_hash}
    return ChosenItem(
        id=item_id,
        item=item,
        full=full_item(studio.folders, record, item_id),
        rollouts=rollouts,
        row=row,
        trajectory=full_trajectory(outcome) if outcome else None,
        isolation=outcome.attempt.isolation if outcome and outcome.attempt else "",
        version=versions.get(row.skill_hash) if row else None,
        carried=[one for one in map(record.edit, row.edits) if one is not None] if row else (),
        before=places[at - 1] if at else "",
        behind=places[at + 1] if at is not None and at + 1 < len(places) else "",
        versions=versions,
    )


def feedback_file(studio: Studio, request: Request) -> Response:
    """Send what people said about answers, as the file that `optimizer.feedback` names."""
    with open_details(studio.find(request)) as details:
        data = to_json(details.notes(), indent=1)
    headers = {"Content-Disposition": f'attachment; filename="{FEEDBACK}"'}
    return Response(data, media_type="application/json", headers=headers)


def image(studio: Studio, request: Request) -> Response:
    """Send an image of an item, by its number."""
    item_id, number = request.query_params.get("id", ""), number_in(request, "number", 0, 0)
    found = full_item(studio.folders, studio.record(request), item_id)
    if found is None or number >= len(found.images):
        raise HTTPException(404, "There is no such image.")
    file = image_file(studio.folders, found.images[number])
    if file is None:
        raise HTTPException(404, "The image cannot be shown.")
    return Response(file.data, media_type=file.media_type)
