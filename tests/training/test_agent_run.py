"""Runs whose optimizer works as an agent in a folder with all rollouts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from skillfit.errors import InputError
from skillfit.run.budget import BudgetReached
from skillfit.run.events import ReflectionFinished
from tests.training.agent_optimizer import Worker, results, working
from tests.training.practice_project import differences, items, readable
from tests.training.project_fixture import MakeProject

AGENT = "optimizer.proposer=agent"
SMALL = ("evaluation.ship_test=false", "evaluation.eval_test=false")
STAGE = "reflect.agent"


async def test_a_model_with_tools_counts_edits_and_improves_the_skill(
    make_project: MakeProject,
) -> None:
    project = make_project(AGENT, *SMALL, optimizer={STAGE: working})
    await project.train()
    assert results(project.asked(STAGE)[1])[0].startswith("blue gold green")
    [event] = project.events(ReflectionFinished)
    assert event.group == "agent" and len(event.patch.proposals) == 3
    for proposal in event.patch.proposals:
        colour = proposal.edit.label.removeprefix("name ")
        assert f"{colour} means" in proposal.edit.content
        assert proposal.items and all(item.startswith("train-") for item in proposal.items)
    assert {note.failure_type for note in event.patch.failure_summary} == {
        "blue unknown",
        "gold unknown",
        "green unknown",
    }
    assert all(f"{colour} means" in project.best() for colour in ("green", "blue", "gold"))


async def test_a_program_edits_the_skill_in_its_folder(
    make_project: MakeProject, tmp_path: Path
) -> None:
    worker = Worker(tmp_path / "worker")
    project = make_project(AGENT, *SMALL, *worker.settings)
    await project.train()
    assert all(f"{colour} means" in project.best() for colour in ("green", "blue", "gold"))


async def test_a_run_continues_exactly_where_it_was(
    make_project: MakeProject, tmp_path: Path
) -> None:
    worker = Worker(tmp_path / "worker")
    project = make_project(AGENT, *SMALL, *worker.settings)
    await project.train(run="one")
    asked = len(project.calls)
    files = readable(project.folder / "one")
    worker.install(extra="sys.exit('it was started again')")
    await project.train(run="one")
    assert len(project.calls) == asked
    assert differences(files, readable(project.folder / "one")) == []


async def test_what_leaks_an_answer_of_a_hidden_item_is_refused(
    make_project: MakeProject, tmp_path: Path
) -> None:
    rows = [
        {**row, "input": f"{row['input']} {' '.join(reversed(row['input'].split()))}"}
        for row in items(8, 8, 4)
    ]
    project = make_project(AGENT, *SMALL, rows=rows)
    hidden = next(item for item in project.inputs().task.selection if item.type == "blue")
    leak = f"skill.write_text(skill.read_text() + '- {hidden.messages[-1].content} is b.\\n')"
    worker = Worker(tmp_path / "worker", last=leak)
    await project.train(*worker.settings)
    [event] = project.events(ReflectionFinished)
    assert len(event.patch.proposals) == 4
    assert "blue means b." in project.best() and hidden.messages[-1].content not in project.best()


async def test_the_default_is_the_agent_for_programs_and_one_call_for_other_models(
    make_project: MakeProject, tmp_path: Path
) -> None:
    worker = Worker(tmp_path / "worker")
    project = make_project("optimizer.proposer=auto")
    assert project.inputs().config.proposer == "corpus"
    assert project.inputs(*worker.settings).config.proposer == "agent"
    rewriting = "optimizer.skill_update_mode=rewrite_from_suggestions"
    assert project.inputs(*worker.settings, rewriting).config.proposer == "reflect"


@pytest.mark.parametrize("model", ["handoff", "practice/optimizer"])
def test_a_model_without_tools_is_refused_before_anything_is_spent(
    make_project: MakeProject, model: str
) -> None:
    project = make_project(AGENT)
    with pytest.raises(InputError, match=r"optimizer\.proposer: agent needs .* tools"):
        project.inputs(f"model.optimizer.id={model}", "model.optimizer.base_url=null")


async def test_a_cap_that_a_program_cannot_keep_is_refused(
    make_project: MakeProject, tmp_path: Path
) -> None:
    worker = Worker(tmp_path / "worker")
    description = worker.folder / "worker.yaml"
    silent = {**yaml.safe_load(description.read_text()), "usage": []}
    description.write_text(yaml.safe_dump(silent))
    project = make_project(AGENT, *SMALL, *worker.settings)
    with pytest.raises(InputError, match=r"budget\.tokens cannot be held: cli/worker"):
        await project.train("budget.tokens=1000000")
    assert not project.asked("rollout")


async def test_a_budget_that_is_reached_in_a_session_ends_the_run_with_what_it_has(
    make_project: MakeProject,
) -> None:
    project = make_project(AGENT, *SMALL, optimizer={STAGE: working})
    rollouts = 8
    with suppress(BudgetReached):
        await project.train(f"budget.calls={rollouts + 5}")
    assert 0 < len(project.asked(STAGE)) < 4
    before = len(project.calls)
    await project.train("budget.calls=500")
    assert all(f"{colour} means" in project.best() for colour in ("green", "blue", "gold"))
    assert len(project.asked(STAGE)) == 4, "a turn was paid twice"
    assert len(project.calls) > before
