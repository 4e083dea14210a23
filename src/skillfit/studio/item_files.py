"""The full text and the images of an item, from the data file of a run. Events keep long texts cut.

Only data files are read. Tasks that are programs or Python code are never run for a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from skillfit.errors import SkillfitError
from skillfit.report import RunStory
from skillfit.studio.folders import Folders
from skillfit.tasks.item import Item
from skillfit.tasks.rows import items_of, read_rows

_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")
_LARGEST_FILE = 64_000_000  # bytes
_LARGEST_IMAGE = 20_000_000
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}


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
    fields = story.config.get("env", {}).get("fields") or {}
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
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return ImageFile("image/webp", data)
    for signature, media_type in _SIGNATURES.items():
        if data.startswith(signature):
            return ImageFile(media_type, data)
    return None
