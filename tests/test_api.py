"""skillfit from Python, as scripts and notebooks use it."""

import ast
import asyncio
import logging
import re
import subprocess
import sys
import threading
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import skillfit
from skillfit.api import parse_budget
from skillfit.errors import InfrastructureError, InputError
from skillfit.record import text as run_text
from skillfit.run.events import RunFinished, Stored
from tests.cli.cli_project import project

SKILL = skillfit.Skill.from_text("""Sort tickets.

- Answer with the label alone, in lower case.
- Mentions of invoice mean billing.
""")
WORDS = {"billing": ["invoice", "charge", "receipt"], "delivery": ["parcel", "courier", "shipment"]}
ITEMS = [
    {
        "id": f"{word}-{number}",
        "input": f"Ticket {number}: there is a {word} problem again.",
        "answer": label,
    }
    for number in range(5)
    for label, words in WORDS.items()
    for word in words
]
QUICK: dict[str, Any] = {
    "train": {"num_epochs": 1, "batch_size": 20},
    "evaluation": {"preflight": False},
    "settings": {"optimizer": {"use_slow_update": False}, "optimizer.use_meta_skill": False},
}


def obedient(skill: str, item: dict[str, Any]) -> str:
    """An agent that only knows words the skill names."""
    known = [
        label
        for label, words in WORDS.items()
        if any(word in item["input"] and word in skill for word in words)
    ]
    return known[0] if known else "general"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_train_improves_a_skill_and_the_run_can_be_opened_again(tmp_path: Path) -> None:
    heard: list[Stored] = []
    run = skillfit.train(
        skill=SKILL,
        tasks=ITEMS,
        agent=obedient,
        optimizer="practice/optimizer",
        run="r",
        callbacks=[heard.append],
        **QUICK,
    )
    assert run.finish_reason == "improved" and run.summary.finish_reason == "improved"
    assert isinstance(heard[-1].event, RunFinished)
    opened = skillfit.Run.open("r")
    assert opened.best_skill.text == run.best_skill.text != opened.initial_skill.text == SKILL.text
    assert "+- Mentions of" in opened.diff() and opened.diff(0, "initial") == ""
    assert opened.skill(1).text != opened.initial_skill.text or opened.skill(1).text == SKILL.text
    names = [score.name for score in opened.scores]
    assert names[0] == "step_0001" and {"test_baseline", "test_best"} <= set(names)
    assert opened.baseline_score is not None and opened.score is not None
    assert opened.score > opened.baseline_score
    assert opened.record.ship is not None and opened.gain == opened.record.ship.difference > 0
    assert (
        "improved" in str(opened)
        and "<table>" in opened._repr_html_()
        and "Mentions of" in opened._repr_html_()
    )


def test_plot_draws_the_score_curve() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    run = skillfit.train(
        skill=SKILL, tasks=ITEMS, agent=obedient, optimizer="practice/optimizer", run="r", **QUICK
    )
    axes = run.plot()
    assert axes.get_ylabel() == "selection score" and len(axes.get_lines()[0].get_xdata()) >= 2


async def test_train_works_inside_a_running_event_loop_and_so_does_train_async() -> None:
    arguments: dict[str, Any] = {
        "skill": SKILL,
        "tasks": ITEMS,
        "agent": obedient,
        "optimizer": "practice/optimizer",
        **QUICK,
    }
    run = skillfit.train(run="sync", **arguments)
    again = await skillfit.train_async(run="async", **arguments)
    assert asyncio.get_running_loop().is_running()
    assert again.best_skill.text == run.best_skill.text


def test_evaluate_compares_skills_by_name_and_pays_once() -> None:
    calls = []

    def counted(skill: str, item: dict[str, Any]) -> str:
        calls.append(item["id"])
        return obedient(skill, item)

    def look() -> list[float]:
        skills = {
            "weak": SKILL,
            "strong": skillfit.Skill.from_text(
                SKILL.text + "- Mentions of charge, receipt, parcel, courier, shipment.\n"
            ),
        }
        measured = skillfit.evaluate(skills, ITEMS, agent=counted, split="all", repeats=2)
        with pytest.raises(InputError, match=r"2 skills were measured: weak, strong\."):
            print(measured.score)
        return [measured[name].score for name in ("weak", "strong")]

    weak, strong = look()
    assert (weak, strong) == (pytest.approx(1 / 6), 1.0)
    assert len(calls) == 2 * 2 * len(ITEMS)
    assert look() == [weak, strong] and len(calls) == 2 * 2 * len(ITEMS)


@pytest.mark.parametrize("name", ["../../escaped", '"/tmp/x"', '"a\\0b"', "."])
def test_the_name_of_a_skill_cannot_choose_a_folder_outside_runs(tmp_path: Path, name: str) -> None:
    skill = skillfit.Skill.from_text(f"---\nname: {name}\ndescription: d\n---\n{SKILL.text}")
    skillfit.evaluate({"one": skill}, ITEMS, agent=obedient)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    (run,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"(escaped|tmp-x|a-b|skill)-evaluate-\w{6}", run.name)


def test_the_config_may_name_the_run_directory(tmp_path: Path) -> None:
    config = {"run": "mine/first", "env": {"allow_fit_only": True}}
    skillfit.evaluate(SKILL, ITEMS, agent=obedient, config=config)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["first-evaluate"]


def test_a_config_file_and_settings_are_combined(tmp_path: Path) -> None:
    run = skillfit.train(
        config=project(tmp_path / "triage"),
        budget="12 calls",
        run="r",
        evaluation={"preflight": False},
    )
    assert run.finish_reason == "budget" and run.config.budget.calls == 12
    assert run.config.train.batch_size == 20


def test_wrong_settings_are_reported_by_name() -> None:
    with pytest.raises(
        InputError, match=r"unknown key train\.num_epoch.*Did you mean train\.num_epochs"
    ):
        skillfit.train(
            skill=SKILL,
            tasks=ITEMS,
            agent=obedient,
            optimizer="practice/optimizer",
            train={"num_epoch": 1},
        )
    with pytest.raises(InputError, match="Cannot read the skill"):
        skillfit.train(
            skill="./misspelled", tasks=ITEMS, agent=obedient, optimizer="practice/optimizer"
        )
    with pytest.raises(skillfit.SkillfitError, match="is not a run directory"):
        skillfit.Run.open("nowhere")


@pytest.mark.parametrize(
    ("text", "caps"),
    [
        ("$5", {"usd": 5}),
        ("$ 0.50", {"usd": 0.5}),
        ("2000 calls", {"calls": 2000}),
        ("1.5M tokens", {"tokens": 1_500_000}),
        ("30 min", {"minutes": 30}),
        (3, {"usd": 3}),
        ({"calls": 7}, {"calls": 7}),
    ],
)
def test_budgets_are_read_in_common_spellings(text: Any, caps: dict[str, float]) -> None:
    assert parse_budget(text) == caps


def test_an_unreadable_budget_is_refused() -> None:
    with pytest.raises(InputError, match="five bucks"):
        parse_budget("five bucks")


@pytest.mark.parametrize("budget", [["$5"], True, "$1.2.3", ("$5",), object()])
def test_a_budget_of_another_type_is_refused(budget: Any) -> None:
    with pytest.raises(InputError, match=r"Cannot parse budget .*2000 calls"):
        skillfit.train(
            skill=SKILL, tasks=ITEMS, agent=obedient, optimizer="practice/optimizer", budget=budget
        )


@pytest.mark.parametrize("skill", [None, 5, [SKILL], {"a": None}])
def test_evaluate_refuses_a_value_that_is_not_a_skill(skill: Any) -> None:
    with pytest.raises(InputError, match=r"is not a skill.*Give a path, or a Skill"):
        skillfit.evaluate(skill, ITEMS, agent=obedient)


def test_evaluate_refuses_more_repeats_than_memory_holds() -> None:
    def never(skill: str, item: dict[str, Any]) -> str:
        raise AssertionError("the agent was asked")

    with pytest.raises(InputError, match=r"repeats: 9,000 .*At most 100,000 are possible"):
        skillfit.evaluate(SKILL, ITEMS, agent=never, repeats=9_000)


def test_evaluate_refuses_an_empty_mapping_of_skills() -> None:
    with pytest.raises(InputError, match="no skill to measure"):
        skillfit.evaluate({}, ITEMS, agent=obedient)


@pytest.mark.parametrize("answer", [{1, 2}, ["a", {"b"}], {"a": b"b"}, [date(2026, 1, 1)]])
def test_an_answer_that_json_cannot_represent_is_refused(answer: Any) -> None:
    rows = [*ITEMS, {"id": "odd", "input": "?", "answer": answer}]
    with pytest.raises(InputError, match=r"the answer .* a value that JSON does not have"):
        skillfit.evaluate(SKILL, rows, agent=obedient)


@pytest.mark.parametrize("run", [5, ["r"], b"r"])
def test_a_value_that_is_not_a_path_is_refused_as_run_directory(run: Any) -> None:
    for work in (
        lambda: skillfit.Run.open(run),
        lambda: skillfit.evaluate(SKILL, ITEMS, agent=obedient, run=run),
        lambda: skillfit.train(
            skill=SKILL, tasks=ITEMS, agent=obedient, optimizer="practice/optimizer", run=run
        ),
    ):
        with pytest.raises(InputError, match="is not a run directory"):
            work()
    with pytest.raises(InputError, match="None is not a run directory"):
        skillfit.Run.open(None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is not a path to save the skill to"):
        SKILL.save(run)


@pytest.mark.parametrize("text", ["Answer the question.", "Answer. " * 100, "Two\nlines.\n"])
def test_a_string_is_a_path_and_the_error_names_from_text(text: str) -> None:
    with pytest.raises(InputError, match=r"Skill\.from_text\(text\)") as raised:
        skillfit.evaluate(text, ITEMS, agent=obedient)
    assert f"Cannot read the skill {text[:3]}" in raised.value.message
    with pytest.raises(InputError, match=r"A string is a path\."):
        skillfit.train(skill=text, tasks=ITEMS, agent=obedient, optimizer="practice/optimizer")
    assert skillfit.evaluate(skillfit.Skill.from_text(text), ITEMS, agent=obedient)


def test_one_callback_and_one_tracker_need_no_list(tmp_path: Path) -> None:
    heard: list[Stored] = []
    skillfit.evaluate(SKILL, ITEMS, agent=obedient, callbacks=heard.append)
    assert heard
    run = {"skill": SKILL, "tasks": ITEMS, "agent": obedient, "optimizer": "practice/optimizer"}
    skillfit.train(**run, run="r", trackers="jsonl:events.jsonl", budget="12 calls", **QUICK)
    assert (tmp_path / "events.jsonl").read_text()
    with pytest.raises(InputError, match="callbacks is 5, and not a list of functions"):
        skillfit.evaluate(SKILL, ITEMS, agent=obedient, callbacks=5)  # type: ignore[arg-type]


def test_plot_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = skillfit.Run(tmp_path)  # the package is asked for before the run is read
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(InputError, match=r"plot\(\) needs .*skillfit\[notebook\]"):
        finished.plot()


def test_repeats_that_are_not_a_number_are_refused() -> None:
    with pytest.raises(InputError, match="repeats is '2', which is not a whole number"):
        skillfit.evaluate(SKILL, ITEMS, agent=obedient, repeats="2")  # type: ignore[arg-type]


@pytest.mark.parametrize("repeats", [0, -1, "2", 1.5])
def test_evaluate_refuses_zero_repeats(repeats: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one rollout"):
        skillfit.evaluate(SKILL, ITEMS, agent=obedient, repeats=repeats)
    assert not (tmp_path / "runs").exists()


def test_reading_the_score_of_a_skill_whose_rollouts_all_failed_is_an_error() -> None:
    def broken(skill: str, item: dict[str, Any]) -> str:
        raise ValueError("no agent here")

    found = skillfit.evaluate(SKILL, ITEMS[:4], agent=broken, split="all")
    assert not found["skill"].has_score
    for read in (lambda: found.score, lambda: found.interval):
        with pytest.raises(InfrastructureError, match=r"No rollout of skill was scored.*no agent"):
            read()


def test_evaluate_needs_only_the_items_of_its_split() -> None:
    tested = [{**item, "split": "test"} for item in ITEMS]
    found = skillfit.evaluate(SKILL, tested, agent=obedient, split="test")
    assert len(found["skill"].outcomes) == len(ITEMS)
    assert found.score == found.interval.mean == pytest.approx(1 / 6)
    assert found.interval.low < found.score < found.interval.high
    found = skillfit.evaluate(SKILL, tested, agent=obedient, split="all")
    assert len(found["skill"].outcomes) == len(ITEMS)
    for split in ("selection", "train"):
        with pytest.raises(InputError, match=f"The {split} split is empty"):
            skillfit.evaluate(SKILL, tested, agent=obedient, split=split)
    with pytest.raises(InputError, match="nothing to compare skills on"):
        skillfit.train(skill=SKILL, tasks=tested, agent=obedient, optimizer="practice/optimizer")


def test_evaluate_refuses_an_unknown_split_and_a_value_that_is_not_a_task() -> None:
    with pytest.raises(InputError, match=r"no split 'foo'.*valid_unseen, all\."):
        skillfit.evaluate(SKILL, ITEMS, agent=obedient, split="foo")
    task: Any = 5
    with pytest.raises(InputError, match="5 is not a task"):
        skillfit.evaluate(SKILL, task, agent=obedient)


def test_the_package_lists_its_names() -> None:
    assert dir(skillfit) == sorted(skillfit.__all__)


def test_a_misspelled_argument_is_named() -> None:
    with pytest.raises(InputError, match=r"has no argument 'task'\. Did you mean 'tasks'"):
        skillfit.train(task=ITEMS)
    with pytest.raises(InputError, match=r"evaluate\(\) has no argument 'agnet'"):
        skillfit.evaluate(SKILL, agnet="practice/agent")


def test_importing_skillfit_is_lazy_and_train_is_a_function() -> None:
    code = """
import sys, skillfit
heavy = {"pydantic", "openai", "rich", "typer", "asyncio", "yaml"} & set(sys.modules)
assert not heavy, heavy
import skillfit.training.loop
from skillfit import Item, Run, Score, Skill, Task, evaluate, train
assert callable(train) and callable(skillfit.train) and callable(evaluate)
assert skillfit.Task([{"input": "a", "answer": "b"}]).items[0].answers == ("b",)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_logs_its_progress(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = threading.Event()
    monkeypatch.setattr(run_text, "HEARTBEAT", 0.0)  # a heartbeat whenever the clock is read

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("... "):
                alive.set()

    monkeypatch.setattr(logging.getLogger("skillfit"), "handlers", [Listening()])

    def waiting(skill: str, item: dict[str, Any]) -> str:
        alive.wait(60)  # rollouts wait for the first heartbeat
        return obedient(skill, item)

    given: dict[str, Any] = {
        "skill": SKILL,
        "tasks": ITEMS,
        "agent": waiting,
        "optimizer": "practice/optimizer",
        "env": {"grader": "exact"},
        **QUICK,
    }
    with caplog.at_level(logging.INFO, "skillfit"):
        skillfit.train(**given, run="loud")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("Training ")
    assert any(line.startswith("... step 1, ") for line in lines), lines
    assert any(line.startswith("ship test: ") for line in lines)
    caplog.clear()
    with caplog.at_level(logging.INFO, "skillfit"):
        skillfit.train(**given, run="silent", progress=False)
    assert caplog.records == []


@pytest.mark.parametrize("set_up", [True, False])
def test_a_program_without_logging_sees_the_progress_on_stderr(
    set_up: bool, tmp_path: Path
) -> None:
    code = f"""
import logging, skillfit
if {set_up}:
    logging.basicConfig(level=logging.WARNING)
skillfit.train(
    skill=skillfit.Skill.from_text("Sort tickets.\\n"), tasks={ITEMS!r},
    agent=lambda skill, item: "general", optimizer="practice/optimizer", force=True,
    train={{"num_epochs": 1}}, budget="30 rollouts",
)
assert not logging.getLogger("skillfit").handlers
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert ("Training " in done.stderr) == (not set_up), done.stderr


def test_every_public_name_can_be_imported_and_is_known_to_type_checkers() -> None:
    source = ast.parse(Path(skillfit.__file__).read_text(encoding="utf-8"))
    declared = {
        alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skillfit.")
        for alias in node.names
    }
    public = set(skillfit.__all__) - {"__version__"}
    assert declared == public == {name for name in public if getattr(skillfit, name) is not None}
