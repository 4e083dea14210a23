"""The record of a run, built from its events, for every way a run can end."""

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from skillfit.api import Run
from skillfit.cli.output import result_text
from skillfit.config.schema import EvaluationSection
from skillfit.errors import InputError
from skillfit.gate.diagnosis import lift_check
from skillfit.intervals import Interval
from skillfit.models import Usage
from skillfit.record.fold import Fold, RunFollower, _has_text_of, read_record
from skillfit.record.lists import read_card
from skillfit.record.record import EditRecord, Point, Record
from skillfit.record.text import (
    comparisons,
    event_lines,
    facts,
    fullest_cap,
    lift_sentence,
    next_commands,
    resume_line,
    verdict_sentence,
)
from skillfit.report import open_details
from skillfit.report.charts import score_chart
from skillfit.report.html_report import html_report, markdown_report, skill_lines
from skillfit.report.run_details import _item_result, count_changes, worst_first
from skillfit.rollout.outcome import Outcome
from skillfit.run.control import request_steering
from skillfit.run.directory import RunDirectory
from skillfit.run.events import (
    EvaluationFinished,
    EventLog,
    GateDecided,
    PersonDecided,
    RolloutFinished,
    SlowUpdateFinished,
    StageStarted,
    StepFinished,
)
from skillfit.run.records import EditEffect, Evidence, ScoreEstimate, SlowUpdateRecord, TypeScore
from skillfit.run.store import JOURNAL, dump, in_use, load
from skillfit.skill import Edit, Skill, example_edit
from skillfit.skill.regions import Example, with_examples
from skillfit.tasks.item import Attempt, Score
from tests.cli.cli_project import Shell
from tests.report.recorded_runs import (
    ADDED,
    BEST,
    INITIAL,
    ITEMS,
    WrittenRun,
    before_first_event,
    improved,
    screening_run,
)
from tests.support.records import standings, step_record


async def test_an_improved_run_has_its_evidence_in_the_story(tmp_path: Path) -> None:
    record = read_record(await improved(tmp_path / "run"))
    assert record.verdict == (
        "The skill is better: 50\u00a0% → 87.5\u00a0% on fresh rollouts,"
        " +37.5 points (90 % interval +5.0 to +70.0)."
    )
    assert record.state == "finished"
    assert record.practice
    assert [(gate.label, gate.accepted) for gate in record.gates] == [
        ("step 1", True),
        ("step 2", False),
    ]
    assert [(edit.text, edit.status, edit.step) for edit in record.edits] == [
        (ADDED, "promoted", 1),
        (ADDED, "dropped", 2),
    ]
    assert record.seconds == 75.0
    assert record.data.splits == {"train": 8, "selection": 8, "test": 0}
    assert record.data.types == {"billing": 4, "delivery": 4}
    assert [version.name for version in record.versions] == ["initial", "1", "best"]


async def test_every_point_has_an_interval_around_its_score(tmp_path: Path) -> None:
    record = read_record(await improved(tmp_path / "run"))
    names = [point.name for point in record.points]
    assert names == ["baseline", "step_0001", "ship_initial", "ship_best"]
    for point in record.points:
        assert 0 <= point.low < point.score < point.high <= 1
    failed = [notice.text for notice in record.notices if notice.kind == "failed"]
    assert failed == ["1 of 32 rollouts failed and entered no score: no answer in time"]


def test_a_measurement_in_which_every_rollout_failed_has_no_score(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    failed = EvaluationFinished(
        name="baseline", split="test", skill_hash="old", hard=0.0, soft=0.0, scored=0, planned=8
    )
    run.emit(failed)
    run.emit(replace(failed, name="test_baseline", by_type={"a": TypeScore(0, 0.0, 0.0)}))
    run.emit(replace(failed, name="step_0001", split="selection"))
    run.close()
    assert read_record(tmp_path).points == () and read_card(tmp_path).points == ()
    assert event_lines(failed) == [
        "test split: initial skill has no score: no test item was scored"
    ]
    assert not list(tmp_path.glob("test_eval*/summary.json"))


async def test_rejected_proposals_have_their_reason(tmp_path: Path) -> None:
    record = read_record(await improved(tmp_path / "run"))
    [blocked] = record.rejections
    assert blocked.leak
    assert blocked.reason == "carries gold answer of item t03"
    assert blocked.what == "The answer to t03 is 42."
    assert any("80 %" in notice.text for notice in record.notices if notice.kind == "warning")


async def test_usage_equals_the_journals_usage(tmp_path: Path) -> None:
    path = await improved(tmp_path / "run")
    record = read_record(path)
    with closing(RunDirectory.read(path)) as run:
        spent = run.journal.spent()
    assert (record.usage.calls, record.usage.tokens) == (spent.calls, spent.tokens)
    assert record.usage.usd == pytest.approx(spent.usd)


def test_a_pool_of_edits_keeps_the_history_of_each_effect(tmp_path: Path) -> None:
    record = read_record(screening_run(tmp_path / "run", steps=8))
    first = record.edit("s0001e01")
    assert first is not None
    assert list(first.history) == list(range(1, 8))
    widths = [known.high - known.low for known in first.history.values()]
    assert widths == sorted(widths, reverse=True), "more rollouts, narrower intervals"
    assert first.status == first.history[7].status != "pending"
    assert record.gates[0].entered == ("s0001e01", "s0001e02")
    decided = {name for gate in record.gates for name in (*gate.promoted, *gate.dropped)}
    assert decided == {edit.id for edit in record.edits if edit.status != "pending"}
    assert all(point.kept for point in record.points), "no step of a pool is a rejected skill"


def test_a_skill_has_the_origin_and_worth_of_each_line(tmp_path: Path) -> None:
    record = read_record(screening_run(tmp_path / "run", steps=8))
    lines = skill_lines(record.found_skill, record.edits)
    written = [line for line in lines if line.edit]
    assert written and all(line.first and line.worth is not None for line in written)
    assert [line.text for line in lines if not line.edit] == ["# Triage", "", "Say which queue."]
    assert all(
        worth and worth.low < worth.mean < worth.high for worth in (one.worth for one in written)
    )


def test_the_effect_of_text_is_the_negated_effect_of_its_deletion() -> None:
    edit = EditRecord(
        "i01", 0, Edit("delete", "Be kind.", ""), "pending", mean=-0.2, low=-0.3, high=-0.1
    )
    assert edit.worth == Interval(0.2, 0.1, 0.3)


def test_protected_regions_are_marked_line_by_line() -> None:
    text = "---\nname: x\n---\n# A\n<!-- PROTECTED_START -->\nkeep\n<!-- PROTECTED_END -->\nfree\n"
    lines = skill_lines(text, [])
    assert [line.number for line in lines if line.region] == [5, 6, 7]
    assert [line.number for line in lines if line.frontmatter] == [1, 2, 3]


async def test_a_run_that_did_not_improve_returns_the_initial_skill(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    await run.roll("ship", "old", [0, 0, 0, 0, 1, 1, 1, 1])
    await run.roll("ship", "new", [0, 0, 0, 0, 1, 1, 1, 0])
    run.ship("no improvement", -0.125, (-0.3, 0.1))
    run.finish("no_improvement", INITIAL, BEST, unproven=True)
    run.close()
    record = read_record(tmp_path / "run")
    assert record.verdict.startswith("No improvement: −12.5 points")
    assert "You get the initial skill" in record.verdict
    assert record.best_skill == INITIAL
    assert record.found_skill == BEST
    assert [version.name for version in record.versions] == ["initial", "unproven", "best"]


@pytest.mark.parametrize(
    ("verdict", "doubt"),
    [("improved", ""), ("inconclusive", ", not confirmed"), ("", ", not verified")],
)
async def test_a_tile_states_whether_its_score_is_a_result(
    tmp_path: Path, verdict: str, doubt: str
) -> None:
    run = WrittenRun(tmp_path / "run")
    run.measured("baseline", "old", 0.5)
    run.step(1, "accept", BEST, "new")
    run.measured("step_0001", "new", 0.75)
    if verdict:
        await run.roll("ship", "old", [0, 0, 0, 0, 1, 1, 1, 1])
        await run.roll("ship", "new", [0, 0, 1, 1, 1, 1, 1, 1])
        run.ship(verdict, 0.25, (-0.1, 0.6))
        best = BEST if verdict == "improved" else INITIAL
        run.finish(verdict, best, BEST, unproven=best == INITIAL)
    run.close()
    tiles = {fact.name: fact for fact in facts(read_record(tmp_path / "run"))}
    scores = tiles["Fresh rollouts" if verdict else "Selection split"]
    assert scores.note == f"+25.0 points, 8 items{doubt}"
    unproven = verdict == "inconclusive"
    assert ("Unproven skill" in tiles) == unproven
    standing = "in the unproven skill" if unproven else "in the skill"
    assert tiles["Edits"].value == f"1 {standing}"
    (edit,) = read_record(tmp_path / "run").edits
    assert edit.standing == (standing if verdict else "promoted")


def pooled(run: WrittenRun, *edits: str | Edit) -> None:
    """A step that measured these edits as the pool s0001e01, s0001e02, ... All stay pending."""
    effects = [
        EditEffect(
            id=f"s0001e{number:02d}",
            step=1,
            edit=Edit("append", content=edit) if isinstance(edit, str) else edit,
            status="pending",
            mean=0.1,
            low=0.0,
            high=0.2,
            probability=0.9,
            rollouts=20,
        )
        for number, edit in enumerate(edits, 1)
    ]
    run.emit(
        GateDecided(
            name="step_0001",
            step=1,
            decision="reject",
            reason="no edit was promoted",
            evidence=Evidence(),
            effects=effects,
        )
    )


def test_the_edits_in_the_skill_are_counted_by_the_recorded_ids(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    pooled(run, "- Rule N4", "- Rule N47", "- Rule N5", "- Rule N5")
    assert read_record(run.path).edit_counts == "0 promoted, 4 pending, 0 dropped"
    found = f"{INITIAL}- Rule N47\n- Rule N5\n"
    run.finish("improved", found, edits=["s0001e02", "s0001e03"])
    run.close()
    record = read_record(run.path)
    assert [edit.in_best for edit in record.edits] == [False, True, True, False]
    assert record.edit_counts == "2 in the skill, 2 not in the skill"
    assert {fact.name: fact.value for fact in facts(record)}["Edits"] == "2 in the skill"
    text = markdown_report(record)
    assert "- Edits: 2 in the skill, 2 not in the skill" in text and "pending" not in text
    assert "edits: 2 in the skill, 2 not in the skill" in result_text(record)


@pytest.mark.parametrize("op", ["replace", "delete"])
def test_an_edit_whose_text_another_edit_replaced_is_not_in_the_skill(
    tmp_path: Path, op: str
) -> None:
    run = WrittenRun(tmp_path / "run")
    later = Edit(op, target="- Use dates.", content="- Use dates of ISO 8601.")
    pooled(
        run, "- Use dates.", "- Be brief.", later if op == "replace" else replace(later, content="")
    )
    found = f"{INITIAL}- Be brief.\n{later.content if op == 'replace' else ''}\n"
    run.finish("improved", found, edits=["s0001e01", "s0001e02", "s0001e03"])
    run.close()
    record = read_record(run.path)
    assert [edit.in_best for edit in record.edits] == [False, True, True]
    assert record.edit_counts == "2 in the skill, 1 not in the skill"


async def test_graded_scores_are_reported_as_higher_and_lower(
    tmp_path: Path,
) -> None:
    run = WrittenRun(tmp_path / "run", {"evaluation": {"gate_metric": "soft"}})
    run.items()
    await run.roll("ship", "old", [0.1, 0.2, 0.6, 0.7, 0.1, 0.3, 0.9, 0.4])
    await run.roll("ship", "new", [0.4, 0.4, 0.9, 0.9, 0.3, 0.2, 0.9, 0.8])
    run.ship("improved", 0.276, (0.1, 0.4))
    run.finish("improved", BEST)
    run.close()
    record = read_record(tmp_path / "run")
    assert record.graded and record.metric == "soft"
    assert "(soft score)" in record.verdict
    with open_details(tmp_path / "run") as details:
        items = details.compared_items(record)
    counts = count_changes(items)
    assert (counts["higher"], counts["lower"], counts["fixed"], counts["broken"]) == (5, 1, 1, 0)


async def test_items_are_listed_worst_first(tmp_path: Path) -> None:
    path = await improved(tmp_path / "run")
    with open_details(path) as details:
        items = worst_first(details.compared_items(read_record(path)))
    assert items[0].id == "t07" and items[0].change == "broken"
    assert items[1].input == f"ticket {items[1].id}"


async def test_the_test_split_compares_the_best_skill_and_not_the_last(tmp_path: Path) -> None:
    """Without a ship test, both are measured there."""
    run = WrittenRun(tmp_path / "run")
    for name, skill, score in (("baseline", "old", 0), ("best", "new", 1), ("final", "last", 0)):
        await run.roll("test", skill, [score] * 8)
        run.measured(f"test_{name}", skill, score, split="test")
    run.finish("improved", BEST)
    run.close()
    with open_details(tmp_path / "run") as details:
        items = details.compared_items(read_record(tmp_path / "run"))
    assert [item.after.scores for item in items] == [(1.0,)] * 8
    assert {item.change for item in items} == {"fixed"}


async def test_an_item_without_a_score_under_the_initial_skill_is_unknown(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    await run.roll("ship", "old", [None, None, 0, 1], ids=ITEMS[:4])
    await run.roll("ship", "new", [None, 1], ids=ITEMS[:2])
    run.ship("inconclusive", 0.0, (-1.0, 1.0))
    run.close()
    with open_details(tmp_path / "run") as details:
        items = details.compared_items(read_record(tmp_path / "run"))
    assert [item.change for item in items] == ["no score", "no score", "fails", "right"]


@pytest.mark.parametrize(
    ("scores", "lowest"), [((1.0, 0.0, 1.0), 1), ((0.6, 1.0, 0.5), 2), ((None, 1.0, 1.0), 1)]
)
def test_the_rollout_shown_of_an_item_is_the_lowest_one_with_a_score(
    scores: tuple[float | None, ...], lowest: int
) -> None:
    evaluation = EvaluationSection(gate_metric="soft")
    rows = [
        RolloutFinished(
            rollout=f"rollout/{at}",
            phase="ship",
            step=0,
            item="t00",
            repeat=at,
            skill_hash="new",
            status="failed" if score is None else "scored",
            hard=score,
            soft=score,
        )
        for at, score in enumerate(scores)
    ]
    assert _item_result(evaluation, rows).rollout == f"rollout/{lowest}"


def test_item_scores_over_the_steps_fit_few_columns(tmp_path: Path) -> None:
    path = screening_run(tmp_path / "run", steps=30, items=10, rollouts=20)
    with open_details(path) as details:
        matrix = details.matrix(read_record(path), most=10)
        rollouts = details.rollouts_of_item("ticket-0003")
    assert len(matrix.columns) <= 12
    assert matrix.columns[0] == "1–3" and matrix.columns[-2:] == ("fresh: initial", "fresh: found")
    counted = sum(cell.rollouts for cell in matrix.cells["ticket-0003"].values())
    assert counted == sum(row.hard is not None for row in rollouts)


def test_the_skill_after_a_step_is_known_where_the_step_changed_nothing(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", steps_per_epoch=4)
    slow = INITIAL + "Slowly learned.\n"
    run.step(1, "accept", BEST, "new")
    run.step(2, "reject", BEST, "new")
    for epoch, skill in ((1, BEST), (2, slow)):
        run.emit(
            SlowUpdateFinished(
                epoch=epoch,
                action="accept",
                result=SlowUpdateRecord(action="accept", standings=standings()),
                pairs=[],
                all_pairs=[],
                candidate=skill,
                skill=skill,
                best_skill=BEST,
            )
        )
    run.step(3, "reject", slow, "slow")
    run.close()
    record = read_record(run.path)
    texts = [version.text if (version := record.skill_after(step)) else None for step in range(5)]
    assert texts == [INITIAL, BEST, BEST, slow, None]
    opened = Run.open(run.path)
    assert [opened.skill(step).text for step in (0, 1, 2, 3)] == [INITIAL, BEST, BEST, slow]
    with pytest.raises(InputError, match="no step 4"):
        opened.skill(4)


def test_a_run_without_steps_is_reported_as_such(tmp_path: Path) -> None:
    WrittenRun(tmp_path / "run").close()
    record = read_record(tmp_path / "run")
    assert record.state == "stopped"
    assert record.verdict == (
        "Stopped before the first step was done; it can be resumed; nothing is measured yet."
    )


def test_a_directory_without_events_has_a_story(tmp_path: Path) -> None:
    before_first_event(tmp_path / "run")
    assert read_record(tmp_path / "run").state == "stopped"


def test_a_run_is_running_only_while_its_writer_is_alive(
    tmp_path: Path,
) -> None:
    run = WrittenRun(tmp_path / "run")
    assert read_record(tmp_path / "run").state == "running"
    run.close()
    assert not in_use(tmp_path / "run")
    writer = (
        "import os, sys; from skillfit.run.directory import RunDirectory as R;"
        " kept = R.open(sys.argv[1], {}); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", writer, str(tmp_path / "dead")], check=False)
    assert not in_use(tmp_path / "dead")


def test_a_run_with_unanswered_prompts_is_waiting(tmp_path: Path) -> None:
    WrittenRun(tmp_path / "run").close()
    (tmp_path / "run" / "handoff").mkdir()
    (tmp_path / "run" / "handoff" / "merge-1.prompt.md").write_text("?")
    record = read_record(tmp_path / "run")
    assert (record.state, record.prompts) == ("waiting", 1)
    assert record.verdict.startswith("Waiting for answers to handoff prompts")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            "budget",
            "The budget was reached before the end, so nothing is verified;"
            " best so far 87.5\u00a0%, initial skill 37.5\u00a0%",
        ),
        ("infrastructure", "The run failed before it finished: there is no result"),
        ("unverified", "A suggestion, not verified"),
        ("inconclusive", "Ended (inconclusive)"),
        ("something_new", "Ended (something new)"),
    ],
)
async def test_runs_that_ended_early_report_no_result(
    tmp_path: Path, reason: str, expected: str
) -> None:
    run = WrittenRun(tmp_path / "run")
    run.measured("baseline", "old", 3 / 8)
    run.step(1, "accept", BEST, "new")
    run.measured("step_0001", "new", 7 / 8)
    run.finish(reason, BEST)
    run.close()
    record = read_record(tmp_path / "run")
    assert record.verdict.startswith(expected)
    assert [(edit.text, edit.mean) for edit in record.edits] == [(ADDED, None)]
    assert record.failed == (reason == "infrastructure")


def test_without_improvement_the_skill_is_unchanged(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.finish("no_improvement", INITIAL)
    run.close()
    record = read_record(tmp_path / "run")
    assert not record.changed
    assert record.verdict.startswith("No improvement: no candidate beat the initial skill")


async def test_a_story_that_follows_a_run_agrees_with_one_read_at_the_end(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    follower = RunFollower(tmp_path / "run")
    follower.record()
    run.items()
    run.emit(StageStarted(epoch=0, step=0, stage="baseline", total=8))
    await run.roll("selection", "old", [0, 0, 0, 0, 1, 1, 1, None], phase="baseline")
    stage = follower.record().running_stage
    assert stage is not None
    assert (stage.stage, stage.done, stage.failed, stage.share) == ("baseline", 8, 1, 1.0)
    run.step(1, "accept", BEST, "new")
    await run.roll("ship", "old", [0, 0, 0, 0, 1, 1, 1, 1])
    await run.roll("ship", "new", [1, 1, 1, 1, 1, 1, 1, 0])
    run.ship("improved", 0.375, (0.05, 0.7))
    run.finish("improved", BEST)
    run.close()
    assert follower.record() == read_record(tmp_path / "run")


async def test_rollouts_under_way_are_shown_before_the_optimizer_that_waits_for_them(
    tmp_path: Path,
) -> None:
    run = WrittenRun(tmp_path / "run")
    follower = RunFollower(tmp_path / "run")
    run.items()
    run.emit(StageStarted(epoch=1, step=1, stage="rollout", total=8))
    run.emit(StageStarted(epoch=1, step=1, stage="reflect", total=0))

    def running() -> str:
        stage = follower.record().running_stage
        return stage.stage if stage is not None else ""

    assert running() == "rollout"
    await run.roll("selection", "old", [0] * 8, phase="rollout", step=1)
    assert running() == "reflect"
    run.close()


async def test_the_terminal_counts_events_as_the_story_does(tmp_path: Path) -> None:
    path = screening_run(tmp_path / "run", steps=3, items=10, rollouts=20)
    builder = Fold()
    with open_details(path) as details:
        for stored in details.events():
            builder(stored)
    live, read = builder.record(), read_record(path)
    assert live.stages == read.stages
    assert live.rollouts == read.rollouts
    assert live.points == read.points


def test_the_time_left_is_predicted_from_the_last_steps(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", total_epochs=1, steps_per_epoch=4)
    for step in (1, 2, 3):
        record = step_record(step, action="reject")
        run.emit(
            StepFinished(
                epoch=1,
                step=step,
                action="reject",
                skill=INITIAL,
                skill_hash="old",
                best_skill=INITIAL,
                record=record,
            )
        )
    run.close()
    with EventLog(tmp_path / "run" / JOURNAL)._db._connection as db:  # type: ignore[union-attr]
        db.execute("UPDATE events SET at = 1000 + 60 * seq")
    record = read_record(tmp_path / "run")
    assert record.seconds_left == 60.0


async def test_a_run_that_was_resumed_after_its_end_is_not_finished(tmp_path: Path) -> None:
    path = await improved(tmp_path / "run")
    builder = Fold()
    with open_details(path) as details:
        for stored in details.events():
            builder(stored)
            last = stored
    assert builder.record().state == "finished"
    person = PersonDecided(number=1, action="apply", command="skillfit apply run")
    builder(type(last)(last.seq + 1, last.at, person))
    assert builder.record().state == "finished", "applying a result does not resume the run"
    stage = StageStarted(epoch=1, step=3, stage="rollout", total=1)
    builder(type(last)(last.seq + 2, last.at, stage))
    assert builder.record().finish_reason == ""


def test_steering_requests_are_in_the_story_until_the_run_handles_them(
    tmp_path: Path,
) -> None:
    run = WrittenRun(tmp_path / "run")
    request_steering(tmp_path / "run", "veto", "s0001e01")
    request_steering(tmp_path / "run", "reword", "s0001e02", "- Say it in one word.")
    command = "skillfit steer runs/run veto s0001e01"
    run.emit(PersonDecided(number=1, action="veto", target="s0001e01", command=command))
    run.close()
    first, second = read_record(tmp_path / "run").decisions
    assert (first.action, first.target, first.done) == ("veto", "s0001e01", True)
    assert (second.action, second.text, second.done) == ("reword", "- Say it in one word.", False)


@pytest.mark.parametrize(("answer", "status"), [("approve", "promoted"), ("decline", "dropped")])
def test_an_edit_is_under_review_until_the_run_handles_the_answer(
    tmp_path: Path, answer: Any, status: str
) -> None:
    run = WrittenRun(tmp_path / "run", {"review": True})
    edit = Edit("append", "", ADDED)
    waiting = EditEffect("s0001e01", 1, edit, "pending", 0.1, 0.0, 0.2, 0.9, 60)
    run.emit(
        GateDecided(
            name="step_0001",
            step=1,
            decision="reject",
            reason="no edit was promoted",
            evidence=Evidence(),
            effects=[replace(waiting, awaits_approval=True)],
        )
    )
    assert [edit.id for edit in read_record(tmp_path / "run").to_review] == ["s0001e01"]
    run.emit(PersonDecided(number=1, action=answer, target="s0001e01"))
    run.close()
    record = read_record(tmp_path / "run")
    assert record.to_review == () and [edit.status for edit in record.edits] == [status]


def test_an_unproven_skill_is_compared_by_its_own_score_on_the_test_split(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    for name, skill, score in (
        ("baseline", "old", 0.25),
        ("best", "old", 0.25),
        ("final", "new", 0.5),
    ):
        run.measured(f"test_{name}", skill, score, split="test")
    run.finish("inconclusive", INITIAL, BEST)
    run.close()
    record = read_record(tmp_path / "run")
    (row,) = comparisons(record)
    assert (row.name, row.before, row.after) == ("Test split", "25\u00a0%", "50\u00a0%")
    assert "test split: initial 25\u00a0%, found 50\u00a0%" in score_chart(record)


def test_a_stop_request_is_handled_when_the_run_has_stopped(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    request_steering(tmp_path / "run", "stop")
    assert not read_record(tmp_path / "run").decisions[0].done
    run.close()
    assert read_record(tmp_path / "run").decisions[0].done


def test_an_unfinished_ablation_reports_no_steps(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", total_epochs=0, steps_per_epoch=0)
    run.journal.set_fact("identity", {"kind": "ablation", "skill": "old", "by": "line"})
    assert (
        read_record(tmp_path / "run").verdict == "Measuring what each part of the skill is worth."
    )
    run.close()
    record = read_record(tmp_path / "run")
    assert record.verdict.startswith("Stopped before every part of the skill was measured")
    assert [version.name for version in record.versions] == ["initial"]
    at = record.path
    assert [line.partition("   #")[0] for line in next_commands(record)] == [
        f"skillfit ablate {at}/config.json --run {at}",
        f"skillfit ablate {at}/config.json --run {at}-again",
    ]


def test_the_commands_of_an_ablation_name_what_it_leaves_out(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", total_epochs=0, steps_per_epoch=0)
    run.journal.set_fact("identity", {"kind": "ablation", "skill": "old", "by": "paragraph"})
    run.close()
    record = read_record(tmp_path / "run")
    at = record.path
    assert resume_line(record, at) == f"skillfit ablate {at}/config.json --by paragraph --run {at}"
    assert [line.partition("   #")[0] for line in next_commands(record)] == [
        resume_line(record, at),
        f"skillfit ablate {at}/config.json --by paragraph --run {at}-again",
    ]


def test_the_story_names_the_reached_budget(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", {"budget": {"calls": 2500000, "usd": 3.0}})
    run.finish("budget", INITIAL)
    run.close()
    record = replace(read_record(tmp_path / "run"), usage=Usage(calls=2500000, usd=0.5))
    assert fullest_cap(record) == "calls"
    assert next_commands(record)[0].startswith(
        f"skillfit resume {record.path} budget.calls=5000000 "
    )


async def test_a_story_has_the_isolation_of_the_last_rollout(
    tmp_path: Path,
) -> None:
    run = WrittenRun(tmp_path / "run")
    assert read_record(run.path).isolation == ""
    for number, isolation in enumerate(("", "bubblewrap")):
        attempt = Attempt("billing", isolation=isolation)
        outcome = Outcome("a", number, "scored", Score(1.0), attempt=attempt)
        run.journal.record(f"rollout/train/h/a/{number}", outcome, Outcome)
    run.journal.record("call/judge/x", 1, int)
    run.close()
    assert read_record(run.path).isolation == "bubblewrap"


@pytest.mark.parametrize(
    ("finish_reason", "over"),
    [("improved", True), ("no_improvement", True), ("budget", False), ("infrastructure", False)],
)
def test_a_run_is_over_unless_it_can_be_resumed(
    tmp_path: Path, finish_reason: str, over: bool
) -> None:
    run = WrittenRun(tmp_path / "run")
    run.finish(finish_reason, INITIAL)
    run.close()
    assert (read_record(run.path).is_over, read_card(run.path).is_over) == (over, over)


def test_a_damaged_journal_is_an_error_that_names_the_run(tmp_path: Path) -> None:
    path = screening_run(tmp_path / "run", steps=3, items=10, rollouts=20)
    data = (path / JOURNAL).read_bytes()
    (path / JOURNAL).write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=str(path)):
        read_record(path)


def test_a_record_is_read_without_parsing_rollouts(tmp_path: Path) -> None:
    """Parsing the event of a rollout takes several calls: more rollouts cost less than one each."""

    def read(rollouts: int) -> tuple[int, int]:
        """The number of rollouts of a run, and of calls that reading its record took."""
        path = screening_run(tmp_path / str(rollouts), steps=10, rollouts=rollouts, journaled=False)
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            record = read_record(path)
        finally:
            sys.setprofile(None)
        return record.rollouts, calls

    (few, calls_for_few), (many, calls_for_many) = read(100), read(1000)
    assert many - few == 9_000
    assert calls_for_many - calls_for_few < many - few


def test_a_record_is_plain_data(tmp_path: Path) -> None:
    record = read_record(screening_run(tmp_path / "run", steps=2, items=4, rollouts=8))
    assert load(Record, dump(Record, record)) == record


def test_a_worked_example_is_described_and_found_in_the_skill() -> None:
    example = Example("2 + 3 = ?", "5", "sum-1")
    edit = EditRecord(id="s0001e01", step=1, edit=example_edit(example), status="promoted")
    assert edit.text == "worked example: 2 + 3 = ? → 5"
    skill = Skill.from_text("Add.\n")
    assert _has_text_of(with_examples(skill, [example]), edit)
    assert not _has_text_of(skill, edit)


async def test_the_end_of_a_run_and_show_say_once_how_many_rollouts_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = WrittenRun(tmp_path / "run")
    run.items()
    await run.roll("selection", INITIAL, [1.0, None, None, *[0.0] * (len(ITEMS) - 3)])
    run.finish("no_improvement", INITIAL)
    run.close()
    failed = f"2 of {len(ITEMS)} rollouts failed and entered no score: no answer in time"
    assert failed in result_text(read_record(run.path)).splitlines()
    monkeypatch.setenv("COLUMNS", "200")
    assert Shell(capsys)("show", run.path).out.count(failed) == 1


@pytest.mark.parametrize(("estimated", "about"), [(True, "about "), (False, "")])
def test_a_stopped_run_says_which_scores_are_estimates(estimated: bool, about: str) -> None:
    point = Point("step_0001", "selection", 0.25, 0.1, 0.4, 8, estimated=estimated)
    stopped = Record(total_steps=2, steps_done=1, points=(point,))
    assert verdict_sentence(stopped) == (
        "Stopped after 1 of 2 steps; it can be resumed; the initial skill scores "
        f"{about}25\u00a0% on the selection split."
    )
    better = replace(point, name="step_0002", score=0.5)
    changed = replace(stopped, points=(point, better), initial_skill=INITIAL, best_skill=BEST)
    assert verdict_sentence(changed).endswith(
        f"best so far {about}50\u00a0%, initial skill {about}25\u00a0% on the selection split,"
        " not verified."
    )


def test_a_prune_round_has_the_name_of_its_work_in_every_view(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = WrittenRun(tmp_path / "run")
    pooled(run, "- Rule N4")
    [step] = [stored.event for stored in run.events.read() if isinstance(stored.event, GateDecided)]
    score = ScoreEstimate(0.5, 0.4, 0.6, estimated=True)
    pruned = replace(step, name="prune_1", step=0, score=score)
    run.emit(pruned)
    run.finish("no_improvement", INITIAL)
    run.close()
    record = read_record(run.path)
    assert [gate.label for gate in record.gates] == ["step 1", "measuring 1"]
    assert event_lines(pruned)[0].startswith("measuring 1: ")
    assert "measuring 1: 50" in score_chart(record)
    for page in (html_report(record), Shell(capsys)("show", run.path).out):
        assert "measuring 1" in page and "prune 1" not in page


async def test_failed_calls_and_the_working_time_of_a_stopped_run_are_told(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.journal.set_fact("minutes", 1.5)
    used = Usage(calls=3, input=90, output=10, failed=2, failed_tokens=60)

    async def answered() -> int:
        return 1

    await run.journal.once("call", answered, returns=int, usage=lambda _: used)
    run.journal.set_fact("stopped", "The key is wrong.")
    run.close()
    record = read_record(run.path)
    told = {fact.name: fact for fact in facts(record)}
    assert told["Time"].value == "1.5 min", "not the time between the first and last event"
    assert told["Cost"].note == "3 calls, 100 tokens, 2 failed"
    assert record.notices[-1].text == (
        "Failed model calls, repeated or given up: 2; 60 of the 100 tokens are theirs."
    )
    page = html_report(record)
    assert "The key is wrong." in page and "60 of the 100 tokens are theirs" in page


def test_the_report_begins_with_whether_the_skill_helps(tmp_path: Path) -> None:
    record = read_record(screening_run(tmp_path / "run", steps=2, items=4, rollouts=8))
    assert (
        lift_sentence(record) == "Not compared with no skill: skillfit eval --no-skill does that."
    )
    measured = replace(record, checks=(lift_check([0.5, 1.0, 0.5, 1.0]),))
    assert lift_sentence(measured).startswith("The skill so far: helps, +0.75")
    assert lift_sentence(replace(record, initial_skill="")) == ""
    page = html_report(measured)
    assert page.index("The skill so far: helps") < page.index("<h1>")
