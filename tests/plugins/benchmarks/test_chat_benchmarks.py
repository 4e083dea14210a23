"""The benchmarks that a chat agent answers: gold answers score 1, wrong ones 0, and a training run
on the sample learns. Images really arrive at the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from skillfit.tasks.item import Attempt, Item
from skillfit.tasks.task import prove_gold
from tests.plugins.benchmarks.agents import CHAT, solver
from tests.plugins.benchmarks.sample_training import LESSON, Lab, image_urls, sample_task
from tests.support.chat_server import Call

WITH_IMAGES = ("docvqa", "mathverse", "babyvision", "mmrb")


def wrong_choice(item: Item) -> str:
    """A wrong label, or text that is not an answer."""
    choices = item.content().get("choices")
    if not choices:
        return "something else entirely"
    right = item.answers[0]
    return next(label for label, text in choices.items() if right not in (label, text))


@pytest.mark.parametrize("name", CHAT)
async def test_gold_answers_score_1_and_wrong_ones_0(name: str) -> None:
    settings = {"task_args": {"judge": False}} if name in ("mathverse", "babyvision") else {}
    task = sample_task(name, **settings)
    assert len(task.train) >= 5 and len(task.selection) >= 5 and len(task.test) >= 2
    assert await prove_gold(task) == []
    assert task.grader is not None
    for item in task.items:
        right = await task.grader.grade(item, Attempt(CHAT[name].format(item.answers[0])))
        assert right.hard == right.soft == 1, item.id
        if name == "sealqa":
            continue  # what is not plainly equal is the judge's decision
        wrong = await task.grader.grade(item, Attempt(CHAT[name].format(wrong_choice(item))))
        assert wrong.hard == 0, item.id
        assert (await task.grader.grade(item, Attempt(""))).hard == 0, item.id


@pytest.mark.parametrize("name", CHAT)
def test_check_grades_the_gold_answers_as_correct(name: str, make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(solve=lambda call: "", judge=lambda call: judged("incorrect"))
    checks = lab.check(f"{name}:sample")
    assert checks["gold"]["verdict"] == "go", checks["gold"]
    assert "gold answers" in checks["gold"]["message"]


@pytest.mark.parametrize("name", CHAT)
async def test_a_training_run_on_the_sample_learns(name: str, make_lab: Callable[..., Lab]) -> None:
    def judge(call: Call) -> str:
        assert "I do not know" in call.text
        return json.dumps({"reason": "no answer", "verdict": "not_attempted"})

    lab = make_lab(solve=solver(name), judge=judge)
    run = await lab.train(f"{name}:sample")
    assert run.finish_reason == "improved"
    assert LESSON in run.best_skill.text
    if name in WITH_IMAGES:
        assert all(image_urls(call) for call in lab.rollouts)


@pytest.mark.parametrize("name", WITH_IMAGES)
async def test_the_requested_image_detail_is_sent(name: str, make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(solve=lambda call: "\\boxed{1}", judge=lambda call: judged("incorrect"))
    await lab.evaluate(f"{name}:sample?image_detail=low", "# Skill\n\nLook.\n")
    details = {
        part["image_url"]["detail"]
        for call in lab.rollouts
        for message in call.body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    }
    assert details == {"low"}


def judged(verdict: str) -> str:
    return json.dumps({"reason": "compared", "verdict": verdict})
