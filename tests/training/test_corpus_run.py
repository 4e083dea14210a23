"""Runs whose edits come from one call over all rollouts."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from skillfit.cli.app import app
from skillfit.errors import InputError
from skillfit.record.fold import read_record
from skillfit.record.record import record_json
from skillfit.report import write_report
from skillfit.run.events import CandidateBuilt, EditsSelected, ReflectionFinished, RunStarted
from tests.support.chat_server import Call
from tests.training.practice_project import differences, read_corpus, readable
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


async def test_an_edit_of_a_pending_line_is_no_rejected_proposal(
    make_project: MakeProject,
) -> None:
    def replaces_pending(call: Call) -> str:
        lines = re.findall(r"^(- gold means o\.)(?= ⟦)", call.text, re.MULTILINE)
        if not lines:
            return json.dumps(read_corpus(call))
        edits = [
            {"op": "replace", "target": lines[0], "content": "- Hint: gold means o."},
            {"op": "replace", "target": "- nowhere", "content": "- Hint."},
        ]
        return json.dumps({"edits": edits})

    project = make_project(CORPUS, *SMALL, optimizer={"reflect.corpus": replaces_pending})
    await project.train("train.num_epochs=2")
    record = read_record(project.folder / "run")
    assert any(edit.edit.content == "- Hint: gold means o." for edit in record.edits)
    assert [one.what for one in record.rejections if one.stage == "update"] == ["- Hint."]


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
    with pytest.raises(InputError, match="corpus proposes nothing else"):
        project.inputs()


async def test_the_second_run_reads_what_the_first_one_found(make_project: MakeProject) -> None:
    project = make_project(CORPUS, *SMALL)
    remember = f"optimizer.memory={project.folder / 'memory.json'}"
    await project.train(remember)
    first = project.inputs(remember).evidence
    assert first.runs == 1 and first.edits and first.patterns
    await project.train(remember, run="second")
    prompts = [call.text for call in project.asked("reflect.corpus")]
    assert "run1/s0001e01" not in prompts[0] and "run1/s0001e01" in prompts[-1]
    [started] = project.events(RunStarted, "second")
    assert started.evidence == first


async def test_what_failed_and_what_was_tried_is_shown(make_project: MakeProject) -> None:
    def read(call: Call) -> str:
        reply = read_corpus(call)
        kinds = [edit["kinds"][0] for edit in reply["edits"]]
        for kind in kinds:
            found = re.findall(rf"Item (\S+) \({kind}\)", call.text)
            reply["failures"].append({"failure_type": f"{kind} unknown", "items": found})
        return json.dumps(reply)

    project = make_project(CORPUS, *SMALL, optimizer={"reflect.corpus": read})
    await project.train()
    record = read_record(project.folder / "run")
    [failure] = [one for one in record_json(record)["failures"] if one["name"] == "gold unknown"]
    assert set(failure["items"]) == {
        name for name, kind in COLOURS_BY_ITEM.items() if kind == "gold"
    }
    [edit] = [one for one in record.edits if one.id in failure["tried"]]
    assert edit.edit.content == "- gold means o."
    page = write_report(project.folder / "run").read_text()
    assert "Failures in training" in page and "gold unknown" in page
    shown = CliRunner().invoke(app, ["show", str(project.folder / "run")], env={"COLUMNS": "200"})
    assert "gold unknown" in shown.output and f"{edit.id} {edit.standing}" in shown.output


async def test_a_run_resumes_with_the_memory_that_it_began_with(make_project: MakeProject) -> None:
    project = make_project(CORPUS, *SMALL)
    file = project.folder / "memory.json"
    await project.train(f"optimizer.memory={file}")
    asked, written = len(project.calls), file.read_bytes()
    await project.train(f"optimizer.memory={file}")  # the file is another one by now
    assert (len(project.calls), file.read_bytes()) == (asked, written)


async def test_the_owners_wishes_reach_every_proposer(make_project: MakeProject) -> None:
    for proposer, stage in (("corpus", "reflect.corpus"), ("reflect", "reflect.failure")):
        project = make_project(
            f"optimizer.proposer={proposer}",
            "optimizer.guidance=Keep every line short.",
            *SMALL,
            name=proposer,
        )
        await project.train()
        assert "<owner_wishes>\nKeep every line short." in project.asked(stage)[0].text
