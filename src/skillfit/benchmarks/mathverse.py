"""MathVerse: mathematics problems with a diagram.

Rows: `problem_index`, `problem_version`, `question`, `image`, `answer`, `question_type`, `metadata`
(subject, subfield). Multiple-choice problems are scored by the label. Free answers that do not
plainly equal the gold answer are put to a judge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    Option,
    check_detail,
    find_image,
    match_or_judge,
    with_options,
)
from skillfit.extensions import SourceReference, TaskSource
from skillfit.tasks.rows import Row

BENCHMARK = Benchmark(
    name="mathverse",
    title="MathVerse: mathematics problems with diagrams",
    homepage="https://huggingface.co/datasets/AI4Math/MathVerse",
    licence="MIT",
    folder=Path(__file__).with_suffix(""),
    downloads=(HubFiles("AI4Math/MathVerse", ("testmini.json", "images.zip")),),
    row_id=lambda row: text(row, "problem_index", "id"),
)
_CHOICES = re.compile(r"\bchoices?\s*:", re.IGNORECASE)
_CHOICE = re.compile(
    r"(?:^|(?<=\s))\(?([A-G])\s*[:.)]\s*(.*?)(?=\s+\(?[A-G]\s*[:.)]|\s*$)", re.DOTALL
)


def mathverse(
    reference: SourceReference,
    *,
    problem_version: str = "Text Lite",
    use_text_dominant_reference: bool = False,
    data_root: str = "",
    image_detail: str = "auto",
    judge: bool = True,
) -> TaskSource:
    """`problem_version`: which version of each problem to use, or `all`.
    `use_text_dominant_reference`: analysts of failures see the version that says most in words.
    `judge: false` counts free answers that are not plainly equal as wrong.
    """
    check_detail(image_detail)
    root = data_root_of(reference, data_root)
    worded: dict[str, str] = {}
    if use_text_dominant_reference:
        for row in BENCHMARK.rows(reference):
            if optional(row, "problem_version") == "Text Dominant":
                worded[text(row, "problem_index", "id")] = text(row, "question")

    def convert(row: Row) -> ItemRow | None:
        version = optional(row, "problem_version")
        if problem_version != "all" and version and version != problem_version:
            return None
        problem = text(row, "problem_index", "id")
        metadata = row.values.get("metadata")
        about = metadata if isinstance(metadata, Mapping) else {}
        question = text(row, "question")
        answer = text(row, "answer")
        item: ItemRow = {
            "id": f"{problem}:{version}" if problem_version == "all" else problem,
            "type": str(about.get("subfield") or about.get("subject") or ""),
            "input": question,
            "answers": [answer],
            "images": [find_image(row, text(row, "image"), root)],
            "image_detail": image_detail,
            "reference": worded.get(problem, ""),
        }
        options = choices_in(question)
        return with_options(item, options, answer, row.where) if options else item

    how = match_or_judge(["tag", "boxed", "last_line"], use_judge=judge)
    return BENCHMARK.source(reference, convert, how=how)


def choices_in(question: str) -> list[Option]:
    """The choices that are listed in the question's text after `Choices:`."""
    match = _CHOICES.search(question)
    if match is None:
        return []
    found = _CHOICE.findall(question[match.end() :].strip())
    return [Option(label, " ".join(words.split())) for label, words in found]
