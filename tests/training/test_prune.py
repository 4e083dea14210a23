"""`optimizer.prune_initial`: a bloated skill gets shorter while it is trained."""

from __future__ import annotations

from skillfit.cli.output import result_text
from skillfit.record.fold import read_record
from skillfit.run.control import Control, Interrupted
from skillfit.run.events import GateDecided, StepFinished, Stored
from tests.training.practice_project import differences, items, readable
from tests.training.project_fixture import MakeProject

STORIES = [f"Story {number} is long and names nothing of use." for number in range(5)]
BLOATED = "\n\n".join(["# Colours", *STORIES, "- red means r.", "Answer with one letter."]) + "\n"
STEPS = (
    "train.num_epochs=10",
    "optimizer.prune_initial=true",
    "optimizer.use_slow_update=false",
    "optimizer.use_meta_skill=false",
    "evaluation.eval_test=false",
)
ROWS = items(16, 24, 0)


async def test_a_bloated_skill_gets_shorter_and_a_needed_paragraph_stays(
    make_project: MakeProject,
) -> None:
    project = make_project(*STEPS, rows=ROWS, skill=BLOATED)
    result = await project.train()
    best = project.best()
    assert result.finish_reason == "improved"
    assert "- red means r." in best and "- blue means b." in best
    gone = [story for story in STORIES if story not in best]
    assert len(gone) >= 2
    assert len(result.summary.cut) >= len(gone)
    reasons = [event.reason for event in project.events(GateDecided)]
    assert any("cut line" in reason and "of the initial skill" in reason for reason in reasons)
    text = result_text(read_record(result.run))
    tokens = result.summary.skill_tokens
    assert f"The skill has {tokens.found:,} tokens, {tokens.initial:,} before." in text
    assert "Cut from the initial skill: line" in text


async def test_a_run_that_prunes_ends_the_same_after_a_stop(make_project: MakeProject) -> None:
    whole = make_project(*STEPS, rows=ROWS, skill=BLOATED, name="whole")
    await whole.train()
    stopped = make_project(*STEPS, rows=ROWS, skill=BLOATED, name="stopped")
    control = Control()

    def stop_after_step_five(stored: Stored) -> None:
        if isinstance(stored.event, StepFinished) and stored.event.step == 5:
            control.stop()

    try:
        await stopped.train(listeners=[stop_after_step_five], control=control)
    except Interrupted:
        pass
    else:
        raise AssertionError("the run was not stopped")
    await stopped.train()
    assert stopped.best() == whole.best()
    runs = [readable(project.folder / "run") for project in (whole, stopped)]
    assert [name for name in differences(*runs) if name in ("history.json", "best_skill.md")] == []
