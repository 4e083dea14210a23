"""Graders that ask a judge, with a judge whose replies the test scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError
from skillfit.models import Request
from skillfit.models.protocol import BadReply, Overloaded
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.tasks import Item, Task, load_task
from skillfit.tasks.graders import build_grader
from skillfit.tasks.item import Attempt
from skillfit.tasks.task import prove_gold


def judge(say: Callable[[str], object]) -> ScriptedModel:
    return ScriptedModel(
        lambda request: json.dumps(say("\n".join(message.content for message in request.messages)))
    )


async def test_a_rubric_is_scored_with_evidence_and_advice() -> None:
    model = judge(lambda text: {"reason": "no greeting", "score": 0.6, "advice": "Be polite."})
    grader = build_grader({"rubric": {"rubric": "Greets by name.", "threshold": 0.7}}, judge=model)
    score = await grader.grade(
        Item("i", {"input": "q", "reference": "Hello Ada"}), Attempt("the answer")
    )
    assert (score.hard, score.soft, score.feedback) == (0, 0.6, "Be polite.")
    assert score.evidence == ("0.6: no greeting",)
    assert grader.patterns() == ("Greets by name.",)
    (request,) = model.requests
    assert request.stage == "judge"
    asked = request.messages[0].content + request.messages[1].content
    assert all(part in asked for part in ("Greets by name.", "Hello Ada", "the answer"))


async def test_an_unreachable_judge_is_a_failure_and_not_a_zero() -> None:
    model = ScriptedModel([Overloaded("busy")])
    with pytest.raises(Overloaded):
        await build_grader({"rubric": "x"}, judge=model).grade(
            Item("i", {"input": "q"}), Attempt("a")
        )


async def test_a_checklist_scores_the_share_of_checks_with_evidence_each() -> None:
    model = judge(
        lambda text: {
            "checks": [
                {"passed": "blue" in text, "evidence": "says blue"},
                {"passed": False, "evidence": "no sum"},
            ],
            "advice": "Sum up.",
        }
    )
    item = Item(
        "i",
        {"input": "q", "assertions": ["names a colour"], "expectations": [{"text": "gives a sum"}]},
    )
    score = await build_grader("checklist", judge=model).grade(item, Attempt("blue"))
    assert (score.hard, score.feedback) == (0.5, "1 of 2 checks pass. Sum up.")
    assert score.evidence == ("pass: names a colour (says blue)", "fail: gives a sum (no sum)")


async def test_a_single_assertion_may_be_plain_text() -> None:
    model = judge(lambda text: {"checks": [{"passed": True, "evidence": "seen"}]})
    item = Item("i", {"input": "q", "assertions": "names a colour"})
    score = await build_grader("checklist", judge=model).grade(item, Attempt("blue"))
    assert score.evidence == ("pass: names a colour (seen)",)


async def test_a_judge_that_skips_checks_is_asked_again_and_then_failed() -> None:
    model = judge(lambda text: {"checks": [{"passed": True, "evidence": "x"}]})
    item = Item("i", {"input": "q", "assertions": ["one", "two"]})
    with pytest.raises(BadReply):
        await build_grader("checklist", judge=model).grade(item, Attempt("a"))
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    ("prefers", "hard", "soft"),
    [("ours", 1, 1.0), ("theirs", 0, 0.0), ("first", 1, 0.5), ("equal", 1, 0.5)],
)
async def test_pairwise_judges_both_orders_to_remove_position_bias(
    prefers: str, hard: float, soft: float
) -> None:
    def better(request: Request) -> str:
        if prefers in ("first", "equal"):
            return prefers
        wanted = "OURS" if prefers == "ours" else "THEIRS"
        return (
            "first" if wanted in request.messages[1].content.split("which=second")[0] else "second"
        )

    model = ScriptedModel(lambda request: json.dumps({"reason": "r", "better": better(request)}))
    score = await build_grader("pairwise", judge=model).grade(
        Item("i", {"input": "q", "reference": "THEIRS"}), Attempt("OURS")
    )
    assert (score.hard, score.soft) == (hard, soft)
    assert len(model.requests) == 2


async def test_gold_answers_are_checked_without_judges_unless_requested() -> None:
    model = judge(lambda text: {"reason": "bad", "score": 0.0})
    task = Task(
        [{"input": "q", "answer": "a"}], grade={"all": ["exact", {"rubric": "x"}]}, judge=model
    )
    assert await prove_gold(task) == []
    assert not model.requests
    assert len(await prove_gold(task, judges=True)) == 1


async def test_evals_json_is_graded_by_its_assertions(tmp_path: Path) -> None:
    evals = tmp_path / "my-skill" / "evals"
    (evals / "files").mkdir(parents=True)
    (evals / "files" / "a.csv").write_text("1,2")
    one = {
        "id": 1,
        "prompt": "chart it",
        "expected_output": "a chart",
        "files": ["evals/files/a.csv"],
        "assertions": ["has a title"],
    }
    two = {"id": 2, "prompt": "clean it", "expected_output": "a clean table", "expectations": []}
    (evals / "evals.json").write_text(json.dumps({"skill_name": "my-skill", "evals": [one, two]}))
    model = judge(lambda text: {"checks": [{"passed": True, "evidence": "seen"}]})
    task = load_task(EnvSection(tasks="my-skill", folder=str(tmp_path)), judge=model)
    assert task.grader is not None
    first, second = task.items
    assert first.files["evals/files/a.csv"].read_text() == "1,2"
    assert (await task.grader.grade(first, Attempt("done"))).evidence == (
        "pass: has a title (seen)",
    )
    assert "a clean table" in (await task.grader.grade(second, Attempt("done"))).evidence[0]


def test_evals_json_without_a_judge_is_an_error_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "evals.json").write_text(
        json.dumps({"evals": [{"prompt": "x", "assertions": ["y"]}]})
    )
    with pytest.raises(InputError, match=r"Set model\.judge"):
        load_task(EnvSection(tasks="evals.json", folder=str(tmp_path)))


@pytest.mark.parametrize("text", ["{", "[]", '{"evals": []}', '{"evals": ["x"]}'])
def test_a_malformed_evals_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "evals.json").write_text(text)
    with pytest.raises(InputError, match=r"evals\.json"):
        load_task(EnvSection(tasks="evals.json", folder=str(tmp_path)))
