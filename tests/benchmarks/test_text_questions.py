from __future__ import annotations

from collections.abc import Callable

import pytest

from skillfit.benchmarks.questions import shortened_context
from skillfit.config.schema import EnvSection
from skillfit.errors import InputError
from skillfit.tasks import load_task
from skillfit.tasks.item import Attempt
from skillfit.tasks.task import prove_gold
from tests.benchmarks.sample_training import LESSON, Lab, by_question, sample_task, user


async def test_gold_answers_score_1_and_wrong_ones_0() -> None:
    task = sample_task("searchqa")
    assert (len(task.train), len(task.selection), len(task.test)) == (6, 6, 4)
    assert await prove_gold(task) == []
    for item in task.items:
        score = await task.grader.grade(item, Attempt("<answer>the wrong thing</answer>"))
        assert score.hard == 0


async def test_a_run_on_the_sample_learns(make_lab: Callable[..., Lab]) -> None:
    answers = by_question(sample_task("searchqa"))
    lab = make_lab(solve=lambda call: f"It says so. <answer>{answers[user(call)]}</answer>")
    run = await lab.train("searchqa:sample")
    assert run.finish_reason == "improved"
    assert LESSON in run.best_skill.text


def test_the_context_is_cut_between_snippets() -> None:
    context = "[DOC] one [DOC] two [DOC] three"
    assert shortened_context(context, 100) == context
    assert shortened_context(context, 20) == "[DOC] one [DOC] two"
    assert shortened_context(context, 5) == "[DOC]"
    assert shortened_context("x" * 50, 10) == "x" * 10


def test_without_prepared_data_the_error_names_three_ways() -> None:
    with pytest.raises(InputError, match="no data for searchqa") as raised:
        load_task(EnvSection(tasks="searchqa"))
    assert "skillfit data get searchqa" in raised.value.hint
    assert "searchqa:sample" in raised.value.hint
