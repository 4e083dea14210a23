"""The story of a run: what its events come down to, whatever way it ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from skillfit.report import Teller, read_story
from skillfit.run.directory import RunDirectory
from skillfit.run.events import RunFinished, StageStarted
from skillfit.run.lock import in_use
from tests.report.runs import ADDED, BEST, INITIAL, Told, before_its_first_word, improved


async def test_an_improved_run_is_told_with_its_evidence(tmp_path: Path) -> None:
    story = read_story(await improved(tmp_path / "run"))
    assert (
        story.verdict
        == "The skill is better: 50\u00a0% → 87.5\u00a0% on fresh rollouts, +37.5 points (90 % interval +5.0 to +70.0)."
    )
    assert story.state == "finished"
    assert story.practice
    assert [(d.label, d.accepted) for d in story.decided] == [("step 1", True), ("step 2", False)]
    assert [(edit.content, edit.worth, edit.step) for edit in story.edits] == [(ADDED, 0.5, 1)]
    assert (
        story.count("fixed"),
        story.count("broken"),
        story.count("both"),
        story.count("neither"),
    ) == (4, 1, 3, 0)
    assert story.items[0].input == "ticket t00"
    assert story.seconds == 75.0


async def test_every_point_has_an_interval_around_its_score_and_failed_rollouts_are_in_none(
    tmp_path: Path,
) -> None:
    story = read_story(await improved(tmp_path / "run"))
    assert [point.name for point in story.points] == [
        "baseline",
        "step_0001",
        "ship_initial",
        "ship_best",
    ]
    for point in story.points:
        assert 0 <= point.low < point.score < point.high <= 1
    assert story.points[0].items == 7
    assert any(
        notice.kind == "failed" and notice.text.startswith("1 of 32 rollouts failed")
        for notice in story.notices
    )


async def test_a_skill_without_rollouts_of_its_own_has_the_interval_of_the_one_it_says_the_same_as(
    tmp_path: Path,
) -> None:
    run = Told(tmp_path / "run")
    await run.roll("selection", "old", [1, 0, 1, 0, 1, 0, 1, 0], phase="baseline")
    run.measured("baseline", "old", 0.5)
    run.measured("slow_update_epoch_01", "old with an empty region", 0.5)
    run.close()
    before, after = read_story(tmp_path / "run").points
    assert (before.low, before.high, before.items) == (
        after.low,
        after.high,
        after.items,
    ) and 0 < after.low < after.high < 1


async def test_blocked_leaks_and_warnings_are_told(tmp_path: Path) -> None:
    story = read_story(await improved(tmp_path / "run"))
    kinds = {notice.kind: notice for notice in story.notices}
    assert kinds["blocked"].text == "carries gold answer of item t03"
    assert kinds["blocked"].detail == "The answer to t03 is 42."
    assert "80 %" in kinds["warning"].text


async def test_rollouts_are_billed_to_what_they_were_for_and_the_sum_is_the_journals(
    tmp_path: Path,
) -> None:
    path = await improved(tmp_path / "run")
    story = read_story(path)
    assert {cost.stage: cost.calls for cost in story.costs} == {
        "rollouts: baseline": 8,
        "rollouts: gate": 8,
        "rollouts: ship": 16,
    }
    with RunDirectory.open(path, {"test": 1}) as run:
        spent = run.journal.spent()
    assert (story.total.calls, story.total.tokens) == (spent.calls, spent.tokens)
    assert story.total.usd == pytest.approx(spent.usd)


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    Told(tmp_path / "run").close()
    story = read_story(tmp_path / "run")
    assert story.state == "stopped"
    assert (
        story.verdict
        == "Stopped before the first step was done, and can go on from there; nothing is measured yet."
    )


def test_a_directory_where_nothing_was_told_yet_has_a_story_too(tmp_path: Path) -> None:
    before_its_first_word(tmp_path / "run")
    assert read_story(tmp_path / "run").state == "stopped"


def test_a_run_that_is_being_written_is_running_and_one_whose_writer_died_is_not(
    tmp_path: Path,
) -> None:
    run = Told(tmp_path / "run")
    assert read_story(tmp_path / "run").state == "running"
    run.close()
    assert not in_use(tmp_path / "run")
    writer = "import os, sys; from skillfit.run.directory import RunDirectory as R; kept = R.open(sys.argv[1], {}); os._exit(9)"
    subprocess.run([sys.executable, "-c", writer, str(tmp_path / "dead")], check=False)
    assert (tmp_path / "dead" / "run.lock").read_text()
    assert not in_use(tmp_path / "dead")


def test_looking_at_a_run_leaves_its_lock_to_the_next_writer(tmp_path: Path) -> None:
    Told(tmp_path / "run").close()
    before = (tmp_path / "run" / "run.lock").read_text()
    assert not in_use(tmp_path / "run")
    assert (tmp_path / "run" / "run.lock").read_text() == before
    Told(tmp_path / "run").close()


def test_a_run_with_unanswered_prompts_is_waiting(tmp_path: Path) -> None:
    Told(tmp_path / "run").close()
    (tmp_path / "run" / "handoff").mkdir()
    (tmp_path / "run" / "handoff" / "merge-1.prompt.md").write_text("?")
    story = read_story(tmp_path / "run")
    assert story.state == "waiting"
    assert story.verdict.startswith("Waiting for answers to handoff prompts")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            "budget",
            "The budget was reached before the end, so nothing is verified; best so far 87.5\u00a0% against 37.5\u00a0%",
        ),
        (
            "infrastructure",
            "The machinery failed before the end, so nothing can be said about the skill",
        ),
        ("unverified", "A suggestion, not verified"),
        ("inconclusive", "Ended (inconclusive)"),
        ("something_new", "Ended (something new)"),
    ],
)
async def test_runs_that_ended_early_claim_nothing(tmp_path: Path, reason: str, said: str) -> None:
    run = Told(tmp_path / "run")
    await run.roll("selection", "old", [0, 0, 0, 0, 0, 1, 1, 1])
    run.measured("baseline", "old", 3 / 8)
    await run.roll("selection", "new", [1, 1, 1, 1, 1, 1, 1, 0])
    run.step(1, "accept", BEST, "new")
    run.measured("step_0001", "new", 7 / 8)
    run.say(RunFinished(finish_reason=reason, diagnosis="Why.", best_skill=BEST, summary={}))
    run.close()
    story = read_story(tmp_path / "run")
    assert story.verdict.startswith(said)
    assert [(edit.content, edit.worth) for edit in story.edits] == [(ADDED, None)], (
        "edits are told without their worth"
    )
    assert story.count("fixed") == 5


def test_no_improvement_leaves_the_skill_as_it_is(tmp_path: Path) -> None:
    run = Told(tmp_path / "run")
    run.say(
        RunFinished(finish_reason="no_improvement", diagnosis="", best_skill=INITIAL, summary={})
    )
    run.close()
    story = read_story(tmp_path / "run")
    assert not story.changed
    assert story.verdict.startswith("No improvement: no candidate beat the initial skill")


async def test_a_run_that_went_on_after_its_end_is_not_finished(tmp_path: Path) -> None:
    path = await improved(tmp_path / "run")
    with RunDirectory.open(path, {"test": 1}) as run:
        teller = Teller()
        for stored in run.events.read():
            teller(stored)
        run.events.emit(StageStarted(epoch=1, step=3, stage="rollout", total=1))
        assert read_story(path).finish_reason == ""
