"""Benchmarks that ask questions in words.

- SearchQA: trivia questions, each with the snippets that a web search returned for it.
- SealQA: fact-seeking questions whose web search results conflict, mislead or do not help.
- LiveMathematicianBench: multiple-choice questions about theorems of recent papers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skillfit.benchmarks.benchmark import (
    Benchmark,
    HubFiles,
    ItemRow,
    optional,
    skillopt_splits,
    text,
)
from skillfit.benchmarks.questions import (
    match_or_judge,
    read_options,
    right_option,
    show_options,
    shuffled,
)
from skillfit.errors import InputError
from skillfit.extensions import SourceReference, TaskSource
from skillfit.models.json_text import parse_json
from skillfit.tasks.item import stable_hash
from skillfit.tasks.rows import Row

_HERE = Path(__file__).parent

SEARCHQA = Benchmark(
    name="searchqa",
    title="SearchQA: trivia questions with web search snippets",
    homepage="https://huggingface.co/datasets/lucadiliello/searchqa",
    licence="not stated by the publisher",
    folder=_HERE / "searchqa",
    downloads=(HubFiles("lucadiliello/searchqa", ("data/*.parquet",)),),
    splits=skillopt_splits("searchqa_id_split", 400, 200, 1400),
    row_id=lambda row: text(row, "key", "id"),
)
"""Rows: `id` (or `key`), `question`, `context` (snippets that begin with [DOC]), `answers`. Scored
by SQuAD's exact match; the soft score is the token F1.
"""
_SNIPPET = "[DOC]"


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
    """As many whole snippets from the beginning as fit into `limit` characters; if not even one
    does, the beginning of the first.
    """
    if len(context) <= limit:
        return context
    cut = context.rfind(_SNIPPET, 1, limit + len(_SNIPPET))
    return context[: cut if cut > 0 else limit].rstrip()


def _sealqa_id(row: Row) -> str:
    return optional(row, "question_id", "id") or stable_hash(text(row, "question"))[:12]


SEALQA = Benchmark(
    name="sealqa",
    title="SealQA: questions with conflicting search results",
    homepage="https://huggingface.co/datasets/vtllms/sealqa",
    licence="Apache-2.0",
    folder=_HERE / "sealqa",
    downloads=(HubFiles("vtllms/sealqa", ("seal-0*", "seal_0*")),),
    row_id=_sealqa_id,
)
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


_MONTH = re.compile(r"qa_(\d{6})_final\.json")


def _livemathematicianbench_id(row: Row) -> str:
    """`MONTH:NUMBER`. Publisher's rows have no month; the name of their file says it."""
    if given := optional(row, "id"):
        return given
    named = _MONTH.search(row.where)
    month = optional(row, "month") or (named[1] if named else "")
    if not month:
        raise InputError(f"{row.where}: no id and no month.")
    return f"{month}:{text(row, 'no')}"


LIVEMATHEMATICIANBENCH = Benchmark(
    name="livemathematicianbench",
    title="LiveMathematicianBench: theorems of recent papers as multiple-choice questions",
    homepage="https://huggingface.co/datasets/LiveMathematicianBench/LiveMathematicianBench",
    licence="see the data set's page",
    folder=_HERE / "livemathematicianbench",
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
    row_id=_livemathematicianbench_id,
)
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
) -> TaskSource:
    """`use_theorem` and `use_sketch` show the agent the theorem and the sketch of its proof."""

    def convert(row: Row) -> ItemRow:
        item_id = _livemathematicianbench_id(row)
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

    return LIVEMATHEMATICIANBENCH.source(reference, convert)
