"""Runs whose optimizer works as an agent in a folder with all rollouts."""

from __future__ import annotations

from pathlib import Path

from skillfit.run.events import ReflectionFinished
from tests.training.agent_optimizer import Worker, results, working
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
    bill = project.summary()["usage"] if "usage" in project.summary() else project.summary()
    print(bill)
