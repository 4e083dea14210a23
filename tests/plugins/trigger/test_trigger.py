"""The source `trigger`: queries as items, skills beside each other, and what results say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillfit.agents.agent import AgentFailure, AttemptContext, remove_workspace
from skillfit.config import load_config
from skillfit.config.schema import EnvSection
from skillfit.errors import InputError
from skillfit.models import ModelSpec
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.plugins.trigger.agents import NO_SKILL_READ, build_trigger_agent
from skillfit.plugins.trigger.firing import notes, result_of
from skillfit.plugins.trigger.source import TriggerGrader
from skillfit.rollout import Outcome
from skillfit.skill import Skill
from skillfit.skill.parts import as_description, load_trained, save_trained
from skillfit.tasks.item import Attempt, Item, Score
from skillfit.training.inputs import Inputs, read_inputs
from skillfit.training.measure import Measured
from tests.agents.conftest import fake, scratch
from tests.agents.stand_in import StandIn

__all__ = ["fake", "scratch"]  # fixtures
QUERIES: list[dict[str, Any]] = [
    {"query": "Fill in the tax form", "should_trigger": True},
    {"query": "Sign the visa application", "should_trigger": True},
    {"query": "Merge two tables", "should_trigger": False},
    {"query": "Write a poem", "should_trigger": False},
]


class Project:
    """A skill with neighbours and queries."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skill("forms", "Fills in forms. Use it for PDFs.", "all/forms")
        self.skill("tables", "Joins tables.", "all/tables")
        self.queries(QUERIES)

    def skill(self, name: str, description: str, folder: str, body: str = "Do it.") -> None:
        path = self.folder / folder / "SKILL.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        head = yaml.safe_dump({"name": name, "description": description})
        path.write_text(f"---\n{head}---\n# {name}\n\n{body}\n")

    def queries(self, rows: Sequence[object], name: str = "queries.json") -> None:
        lines = [json.dumps(row) for row in rows]
        text = "\n".join(lines) if name.endswith(".jsonl") else f"[{', '.join(lines)}]"
        (self.folder / name).write_text(text)

    def inputs(self, *overrides: str, **arguments: str) -> Inputs:
        places = {"skill": "all/forms", "queries": "queries.json", "beside": "all", **arguments}
        paths = {name: str(self.folder / place) for name, place in places.items()}
        config = {
            "model": {"agent": "practice/agent"},
            "env": {"tasks": "trigger", "task_args": paths},
        }
        return read_inputs(load_config(config, overrides), training=False)

    def refusal(self, *overrides: str, **arguments: str) -> str:
        with pytest.raises(InputError) as raised:
            self.inputs(*overrides, **arguments)
        return f"{raised.value.message} {raised.value.hint}".replace(f"{self.folder}/", "")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_the_description_is_the_document_and_queries_are_the_items(project: Project) -> None:
    inputs = project.inputs()
    assert inputs.skill.text == "Fills in forms.\nUse it for PDFs.\n"
    assert [(item.input, item.answers) for item in inputs.task.items] == [
        ("Fill in the tax form", ("forms",)),
        ("Sign the visa application", ("forms",)),
        ("Merge two tables", (NO_SKILL_READ,)),
        ("Write a poem", (NO_SKILL_READ,)),
    ]
    guidance = inputs.config.optimizer.guidance
    assert "- tables: Joins tables." in guidance and "Do it." in guidance
    assert "Fills in forms" not in guidance, "it would change when the description does"
    assert inputs.config.optimizer.max_skill_tokens == 256


def test_queries_may_be_jsonl_and_csv(project: Project) -> None:
    project.queries(QUERIES, "queries.jsonl")
    (project.folder / "queries.csv").write_text("query,should_trigger\nFill it in,true\nNo,False\n")
    assert len(project.inputs(queries="queries.jsonl").task.items) == 4
    kinds = [item.type for item in project.inputs(queries="queries.csv").task.items]
    assert kinds == ["should trigger", "should not"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"query": "a"}], "queries.json: item 1: should_trigger should be true or false."),
        ([{"query": " ", "should_trigger": True}], "query should be a text."),
        ([{"query": "a", "should_trigger": "maybe"}], "should_trigger should be true or false."),
        ([QUERIES[0], {**QUERIES[0], "should_trigger": False}], "the same query is there twice."),
        (QUERIES[2:], "no query should trigger the skill."),
    ],
)
def test_a_wrong_row_is_named(project: Project, rows: list[Any], expected: str) -> None:
    project.queries(rows)
    assert expected in project.refusal()


def test_what_cannot_be_measured_is_refused(project: Project) -> None:
    (project.folder / "all/forms/queries.json").write_text(json.dumps(QUERIES))
    assert "the agent would see the answers" in project.refusal(queries="all/forms/queries.json")
    assert "as it is" in project.refusal("env.max_turns=3")
    assert "is not a folder" in project.refusal(beside="none")
    assert "holds no other skill" in project.refusal(beside="all/tables")
    project.skill("forms", "Also fills in forms.", "all/other")
    assert "are both named forms" in project.refusal()
    project.skill("long", "x" * 1025, "all/other")
    assert "description has 1025 characters; 1024 are allowed" in project.refusal()
    project.skill("empty", "Nothing.", "empty", body="")
    (project.folder / "empty/SKILL.md").write_text("---\nname: empty\ndescription: No.\n---\n")
    assert "has no text" in project.refusal(skill="empty")
    project.skill("My Forms", "Fills in forms.", "mine")
    assert "Name it 'my-forms'" in project.refusal(skill="mine")


def test_a_trained_description_is_one_paragraph(tmp_path: Path) -> None:
    (tmp_path / "s.md").write_text(
        "---\nname: s\ndescription: >\n  One thing.\n  Two things.\n---\nx"
    )
    trained = load_trained(f"{tmp_path}/s.md#description")
    assert trained.text == "One thing.\nTwo things.\n"
    assert trained.name == "s#description"
    save_trained(f"{tmp_path}/s.md#description", trained.with_body("New.\n- Lines.\n"))
    assert (tmp_path / "s.md").read_text() == "---\nname: s\ndescription: New. Lines.\n---\nx"
    assert as_description(trained.with_body(trained.body + "\n- Three.\n")) == (
        "One thing. Two things. Three."
    )


async def test_a_model_without_files_chooses_between_names_and_descriptions(
    project: Project,
) -> None:
    task = project.inputs().task
    replies = ["`forms`", "I would read tables.", "none", "forms or tables", "I cannot say."]
    model = ScriptedModel(replies)
    assert task.build_agent is not None
    agent = task.build_agent(EnvSection(), ModelSpec(id="openai/gpt"), model)
    trained = Skill.from_text("- Fills in paper forms.\n")
    answers = [
        (await agent.attempt(trained, item, AttemptContext())).answer
        for item in [*task.items, task.items[0]]
    ]
    assert answers == ["forms", "tables", "none", "none", "none"]
    system, user = model.requests[0].messages
    assert "- forms: Fills in paper forms.\n- tables: Joins tables." in system.content
    assert user.content == "Fill in the tax form"


async def test_a_query_is_right_where_the_skill_is_read_as_it_should(project: Project) -> None:
    task = project.inputs().task
    assert isinstance(task.grader, TriggerGrader)
    wanted, other = task.items[0], task.items[2]
    scores = [
        (await task.grader.grade(item, Attempt(answer))).hard
        for item in (wanted, other)
        for answer in ("forms", "forms, tables", "tables", "none", "")
    ]
    assert scores == [1, 1, 0, 0, 0, 0, 0, 1, 1, 0]
    missed = await task.grader.grade(wanted, Attempt("tables"))
    assert missed.feedback == "The agent read tables and not forms."


def program_agent(fake: StandIn, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    for name, value in fake.environ.items():
        monkeypatch.setenv(name, value)
    skills = [
        Skill.from_text(
            f"---\nname: {name}\ndescription: About {name}.\n---\n# {name}\n\nRead me.\n"
        )
        for name in ("forms", "tables")
    ]
    spec = fake.spec(options=options)
    return build_trigger_agent(skills[0], (skills[1],), EnvSection(), spec, None)


async def test_a_program_gets_the_query_alone_and_is_ended_at_its_time_limit(
    fake: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = program_agent(fake, monkeypatch)
    attempt = await agent.attempt(Skill.from_text("New."), Item("q", {"input": "Do it"}), context())
    remove_workspace(attempt.workspace)
    assert attempt.answer == "forms, tables"
    assert attempt.steps[-2].text == "I heard: Do it"
    assert "description: New." in attempt.steps[1].text

    at_work = Item("q", {"input": "RUN sleep 0; SLEEP"})
    attempt = await agent.attempt(Skill.from_text("New."), at_work, context(seconds=2))
    remove_workspace(attempt.workspace)
    assert attempt.answer == NO_SKILL_READ, "what it did until then counts"
    with pytest.raises(AgentFailure, match="did nothing within 2 seconds"):
        await agent.attempt(Skill.from_text("New."), Item("q", {"input": "SLEEP"}), context(2))


async def test_a_program_may_be_ended_at_the_users_limit_in_dollars(
    fake: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.describe(options={"mode": "", "max_usd": ""}, failures={"limit": ["out of dollars"]})
    agent = program_agent(fake, monkeypatch, max_usd=0.01)
    at_work = Item("q", {"input": "RUN true # STDERR out of dollars"})
    attempt = await agent.attempt(Skill.from_text("New."), at_work, context())
    remove_workspace(attempt.workspace)
    assert attempt.answer == NO_SKILL_READ
    idle = Item("q", {"input": "STDERR out of dollars"})
    with pytest.raises(AgentFailure, match="did nothing within its limit in dollars"):
        await agent.attempt(Skill.from_text("New."), idle, context())


def context(seconds: float | None = None) -> AttemptContext:
    return AttemptContext(seconds=seconds)


def test_a_program_that_cannot_tell_is_refused(
    fake: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.describe(skill_read=[], events=[])
    with pytest.raises(InputError, match="does not tell which skills it reads"):
        program_agent(fake, monkeypatch)
    fake.describe(argv=["--skill", "$skill"])
    with pytest.raises(InputError, match="is told the name of the skill"):
        program_agent(fake, monkeypatch)


def test_recall_precision_and_what_was_read_instead_are_counted_by_query(
    project: Project, tmp_path: Path
) -> None:
    answers = {
        "Fill in the tax form": ["forms", "forms"],
        "Sign the visa application": ["forms", "tables"],
        "Merge two tables": ["tables", "tables"],
        "Write a poem": ["none", "forms"],
    }
    inputs = project.inputs()
    outcomes = tuple(
        Outcome(item.id, repeat, "scored", Score(0.0), attempt=Attempt(answers[item.input][repeat]))
        for repeat in range(2)
        for item in inputs.task.items
    )
    measured = Measured(inputs.skill.name, inputs.skill, inputs.task.items, outcomes)
    result = result_of(measured, "openai/gpt", simulated=True, run=tmp_path)

    assert result.skill == "forms"
    assert result.recall is not None and result.recall.mean == pytest.approx(0.75)
    assert result.precision is not None and result.precision.mean == pytest.approx(3 / 4)
    assert result.precision.low < 0.75 < result.precision.high
    assert result.quiet is not None and result.quiet.mean == pytest.approx(0.75)
    assert result.read_instead == {"tables": 1}
    assert "A simulation" in notes(result) and "Read instead of forms: tables (1)." in notes(result)
    assert "1 of 2, should (read instead: tables 1): Sign the visa" in notes(result)


def test_without_a_read_nothing_is_known_about_precision(project: Project, tmp_path: Path) -> None:
    inputs = project.inputs()
    outcomes = tuple(
        Outcome(item.id, 0, "scored", Score(0.0), attempt=Attempt(NO_SKILL_READ))
        for item in inputs.task.items
    )
    measured = Measured(inputs.skill.name, inputs.skill, inputs.task.items, outcomes)
    result = result_of(measured, "cli/claude", simulated=False, run=tmp_path)
    assert result.precision is None and result.cells[2] == "–"
    assert "was never read" in notes(result)


def test_other_neighbours_make_another_run(project: Project) -> None:
    before = project.inputs().identity()
    project.skill("tables", "Joins tables and lists.", "all/tables")
    assert project.inputs().identity() != before


def test_another_skill_cannot_be_trained_with_these_queries(project: Project) -> None:
    other = f"{project.folder}/all/tables#description"
    assert "is not the description of the skill" in project.refusal(f"env.skill={other}")
