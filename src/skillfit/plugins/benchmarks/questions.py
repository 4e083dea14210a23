"""Benchmarks that ask a question and grade a short answer.

In words:
- SearchQA: trivia questions, each with the snippets that a web search returned for it.
- SealQA: fact-seeking questions whose web search results conflict, mislead or do not help.
- LiveMathematicianBench: multiple-choice questions about theorems of recent papers.

About images:
- DocVQA: questions about the scanned page of a document.
- MathVerse: mathematics problems with a diagram.
- BabyVision: visual puzzles that small children solve.
- MMRB: reasoning over several images.

What is data about them is in NAME/NAME.yaml (`question_set.py` reads it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from skillfit.errors import InputError
from skillfit.extensions import SourceReference, TaskSource
from skillfit.models.json_text import parse_json
from skillfit.plugins.benchmarks.benchmark import ItemRow, data_root_of, optional, read_any, text
from skillfit.plugins.benchmarks.match_or_judge import match_or_judge
from skillfit.plugins.benchmarks.question_set import (
    Option,
    QuestionSet,
    check_detail,
    read_options,
    right_option,
    show_options,
    shuffled,
    with_options,
)
from skillfit.tasks.item import stable_hash
from skillfit.tasks.rows import Row, read_rows

_SNIPPET = "[DOC]"
_MONTH_IN_FILE_NAME = re.compile(r"qa_(\d{6})_final\.json")
_MATHVERSE_CHOICES = re.compile(r"\bchoices?\s*:", re.IGNORECASE)
_MATHVERSE_CHOICE = re.compile(
    r"(?:^|(?<=\s))\(?([A-G])\s*[:.)]\s*(.*?)(?=\s+\(?[A-G]\s*[:.)]|\s*$)", re.DOTALL
)
# How answers are written: in tags, as Answer[…], in a box, after "answer is", on the last line.
_MMRB_EXTRACT = (
    "tag",
    {"regex": r"(?i)\banswer\s*\[([^\]]+)\]"},
    "boxed",
    {"regex": r"(?im)\banswer(?:\s+is)?\s*:?\s+(.+?)\.?\s*$"},
    "last_line",
)


SEARCHQA = QuestionSet.load("searchqa")
"""Rows: `id` (or `key`), `question`, `context` (snippets that begin with [DOC]), `answers`. Scored
by SQuAD's exact match; the soft score is the token F1.
"""


def searchqa(reference: SourceReference, *, max_context_chars: int = 6000) -> TaskSource:
    """`max_context_chars`: how much of the snippets the agent sees, whole snippets if possible."""
    if max_context_chars < 1:
        raise InputError("env.task_args: max_context_chars must be positive.")

    def convert(row: Row) -> ItemRow:
        answers = row.values.get("answers")
        if not isinstance(answers, list) or not answers:
            raise InputError(f"{row.where}: answers must be a list with at least one answer.")
        context = shortened_context(text(row, "context"), max_context_chars)
        return {
            "id": text(row, "id", "key"),
            "type": optional(row, "type"),
            "input": f"## Search results\n\n{context}\n\n## Question\n\n{text(row, 'question')}",
            "answers": answers,
        }

    return SEARCHQA.source(reference, convert)


def shortened_context(context: str, limit: int) -> str:
    """Return as many whole snippets from the beginning as fit into `limit` characters; if not even
    one does, the beginning of the first.
    """
    if len(context) <= limit:
        return context
    cut = context.rfind(_SNIPPET, 1, limit + len(_SNIPPET))
    return context[: cut if cut > 0 else limit].rstrip()


def _sealqa_id(row: Row) -> str:
    return optional(row, "question_id", "id") or stable_hash(text(row, "question"))[:12]


SEALQA = QuestionSet.load("sealqa", row_id=_sealqa_id)
"""Rows: `question`, `answer`, `search_results` (text, or a list of {title, url, date, snippet}),
`topic`, `urls`, `freshness`. The agent sees the search results; nothing is fetched from the web.
A judge decides between correct, incorrect and not attempted; an answer that plainly equals the
gold answer is right without asking it.
"""


class _QuestionRow(ItemRow):
    question: str  # for the judge, without the search results


def sealqa(
    reference: SourceReference, *, max_evidence_chars: int = 24000, judge: bool = True
) -> TaskSource:
    """`max_evidence_chars`: how much of the search results the agent sees. `judge: false` counts
    answers that are not plainly equal as wrong.
    """
    if max_evidence_chars < 1:
        raise InputError("env.task_args: max_evidence_chars must be positive.")

    def convert(row: Row) -> _QuestionRow:
        question = text(row, "question")
        evidence = show_results(row.values.get("search_results"))[:max_evidence_chars]
        parts = [f"## Search results\n\n{evidence}"] if evidence else []
        return {
            "id": _sealqa_id(row),
            "type": optional(row, "topic"),
            "question": question,
            "input": "\n\n".join([*parts, f"## Question\n\n{question}"]),
            "answers": [text(row, "answer", "ground_truth")],
        }

    how = match_or_judge(["tag", "last_line"], use_judge=judge)
    return SEALQA.source(reference, convert, how=how)


def show_results(given: Any) -> str:
    """Search results as text, numbered. Strings are shown as they are unless they hold JSON."""
    if isinstance(given, str):
        if not given.lstrip().startswith("["):
            return given.strip()
        try:
            given = parse_json(given)
        except ValueError:
            return str(given).strip()
    if not isinstance(given, Sequence):
        return ""
    shown = []
    for number, result in enumerate(given, 1):
        if not isinstance(result, Mapping):
            shown.append(f"[{number}] {result}")
            continue
        parts = (
            result.get(name) for name in ("title", "url", "link", "date", "snippet", "content")
        )
        shown.append(f"[{number}] " + "\n".join(str(part) for part in parts if part))
    return "\n\n".join(shown)


def _theorem_id(row: Row) -> str:
    """Return `MONTH:NUMBER`. Publisher's rows have no month; it is taken from the name of their
    file.
    """
    if given := optional(row, "id"):
        return given
    named = _MONTH_IN_FILE_NAME.search(row.where)
    month = optional(row, "month") or (named[1] if named else "")
    if not month:
        raise InputError(f"{row.where}: no id and no month.")
    return f"{month}:{text(row, 'no')}"


LIVEMATHEMATICIANBENCH = QuestionSet.load("livemathematicianbench", row_id=_theorem_id)
"""Rows: `month`, `no`, `question`, `choices` ([{label, text}]), `correct_choice`, `theorem`,
`sketch`, `theorem_type`; in the publisher's files question and choices are inside `mcq`. Scored by
the label.

The order of the choices is shuffled for each item, because in the published files the position of
the right choice carries information. The gold answer is the text of the choice, so that the
preflight's shortcut audit sees when one fixed phrase is right for most items.
"""


def livemathematicianbench(
    reference: SourceReference,
    *,
    shuffle_choices: bool = True,
    shuffle_seed: int = 42,
    use_theorem: bool = False,
    use_sketch: bool = False,
    leave_out: str = "",
) -> TaskSource:
    """`use_theorem` and `use_sketch` show the agent the theorem and the sketch of its proof.
    `leave_out`: items are not used if one of their choices contains this text.
    """

    def convert(row: Row) -> ItemRow | None:
        item_id = _theorem_id(row)
        mcq = row.values.get("mcq")
        values = {**row.values, **mcq} if isinstance(mcq, Mapping) else row.values
        options = read_options(values.get("choices"))
        right = right_option(values.get("correct_choice"), options)
        if len(options) < 2 or right is None:
            raise InputError(f"{row.where}: choices and correct_choice do not fit together.")
        if leave_out and any(leave_out in option.text for option in options):
            return None
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

    return LIVEMATHEMATICIANBENCH.source(reference, convert)


def _docvqa_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of any file, or those under `data` in the publisher's JSON files."""
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


DOCVQA = QuestionSet.load("docvqa", read=_docvqa_rows)
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
        item = DOCVQA.item(row, root, image_detail)
        return {**item, "input": item["input"].partition("document_path:")[0].strip()}

    return DOCVQA.source(reference, convert)


MATHVERSE = QuestionSet.load("mathverse")
"""Rows: `problem_index`, `problem_version`, `question`, `image`, `answer`, `question_type`,
`metadata` (subject, subfield). Multiple-choice problems are scored by the label. Free answers that
do not plainly equal the gold answer are put to a judge.
"""


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
        metadata = row.values.get("metadata")
        about = metadata if isinstance(metadata, Mapping) else {}
        item = MATHVERSE.item(row, root, image_detail)
        problem = item["id"]
        item["id"] = f"{problem}:{version}" if problem_version == "all" else problem
        item["type"] = str(about.get("subfield") or about.get("subject") or "")
        item["reference"] = worded.get(problem, "")
        options = choices_in(item["input"])
        return with_options(item, options, item["answers"][0], row.where) if options else item

    how = match_or_judge(["tag", "boxed", "last_line"], use_judge=judge)
    return MATHVERSE.source(reference, convert, how=how)


def choices_in(question: str) -> list[Option]:
    """Return the choices that are listed in the question's text after `Choices:`."""
    match = _MATHVERSE_CHOICES.search(question)
    if match is None:
        return []
    found = _MATHVERSE_CHOICE.findall(question[match.end() :].strip())
    return [Option(label, " ".join(words.split())) for label, words in found]


BABYVISION = QuestionSet.load("babyvision")
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
        return BABYVISION.item(row, root, image_detail)

    how = match_or_judge(["boxed", "last_line"], use_judge=judge)
    return BABYVISION.source(reference, convert, how=how)


def _mmrb_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of all *_human.json files in a folder, or of one file."""
    files = sorted(path.rglob("*_human.json")) if path.is_dir() else []
    for file in files:
        yield from read_rows(file)
    if not files:
        yield from read_any(path)


def _mmrb_id(row: Row) -> str:
    parts = (optional(row, "source"), optional(row, "subtask"), optional(row, "index"))
    return optional(row, "id") or ":".join(part or "unknown" for part in parts)


MMRB = QuestionSet.load("mmrb", read=_mmrb_rows, row_id=_mmrb_id)
"""Rows (files *_human.json): `source`, `subtask`, `index`, `question`, `answer`, `options`,
`image_paths`, `reasoning_steps`. Questions with options are scored by label or by the option's
text; other answers must equal the gold answer, apart from case, spaces and outer punctuation.
"""


def mmrb(
    reference: SourceReference, *, data_root: str = "", image_detail: str = "auto"
) -> TaskSource:
    """`data_root`: the folder of the images. `image_detail`: auto, low or high."""
    check_detail(image_detail)
    root = data_root_of(reference, data_root)

    def convert(row: Row) -> ItemRow:
        return MMRB.item(row, root, image_detail)

    return MMRB.source(reference, convert, how=match_or_judge(_MMRB_EXTRACT, use_judge=False))
