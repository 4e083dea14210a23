"""MMRB: reasoning over several images.

Rows (files *_human.json): `source`, `subtask`, `index`, `question`, `answer`, `options`,
`image_paths`, `reasoning_steps`. Questions with options are scored by label or by the option's
text; other answers must equal the gold answer, apart from case, spaces and outer punctuation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from skillfit.benchmarks.benchmark import (
    Benchmark,
    HubFiles,
    ItemRow,
    data_root_of,
    optional,
    read_any,
    text,
)
from skillfit.benchmarks.questions import (
    check_detail,
    find_image,
    match_or_judge,
    read_options,
    show_options,
    with_options,
)
from skillfit.errors import InputError
from skillfit.extensions import SourceReference, TaskSource
from skillfit.tasks.rows import Row, read_rows


def read(path: Path) -> Iterator[Row]:
    """The rows of all *_human.json files in a folder, or of one file."""
    files = sorted(path.rglob("*_human.json")) if path.is_dir() else []
    for file in files:
        yield from read_rows(file)
    if not files:
        yield from read_any(path)


def row_id(row: Row) -> str:
    parts = (optional(row, "source"), optional(row, "subtask"), optional(row, "index"))
    return optional(row, "id") or ":".join(part or "unknown" for part in parts)


BENCHMARK = Benchmark(
    name="mmrb",
    title="MMRB: reasoning over several images",
    homepage="https://huggingface.co/datasets/HarrytheOrange/MMRB",
    licence="see the data set's page",
    folder=Path(__file__).with_suffix(""),
    downloads=(HubFiles("HarrytheOrange/MMRB", ("*.zip",)),),
    read=read,
    row_id=row_id,
)
# How answers are written: in tags, as Answer[…], in a box, after "answer is", on the last line.
_EXTRACT = (
    "tag",
    {"regex": r"(?i)\banswer\s*\[([^\]]+)\]"},
    "boxed",
    {"regex": r"(?im)\banswer(?:\s+is)?\s*:?\s+(.+?)\.?\s*$"},
    "last_line",
)


def mmrb(
    reference: SourceReference, *, data_root: str = "", image_detail: str = "auto"
) -> TaskSource:
    """`data_root`: the folder of the images. `image_detail`: auto, low or high."""
    check_detail(image_detail)
    root = data_root_of(reference, data_root)

    def convert(row: Row) -> ItemRow:
        paths = row.values.get("image_paths")
        if not isinstance(paths, list) or not paths:
            raise InputError(f"{row.where}: no image_paths.")
        steps = row.values.get("reasoning_steps")
        item: ItemRow = {
            "id": row_id(row),
            "type": optional(row, "subtask"),
            "input": text(row, "question"),
            "answers": [text(row, "answer")],
            "images": [find_image(row, str(path), root) for path in paths],
            "image_detail": image_detail,
            "reference": "\n".join(map(str, steps)) if isinstance(steps, list) else "",
        }
        options = read_options(row.values.get("options") or [])
        if not options:
            return item
        item["input"] = f"{item['input']}\n\n{show_options(options)}"
        return with_options(item, options, text(row, "answer"), row.where)

    return BENCHMARK.source(reference, convert, how=match_or_judge(_EXTRACT, use_judge=False))
