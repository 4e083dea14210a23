"""LiveMathematicianBench: multiple-choice questions about theorems of recent papers.

Rows: `month`, `no`, `question`, `choices` ([{label, text}]), `correct_choice`, `theorem`, `sketch`,
`theorem_type`; in the publisher's files question and choices are inside `mcq`. Scored by the label.

The order of the choices is shuffled for each item, because in the published files the position of
the right choice carries information. The gold answer is the text of the choice, so that the
preflight's shortcut audit sees when one fixed phrase is right for most items.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from skillfit.benchmarks.benchmark import (
    Benchmark,
    HubFiles,
    ItemRow,
    optional,
    skillopt_splits,
    text,
)
from skillfit.benchmarks.questions import read_options, right_option, show_options, shuffled
from skillfit.errors import InputError
from skillfit.extensions import SourceReference, TaskSource
from skillfit.tasks.rows import Row

_MONTH = re.compile(r"qa_(\d{6})_final\.json")


def row_id(row: Row) -> str:
    """`MONTH:NUMBER`. Publisher's rows have no month; the name of their file says it."""
    if given := optional(row, "id"):
        return given
    named = _MONTH.search(row.where)
    month = optional(row, "month") or (named[1] if named else "")
    if not month:
        raise InputError(f"{row.where}: no id and no month.")
    return f"{month}:{text(row, 'no')}"


BENCHMARK = Benchmark(
    name="livemathematicianbench",
    title="LiveMathematicianBench: theorems of recent papers as multiple-choice questions",
    homepage="https://huggingface.co/datasets/LiveMathematicianBench/LiveMathematicianBench",
    licence="see the data set's page",
    folder=Path(__file__).with_suffix(""),
    downloads=(
        HubFiles(
            "LiveMathematicianBench/LiveMathematicianBench",
            tuple(
                f"data/{month}/qa_{month}_final.json"
                for month in ("202511", "202512", "202601", "202602")
            ),
        ),
    ),
    splits=skillopt_splits("livemathematicianbench_id_split", 35, 18, 124),
    row_id=row_id,
)


def livemathematicianbench(
    reference: SourceReference,
    *,
    shuffle_choices: bool = True,
    shuffle_seed: int = 42,
    use_theorem: bool = False,
    use_sketch: bool = False,
) -> TaskSource:
    """`use_theorem` and `use_sketch` show the agent the theorem and the sketch of its proof."""

    def convert(row: Row) -> ItemRow:
        item_id = row_id(row)
        mcq = row.values.get("mcq")
        values = {**row.values, **mcq} if isinstance(mcq, Mapping) else row.values
        options = read_options(values.get("choices"))
        right = right_option(values.get("correct_choice"), options)
        if len(options) < 2 or right is None:
            raise InputError(f"{row.where}: choices and correct_choice do not fit together.")
        if shuffle_choices:
            options = shuffled(options, f"{shuffle_seed}/{item_id}")
        parts = [str(values.get("question", "")), show_options(options)]
        if use_theorem:
            parts.append(f"Theorem:\n{text(row, 'theorem')}")
        if use_sketch:
            parts.append(f"Proof sketch:\n{text(row, 'sketch')}")
        types = row.values.get("theorem_type")
        return {
            "id": item_id,
            "type": str(types[0]) if isinstance(types, list) and types else optional(row, "type"),
            "input": "\n\n".join(parts),
            "choices": {option.label: option.text for option in options},
            "answers": [right.text],
        }

    return BENCHMARK.source(reference, convert)
