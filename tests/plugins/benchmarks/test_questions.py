"""What the benchmarks that ask questions share (options, images, short answers), and SearchQA. The
other benchmarks are in `test_chat_benchmarks.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError
from skillfit.models.protocol import RateLimited
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.plugins.benchmarks.match_or_judge import MatchOrJudge, plainly_equal
from skillfit.plugins.benchmarks.question_set import (
    Option,
    check_detail,
    find_image,
    read_options,
    right_option,
    shuffled,
)
from skillfit.plugins.benchmarks.questions import shortened_context
from skillfit.tasks import load_task
from skillfit.tasks.graders import check_items
from skillfit.tasks.item import Attempt, Item
from skillfit.tasks.rows import Row
from skillfit.tasks.task import prove_gold
from tests.plugins.benchmarks.sample_training import LESSON, Lab, by_question, sample_task, user


def item(**row: Any) -> Item:
    return Item("1", {"input": "How long is it?", **row})


def says(verdict: str) -> str:
    return json.dumps({"reason": "compared", "verdict": verdict})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10", "10"),
        ("10.0", "10"),
        ("1,200", "1200"),
        ("$9\\pi$", "9\\pi"),
        ("\\( x + 1 \\)", "x+1"),
        ("\\text{Paris}", "paris"),
        ("120^\\circ", "120°"),
        ("The otter.", "otter"),
        ("(2, 3)", "(2,3)"),
    ],
)
def test_equal_answers_in_different_spellings_match(one: str, other: str) -> None:
    assert plainly_equal(one, other) and plainly_equal(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [("-5", "5"), ("x+1", "x-1"), ("5", "15"), ("3 million", "3 billion"), ("", ""), ("1/2", "12")],
)
def test_different_answers_do_not_match(one: str, other: str) -> None:
    assert not plainly_equal(one, other)


async def test_the_judge_is_called_only_when_comparison_is_not_enough() -> None:
    judge = ScriptedModel([says("correct"), says("incorrect"), says("not_attempted")])
    grader = MatchOrJudge.create(judge, extract=["tag", "last_line"])
    gold = item(answers=["10 m"])
    for answer in ("<answer>10 m</answer>", "", "<answer></answer>"):
        await grader.grade(gold, Attempt(answer))
    choice = item(answers=["B"], choices={"A": "one", "B": "two"})
    assert (await grader.grade(choice, Attempt("<answer>A</answer>"))).hard == 0
    assert judge.requests == []
    scores = [
        await grader.grade(gold, Attempt(f"<answer>{answer}</answer>"))
        for answer in ("ten metres", "12 m", "who knows")
    ]
    assert [score.hard for score in scores] == [1, 0, 0]
    assert [score.feedback for score in scores] == ["", "It is wrong.", "No answer was given."]
    sent = judge.requests[0].messages[-1].content
    assert "ten metres" in sent and "10 m" in sent and "<answer>10" not in sent
    assert all("compared" not in score.feedback for score in scores)


async def test_an_unreachable_judge_is_a_failure_and_not_a_zero() -> None:
    grader = MatchOrJudge.create(ScriptedModel([RateLimited("later")]))
    with pytest.raises(RateLimited):
        await grader.grade(item(answers=["10 m"]), Attempt("twelve"))


def test_a_free_answer_without_a_judge_is_refused_before_the_run() -> None:
    with pytest.raises(InputError, match=r"needs model.judge"):
        check_items(MatchOrJudge.create(None), [item(answers=["10 m"])])
    check_items(MatchOrJudge.create(None, use_judge=False), [item(answers=["10 m"])])
    check_items(MatchOrJudge.create(None), [item(answers=["A"], choices={"A": "x", "B": "y"})])


def test_options_are_read_in_every_format() -> None:
    plain = [Option("A", "red"), Option("B", "blue")]
    assert read_options(["red", "blue"]) == plain
    assert read_options({"A": "red", "B": "blue"}) == plain
    assert read_options([{"label": "A", "text": "red"}, {"label": "B", "text": "blue"}]) == plain
    for form in ("(A) {}", "A. {}", "A: {}", "A) {}"):
        given = [form.format("red"), form.replace("A", "B").format("blue")]
        assert read_options(given) == plain, form
    assert read_options(["A. red", "blue"]) == [Option("A", "A. red"), Option("B", "blue")]
    assert read_options(None) == read_options("A. red") == []


def test_the_right_option_is_found_by_position_label_or_text() -> None:
    options = [Option("A", "red"), Option("B", "blue")]
    for given in (1, "B", "(b)", "blue", {"label": "B"}, {"label": "", "text": "blue"}):
        assert right_option(given, options) == options[1], given
    for given in (2, -1, True, "green", None, {"label": "C"}):
        assert right_option(given, options) is None, given


def test_shuffling_keeps_labels_in_order_and_depends_only_on_the_seed() -> None:
    options = [Option(label, f"text {label}") for label in "ABCDE"]
    orders = {tuple(option.text for option in shuffled(options, f"42/{n}")) for n in range(50)}
    assert len(orders) > 30
    assert shuffled(options, "42/x") == shuffled(options, "42/x")
    assert [option.label for option in shuffled(options, "42/x")] == list("ABCDE")


def test_the_image_detail_is_read_from_a_column() -> None:
    item = Item("1", {"input": "look", "images": ["a.png", "b.jpg"], "image_detail": "high"})
    assert [(image.media_type, image.detail) for image in item.images] == [
        ("image/png", "high"),
        ("image/jpeg", "high"),
    ]
    assert Item("1", {"input": "look", "images": "a.png"}).images[0].detail == "auto"


def test_images_are_found_only_in_the_named_folder(tmp_path: Path) -> None:
    (tmp_path / "data" / "images").mkdir(parents=True)
    (tmp_path / "data" / "images" / "a.png").touch()
    (tmp_path / "private.png").touch()
    (tmp_path / "data" / "link.png").symlink_to(tmp_path / "private.png")
    folder = tmp_path / "data" / "train"
    row = Row({}, "rows.csv:1", folder, root=tmp_path / "data")
    assert find_image(row, "a.png") == str(tmp_path / "data" / "images" / "a.png")
    assert find_image(row, "../images/a.png") == str(tmp_path / "data" / "images" / "a.png")
    for name in ("../../private.png", str(tmp_path / "private.png"), "link.png", "gone.png"):
        with pytest.raises(InputError, match=r"rows.csv:1: the image .* is not in"):
            find_image(row, name)
    assert find_image(row, "private.png", tmp_path) == str(tmp_path / "private.png")
    with pytest.raises(InputError, match="image_detail is 'fine'"):
        check_detail("fine")


async def test_gold_answers_of_searchqa_score_1_and_wrong_ones_0() -> None:
    task = sample_task("searchqa")
    assert (len(task.train), len(task.selection), len(task.test)) == (6, 6, 4)
    assert await prove_gold(task) == []
    for item in task.items:
        score = await task.grader.grade(item, Attempt("<answer>the wrong thing</answer>"))
        assert score.hard == 0


async def test_a_training_run_on_the_searchqa_sample_learns(make_lab: Callable[..., Lab]) -> None:
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


def test_the_error_for_missing_data_lists_three_ways_to_get_it() -> None:
    with pytest.raises(InputError, match="no data for searchqa") as raised:
        load_task(EnvSection(tasks="searchqa"))
    assert "skillfit data get searchqa" in raised.value.hint
    assert "searchqa:sample" in raised.value.hint
