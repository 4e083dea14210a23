"""BabyVision: visual puzzles that small children solve.

Rows: `taskId`, `type`, `subtype`, `question`, `image`, `ansType` (choice or blank), `options` with
`choiceAns` (position from 0, label or text), `blankAns`, and `coT`, a worked solution that only
analysts of failures see. Choices are scored by the label; free answers that do not plainly equal
the gold answer are put to a judge.
"""

from __future__ import annotations

from pathlib import Path

from skillfit.benchmarks.benchmark import (
    Benchmark,
    HubFiles,
    ItemRow,
    data_root_of,
    optional,
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
from skillfit.extensions import SourceReference, TaskSource
from skillfit.tasks.rows import Row

BENCHMARK = Benchmark(
    name="babyvision",
    title="BabyVision: visual puzzles that small children solve",
    homepage="https://huggingface.co/datasets/UnipatAI/BabyVision",
    licence="see the data set's page",
    folder=Path(__file__).with_suffix(""),
    downloads=(HubFiles("UnipatAI/BabyVision", ("data/*.parquet",)),),
    row_id=lambda row: text(row, "taskId", "id"),
)


def babyvision(
    reference: SourceReference,
    *,
    data_root: str = "",
    image_detail: str = "auto",
    judge: bool = True,
) -> TaskSource:
    """`judge: false` counts free answers that are not plainly equal as wrong."""
    check_detail(image_detail)
    root = data_root_of(reference, data_root)

    def convert(row: Row) -> ItemRow:
        item: ItemRow = {
            "id": text(row, "taskId", "id"),
            "type": optional(row, "subtype", "type"),
            "input": text(row, "question"),
            "images": [find_image(row, text(row, "image", "image_path"), root)],
            "image_detail": image_detail,
            "reference": optional(row, "coT", "cot"),
        }
        options = read_options(row.values.get("options"))
        if optional(row, "ansType") != "choice" and not options:
            blank = row.values.get("blankAns")
            answers = blank if isinstance(blank, list) else [text(row, "blankAns")]
            return {**item, "answers": answers}
        item["input"] = f"{item['input']}\n\n{show_options(options)}"
        return with_options(item, options, row.values.get("choiceAns"), row.where)

    how = match_or_judge(["boxed", "last_line"], use_judge=judge)
    return BENCHMARK.source(reference, convert, how=how)
