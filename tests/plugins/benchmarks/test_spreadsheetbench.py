"""spreadsheetbench: real workbooks, programs in the sandbox, and the comparison of cells."""

from __future__ import annotations

import datetime
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError, TaskFailure
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.skill import Skill
from skillfit.tasks import load_task
from skillfit.tasks.item import Attempt, Item
from skillfit.tasks.task import Task, prove_gold
from tests.plugins.benchmarks.agents import COPY, fenced, solver, wrong
from tests.plugins.benchmarks.sample_training import LESSON, Lab, sample_task, tool, user
from tests.support.chat_server import Call

openpyxl = pytest.importorskip("openpyxl")

from skillfit.plugins.benchmarks.spreadsheetbench import (  # noqa: E402  # noqa: E402
    BadRange,
    CodeRounds,
    WorkbookGrader,
    cases_in,
    comparable,
    compare_workbooks,
)


def single() -> Task:
    return sample_task("spreadsheetbench", task_args={"mode": "single"})


def workbook(path: Path, sheets: dict[str, dict[str, Any]]) -> Path:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, cells in sheets.items():
        sheet = book.create_sheet(name)
        for cell, value in cells.items():
            sheet[cell] = value
    book.save(path)
    return path


# the comparison


def oracle(one: Any, other: Any) -> bool:
    """The published rules, written down independently: transform both values, then compare type
    and value.
    """

    def transform(value: Any) -> Any:
        if type(value) in (int, float):
            return round(float(value), 2)
        if type(value) is datetime.time:
            return value.strftime("%H:%M") if not value.microsecond else str(value)[:-3]
        if type(value) is datetime.datetime:
            days = value.toordinal() - datetime.date(1899, 12, 30).toordinal()
            seconds = value.hour * 3600 + value.minute * 60 + value.second
            return round(days + seconds / 86400, 0)
        if type(value) is str:
            try:
                return round(float(value), 2)
            except ValueError:
                return value
        return value

    first, second = transform(one), transform(other)
    if first in ("", None) and second in ("", None):
        return True
    return type(first) is type(second) and bool(first == second)


def some_value(luck: random.Random) -> Any:
    day = datetime.datetime(2024, 2, 28) + datetime.timedelta(hours=luck.randrange(96))
    return luck.choice(
        [
            None, "", "x", "X", "yes", "3", "3.001", "3.004", "3.006", "1e3", " 3 ", "nan-ish", 3,
            3.0, 3.0049, 3.0051, -3, 1000, 0, 0.004, True, False, day, (day - datetime.datetime(
                1899, 12, 30)).days, datetime.time(10, 30), datetime.time(10, 30, 20), "10:30",
        ]
    )  # fmt: skip


def test_cells_are_compared_by_the_published_rules() -> None:
    luck = random.Random(5)
    seen = Counter[bool]()
    for _ in range(4000):
        one, other = some_value(luck), some_value(luck)
        equal = comparable(one) == comparable(other)
        assert equal == oracle(one, other), (one, other)
        seen[equal] += 1
    assert min(seen.values()) > 300


def test_workbooks_are_compared_cell_by_cell(tmp_path: Path) -> None:
    luck = random.Random(6)
    for number in range(60):
        cells = [f"{column}{row}" for column in "ABC" for row in range(1, 5)]
        first = {cell: some_value(luck) for cell in cells}
        second = {c: v if luck.random() < 0.8 else some_value(luck) for c, v in first.items()}
        one = workbook(tmp_path / f"{number}a.xlsx", {"S": first})
        other = workbook(tmp_path / f"{number}b.xlsx", {"S": second})
        saved = [openpyxl.load_workbook(path, data_only=True)["S"] for path in (one, other)]
        expected = [c for c in cells if not oracle(saved[0][c].value, saved[1][c].value)]
        found = [d.where for d in compare_workbooks(one, other, "A1:C4")]
        assert sorted(found) == sorted(f"S!{cell}" for cell in expected)


def test_positions_name_sheets_ranges_columns_and_rows(tmp_path: Path) -> None:
    golden = workbook(tmp_path / "a.xlsx", {"One": {"A1": 1, "B3": 2}, "It's, two": {"C2": 3}})
    other = workbook(tmp_path / "b.xlsx", {"One": {"A1": 9, "B3": 8}, "It's, two": {"C2": 7}})

    def wrong(position: str, sheet: str = "") -> list[str]:
        return [one.where for one in compare_workbooks(golden, other, position, sheet)]

    assert wrong("A1") == ["One!A1"]
    assert wrong("$A$1:$B$3") == ["One!A1", "One!B3"]
    assert wrong("One!B3") == ["One!B3"]
    assert wrong("B:B") == ["One!B3"] and wrong("3:3") == ["One!B3"]
    assert wrong("One!A1,'One'!B3") == ["One!A1", "One!B3"]
    assert wrong("C2", sheet="It's, two") == ["It's, two!C2"]
    for bad in ("", " , ", "A1:B", "nonsense here", "Three!A1"):
        if bad == "A1:B":
            assert wrong(bad) == ["One!A1", "One!B3"]
            continue
        with pytest.raises(BadRange):
            wrong(bad)
    missing = workbook(tmp_path / "c.xlsx", {"Other": {"A1": 1}})
    assert compare_workbooks(golden, missing, "One!A1")[0].found == "no such sheet"


# grading


@pytest.mark.slow
async def test_gold_programs_score_1_and_wrong_ones_0() -> None:
    task = single()
    assert await prove_gold(task) == []
    assert task.grader is not None
    for item in task.items[:4]:
        score = await task.grader.grade(item, Attempt(fenced(COPY)))
        assert score.hard == 0 and "workbooks are wrong" in score.feedback
        golden = cases_in(Path(item.content()["workbooks"]))[0].golden
        expected = openpyxl.load_workbook(golden).worksheets[0]
        shown = [one for one in score.evidence if "expected" in one]
        assert shown and expected is not None


async def test_a_program_that_fits_only_the_first_workbook_scores_half() -> None:
    task = single()
    assert task.grader is not None
    item = next(item for item in task.items if "highest price" in item.input)
    golden = cases_in(Path(item.content()["workbooks"]))[0].golden
    value = openpyxl.load_workbook(golden)["Data"]["J2"].value
    program = (
        "import openpyxl\nbook = openpyxl.load_workbook('input.xlsx')\n"
        f"book['Data']['J2'] = {value}\nbook.save('output.xlsx')\n"
    )
    score = await task.grader.grade(item, Attempt(fenced(program)))
    assert (score.hard, score.soft) == (0, 0.5)
    assert score.feedback.startswith("1 of 2 workbooks are wrong. 1 wrong cell: Data!J2 is")


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("raise ValueError('no luck')", "ValueError: no luck"),
        ("print('done')", "did not save output.xlsx"),
        ("open('output.xlsx', 'w').write('x')", "not a readable workbook"),
        ("", "There is no program"),
        ("import os\nos.listdir('/root/.ssh')", "workbooks are wrong"),
    ],
)
async def test_a_program_that_saves_no_workbook_scores_0(program: str, problem: str) -> None:
    task = single()
    assert task.grader is not None
    score = await task.grader.grade(task.items[0], Attempt(fenced(program + "\n")))
    assert score.hard == score.soft == 0 and problem in score.feedback


async def test_an_endless_program_is_killed_and_its_earlier_workbook_is_not_graded() -> None:
    task = sample_task("spreadsheetbench", task_args={"mode": "single", "program_timeout": 2})
    item = task.items[0]
    assert task.grader is not None
    program = f"{item.answers[0]}\nwhile True:\n    pass\n"
    score = await task.grader.grade(item, Attempt(fenced(program)))
    assert score.hard == 0 and "time limit (2 s)" in score.feedback


def test_items_without_an_answer_position_are_refused(tmp_path: Path) -> None:
    item = single().items[0]
    shutil.copytree(item.content()["workbooks"], tmp_path / "spreadsheet" / "1")
    row = {"id": "1", "instruction": "Do it.", "spreadsheet_path": "spreadsheet/1"}
    (tmp_path / "dataset.json").write_text(json.dumps([{**row, "answer_position": " "}]))
    with pytest.raises(InputError, match="has no answer_position"):
        load_task(EnvSection(tasks="spreadsheetbench:.?mode=single", folder=str(tmp_path)))
    (tmp_path / "dataset.json").write_text(json.dumps([{**row, "answer_position": "A1"}]))
    task = load_task(EnvSection(tasks="spreadsheetbench:.?mode=single", folder=str(tmp_path)))
    assert task.grader is not None and task.grader.describe()["workbook"] == {}
    (tmp_path / "dataset.json").write_text(json.dumps([{**row, "spreadsheet_path": "gone"}]))
    with pytest.raises(InputError, match="no workbooks with expected results"):
        load_task(EnvSection(tasks="spreadsheetbench:.?mode=single", folder=str(tmp_path)))


async def test_gold_checks_of_items_without_a_program_use_their_workbooks(
    tmp_path: Path,
) -> None:
    item = single().items[0]
    folder = tmp_path / "spreadsheet" / "1"
    shutil.copytree(item.content()["workbooks"], folder)
    for file in list(folder.iterdir()):
        renamed = file.name.replace("_init", "_input").replace("_golden", "_answer")
        file.rename(file.with_name(renamed))
    position = item.content()["answer_position"]
    row = {"id": "1", "instruction": "Do it.", "spreadsheet_path": "spreadsheet/1"}
    (tmp_path / "dataset.json").write_text(json.dumps([{**row, "answer_position": position}]))
    task = load_task(EnvSection(tasks="spreadsheetbench:.?mode=single", folder=str(tmp_path)))
    assert await prove_gold(task) == []
    (tmp_path / "dataset.json").write_text(json.dumps([{**row, "answer_position": "Nowhere!A1"}]))
    task = load_task(EnvSection(tasks="spreadsheetbench:.?mode=single", folder=str(tmp_path)))
    assert len(await prove_gold(task)) == 1


async def test_a_position_outside_the_golden_workbook_is_a_failure_not_a_zero() -> None:
    item = single().items[0]
    row = {**item.content(), "answer_position": "Nowhere!A1"}
    with pytest.raises(TaskFailure):
        await WorkbookGrader().grade(Item("1", row), Attempt(fenced(COPY)))


# modes


async def test_multi_shows_errors_and_grades_the_program_that_ran() -> None:
    item = single().items[0]
    model = ScriptedModel([fenced("1/0\n"), fenced(item.answers[0])])
    rounds = CodeRounds(model, "Write. {skill}", WorkbookGrader(), max_turns=5)
    attempt, score = await rounds(Skill.from_text("# S\n\nx\n"), item, seed=1)
    assert score.hard == 1 and attempt.usage.calls == 2
    feedback = model.requests[1].messages[-1].content
    assert "ZeroDivisionError" in feedback
    golden = openpyxl.load_workbook(cases_in(Path(item.content()["workbooks"]))[0].golden)
    assert golden.sheetnames[0] not in feedback  # nothing of the expected workbook is shown
    model = ScriptedModel([fenced("1/0\n")] * 2)
    rounds = CodeRounds(model, "Write. {skill}", WorkbookGrader(), max_turns=2)
    attempt, score = await rounds(Skill.from_text("# S\n\nx\n"), item, seed=1)
    assert score.hard == 0 and "Ended after 2 programs" in attempt.steps[-1].text


@pytest.mark.slow
async def test_a_training_run_on_the_sample_learns(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(solve=solver("spreadsheetbench"), wrong=wrong("spreadsheetbench"))
    run = await lab.train("spreadsheetbench:sample", recipe="paper")
    assert LESSON in run.best_skill.text
    assert [verdict.decision for verdict in run.verdicts] == ["accept"]


async def test_react_grades_the_program_in_the_agents_folder(make_lab: Callable[..., Lab]) -> None:
    programs = {item.input: item.answers[0] for item in single().items}

    def solve(call: Call) -> dict[str, Any]:
        if any(message["role"] == "tool" for message in call.body["messages"]):
            return tool("finish", answer="done")
        return tool("write", path="solution.py", content=programs[user(call)])

    lab = make_lab(solve=solve, wrong=lambda call: tool("finish", answer="no"))
    skill = f"# Skill\n\n{LESSON}\n"
    good = await lab.evaluate("spreadsheetbench:sample?mode=react", skill, limit=2)
    assert good == {"skill": 1.0}
    assert lab.rollouts[0].body["tools"]


@pytest.mark.slow
def test_check_grades_the_gold_programs_as_correct(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(solve=lambda call: "")
    checks = lab.check("spreadsheetbench:sample?mode=single", limit=5)
    assert (checks["gold"]["verdict"], checks["gold"]["message"]) == (
        "go",
        "All 13 gold answers score 1.",
    )


def test_modes_are_checked() -> None:
    with pytest.raises(InputError, match="mode is 'mutli'"):
        sample_task("spreadsheetbench", task_args={"mode": "mutli"})
