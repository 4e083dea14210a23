"""Lists of runs: quick, complete, and not broken by one run that is damaged."""

import json
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillfit.errors import InputError
from skillfit.models.protocol import Usage
from skillfit.record.lists import current_card, find_runs, kept_card, list_runs, read_card
from skillfit.record.record import SplitScores
from skillfit.run.directory import RunDirectory
from skillfit.run.events import (
    EvaluationFinished,
    RunFinished,
    RunStarted,
    ShipTested,
    Warned,
)
from skillfit.run.records import RecordedConfig, ScoreEstimate
from skillfit.run.store import DamagedRun
from tests.support.records import run_started, run_summary, ship_tested

IDENTITY = {"seed": 1}
CONFIG: dict[str, Any] = {
    "env": {"skill": "/home/me/my-skill/", "tasks": "tasks.jsonl"},
    "model": {"agent": {"id": "openai/small"}, "optimizer": {"id": "openai/big"}, "judge": None},
}


def started(run: str) -> RunStarted:
    return run_started(run=run, config=CONFIG, total_epochs=2, steps_per_epoch=3)


def measured(name: str, hard: float, split: str = "selection") -> EvaluationFinished:
    return EvaluationFinished(
        name=name, split=split, skill_hash="h", hard=hard, soft=hard, scored=4, planned=4
    )


async def make_run(path: Path, *, finish: bool = True) -> None:
    with RunDirectory.open(path, IDENTITY) as run, kept_card(run.journal, run.events):
        run.events.emit(started(run.run_id))
        used = Usage(calls=2, input=10, output=5, usd=0.25)
        await run.journal.once("call/1", _one, returns=int, usage=lambda _: used)
        run.events.emit(measured("baseline", 0.5))
        run.events.emit(measured("step_0001", 0.75))
        run.events.emit(measured("test_best", 0.9, split="test"))
        if finish:
            run.events.emit(ship_tested())
            run.events.emit(ending())


async def _one() -> int:
    return 1


def ending() -> RunFinished:
    summary = run_summary(
        diagnosis="It is better.",
        config=RecordedConfig(CONFIG),
        total_steps=6,
        baseline_selection_score=0.5,
        best_selection_score=0.8,
        test_hard=0.9,
        best_step=1,
        total_wall_time_s=12.0,
    )
    return RunFinished(
        finish_reason="improved", diagnosis="It is better.", best_skill="# B\n", summary=summary
    )


def without_card(path: Path) -> None:
    """As a version without cards, or a process killed before it wrote one, leaves a run."""
    with sqlite3.connect(path / "journal.sqlite") as db:
        db.execute("DELETE FROM facts WHERE name = 'card'")


@pytest.mark.parametrize("card", ["kept", "missing"])
async def test_a_listed_run_has_the_columns_of_the_list(tmp_path: Path, card: str) -> None:
    await make_run(tmp_path / "run")
    if card == "missing":
        without_card(tmp_path / "run")
    (listed,) = list_runs(tmp_path).runs
    assert (listed.path, listed.state) == (str(tmp_path / "run"), "finished")
    found = listed
    assert (found.skill_name, found.tasks) == ("my-skill", "tasks.jsonl")
    assert found.models == {"agent": "openai/small", "optimizer": "openai/big"}
    assert (found.finish_reason, found.diagnosis) == ("improved", "It is better.")
    assert found.ship is not None and found.ship.verdict == "improved"
    assert (found.ship.difference, found.ship.interval, found.ship.pairs) == (0.2, (0.1, 0.3), 2)
    assert (found.selection, found.test) == (SplitScores(0.5, 0.8), SplitScores(None, 0.9))
    points = [(one.name, one.score) for one in found.points if one.split == "selection"]
    assert points == [("baseline", 0.5), ("step_0001", 0.75)]
    assert (found.usage.calls, found.usage.tokens, found.usage.usd) == (2, 15, 0.25)
    assert (found.total_steps, found.best_step, found.wall_s) == (6, 1, 12.0)
    assert found.begun and found.ended and found.ended >= found.begun > 0


@pytest.mark.parametrize(("metric", "score"), [("hard", 0.25), ("soft", 0.75), ("mixed", 0.5)])
async def test_points_are_in_the_metric_of_the_gate(
    tmp_path: Path, metric: str, score: float
) -> None:
    config = {**CONFIG, "evaluation": {"gate_metric": metric, "gate_mixed_weight": 0.5}}
    with RunDirectory.open(tmp_path / "run", IDENTITY) as run:
        run.events.emit(replace(started(run.run_id), config=RecordedConfig(config)))
        run.events.emit(replace(measured("baseline", 0.25), soft=0.75))
        estimate = ScoreEstimate(0.6, 0.5, 0.7, estimated=True)
        run.events.emit(replace(measured("step_0001", 0.25), estimate=estimate))
    found = read_card(tmp_path / "run")
    assert [point.score for point in found.points] == [score, 0.6]
    assert found.selection == SplitScores(score, None)


async def test_a_resumed_run_is_unfinished_until_it_finishes_again(tmp_path: Path) -> None:
    await make_run(tmp_path / "run")
    with RunDirectory.open(tmp_path / "run", IDENTITY) as run, kept_card(run.journal, run.events):
        listed = read_card(tmp_path / "run")
        assert (listed.state, listed.finish_reason, listed.ship) == ("running", "", None)
        assert "step_0001" in [point.name for point in listed.points]  # and it has lost nothing
        for event in (started(run.run_id), measured("baseline", 0.5), ship_tested(), ending()):
            run.events.emit(event)
    listed = read_card(tmp_path / "run")
    assert (listed.state, listed.finish_reason) == ("finished", "improved")
    assert [one.name for one in listed.points if one.split == "selection"] == [
        "baseline",
        "step_0001",
    ]


async def test_a_replay_writes_the_card_only_when_it_changed(tmp_path: Path) -> None:
    await make_run(tmp_path / "run", finish=False)
    with RunDirectory.open(tmp_path / "run", IDENTITY) as run, kept_card(run.journal, run.events):
        run.events.emit(started(run.run_id))
        before = run.journal.fact("card", str)
        run.events.emit(started(run.run_id))
        run.events.emit(measured("baseline", 0.5))
        assert run.journal.fact("card", str) == before


def test_a_killed_run_is_listed_as_stopped_with_all_its_data(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import asyncio, os, signal, sys
        from pathlib import Path
        from skillfit.record.lists import CardKeeper
        from skillfit.run.directory import RunDirectory
        from tests.record.test_lists import measured, started
        run = RunDirectory.open(sys.argv[1], {})
        keeper = CardKeeper(run.journal, run.events)
        run.events.listen(keeper)
        run.events.emit(started(run.run_id))
        keeper.save = lambda: None  # the kill comes before the card is written
        run.events.emit(measured("baseline", 0.5))
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")])
    (listed,) = list_runs(tmp_path).runs
    assert listed.state == "stopped"
    assert [(one.name, one.score) for one in listed.points] == [("baseline", 0.5)]


async def test_a_run_that_waits_for_answers_is_listed_as_waiting(tmp_path: Path) -> None:
    await make_run(tmp_path / "run", finish=False)
    (tmp_path / "run" / "handoff").mkdir()
    (tmp_path / "run" / "handoff" / "reflect-01.prompt.md").write_text("?")
    assert read_card(tmp_path / "run").state == "waiting"


async def test_runs_are_found_in_subfolders_and_not_inside_other_runs(tmp_path: Path) -> None:
    for name in ("a", "b/c", "b/d"):
        await make_run(tmp_path / name)
    shutil.copytree(tmp_path / "a", tmp_path / "a" / "steps" / "copy")
    names = [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)]
    assert names == ["a", "b/c", "b/d"]
    assert list(find_runs(tmp_path / "none")) == []


async def test_a_run_that_only_probed_its_models_is_not_listed(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "run", IDENTITY) as run:
        run.events.emit(Warned(what="w", message="m"))
    listing = list_runs(tmp_path)
    assert (listing.runs, listing.problems) == ((), ())


DAMAGES = {
    "emptied": lambda data: b"",
    "garbage": lambda data: b"garbage " * 1000,
    "header only": lambda data: data[:100],
    "half": lambda data: data[: len(data) // 2],
    "last page cut": lambda data: data[:-100],
    "random pages": lambda data: data[:4096] + random.Random(1).randbytes(len(data) - 4096),
    "zeroed pages": lambda data: data[:4096] + bytes(len(data) - 4096),
}


@pytest.mark.parametrize("how", DAMAGES)
async def test_a_damaged_run_is_named_and_other_runs_are_listed(tmp_path: Path, how: str) -> None:
    await make_run(tmp_path / "bad")
    await make_run(tmp_path / "good")
    journal = tmp_path / "bad" / "journal.sqlite"
    journal.write_bytes(DAMAGES[how](journal.read_bytes()))
    listing = list_runs(tmp_path)
    assert [Path(listed.path).name for listed in listing.runs] == ["good"]
    (problem,) = listing.problems
    assert isinstance(problem, DamagedRun)
    assert str(tmp_path / "bad") in problem.message and problem.hint


@pytest.mark.parametrize("how", DAMAGES)
async def test_a_damaged_run_is_not_resumed_and_can_be_renamed(tmp_path: Path, how: str) -> None:
    await make_run(tmp_path / "bad")
    journal = tmp_path / "bad" / "journal.sqlite"
    journal.write_bytes(DAMAGES[how](journal.read_bytes()))
    with pytest.raises(DamagedRun) as raised:
        RunDirectory.open(tmp_path / "bad", IDENTITY)
    assert str(tmp_path / "bad") in raised.value.message
    assert "--force-new" in raised.value.hint
    RunDirectory.open(tmp_path / "bad", IDENTITY, force_new=True).close()
    assert (tmp_path / "bad.old-1" / "config.json").is_file()


CHANGED_RECORDS = (
    "UPDATE facts SET value = '{'",
    f"UPDATE facts SET value = '{'[' * 100_000}'",
    "UPDATE facts SET value = '[1]'",
    "UPDATE facts SET value = x'ff00'",
    "UPDATE effects SET usage = 'x'",
    "UPDATE effects SET usage = 5",
    f"UPDATE effects SET usage = '{'[' * 100_000}'",
    "UPDATE effects SET usage = CAST(x'ff00' AS TEXT)",
    "UPDATE effects SET at = 'later'",
    "UPDATE events SET data = 'x'",
    "UPDATE events SET data = '[]'",
    "UPDATE events SET at = 'later'",
    "DROP TABLE losses",
)


@pytest.mark.parametrize("change", CHANGED_RECORDS, ids=lambda change: change[:40])
async def test_a_run_with_modified_records_is_an_error_with_a_message(
    tmp_path: Path, change: str
) -> None:
    for name in ("bad", "good"):
        await make_run(tmp_path / name)
    with sqlite3.connect(tmp_path / "bad" / "journal.sqlite") as db:
        db.execute(change)
        db.execute("DELETE FROM facts WHERE name = 'card' AND ? LIKE '%events%'", (change,))
    listing = list_runs(tmp_path)
    assert [
        Path(listed.path).name for listed in listing.runs if Path(listed.path).name == "good"
    ] == ["good"]
    assert all(isinstance(problem, DamagedRun) for problem in listing.problems)

    with (
        pytest.raises(DamagedRun, match="bad"),
        closing(RunDirectory.read(tmp_path / "bad")) as view,
    ):
        assert view.run_id and current_card(view)
        assert list(view.events.read()) and list(view.journal.entries())
        assert view.journal.bill().rows


async def test_usage_beyond_float_range_does_not_break_the_total(tmp_path: Path) -> None:
    await make_run(tmp_path / "run")
    with sqlite3.connect(tmp_path / "run" / "journal.sqlite") as db:
        db.execute("UPDATE effects SET usage = ?", (f'{{"calls": 1, "input": 1{"0" * 400}}}',))
    with closing(RunDirectory.read(tmp_path / "run")) as view:
        assert view.journal.spent().calls >= 1
    assert not list_runs(tmp_path).problems


async def test_a_record_that_cannot_be_read_names_the_run(tmp_path: Path) -> None:
    await make_run(tmp_path / "run")
    with sqlite3.connect(tmp_path / "run" / "journal.sqlite") as db:
        db.execute("UPDATE effects SET value = 'not json'")
    with (
        RunDirectory.open(tmp_path / "run", IDENTITY) as run,
        pytest.raises(DamagedRun, match=r"record 1 \(int\) cannot be read"),
    ):
        await run.journal.once("call/1", _one, returns=int)


async def test_a_run_whose_usage_cannot_be_read_is_reported_beside_the_list(tmp_path: Path) -> None:
    await make_run(tmp_path / "run")
    with sqlite3.connect(tmp_path / "run" / "journal.sqlite") as db:
        db.execute("UPDATE effects SET usage = ?", (json.dumps({"calls": 1, "input": 1.5}),))
    without_card(tmp_path / "run")
    await make_run(tmp_path / "other")
    listing = list_runs(tmp_path)
    assert [Path(listed.path).name for listed in listing.runs] == ["other"]
    (problem,) = listing.problems
    assert "the usage of a record cannot be read" in problem.message


async def test_impossible_usage_is_not_recorded(tmp_path: Path) -> None:
    nan = float("nan")
    with RunDirectory.open(tmp_path / "run", IDENTITY) as run:
        wrong = Usage(calls=1, input=-5, cached=nan, output=3, usd=nan)  # type: ignore[arg-type]
        await run.journal.once("k", _one, returns=int, usage=lambda _: wrong)
        (row,) = run.journal.bill().rows
        assert row.usage == Usage(calls=1, output=3, usd=None)


async def test_reading_leaves_no_files_in_a_finished_run(tmp_path: Path) -> None:
    await make_run(tmp_path / "run")
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    read_card(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_an_empty_journal_file_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.sqlite").touch()
    listing = list_runs(tmp_path)
    assert listing.runs == () and isinstance(listing.problems[0], InputError)


@pytest.mark.parametrize(
    ("ship", "unproven", "doubt", "score"),
    [
        (ship_tested(), False, "", 0.8),
        (ship_tested(verdict="inconclusive"), True, "not confirmed", 0.5),
        (ship_tested(verdict="no improvement"), True, "not confirmed", 0.5),
        (ship_tested(verdict="no improvement", pairs=0, interval=None), True, "not verified", 0.5),
        (None, False, "not verified", 0.8),  # without a ship test the best skill is handed back
    ],
)
def test_a_card_states_whether_its_best_score_is_the_result(
    tmp_path: Path, ship: ShipTested | None, unproven: bool, doubt: str, score: float
) -> None:
    end = ending()
    with RunDirectory.open(tmp_path / "run", IDENTITY) as run:
        run.events.emit(started(run.run_id))
        assert read_card(tmp_path / "run").doubt == ""
        if ship is not None:
            run.events.emit(ship)
        run.events.emit(replace(end, summary=replace(end.summary, unproven=unproven)))
    card = read_card(tmp_path / "run")
    assert (card.doubt, card.score, card.selection.best) == (doubt, score, 0.8)


def test_a_run_without_improvement_has_no_unconfirmed_score(tmp_path: Path) -> None:
    end = ending()
    with RunDirectory.open(tmp_path / "run", IDENTITY) as run:
        run.events.emit(started(run.run_id))
        run.events.emit(replace(end, summary=replace(end.summary, best_selection_score=0.5)))
    assert read_card(tmp_path / "run").doubt == ""
