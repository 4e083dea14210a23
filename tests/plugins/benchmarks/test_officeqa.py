"""officeqa: documents with tools, oracle pages, search modes, and the grader of figures."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError, TaskFailure
from skillfit.models.protocol import Reply, ToolCall
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.plugins.benchmarks.benchmark import find_benchmark
from skillfit.plugins.benchmarks.officeqa import (
    PAGE_CHARS,
    TOTAL_CHARS,
    OfficeAnswer,
    SearchRounds,
    SearchService,
    oracle_text,
    tokens,
)
from skillfit.skill import Skill
from skillfit.tasks import load_task
from skillfit.tasks.item import Attempt, Item
from skillfit.tasks.task import prove_gold
from tests.plugins.benchmarks.agents import solver, wrong
from tests.plugins.benchmarks.sample_training import (
    LESSON,
    Lab,
    by_question,
    sample_task,
    tool,
    user,
)
from tests.support.chat_server import Call
from tests.support.web_app import WebApp

SAMPLE = find_benchmark("officeqa").folder / "sample"


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("3 million", "3 million", True),
        ("3,000,000", "3 million", True),
        ("$3 million dollars", "3 million", True),
        ("3 billion", "3 million", False),
        ("3", "3 million", False),
        ("(5)", "-5", True),
        ("(5)", "5", False),
        ("$(23.4)", "(23.4)", True),
        ("1,234.50", "1234.5", True),
        ("1234.51", "1234.5", False),
        ("2.15 percent", "2.15%", True),
        ("2.15", "2.15%", False),
        ("[0.096, -184.143]", "0.096, -184.143", True),
        ("-184.143, 0.096", "0.096, -184.143", False),
        ("the Port Selby district", "Port Selby district", True),
        ("Port", "Port Selby", False),
        ("22 April 1953", "22 april, 1953", True),
        ("", "5", False),
    ],
)
async def test_answers_are_compared_by_value(answer: str, gold: str, right: bool) -> None:
    item = Item("1", {"input": "?", "answers": [gold]})
    score = await OfficeAnswer().grade(item, Attempt(answer))
    assert (score.hard == 1) is right, (tokens(answer), tokens(gold))
    assert (
        score.soft == 1
        if right
        else score.soft < 1 or sorted(tokens(answer)) == sorted(tokens(gold))
    )


async def test_gold_answers_score_1_and_wrong_ones_0() -> None:
    task = sample_task("officeqa")
    assert (len(task.train), len(task.selection), len(task.test)) == (5, 5, 3)
    assert await prove_gold(task) == []
    assert task.grader is not None
    for item in task.items:
        assert (await task.grader.grade(item, Attempt("<answer>777.7</answer>"))).hard == 0


def test_oracle_pages_are_part_of_the_prompt_unless_turned_off() -> None:
    item = sample_task("officeqa").items[0]
    assert "## Pages" in item.input and "page" in item.input
    plain = sample_task("officeqa", task_args={"oracle_pages": False}).items[0]
    assert "## Pages" not in plain.input and plain.input in item.input


def test_pages_are_cut_to_their_limits(tmp_path: Path) -> None:
    elements = [{"content": "x" * 30_000, "bbox": [{"page_id": page}]} for page in range(6)]
    path = tmp_path / "bulletin.json"
    path.write_text(json.dumps({"document": {"elements": elements}}))
    assert len(oracle_text([(path, 1)])) < PAGE_CHARS + 100
    assert len(oracle_text([(path, page) for page in range(1, 7)])) < TOTAL_CHARS + 300
    assert oracle_text([(path, 99)]) == ""
    path.write_text("{}")
    with pytest.raises(InputError, match="not a parsed document"):
        oracle_text([(path, 1)])


async def test_a_training_run_with_tools_on_the_sample_learns(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(solve=solver("officeqa"), wrong=wrong("officeqa"))
    run = await lab.train("officeqa:sample", recipe="paper")
    assert LESSON in run.best_skill.text
    assert [verdict.decision for verdict in run.verdicts] == ["accept"]


async def test_the_corpus_mode_shows_all_documents(make_lab: Callable[..., Lab]) -> None:
    answers = by_question(sample_task("officeqa", task_args={"search_mode": "corpus"}))
    seen: set[str] = set()

    def solve(call: Call) -> dict[str, Any]:
        results = [message for message in call.body["messages"] if message["role"] == "tool"]
        if not results:
            return tool("search", text="TREASURY BULLETIN OF NORLAND", path="corpus")
        seen.add(results[0]["content"])
        return tool("finish", answer=f"<answer>{answers[user(call)]}</answer>")

    lab = make_lab(solve=solve)
    scores = await lab.evaluate("officeqa:sample?search_mode=corpus", f"# S\n\n{LESSON}\n", limit=2)
    assert scores == {"skill": 1.0}
    for bulletin in ("1951_03", "1952_09", "1953_06"):
        assert all(bulletin in found for found in seen)


async def test_without_tools_the_pages_are_enough(make_lab: Callable[..., Lab]) -> None:
    task = sample_task("officeqa", task_args={"search_mode": "none"})
    answers = by_question(task)
    lab = make_lab(solve=lambda call: f"<answer>{answers[user(call)]}</answer>")
    scores = await lab.evaluate("officeqa:sample?search_mode=none", f"# S\n\n{LESSON}\n")
    assert scores == {"skill": 1.0}
    assert all("tools" not in call.body for call in lab.rollouts)


# the search service


def search(*queries: str) -> Reply:
    return Reply("", (ToolCall("1", "search", json.dumps({"queries": list(queries)})),))


def rounds(script: list[Any], url: str) -> SearchRounds:
    service = SearchService(url, "SEARCH_TOKEN_OF_THE_TESTS", "duck", max_results=2)
    grader = OfficeAnswer.model_validate({"extract": ["tag"]})
    return SearchRounds(ScriptedModel(script), "Search. {skill}", grader, service, 5, 2)


async def test_custom_search_calls_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_TOKEN_OF_THE_TESTS", "secret-token")
    asked: list[dict[str, Any]] = []

    async def serve(request: Request) -> Response:
        assert request.headers["authorization"] == "Bearer secret-token"
        asked.append(await request.json())
        results = [
            {"title": f"Result {n}", "snippet": "It is 7.", "content": "x" * 3000} for n in range(5)
        ]
        return JSONResponse({"results": results})

    item = Item("1", {"input": "How many?", "answers": ["7"]})
    with WebApp(serve) as app:
        evaluator = rounds([search("a", "b", "c"), "<answer>7</answer>"], app.url)
        attempt, score = await evaluator(Skill.from_text("# S\n\nx\n"), item, seed=1)
    assert score.hard == 1
    assert [one["query"] for one in asked] == ["a", "b"]
    assert asked[0]["provider"] == "duck" and asked[0]["max_results"] == 2
    result = next(step.text for step in attempt.steps if step.kind == "tool_result")
    assert "Result 1" in result and "Result 2" not in result
    assert "xxx…" in result, "the model sees that a result is cut off"
    assert "secret-token" not in json.dumps(evaluator.describe())


async def test_invalid_search_arguments_are_reported_to_the_model() -> None:
    nested = '{"queries": ' + "[" * 100_000 + "]" * 100_000 + "}"
    calls = [Reply("", (ToolCall("1", "search", text),)) for text in (nested, "[1]", "{")]
    evaluator = rounds([*calls, "<answer>7</answer>"], "http://127.0.0.1:9")
    item = Item("1", {"input": "How many?", "answers": ["7"]})
    attempt, score = await evaluator(Skill.from_text("# S\n\nx\n"), item, seed=1)
    results = [step.text for step in attempt.steps if step.kind == "tool_result"]
    assert results == ['error: call search with {"queries": ["…"]}'] * 3
    assert score.hard == 1


async def test_a_search_service_that_fails_is_a_failure_not_a_zero() -> None:
    async def serve(request: Request) -> Response:
        return Response("down", 503)

    item = Item("1", {"input": "How many?", "answers": ["7"]})
    with WebApp(serve) as app, pytest.raises(TaskFailure) as raised:
        await rounds([search("a")], app.url)(Skill.from_text("# S\n\nx\n"), item, seed=1)
    assert raised.value.kind == "search" and "503" in raised.value.message


async def test_a_search_that_fails_once_is_retried() -> None:
    answers = [Response("busy", 503), JSONResponse([{"title": "It is 7."}])]
    asked: list[str] = []

    async def serve(request: Request) -> Response:
        asked.append((await request.json())["query"])
        return answers.pop(0)

    item = Item("1", {"input": "How many?", "answers": ["7"]})
    with WebApp(serve) as app:
        evaluator = rounds([search("a"), "<answer>7</answer>"], app.url)
        _, score = await evaluator(Skill.from_text("# S\n\nx\n"), item, seed=1)
    assert score.hard == 1 and asked == ["a", "a"]


@pytest.mark.parametrize(("status", "kind"), [(401, "config"), (404, "config"), (400, "evaluate")])
async def test_a_permanent_search_failure_is_not_retried(status: int, kind: str) -> None:
    asked: list[str] = []

    async def serve(request: Request) -> Response:
        asked.append((await request.json())["query"])
        return Response("no", status)

    item = Item("1", {"input": "How many?", "answers": ["7"]})
    with WebApp(serve) as app, pytest.raises(TaskFailure, match=f"answered {status}: no") as raised:
        await rounds([search("a")], app.url)(Skill.from_text("# S\n\nx\n"), item, seed=1)
    assert raised.value.kind == kind and asked == ["a"]


# data


def test_the_published_csv_and_documents_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE / "treasury_bulletins_parsed", tmp_path / "docs")
    with (tmp_path / "officeqa_full.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["uid", "question", "answer", "source_docs", "source_files", "difficulty"])
        writer.writerow(
            [
                "UID1",
                "How much?",
                "7",
                "https://x.example/y",
                "treasury_bulletin_1951_03.txt",
                "easy",
            ]
        )
    (tmp_path / "alone").mkdir()
    shutil.move(tmp_path / "officeqa_full.csv", tmp_path / "alone" / "officeqa_full.csv")
    with pytest.raises(InputError, match=r"treasury_bulletin_1951_03.txt is not in"):
        load_task(EnvSection(tasks="officeqa:alone/officeqa_full.csv", folder=str(tmp_path)))
    task = load_task(
        EnvSection(
            tasks="officeqa:alone/officeqa_full.csv",
            folder=str(tmp_path),
            task_args={"data_dirs": ["docs"]},
        )
    )
    (item,) = task.items
    assert list(item.files) == ["docs/treasury_bulletin_1951_03.txt"]


@pytest.mark.parametrize("cell", ["[not json", "[" * 100_000])
def test_a_malformed_list_of_documents_is_an_error_with_its_row(tmp_path: Path, cell: str) -> None:
    row = {"uid": "UID1", "question": "How much?", "answer": "7", "source_files": cell}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=r"rows.jsonl.*source_files is not a list"):
        load_task(EnvSection(tasks="officeqa:rows.jsonl", folder=str(tmp_path)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search_mode": "azure_search"}, "which skillfit does not offer"),
        ({"search_mode": "online"}, "search_mode is 'online'"),
        ({"search_mode": "custom_search"}, "needs search_api_url"),
    ],
)
def test_errors_name_the_wrong_option(options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sample_task("officeqa", task_args=options)


def test_check_grades_the_gold_answers_as_correct(make_lab: Callable[..., Lab]) -> None:
    checks = make_lab(solve=lambda call: "").check("officeqa:sample")
    assert checks["gold"]["verdict"] == "go", checks["gold"]
