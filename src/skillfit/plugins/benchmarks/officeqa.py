"""OfficeQA: questions about U.S. Treasury Bulletins, answered from the parsed documents.

Rows (CSV): `uid`, `question`, `answer` (or `ground_truth`), `source_files`, `source_docs`,
`difficulty`. Documents are text files, found in `data_dirs`, in OFFICEQA_DOCS_DIR or beside the
data; their parsed pages are JSON files of the same name.

Search modes: `offline`, tools on the question's own documents; `corpus`, tools on all documents;
`none`, no tools; `custom_search`, a web search service. With `oracle_pages` the pages that the
question was written from are part of the prompt.

An answer is right when it is the same after normalising; the soft score is the token F1. Numbers
are compared by value: separators, currency signs and trailing zeros do not matter, scale words do
(3 million is 3,000,000 and never 3 billion), and parentheses around a number make it negative. A
percent sign belongs to the number: 5% is not 5.

In the search mode `custom_search` the model searches the web through a search service. The service
gets {"query", "provider", "max_results"} as JSON by POST and answers with a list of
results, or {"results": […]}, each with `title`, `url` and `snippet` or `content`.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import httpx

from skillfit.agents.agent import system_messages
from skillfit.errors import InputError, TaskFailure
from skillfit.extensions import PartDescription, SourceReference, TaskSource
from skillfit.models.client import with_retries
from skillfit.models.failures import classify_service
from skillfit.models.json_text import parse_json
from skillfit.models.protocol import Model, Tool, ToolCall
from skillfit.models.wire import argument_object
from skillfit.plain_text import one_line, shorten
from skillfit.plugins.benchmarks.benchmark import (
    Benchmark,
    Dialogue,
    HubFiles,
    ItemRow,
    optional,
    packaged_text,
    required_model,
    skillopt_splits,
    text,
)
from skillfit.skill import Skill
from skillfit.tasks.graders.built_in import TextGrader, verdict
from skillfit.tasks.item import Grader, Item, Score, ScoredAttempt
from skillfit.tasks.rows import Row
from skillfit.tasks.task import Evaluator, LoadContext, SourceItems

OFFICEQA = Benchmark(
    name="officeqa",
    title="OfficeQA: questions about U.S. Treasury Bulletins",
    homepage="https://huggingface.co/datasets/databricks/officeqa",
    licence="CC BY-SA 4.0; the questions are gated",
    folder=Path(__file__).with_suffix(""),
    downloads=(
        HubFiles("databricks/officeqa", ("officeqa_full.csv", "treasury_bulletins_parsed/*")),
    ),
    splits=skillopt_splits("officeqa_id_split", 50, 24, 172),
    row_id=lambda row: text(row, "uid", "id"),
)
_MODES = ("offline", "corpus", "none", "custom_search")
_PAGE = re.compile(r"[?&#]page=(\d+)")
PAGE_CHARS = 24_000
TOTAL_CHARS = 80_000
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_TOKEN = re.compile(
    r"(?P<open>\()?\s*(?P<sign>[-+−]?)\s*[$€£]?\s*(?P<minus>[-−]?)"
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"\s*(?P<percent>%|percent\b|per\s+cent\b)?\s*(?P<close>\))?"
    r"(?:\s*(?P<scale>thousand|million|billion|trillion)s?\b)?"
    r"|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)?)",
    re.IGNORECASE,
)
_IGNORED = frozenset(
    ("a", "an", "the", "dollar", "dollars", "usd", "nominal", "approximately", "about")
)


def officeqa(
    reference: SourceReference,
    *,
    search_mode: str = "offline",
    oracle_pages: bool = True,
    data_dirs: str | Sequence[str] = (),
    max_tool_turns: int = 24,
    max_queries_per_turn: int = 4,
    search_api_url: str = "",
    search_auth_env: str = "OFFICEQA_CUSTOM_SEARCH_AUTH",
    search_provider: str = "",
    search_max_num_results: int = 4,
    search_timeout_seconds: float = 20.0,
) -> TaskSource:
    """`data_dirs`: folders with the documents. `max_tool_turns`: rounds of tool calls. The other
    options are for `custom_search`.
    """
    _check_mode(search_mode, search_api_url)
    folders = cache(lambda: _folders(reference, data_dirs))
    grader = OfficeAnswer.model_validate({"extract": ["tag", "last_line"]})

    def convert(row: Row) -> ItemRow:
        names = _listed(row, "source_files")
        item: ItemRow = {
            "id": text(row, "uid", "id"),
            "type": optional(row, "difficulty", "category"),
            "answers": [text(row, "ground_truth", "answer")],
            "input": text(row, "question"),
        }
        parts = [item["input"]]
        if search_mode == "offline":
            item["files"] = {f"docs/{name}": str(_document(row, name, folders())) for name in names}
            parts.append("Documents: " + ", ".join(f"docs/{name}" for name in names))
        if oracle_pages and (pages := _oracle(row, names, folders())):
            parts.append(f"## Pages\n\n{pages}")
        return {**item, "input": "\n\n".join(parts)}

    def how(context: LoadContext) -> SourceItems:
        if search_mode != "custom_search":
            return SourceItems((), grader=grader)
        service = SearchService(
            search_api_url,
            search_auth_env,
            search_provider,
            search_max_num_results,
            search_timeout_seconds,
        )
        prompt = packaged_text(OFFICEQA.folder, "answer_by_searching.md")
        rounds = SearchRounds(
            context.model, prompt, grader, service, max_tool_turns, max_queries_per_turn
        )
        return SourceItems((), evaluator=rounds)

    env = _env(search_mode, max_tool_turns)
    if search_mode == "corpus":
        env["corpus"] = str(folders()[0])
    return OFFICEQA.source(reference, convert, how=how, config={"env": env})


def _check_mode(mode: str, url: str) -> None:
    if mode == "azure_search":
        raise InputError(
            "env.task_args: search_mode azure_search is the provider's own web search, which "
            "skillfit does not offer.",
            hint="Use custom_search with a search service, or offline.",
        )
    if mode not in _MODES:
        raise InputError(
            f"env.task_args: search_mode is {mode!r}.", hint=f"Choose one of {', '.join(_MODES)}."
        )
    if mode == "custom_search" and not url:
        raise InputError("env.task_args: search_mode custom_search needs search_api_url.")


def _env(mode: str, turns: int) -> dict[str, str | int]:
    if mode == "none":
        return {"agent": "chat", "prompt": packaged_text(OFFICEQA.folder, "answer_from_pages.md")}
    if mode == "custom_search":
        return {}
    prompt = packaged_text(OFFICEQA.folder, "answer_from_documents.md")
    return {"agent": "tools", "prompt": prompt, "max_turns": turns}


def _folders(reference: SourceReference, data_dirs: str | Sequence[str]) -> list[Path]:
    """Find where documents may be: the option, OFFICEQA_DOCS_DIR, and the folder of the data."""
    given = [data_dirs] if isinstance(data_dirs, str) and data_dirs else list(data_dirs)
    folders = [reference.base / Path(name).expanduser() for name in given]
    if not folders and (named := os.environ.get("OFFICEQA_DOCS_DIR")):
        folders = [Path(named).expanduser()]
    if not folders:
        folders = [OFFICEQA.data_folder(reference)]
    return [folder.resolve() for folder in folders]


@cache
def _files(folder: Path, suffix: str) -> dict[str, Path]:
    """Map the names of all documents below a folder, which is walked once, to their paths."""
    return {path.name: path for path in sorted(folder.rglob(f"*{suffix}"))}


def _document(row: Row, name: str, folders: Sequence[Path]) -> Path:
    for folder in folders:
        if found := _files(folder, Path(name).suffix or ".txt").get(Path(name).name):
            return found
    raise InputError(
        f"{row.where}: the document {name} is not in {', '.join(map(str, folders))}.",
        hint="Name the folder of the documents in env.task_args: {data_dirs: …}.",
    )


def _oracle(row: Row, names: Sequence[str], folders: Sequence[Path]) -> str:
    """Return the pages that `source_docs` name, in the parsed form of the documents."""
    urls = _listed(row, "source_docs")
    pages = []
    for name, url in zip(names, urls, strict=False):
        number = page_number(url)
        if number is not None:
            pages.append((_document(row, f"{Path(name).stem}.json", folders), number))
    return oracle_text(pages)


def _listed(row: Row, column: str) -> list[str]:
    """Return a list, its JSON text, or texts on separate lines or with commas between them."""
    value = row.values.get(column)
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise InputError(f"{row.where}: {column} is not a list: {error}.") from error
    elif isinstance(value, str):
        value = value.splitlines() if "\n" in value.strip() else value.split(",")
    return [str(part).strip() for part in value or [] if str(part).strip()]


def page_number(url: str) -> int | None:
    """Return the page that an address of a source document names, counted from 1."""
    match = _PAGE.search(url)
    return int(match[1]) if match else None


def oracle_text(pages: Sequence[tuple[Path, int]]) -> str:
    """Return the text of these pages, each and all together cut to a limit."""
    parts, room = [], TOTAL_CHARS
    for path, number in pages:
        shown = page_text(path, number)[: min(PAGE_CHARS, room)]
        room -= len(shown)
        if shown:
            parts.append(f"### {path.stem}, page {number}\n\n{shown}")
    return "\n\n".join(parts)


def page_text(path: Path, number: int) -> str:
    """Return the elements of a page, in order."""
    return _pages(path, path.stat().st_mtime_ns).get(number, "")


@lru_cache(maxsize=64)
def _pages(path: Path, version: int) -> dict[int, str]:
    """Map page numbers from 1 to texts. `version` makes a changed file load again."""
    try:
        elements = json.loads(path.read_bytes())["document"]["elements"]
        pages: dict[int, list[str]] = {}
        for element in elements:
            for page in {int(box["page_id"]) for box in element.get("bbox") or []}:
                pages.setdefault(page + 1, []).append(str(element.get("content") or ""))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not a parsed document: {type(error).__name__} {error}."
        ) from error
    return {page: "\n\n".join(filter(None, texts)) for page, texts in pages.items()}


class OfficeAnswer(TextGrader, name="office_answer"):
    def compare(self, item: Item, text: str) -> Score:
        given = tokens(text)
        golds = [tokens(gold) for gold in item.answers]
        best = max(_f1(given, gold) for gold in golds)
        return verdict(bool(given) and given in golds, best)


def tokens(text: str) -> list[str]:
    """Return words in lower case and numbers by value, in order."""
    found = []
    for match in _TOKEN.finditer(text):
        if word := match["word"]:
            if word.lower() not in _IGNORED:
                found.append(word.lower())
        else:
            found.append(_number(match))
    return found


def _number(match: re.Match[str]) -> str:
    try:
        value = Decimal(match["digits"].replace(",", ""))
    except InvalidOperation:
        return match["digits"]
    negative = bool(match["minus"] or match["sign"] in ("-", "−"))
    if match["open"] and match["close"]:
        negative = not negative
    value = value.scaleb(_SCALES.get((match["scale"] or "").lower(), 0))
    text = f"{value.normalize():f}" if value else "0"
    return f"{'-' if negative and value else ''}{text}{'%' if match['percent'] else ''}"


def _f1(one: list[str], other: list[str]) -> float:
    shared = (Counter(one) & Counter(other)).total()
    return 2 * shared / (len(one) + len(other)) if shared else 0.0


_RESULT_CHARS = 2000
SEARCH = Tool(
    "search",
    "Search the web.",
    {
        "type": "object",
        "properties": {"queries": {"type": "array", "items": {"type": "string"}}},
        "required": ["queries"],
        "additionalProperties": False,
    },
)


@dataclass(frozen=True, slots=True)
class SearchService:
    url: str
    auth_env: str = ""  # name of the environment variable with the token
    provider: str = ""
    max_results: int = 4
    timeout: float = 20.0

    async def find(self, query: str) -> str:
        """Return the results as text. Raises `TaskFailure` when the service does not answer."""
        answer = await with_retries(partial(self._ask, query))
        results = answer.get("results", []) if isinstance(answer, Mapping) else answer
        return "\n\n".join(_shown(result) for result in results[: self.max_results]) or "no results"

    async def _ask(self, query: str) -> Any:
        """Return the JSON that the service answers."""
        token = os.environ.get(self.auth_env, "") if self.auth_env else ""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        body = {"query": query, "provider": self.provider, "max_results": self.max_results}
        where = f"the search service at {self.url}"
        try:
            async with httpx.AsyncClient(timeout=self.timeout) as client:
                response = await client.post(self.url, json=body, headers=headers)
            if not response.is_success:
                raise classify_service(
                    "search",
                    response.status_code,
                    f"{where} answered {response.status_code}: {one_line(response.text, 200)}",
                    hint="Check search_api_url and the token that search_auth_env names.",
                )
            return response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise TaskFailure("search", f"{where}: {error}") from error


def _shown(result: Any) -> str:
    if not isinstance(result, Mapping):
        return shorten(str(result), _RESULT_CHARS)
    parts = (result.get(name) for name in ("title", "url", "snippet", "content"))
    return shorten("\n".join(str(part) for part in parts if part), _RESULT_CHARS)


@dataclass(frozen=True)
class SearchRounds(Evaluator):
    """The model may search in each turn; its first reply without a search is the answer."""

    needs_model: ClassVar[bool] = True

    model: Model | None
    prompt: str
    grader: Grader
    service: SearchService
    max_turns: int
    max_queries: int

    async def __call__(self, skill: Skill, item: Item, seed: int) -> ScoredAttempt:
        dialogue = Dialogue(required_model(self.model, "officeqa"), item, seed)
        messages = (*system_messages(self.prompt, skill), *item.messages)
        answer = await dialogue.use_tool(messages, SEARCH, self._search, self.max_turns)
        attempt = dialogue.attempt(answer)
        return ScoredAttempt(attempt, await self.grader.grade(item, attempt))

    async def _search(self, call: ToolCall) -> str:
        queries = _queries(call)
        if not queries:
            return 'error: call search with {"queries": ["…"]}'
        found = [
            f"## {query}\n\n{await self.service.find(query)}"
            for query in queries[: self.max_queries]
        ]
        return "\n\n".join(found)

    def describe(self) -> PartDescription:
        return {
            "search_mode": "custom_search",
            "url": self.service.url,
            "provider": self.service.provider,
            "max_results": self.service.max_results,
            "max_turns": self.max_turns,
            "max_queries": self.max_queries,
            "prompt": self.prompt,
            "grader": self.grader.describe(),
            "model": self.model.id if self.model else "",
        }


def _queries(call: ToolCall) -> list[str]:
    queries = argument_object(call).get("queries")
    return [str(query) for query in queries if query] if isinstance(queries, list) else []
