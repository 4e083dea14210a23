"""`skillfit ablate`: what each line of a skill is worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillfit.errors import InputError
from skillfit.run.directory import RecordedIdentity, RunDirectory
from skillfit.run.events import AblationFinished
from skillfit.training.measure import ablate
from tests.support.chat_server import Call
from tests.training.practice_project import COLOURS, items, knowing, system
from tests.training.project_fixture import MakeProject

RULES = "\n".join(f"- {colour} means {COLOURS[colour]}." for colour in ("red", "green", "blue"))
SKILL = (
    f"# Colours\n\nAnswer with the letter of the colour.\n\n{RULES}\n"
    "- gold means wrong.\n- Take your time and be kind to everyone.\n"
)
NEEDED = "- Answer with the letter alone."
ROWS = items(20, 20, 0)


async def test_helpful_useless_and_wrong_lines_are_told_apart(make_project: MakeProject) -> None:
    project = make_project(rows=ROWS, skill=SKILL)
    found = await ablate(project.inputs(), project.folder / "run", rollouts=400)
    worth = {unit.text: unit for unit in found.event.units}
    for colour in ("red", "green", "blue"):
        rule = worth[f"- {colour} means {COLOURS[colour]}."]
        assert rule.decision == "keep" and rule.low > 0.1
    useless = worth["- Take your time and be kind to everyone."]
    assert abs(useless.mean) < 0.05 and useless.decision in ("cut", "unsure")
    assert worth["- gold means wrong."].mean < 0.05
    assert found.event.rollouts == 400
    assert not project.asked("reflect.failure")


async def test_started_again_nothing_is_rolled_out_again(make_project: MakeProject) -> None:
    project = make_project(rows=ROWS, skill=SKILL)
    first = await ablate(project.inputs(), project.folder / "run", rollouts=120)
    asked = len(project.calls)
    again = await ablate(project.inputs(), project.folder / "run", rollouts=120)
    assert len(project.calls) == asked
    assert again.event == first.event == project.events(AblationFinished)[0]


async def test_without_a_number_what_was_rolled_out_before_is_used(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=ROWS, skill=SKILL)
    first = await ablate(project.inputs(), project.folder / "run", rollouts=200)
    asked = len(project.calls)
    again = await ablate(project.inputs(), project.folder / "run")
    assert len(project.calls) == asked
    assert again.event == first.event


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_a_line_that_all_others_depend_on_is_kept(
    make_project: MakeProject, seed: int
) -> None:
    """Its worth is far larger than that of most proposed edits, for which the prior is made."""

    def answers_if_told(call: Call) -> str:
        return knowing(call) if NEEDED in system(call) else "That is a colour."

    project = make_project(
        f"train.seed={seed}",
        rows=ROWS,
        skill=f"# Colours\n\n{NEEDED}\n{RULES}\n",
        agent=answers_if_told,
    )
    found = await ablate(project.inputs(), project.folder / "run")
    line = next(unit for unit in found.event.units if unit.text == NEEDED)
    assert line.decision == "keep"
    assert line.high > 0.5  # it is worth 0.75: without it nothing is solved


async def test_an_ablation_of_an_earlier_version_is_continued(make_project: MakeProject) -> None:
    project = make_project(rows=ROWS, skill=SKILL)
    unset = {
        "temperature": None,
        "max_tokens": None,
        "reasoning_effort": None,
        "thinking": "default",
        "context_window": None,
        "options": {},
        "base_url": project.server.url,
    }
    models = {"agent": {"id": "openai/agent", **unset}, "judge": None}
    models["optimizer"] = {"id": "openai/optimizer", **unset}
    recorded = {"ablate": models, "skill": project.inputs().skill.hash, "by": "line"}
    with RunDirectory.open(project.folder / "run", RecordedIdentity(recorded)) as run:
        await run.journal.note("rollout/1", 1, int, stage="rollout")
    found = await ablate(project.inputs(), project.folder / "run", rollouts=40)
    assert found.event.rollouts == 40


async def test_a_cut_is_compared_on_fresh_rollouts_first(make_project: MakeProject) -> None:
    project = make_project(rows=ROWS, skill=SKILL)
    found = await ablate(project.inputs(), project.folder / "run", rollouts=600, check=True)
    assert found.event.comparison is not None and found.event.holds
    assert found.shorter is not None and found.shorter.tokens < project.inputs().skill.tokens
    assert all(f"{colour} means" in found.shorter.body for colour in ("red", "green", "blue"))


async def test_a_reached_budget_ends_it_with_what_is_known(make_project: MakeProject) -> None:
    project = make_project("budget.calls=100", rows=ROWS, skill=SKILL)
    found = await ablate(project.inputs(), project.folder / "run", rollouts=400)
    assert len(project.calls) <= 100
    assert 40 <= found.event.rollouts <= 100


async def test_a_skill_without_removable_text_is_refused(
    make_project: MakeProject, tmp_path: Path
) -> None:
    fenced = "# Only a heading\n\n<!-- PROTECTED_START -->\nred means r.\n<!-- PROTECTED_END -->\n"
    project = make_project(rows=ROWS, skill=fenced)
    with pytest.raises(InputError, match="no part"):
        await ablate(project.inputs(), tmp_path / "run")


async def test_where_no_rollout_scores_nothing_is_cut(make_project: MakeProject) -> None:
    project = make_project("env.grader={regex: {pattern: '^never this$'}}", rows=ROWS, skill=SKILL)
    found = await ablate(project.inputs(), project.folder / "run", rollouts=240)
    assert found.event.all_zero and found.shorter is None
    assert {unit.decision for unit in found.event.units} == {"unsure"}


async def test_more_rollouts_than_one_regression_holds_are_refused(
    make_project: MakeProject,
) -> None:
    project = make_project("budget.calls=1", rows=ROWS, skill=SKILL)
    with pytest.raises(InputError, match=r"100,001 rollouts\. At most 100,000 are possible"):
        await ablate(project.inputs(), project.folder / "run", rollouts=100_001)
    assert not project.calls and not (project.folder / "run").exists()


async def test_a_recorded_ablation_that_is_larger_than_the_limit_is_resumed(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions had no limit."""
    project = make_project(rows=ROWS, skill=SKILL)
    first = await ablate(project.inputs(), project.folder / "run", rollouts=120)
    monkeypatch.setattr("skillfit.training.measure.MOST_ABLATION_ROLLOUTS", 119)
    again = await ablate(project.inputs(), project.folder / "run", rollouts=120)
    assert again.event == first.event
    with pytest.raises(InputError, match="At most 119 are possible"):
        await ablate(project.inputs(), project.folder / "other", rollouts=120)
