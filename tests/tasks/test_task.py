"""Tasks from Python: Task objects, evaluate functions, files that name them, and identity."""

from __future__ import annotations

import asyncio
import pickle
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from skillfit.config.schema import EnvSection, SplitSection
from skillfit.errors import InputError, TaskFailure
from skillfit.models.protocol import RateLimited
from skillfit.skill import Skill
from skillfit.tasks import Item, Task, load_task
from skillfit.tasks.item import Attempt, Score, ScoredAttempt
from skillfit.tasks.task import FunctionEvaluator, task_from_python

SKILL = Skill.from_text("Say yes.")
ROWS = [
    {"id": str(number), "input": f"question number {number}", "answer": "yes"}
    for number in range(12)
]


async def run(task: Task, seed: int = 0) -> ScoredAttempt:
    assert task.evaluator is not None
    return await task.evaluator(SKILL, task.items[0], seed)


async def test_run_gives_the_answer_and_the_grader_scores_it() -> None:
    def answer(skill: str, item: dict[str, Any]) -> str:
        return "yes" if "yes" in skill and item["id"] == "0" else "no"

    attempt, score = await run(Task(ROWS, run=answer, grade="exact"))
    assert (attempt.answer, score.hard) == ("yes", 1)


async def test_run_and_grade_may_both_be_functions() -> None:
    async def answer(skill: str, item: dict[str, Any], seed: int) -> Attempt:
        return Attempt(f"seed {seed}")

    attempt, score = await run(
        Task(ROWS, run=answer, grade=lambda item, answer: (0.5, answer)), seed=9
    )
    assert (attempt.answer, score.feedback) == ("seed 9", "seed 9")


@pytest.mark.parametrize("value", [{"answer": "yes"}, None, 42])
async def test_a_run_function_that_returns_no_answer_is_a_failed_rollout(value: object) -> None:
    def answer(skill: str, item: dict[str, Any]) -> object:
        return value

    with pytest.raises(TaskFailure, match=f"answer returned {type(value).__name__} on item 0") as e:
        await run(Task(ROWS, run=answer, grade="exact"))
    assert e.value.kind == "agent" and "evaluate=" in e.value.hint


async def test_a_function_with_keyword_arguments_gets_skill_and_item() -> None:
    def evaluate(skill: str, item: dict[str, Any], **more: Any) -> float:
        return 1.0

    assert (await run(Task(ROWS, evaluate=evaluate)))[1].hard == 1


async def test_a_sync_function_does_not_block_the_event_loop() -> None:
    both = threading.Barrier(2, timeout=20)

    def evaluate(skill: str, item: dict[str, Any]) -> float:
        both.wait()  # passes only when two calls are in flight
        return 1.0

    task = Task(ROWS, evaluate=evaluate)
    assert [score.hard for _, score in await asyncio.gather(run(task), run(task))] == [1, 1]


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (True, Score(1)),
        (0.25, Score(0.25)),
        ((0.5, 0.75), Score(0.5, 0.75)),
        (Score(1, 1, "f"), Score(1, 1, "f")),
        (Fraction(1, 4), Score(0.25)),
        ({"score": 1, "soft": None, "feedback": None, "evidence": None}, Score(1)),
    ],
)
async def test_evaluate_may_return_any_form_of_score(value: Any, score: Score) -> None:
    _, given = await run(Task(ROWS, evaluate=lambda skill, item: value))
    assert given == score


async def test_numpys_numbers_are_scores() -> None:
    numpy = pytest.importorskip("numpy")
    for value, hard in (
        (numpy.bool_(True), 1),
        (numpy.float32(0.5), 0.5),
        (numpy.int64(1), 1),
        (numpy.array(0.25), 0.25),
    ):
        assert (await run(Task(ROWS, evaluate=lambda skill, item, value=value: value)))[1] == Score(
            hard
        )
    with pytest.raises(TaskFailure, match="not a score"):
        await run(Task(ROWS, evaluate=lambda skill, item: numpy.array([0.5, 1])))


async def test_exceptions_of_a_function_are_failures_and_skillfit_errors_are_not_wrapped() -> None:
    def explode(skill: str, item: dict[str, Any]) -> float:
        raise ZeroDivisionError("oh")

    async def limited(skill: str, item: dict[str, Any]) -> float:
        raise RateLimited("later")

    with pytest.raises(TaskFailure, match="explode on item 0: ZeroDivisionError: oh") as failed:
        await run(Task(ROWS, evaluate=explode))
    assert failed.value.kind == "evaluate"
    with pytest.raises(RateLimited):
        await run(Task(ROWS, evaluate=limited))
    for nonsense in (float("nan"), 2, None, "good", "1", 10**400, {"answer": "x"}):
        with pytest.raises(TaskFailure, match="not a score"):
            await run(Task(ROWS, evaluate=lambda skill, item, value=nonsense: value))


async def test_call_and_resource_errors_of_a_function_are_failures() -> None:
    async def takes_one(skill: str) -> float:
        return 1.0

    with pytest.raises(TaskFailure, match="takes_one on item 0: TypeError"):
        await run(Task(ROWS, evaluate=takes_one))
    with pytest.raises(TaskFailure, match=r"StopIteration \(test_task\.py:\d+\)"):
        await run(Task(ROWS, evaluate=lambda skill, item: next(iter([]))))


async def test_a_plain_function_may_return_an_awaitable() -> None:
    async def later() -> float:
        return 0.5

    assert (await run(Task(ROWS, evaluate=lambda skill, item: later())))[1].hard == 0.5


def test_a_failure_can_be_pickled() -> None:
    failure = pickle.loads(pickle.dumps(TaskFailure("command", "broke", hint="fix it")))
    assert (failure.kind, failure.message, failure.hint) == ("command", "broke", "fix it")


def test_evaluate_cannot_be_combined_with_run_or_grade() -> None:
    with pytest.raises(InputError, match="excludes `run` and `grade`"):
        Task(ROWS, evaluate=lambda skill, item: 1, grade="exact")


def test_evaluate_and_evaluator_cannot_be_combined() -> None:
    evaluator = FunctionEvaluator(lambda skill, item: 1)
    with pytest.raises(InputError, match="`evaluate` or `evaluator`, not both"):
        Task(ROWS, evaluate=lambda skill, item: 0, evaluator=evaluator)
    with pytest.raises(InputError, match="`evaluator` runs and scores items"):
        Task(ROWS, evaluator=evaluator, grade="exact")


def test_items_may_be_items_but_not_a_mix() -> None:
    assert Task([Item("a", {"input": "q", "answer": "x"})]).items[0].id == "a"
    with pytest.raises(InputError, match="all items"):
        Task([Item("a", {"input": "q"}), {"input": "r"}])
    with pytest.raises(InputError, match="'a' is used twice"):
        Task([Item("a", {"input": "q"}), Item("a", {"input": "r"})])
    with pytest.raises(InputError, match="no items"):
        Task([])
    with pytest.raises(InputError, match=r"items\[1\]: expected an object, found str"):
        Task([{"input": "q", "answer": "a"}, "r"])  # type: ignore[list-item]


def test_identity_depends_on_items_grader_and_splits_and_not_on_order() -> None:
    one = Task(ROWS).identity()
    assert Task(ROWS[::-1]).identity() == one
    assert Task(ROWS, grade="f1").identity() != one
    assert Task(ROWS, splits=SplitSection(split_seed=1)).identity() != one
    assert Task([{**ROWS[0], "answer": "no"}, *ROWS[1:]]).identity() != one


def test_a_python_file_may_define_a_task_a_factory_or_evaluate(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from skillfit.tasks import Task\n"
        f"items = {ROWS!r}\n"
        "ready = Task(items)\n"
        "def make():\n    return Task(items[:10])\n"
        "def evaluate(skill, item):\n    return 1.0\n"
        "number = 3\n"
    )

    def load(name: str, **settings: Any) -> Task:
        return load_task(EnvSection(tasks=f"mine.py:{name}", folder=str(tmp_path), **settings))

    assert len(load("ready").items) == 12
    assert len(load("make").items) == 10
    assert load("evaluate").evaluator is not None and len(load("evaluate").items) == 12
    assert len(load("ready", split_ratio="1:1:0").train) == 6
    with pytest.raises(InputError, match="is a int"):
        load("number")
    with pytest.raises(InputError, match="has no 'gone'"):
        load("gone")
    with pytest.raises(InputError, match="brings its own"):
        load("ready", grader="exact")


@pytest.mark.parametrize(("name", "line"), [("make", 2), ("evaluate", 4)])
def test_an_error_while_making_task_or_items_is_reported_with_its_line(
    tmp_path: Path, name: str, line: int
) -> None:
    (tmp_path / "mine.py").write_text(
        "def make():\n    return {}['gone']\ndef items():\n    return 1 / 0\n"
        "def evaluate(skill, item):\n    return 1.0\n"
    )
    with pytest.raises(InputError, match=rf"mine\.py:{line}: (KeyError|ZeroDivisionError)"):
        load_task(EnvSection(tasks=f"mine.py:{name}", folder=str(tmp_path)))


def test_a_task_from_python_keeps_its_own_splits_when_only_their_sizes_are_set() -> None:
    own = Task(ROWS, splits=SplitSection(split_ratio="1:1:0"), caps={"selection": 5})
    assert task_from_python(own, EnvSection()) is own
    capped = task_from_python(own, EnvSection(), caps={"train": 4, "selection": 0, "test": 0})
    assert (len(capped.train), len(capped.selection), len(capped.test)) == (4, 5, 0)
    resplit = task_from_python(own, EnvSection(split_ratio="2:1:0"), caps={"train": 7})
    assert (len(resplit.train), len(resplit.selection), len(resplit.test)) == (7, 4, 0)


def test_an_evaluate_function_may_have_its_items_in_a_separate_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def evaluate(skill, item):\n    return 1.0\n")
    (tmp_path / "mine.jsonl").write_text('{"question": "q"}')
    task = load_task(
        EnvSection(tasks="mine.py:evaluate", folder=str(tmp_path), fields={"input": "question"})
    )
    assert task.items[0].input == "q"
