"""A person's requests to a run: read between steps, followed, recorded, and the same on replay."""

from __future__ import annotations

import json

import pytest

from skillfit.errors import Exit
from skillfit.record.fold import read_record
from skillfit.record.lists import read_card
from skillfit.record.steering import steer_run
from skillfit.report import open_details
from skillfit.run.control import STEERING, ReviewPending, request_steering
from skillfit.run.events import GateDecided, PersonDecided, StepFinished, Stored, Warned
from tests.training.practice_project import TrainingProject, differences, items, readable
from tests.training.project_fixture import MakeProject

STEPS = (
    "train.num_epochs=6",
    "optimizer.use_slow_update=false",
    "optimizer.use_meta_skill=false",
    "evaluation.ship_test=false",
    "evaluation.eval_test=false",
)
ROWS = items(8, 16, 0)


def asking(project: TrainingProject, *requests: tuple[str, ...]):
    """A listener that makes the requests when the first step has ended."""

    def listen(stored: Stored) -> None:
        first = isinstance(stored.event, StepFinished) and stored.event.step == 1
        if first and not (project.folder / "run/steering.jsonl").exists():
            for request in requests:
                request_steering(project.folder / "run", *request)

    return listen


def effects(project: TrainingProject) -> dict[str, dict]:
    found = json.loads((project.folder / "run/edit_effects.json").read_text())
    return {effect["id"]: effect for effect in found}


async def test_a_vetoed_edit_is_dropped_and_never_joins_again(make_project: MakeProject) -> None:
    project = make_project(*STEPS, rows=ROWS)
    await project.train(listeners=[asking(project, ("veto", "s0001e01"))])
    [decided] = project.events(PersonDecided)
    assert (decided.action, decided.target) == ("veto", "s0001e01")
    first = effects(project)["s0001e01"]
    assert first["status"] == "dropped" and "vetoed by a person" in first["reason"]
    assert first["edit"]["content"] not in project.best()


async def test_a_veto_is_taken_back_before_and_after_the_run_has_read_it(
    make_project: MakeProject,
) -> None:
    untouched = make_project(*STEPS, rows=ROWS, name="untouched")
    await untouched.train()
    project = make_project(*STEPS, rows=ROWS)
    at_once = [("veto", "s0001e01"), ("release", "s0001e01")]
    await project.train(listeners=[asking(project, *at_once)])
    assert project.events(PersonDecided) == []
    assert project.best() == untouched.best()

    later = make_project(*STEPS, rows=ROWS, name="later")

    def release(stored: Stored) -> None:
        if isinstance(stored.event, StepFinished) and stored.event.step == 3:
            steer_run(later.folder / "run", "release", "s0001e01")

    await later.train(listeners=[asking(later, ("veto", "s0001e01")), release])
    assert [one.action for one in later.events(PersonDecided)] == ["veto", "release"]
    assert effects(later)["s0001e01"]["status"] != "dropped", "its evidence decided again"


async def test_a_pinned_edit_stays_for_any_effect(make_project: MakeProject) -> None:
    useless = json.dumps(
        {"patch": {"edits": [{"op": "append", "target": "", "content": "- Be kind."}]}}
    )
    project = make_project(*STEPS, rows=ROWS, optimizer={"reflect.failure": useless})
    await project.train(listeners=[asking(project, ("pin", "s0001e01"))])
    assert "- Be kind." in project.best()
    assert effects(project)["s0001e01"]["status"] == "promoted"


async def test_a_reworded_edit_replaces_the_old_one(make_project: MakeProject) -> None:
    project = make_project(*STEPS, rows=ROWS)
    reword = ("reword", "s0001e01", "- green means g. Nothing else.")
    await project.train(listeners=[asking(project, reword)])
    texts = [effect["edit"]["content"] for effect in effects(project).values()]
    assert "- green means g. Nothing else." in texts


async def test_with_review_nothing_is_promoted_without_approval(make_project: MakeProject) -> None:
    project = make_project(*STEPS, "review=true", rows=ROWS)
    with pytest.raises(ReviewPending) as stopped:
        await project.train(listeners=[asking(project, ("approve", "s0001e01"))])
    assert stopped.value.exit_code == Exit.HANDOFF
    *_, last = project.events(GateDecided)
    waiting = [effect.id for effect in last.effects if effect.awaits_approval]
    assert waiting and all(edit in str(stopped.value) for edit in waiting)
    statuses = {effect.id: effect.status for effect in last.effects}
    assert statuses["s0001e01"] == "promoted"
    assert "promoted" not in [status for key, status in statuses.items() if key != "s0001e01"]
    verdicts = project.events(GateDecided)
    reasons = [effect.reason for verdict in verdicts for effect in verdict.effects]
    assert any("waiting for approval" in reason for reason in reasons)


async def test_a_run_under_review_ends_when_every_edit_is_approved_or_declined(
    make_project: MakeProject,
) -> None:
    project = make_project(*STEPS, "review=true", rows=ROWS)
    with pytest.raises(ReviewPending):
        await project.train()
    asked = len(project.calls)
    *_, last = project.events(GateDecided)
    approved, *declined = [effect for effect in last.effects if effect.awaits_approval]
    assert read_card(project.folder / "run").state == "review"
    assert read_record(project.folder / "run").state == "review"
    request_steering(project.folder / "run", "approve", approved.id)
    for effect in declined:
        request_steering(project.folder / "run", "decline", effect.id)
    assert read_card(project.folder / "run").state == "stopped"
    await project.train()
    assert read_card(project.folder / "run").state == "finished"
    assert len(project.calls) == asked, "the steps are not paid again"
    assert approved.edit.content in project.best()
    assert all(effect.edit.content not in project.best() for effect in declined)
    assert len(project.events(PersonDecided)) == 1 + len(declined)
    await project.train()
    assert len(project.events(PersonDecided)) == 1 + len(declined), "a replay asks nothing again"


async def test_an_invalid_request_is_a_warning(make_project: MakeProject) -> None:
    project = make_project(*STEPS, rows=ROWS)
    await project.train(listeners=[asking(project, ("veto", "s9999e99"))])
    assert project.events(PersonDecided) == []
    assert any("s9999e99" in event.message for event in project.events(Warned))


async def test_a_replay_follows_the_same_requests(make_project: MakeProject) -> None:
    project = make_project(*STEPS, rows=ROWS)
    await project.train(listeners=[asking(project, ("veto", "s0001e01"))])
    before, asked = readable(project.folder / "run"), len(project.calls)
    await project.train()
    assert differences(readable(project.folder / "run"), before) == []
    assert len(project.calls) == asked


async def test_a_cap_can_be_raised_while_the_run_is_running(make_project: MakeProject) -> None:
    project = make_project(*STEPS, "budget.calls=60", rows=ROWS)
    await project.train(listeners=[asking(project, ("budget", "calls", "5000"))])
    assert len(project.history()) == 6 and len(project.calls) > 60


async def test_a_cap_raised_after_the_run_ended_at_it_is_followed_when_the_run_is_resumed(
    make_project: MakeProject,
) -> None:
    project = make_project(*STEPS, "budget.calls=60", rows=ROWS)
    await project.train()
    assert len(project.history()) < 6
    request_steering(project.folder / "run", "budget", "calls", "5000")
    await project.train()
    assert len(project.history()) == 6 and len(project.calls) > 60
    assert [event.cap for event in project.events(PersonDecided)] == [5000]
    before, asked = readable(project.folder / "run"), len(project.calls)
    await project.train()
    assert differences(readable(project.folder / "run"), before) == []
    assert len(project.calls) == asked


async def test_a_cap_raised_in_the_config_overrides_an_earlier_request(
    make_project: MakeProject,
) -> None:
    project = make_project(*STEPS, "budget.calls=60", rows=ROWS)
    await project.train(listeners=[asking(project, ("budget", "calls", "80"))])
    assert len(project.calls) == 80 and len(project.history()) < 6
    await project.train("budget.calls=5000")
    assert len(project.history()) == 6 and len(project.calls) > 80
    assert read_record(project.folder / "run").caps == {"calls": 5000}


async def test_a_cap_lowered_by_a_request_stays_lowered_on_resume(
    make_project: MakeProject,
) -> None:
    project = make_project(*STEPS, "budget.calls=5000", rows=ROWS)
    await project.train(listeners=[asking(project, ("budget", "calls", "70"))])
    spent = len(project.calls)
    assert read_record(project.folder / "run").caps == {"calls": 70}
    await project.train()
    assert spent <= 70 and len(project.calls) == spent
    assert read_record(project.folder / "run").caps == {"calls": 70}


@pytest.mark.parametrize("value", ["much", "nan", "-1", ""])
async def test_a_cap_that_is_not_a_number_in_the_file_is_a_warning(
    make_project: MakeProject, value: str
) -> None:
    project = make_project(*STEPS, rows=ROWS)
    line = {"number": 1, "action": "budget", "target": "calls", "text": value}

    def write_line(stored: Stored) -> None:
        (project.folder / "run" / STEERING).write_text(json.dumps(line) + "\n")

    await project.train(listeners=[write_line])
    assert project.events(PersonDecided) == [] and len(project.history()) == 6
    assert any("is not a budget" in event.message for event in project.events(Warned))


async def test_what_a_person_says_about_a_training_item_reaches_the_optimizer(
    make_project: MakeProject,
) -> None:
    """In the next step, and in the next run by `optimizer.feedback`. Notes on other items stay."""
    project = make_project(*STEPS, rows=ROWS)
    train, selection = ROWS[0]["id"], ROWS[-1]["id"]
    notes = (
        ("wrong", train, "It misses the shade."),
        ("right", selection, "This stays hidden."),
    )
    await project.train(listeners=[asking(project, *notes)])
    first, *later = project.asked("reflect.failure")
    said = f"- item {train}: wrong: It misses the shade."
    assert said not in first.text and any(said in call.text for call in later)
    assert not any("This stays hidden." in call.text for call in project.calls)
    with open_details(project.folder / "run") as details:
        assert [note.said for note in details.notes()] == [
            "wrong: It misses the shade.",
            "right: This stays hidden.",
        ]

    asked = len(project.calls)
    await project.train()
    assert len(project.calls) == asked, "a replay asks nothing again"

    again = make_project(
        *STEPS, f'optimizer.feedback={{"{train}": "wrong: It misses the shade."}}', name="again"
    )
    await again.train()
    assert said in again.asked("reflect.failure")[0].text
