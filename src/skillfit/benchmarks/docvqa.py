"""DocVQA: questions about the scanned page of a document.

Rows: `questionId`, `question`, `answers` (or `answer`), `image_path` (or `image`), and perhaps a
`topic`. The publisher's JSON file ({"data": […]}) and the Hub's Parquet files are read too. Scored
by ANLS with threshold 0.5; the hard score asks for (nearly) 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from skillfit.benchmarks.benchmark import (
    Benchmark,
    HubFiles,
    ItemRow,
    data_root_of,
    optional,
    read_any,
    skillopt_splits,
    text,
)
from skillfit.benchmarks.questions import check_detail, find_image
from skillfit.errors import InputError
from skillfit.extensions import SourceReference, TaskSource
from skillfit.tasks.rows import Row


def read(path: Path) -> Iterator[Row]:
    """The rows of any file, or those under `data` in the publisher's JSON files."""
    files = [path] if path.is_file() else sorted(path.glob("*.json"))
    for file in files:
        document = json.loads(file.read_bytes()) if file.suffix == ".json" else None
        if isinstance(document, dict) and isinstance(document.get("data"), list):
            for number, values in enumerate(document["data"], 1):
                yield Row(values, f"{file}: data {number}", file.parent)
        else:
            yield from read_any(file)
    if not files:
        yield from read_any(path)


BENCHMARK = Benchmark(
    name="docvqa",
    title="DocVQA: questions about pages of scanned documents",
    homepage="https://huggingface.co/datasets/lmms-lab/DocVQA",
    licence="Apache-2.0 (the Hub's copy); page images from the UCSF Industry Documents Library",
    folder=Path(__file__).with_suffix(""),
    downloads=(HubFiles("lmms-lab/DocVQA", ("DocVQA/validation-*.parquet",)),),
    splits=skillopt_splits("docvqa_id_split", 107, 53, 374),
    read=read,
    row_id=lambda row: text(row, "questionId", "id"),
)


def docvqa(
    reference: SourceReference, *, image_detail: str = "auto", data_root: str = ""
) -> TaskSource:
    """`image_detail`: auto, low or high. `data_root`: the folder of the page images."""
    check_detail(image_detail)
    root = data_root_of(reference, data_root)

    def convert(row: Row) -> ItemRow:
        question = text(row, "question").partition("document_path:")[0].strip()
        return {
            "id": text(row, "questionId", "id"),
            "type": optional(row, "topic"),
            "input": question,
            "answers": _answers(row),
            "images": [find_image(row, text(row, "image_path", "image"), root)],
            "image_detail": image_detail,
        }

    return BENCHMARK.source(reference, convert)


def _answers(row: Row) -> list[str]:
    for column in ("answers", "answer", "ground_truth"):
        given = row.values.get(column)
        if given:
            return [str(one) for one in given] if isinstance(given, list) else [str(given)]
    raise InputError(f"{row.where}: no answers, answer or ground_truth.")
