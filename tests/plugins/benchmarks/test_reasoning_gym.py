"""`reasoning_gym:NAME`: items and verifiers of the real package."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError
from skillfit.tasks import load_task
from skillfit.tasks.item import Attempt
from skillfit.tasks.task import prove_gold
from tests.plugins.benchmarks.sample_training import LESSON, Lab, by_question, user

pytest.importorskip("reasoning_gym")


@pytest.mark.parametrize("name", ["chain_sum", "letter_counting", "propositional_logic", "maze"])
async def test_answers_are_graded_by_the_packages_verifier(name: str) -> None:
    task = load_task(EnvSection(tasks=f"reasoning_gym:{name}?size=40&seed=3"))
    assert len(task.items) == 40 and task.grader is not None
    assert await prove_gold(task) == []
    item = task.items[0]
    assert (await task.grader.grade(item, Attempt("<answer>no idea</answer>"))).hard == 0
    assert (await task.grader.grade(item, Attempt(""))).soft == 0


async def test_an_answer_in_another_format_is_right_if_the_verifier_accepts_it() -> None:
    task = load_task(EnvSection(tasks="reasoning_gym:chain_sum?size=20"))
    assert task.grader is not None
    item = task.items[0]
    score = await task.grader.grade(item, Attempt(f"So: <answer> {item.answers[0]}.0 </answer>"))
    assert score.hard == 1


def test_items_depend_only_on_the_options() -> None:
    def inputs(options: str) -> list[str]:
        task = load_task(EnvSection(tasks=f"reasoning_gym:chain_sum?size=20&{options}"))
        return [item.input for item in task.items]

    assert inputs("seed=1") == inputs("seed=1") != inputs("seed=2")
    assert all(text.count("+") + text.count("-") >= 4 for text in inputs("min_terms=5&max_terms=6"))


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("reasoning_gym:chain_sun", r"no task 'chain_sun'.*Did you mean 'chain_sum'"),
        ("reasoning_gym:chain_sum?min_trems=3", r"reasoning_gym:chain_sum: .*min_trems"),
        ("reasoning_gym:chain_sum?min_terms=0", r"reasoning_gym:chain_sum: "),
    ],
)
def test_errors_name_the_mistake(tasks: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_task(EnvSection(tasks=tasks))


async def test_a_training_run_learns(make_lab: Callable[..., Lab]) -> None:
    tasks = "reasoning_gym:word_sorting?size=20"
    answers = by_question(load_task(EnvSection(tasks=tasks)))
    lab = make_lab(solve=lambda call: f"<answer>{answers[user(call)]}</answer>")
    run = await lab.train(tasks)
    assert run.finish_reason == "improved" and LESSON in run.best_skill.text
