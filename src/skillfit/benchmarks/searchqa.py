"""SearchQA: trivia questions, each with the snippets that a web search returned for it.

Rows: `id` (or `key`), `question`, `context` (snippets that begin with [DOC]), `answers`. Scored by
SQuAD's exact match; the soft score is the token F1.
"""

from __future__ import annotations

from pathlib import Path

from skillfit.benchmarks.benchmark import (
    Benchmark,
    HubFiles,
    ItemRow,
    optional,
    skillopt_splits,
    text,
)
from skillfit.errors import InputError
from skillfit.extensions import SourceReference, TaskSource
from skillfit.tasks.rows import Row

BENCHMARK = Benchmark(
    name="searchqa",
    title="SearchQA: trivia questions with web search snippets",
    homepage="https://huggingface.co/datasets/lucadiliello/searchqa",
    licence="not stated by the publisher",
    folder=Path(__file__).with_suffix(""),
    downloads=(HubFiles("lucadiliello/searchqa", ("data/*.parquet",)),),
    splits=skillopt_splits("searchqa_id_split", 400, 200, 1400),
    row_id=lambda row: text(row, "key", "id"),
)
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

    return BENCHMARK.source(reference, convert)


def shortened_context(context: str, limit: int) -> str:
    """As many whole snippets from the beginning as fit into `limit` characters; if not even one
    does, the beginning of the first.
    """
    if len(context) <= limit:
        return context
    cut = context.rfind(_SNIPPET, 1, limit + len(_SNIPPET))
    return context[: cut if cut > 0 else limit].rstrip()
