"""Pages of parsed documents: the JSON files that hold a document's elements with their pages."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from skillfit.errors import InputError

_PAGE = re.compile(r"[?&#]page=(\d+)")
PAGE_CHARS = 24_000
TOTAL_CHARS = 80_000


def page_number(url: str) -> int | None:
    """The page that an address of a source document names, counted from 1."""
    match = _PAGE.search(url)
    return int(match[1]) if match else None


def oracle_text(pages: Sequence[tuple[Path, int]]) -> str:
    """The text of these pages, each and all together cut to a limit."""
    parts, room = [], TOTAL_CHARS
    for path, number in pages:
        shown = page_text(path, number)[: min(PAGE_CHARS, room)]
        room -= len(shown)
        if shown:
            parts.append(f"### {path.stem}, page {number}\n\n{shown}")
    return "\n\n".join(parts)


def page_text(path: Path, number: int) -> str:
    """The elements of a page, in order."""
    return _pages(path, path.stat().st_mtime_ns).get(number, "")


@lru_cache(maxsize=64)
def _pages(path: Path, version: int) -> dict[int, str]:
    """Page number from 1 -> text. `version` makes a changed file load again."""
    try:
        elements = json.loads(path.read_bytes())["document"]["elements"]
        pages: dict[int, list[str]] = {}
        for element in elements:
            for page in {int(box["page_id"]) for box in element.get("bbox") or []}:
                pages.setdefault(page + 1, []).append(str(element.get("content") or ""))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not a parsed document: {type(error).__name__} {error}."
        ) from error
    return {page: "\n\n".join(filter(None, texts)) for page, texts in pages.items()}
