"""Named task sources: built in, from other packages, and what they bring to a config."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from skillfit.agents.agent import CallableAgent
from skillfit.config import load_config
from skillfit.config.schema import EnvSection
from skillfit.errors import InputError
from skillfit.extensions import find_source, source_names
from skillfit.tasks import Item, load_task
from skillfit.tasks.graders import build_grader
from skillfit.tasks.item import Attempt
from skillfit.training.inputs import read_inputs

PACKAGE = """
from skillfit.tasks import Attempt, Evaluator, LoadContext, Score, SourceItems, SourceReference
from skillfit.tasks import TaskSource

WORDS = ["red", "blue", "green", "brown", "grey", "pink", "teal", "gold", "lime", "plum"]


def colours(reference: SourceReference, *, count: int = 10, grader: str = "") -> TaskSource:
    def load(context: LoadContext) -> SourceItems:
        rows = [
            {"id": word, "input": f"Translate {reference.argument}: {word}", "answer": word.upper()}
            for word in WORDS[:count]
        ]
        return SourceItems(rows, grader=lambda item, answer: answer in item["answers"])

    skill = str(reference.base / "initial.md")
    env = {"agent": "tools", "max_turns": 7, "prompt": "Use {skill}.", "skill": skill}
    return TaskSource(load, config={"env": env, "train": {"batch_size": 3}})


class Own(Evaluator):
    async def __call__(self, skill, item, seed):
        return Attempt("x"), Score(1.0)

    def describe(self):
        return {"own": 1}


def own(reference: SourceReference) -> TaskSource:
    rows = [{"input": f"{number} apples"} for number in range(10)]
    return TaskSource(lambda context: SourceItems(rows, evaluator=Own()))


def wrong(reference: SourceReference) -> list[int]:
    return []
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with entry points, as pip would have installed it."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "colour_tasks.py").write_text(PACKAGE)
    (folder / "colour_tasks-1.0.dist-info").mkdir()
    (folder / "colour_tasks-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: colour-tasks\nVersion: 1.0\n"
    )
    (folder / "colour_tasks-1.0.dist-info" / "entry_points.txt").write_text(
        "[skillfit.tasks]\ncolours = colour_tasks:colours\nown = colour_tasks:own\n"
        "wrong = colour_tasks:wrong\nbroken = colour_tasks:missing\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "colour_tasks", raising=False)
    return folder


async def test_a_source_of_another_package_is_found_by_its_entry_point(package: Path) -> None:
    assert {"colours", "inspect"} <= set(source_names())
    task = load_task(EnvSection(tasks="colours:German?count=9"))
    assert len(task.items) == 9 and task.items[0].input == "Translate German: red"
    assert task.grader is not None


def test_config_values_of_a_source_fill_unset_settings(package: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("env: {tasks: colours, max_turns: 2, task_args: {count: 8}}\n")
    config = load_config(file)
    assert (config.env.agent, config.env.max_turns, config.env.prompt) == (
        "tools",
        2,
        "Use {skill}.",
    )
    assert config.env.skill == str(tmp_path / "initial.md")
    assert config.train.batch_size == 3 and config.env.tasks == "colours"


def test_a_command_line_agent_is_not_given_settings_of_a_chat_model(package: Path) -> None:
    config = load_config({"model": {"agent": "cli/claude"}, "env": {"tasks": "colours"}})
    assert (config.env.agent, config.env.prompt, config.env.max_turns) == ("chat", None, None)
    assert config.train.batch_size == 3


def test_a_python_agent_is_not_refused_for_settings_of_the_source(
    package: Path, tmp_path: Path
) -> None:
    (tmp_path / "initial.md").write_text("Translate.")
    agent = CallableAgent(lambda skill, item: "RED")
    settings = {"env": {"tasks": "colours", "folder": str(tmp_path)}}
    inputs = read_inputs(load_config(settings), agent=agent, training=False)
    assert inputs.agent is agent and inputs.skill.text == "Translate."
    with pytest.raises(InputError, match=r"env\.max_turns: this task or agent"):
        read_inputs(load_config(settings, ["env.max_turns=9"]), agent=agent, training=False)


def test_the_users_grader_replaces_the_sources(package: Path) -> None:
    task = load_task(EnvSection(tasks="colours", grader="normalized"))
    assert task.grader is not None and task.grader.describe() == {"normalized": {}}


def test_a_source_with_its_own_evaluator_refuses_a_grader(package: Path) -> None:
    task = load_task(EnvSection(tasks="own"))
    assert task.evaluator is not None and task.evaluator.describe() == {"own": 1}
    assert not task.evaluator.needs_model
    with pytest.raises(InputError, match="brings its own scores"):
        load_task(EnvSection(tasks="own", grader="exact"))


@pytest.mark.parametrize(
    ("tasks", "args", "message"),
    [
        ("colours?cuont=9", {}, "colours has no option 'cuont'.*Did you mean 'count'"),
        ("colours?count=9", {"count": 8}, "'count' of colours is also set in env.task_args"),
        ("colours?count", {}, "bad query field"),
        ("colours?count=Infinity", {}, "option count = inf is not valid: .* a finite number"),
        ("own?x=1", {}, "own has no option 'x'. It has no options"),
        ("wrong", {}, "'wrong' returned list"),
        ("broken", {}, "'broken' .colour_tasks:missing. cannot be imported"),
        ("color", {}, "neither a file nor a folder.*Did you mean 'colours'"),
    ],
)
def test_errors_name_the_mistake(
    package: Path, tasks: str, args: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load_task(EnvSection(tasks=tasks, task_args=args))


def test_a_name_registered_twice_is_refused(package: Path) -> None:
    other = package / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[skillfit.tasks]\ninspect = colour_tasks:own\n")
    with pytest.raises(InputError, match="'inspect' is registered more than once"):
        find_source("inspect:x")


def test_the_source_of_the_docs_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    section = docs.partition("## A task source in a package")[2]
    entry = section.partition("```toml\n")[2].partition("```")[0]
    code = section.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "tasks.py").write_text(code)
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    group, line = entry.strip().splitlines()
    assert group == '[project.entry-points."skillfit.tasks"]'
    (info / "entry_points.txt").write_text("[skillfit.tasks]\n" + line.replace('"', "") + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = load_config({"env": {"tasks": "capitals", "task_args": {"continent": "africa"}}})
    assert (config.env.grader, config.env.max_turns) == ("normalized", 1)
    task = load_task(EnvSection(tasks="capitals?continent=africa", grader=config.env.grader))
    assert [item.input for item in task.items] == ["Capital of Kenya?"]


async def test_the_grader_of_the_docs_refuses_parts_of_the_answer(tmp_path: Path) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    section = docs.partition("### A grader in Python")[2]
    (tmp_path / "grade.py").write_text(section.partition("```python\n")[2].partition("```")[0])
    grader = build_grader("grade.py:grade", base=tmp_path)
    item = Item("a", {"input": "q", "answer": "Delivery"})
    answers = ["delivery", " Delivery\n", "", "liver", "deliver"]
    scores = [(await grader.grade(item, Attempt(answer))).hard for answer in answers]
    assert scores == [1, 1, 0, 0, 0]
