"""Benchmarks that ask questions about images.

- DocVQA: questions about the scanned page of a document.
- MathVerse: mathematics problems with a diagram.
- BabyVision: visual puzzles that small children solve.
- MMRB: reasoning over several images.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
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
from skillfit.benchmarks.questions import (
    Option,
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

_HERE = Path(__file__).parent


def _docvqa_rows(path: Path) -> Iterator[Row]:
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


DOCVQA = Benchmark(
    name="docvqa",
    title="DocVQA: questions about pages of scanned documents",
    homepage="https://huggingface.co/datasets/lmms-lab/DocVQA",
    licence="Apache-2.0 (the Hub's copy); page images from the UCSF Industry Documents Library",
    folder=_HERE / "docvqa",
    downloads=(HubFiles("lmms-lab/DocVQA", ("DocVQA/validation-*.parquet",)),),
    splits=skillopt_splits("docvqa_id_split", 107, 53, 374),
    read=_docvqa_rows,
    row_id=lambda row: text(row, "questionId", "id"),
)
"""Rows: `questionId`, `question`, `answers` (or `answer`), `image_path` (or `image`), and perhaps a
`topic`. The publisher's JSON file ({"data": […]}) and the Hub's Parquet files are read too. Scored
by ANLS with threshold 0.5; the hard score asks for (nearly) 1.
"""


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
            "answers": _docvqa_answers(row),
            "images": [find_image(row, text(row, "image_path", "image"), root)],
            "image_detail": image_detail,
        }

    return DOCVQA.source(reference, convert)


def _docvqa_answers(row: Row) -> list[str]:
    for column in ("answers", "answer", "ground_truth"):
        given = row.values.get(column)
        if given:
            return [str(one) for one in given] if isinstance(given, list) else [str(given)]
    raise InputError(f"{row.where}: no answers, answer or ground_truth.")


MATHVERSE = Benchmark(
    name="mathverse",
    title="MathVerse: mathematics problems with diagrams",
    homepage="https://huggingface.co/datasets/AI4Math/MathVerse",
    licence="MIT",
    folder=_HERE / "mathverse",
    downloads=(HubFiles("AI4Math/MathVerse", ("testmini.json", "images.zip")),),
    row_id=lambda row: text(row, "problem_index", "id"),
)
"""Rows: `problem_index`, `problem_version`, `question`, `image`, `answer`, `question_type`,
`metadata` (subject, subfield). Multiple-choice problems are scored by the label. Free answers that
do not plainly equal the gold answer are put to a judge.
"""
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
        for row in MATHVERSE.rows(reference):
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
    return MATHVERSE.source(reference, convert, how=how)


def choices_in(question: str) -> list[Option]:
    """The choices that are listed in the question's text after `Choices:`."""
    match = _CHOICES.search(question)
    if match is None:
        return []
    found = _CHOICE.findall(question[match.end() :].strip())
    return [Option(label, " ".join(words.split())) for label, words in found]


BABYVISION = Benchmark(
    name="babyvision",
    title="BabyVision: visual puzzles that small children solve",
    homepage="https://huggingface.co/datasets/UnipatAI/BabyVision",
    licence="see the data set's page",
    folder=_HERE / "babyvision",
    downloads=(HubFiles("UnipatAI/BabyVision", ("data/*.parquet",)),),
    row_id=lambda row: text(row, "taskId", "id"),
)
"""Rows: `taskId`, `type`, `subtype`, `question`, `image`, `ansType` (choice or blank), `options`
with `choiceAns` (position from 0, label or text), `blankAns`, and `coT`, a worked solution that
only analysts of failures see. Choices are scored by the label; free answers that do not plainly
equal the gold answer are put to a judge.
"""


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
    return BABYVISION.source(reference, convert, how=how)


def _mmrb_rows(path: Path) -> Iterator[Row]:
    """The rows of all *_human.json files in a folder, or of one file."""
    files = sorted(path.rglob("*_human.json")) if path.is_dir() else []
    for file in files:
        yield from read_rows(file)
    if not files:
        yield from read_any(path)


def _mmrb_id(row: Row) -> str:
    parts = (optional(row, "source"), optional(row, "subtask"), optional(row, "index"))
    return optional(row, "id") or ":".join(part or "unknown" for part in parts)


MMRB = Benchmark(
    name="mmrb",
    title="MMRB: reasoning over several images",
    homepage="https://huggingface.co/datasets/HarrytheOrange/MMRB",
    licence="see the data set's page",
    folder=_HERE / "mmrb",
    downloads=(HubFiles("HarrytheOrange/MMRB", ("*.zip",)),),
    read=_mmrb_rows,
    row_id=_mmrb_id,
)
"""Rows (files *_human.json): `source`, `subtask`, `index`, `question`, `answer`, `options`,
`image_paths`, `reasoning_steps`. Questions with options are scored by label or by the option's
text; other answers must equal the gold answer, apart from case, spaces and outer punctuation.
"""
# How answers are written: in tags, as Answer[…], in a box, after "answer is", on the last line.
_MMRB_EXTRACT = (
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
            "id": _mmrb_id(row),
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

    return MMRB.source(reference, convert, how=match_or_judge(_MMRB_EXTRACT, use_judge=False))
