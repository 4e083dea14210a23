"""SealQA: fact-seeking questions whose web search results conflict, mislead or do not help.

Rows: `question`, `answer`, `search_results` (text, or a list of {title, url, date, snippet}),
`topic`, `urls`, `freshness`. The agent sees the search results; nothing is fetched from the web.
A judge decides between correct, incorrect and not attempted; an answer that plainly equals the
gold answer is right without asking it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skillfit.benchmarks.benchmark import Benchmark, HubFiles, ItemRow, optional, text
from skillfit.benchmarks.questions import match_or_judge
from skillfit.errors import InputError
from skillfit.extensions import SourceReference, TaskSource
from skillfit.models.json_text import parse_json
from skillfit.tasks.item import stable_hash
from skillfit.tasks.rows import Row


def row_id(row: Row) -> str:
    return optional(row, "question_id", "id") or stable_hash(text(row, "question"))[:12]


BENCHMARK = Benchmark(
    name="sealqa",
    title="SealQA: questions with conflicting search results",
    homepage="https://huggingface.co/datasets/vtllms/sealqa",
    licence="Apache-2.0",
    folder=Path(__file__).with_suffix(""),
    downloads=(HubFiles("vtllms/sealqa", ("seal-0*", "seal_0*")),),
    row_id=row_id,
)


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
            "id": row_id(row),
            "type": optional(row, "topic"),
            "question": question,
            "input": "\n\n".join([*parts, f"## Question\n\n{question}"]),
            "answers": [text(row, "answer", "ground_truth")],
        }

    how = match_or_judge(["tag", "last_line"], use_judge=judge)
    return BENCHMARK.source(reference, convert, how=how)


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
