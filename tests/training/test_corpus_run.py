"""Runs whose edits come from one call over all rollouts."""

from __future__ import annotations

import json

import pytest

from skillfit.errors import InputError
from skillfit.run.events import CandidateBuilt, EditsSelected, ReflectionFinished
from tests.support.chat_server import Call
from tests.training.practice_project import differences, readable
from tests.training.project_fixture import MakeProject

CORPUS = "optimizer.proposer=corpus"
SMALL = ("evaluation.ship_test=false", "evaluation.eval_test=false")


async def test_one_call_per_step_improves_the_skill_without_merges(
    make_project: MakeProject,
) -> None:
    project = make_project(CORPUS, *SMALL)
    await project.train()
    assert len(project.asked("reflect.corpus")) == 1
    assert not project.asked("reflect.failure") and not project.asked("merge")
    [event] = project.events(ReflectionFinished)
    assert event.group == "corpus" and len(event.patch.proposals) == 3
    assert all(
        proposal.items and proposal.edit.content.split()[1] in COLOURS_BY_ITEM[proposal.items[0]]
        for proposal in event.patch.proposals
    )
    assert all(f"{colour} means" in project.best() for colour in ("green", "blue", "gold"))


COLOURS_BY_ITEM = {
    f"train-{number:02d}": ("red", "green", "blue", "gold")[number % 4] for number in range(8)
}


async def test_the_edit_budget_neither_cuts_nor_ranks_the_edits(make_project: MakeProject) -> None:
    def many(call: Call) -> str:
        edits = [{"op": "append", "content": f"- Rule {number}."} for number in range(20)]
        return json.dumps({"edits": edits})

    project = make_project(CORPUS, *SMALL, optimizer={"reflect.corpus": many})
    await project.train("optimizer.learning_rate=4")
    assert not project.asked("rank")
    [selected] = project.events(EditsSelected)
    assert len(selected.edits) == 20 and selected.edit_budget is None
    assert project.events(CandidateBuilt)


async def test_a_run_continues_exactly_where_it_was(make_project: MakeProject) -> None:
    project = make_project(CORPUS, *SMALL)
    await project.train(run="one")
    asked = len(project.calls)
    await project.train(run="one")
    assert len(project.calls) == asked
    await project.train(run="two", force=True)
    one, two = (readable(project.folder / run) for run in ("one", "two"))
    assert [name for name in differences(one, two) if "patches" in name] == []


def test_rewrite_modes_are_refused(make_project: MakeProject) -> None:
    project = make_project(CORPUS, "optimizer.skill_update_mode=rewrite_from_suggestions")
    with pytest.raises(InputError, match="corpus proposes edits"):
        project.inputs()
