from __future__ import annotations

import pytest

from skillfit.config import load_config
from skillfit.errors import InputError
from skillfit.skill import Skill
from skillfit.training.inputs import read_inputs
from skillfit.training.measure import evaluate_skills
from tests.training.practice_project import SKILL, items
from tests.training.project_fixture import MakeProject

GOOD = SKILL + "- green means g.\n- blue means b.\n- gold means o.\n"
SKILLS = {"old": Skill.from_text(SKILL), "new": Skill.from_text(GOOD)}


async def test_skills_are_compared_with_intervals_and_types(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=items(4, 8, 0))
    old, new = await evaluate_skills(
        project.inputs(), SKILLS, project.folder / "measured", repeats=2
    )
    assert (old.name, old.tally.hard, old.tally.planned) == ("old", 0.25, 16)
    assert (new.name, new.tally.hard) == ("new", 1.0)
    assert old.by_type["red"].hard == 1.0
    assert old.by_type["gold"].hard == 0.0
    assert old.interval.low < 0.25 < old.interval.high


async def test_recorded_measurements_are_not_paid_again_and_more_can_be_added(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=items(4, 8, 0))
    for _ in range(2):
        await evaluate_skills(project.inputs(), SKILLS, project.folder / "measured")
    assert len(project.calls) == 16
    await evaluate_skills(project.inputs(), SKILLS, project.folder / "measured", repeats=2)
    assert len(project.calls) == 32
    await evaluate_skills(project.inputs(), SKILLS, project.folder / "measured", split="train")
    assert len(project.calls) == 40


async def test_changed_settings_are_refused_in_the_same_evaluation(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=items(4, 8, 0))
    await evaluate_skills(project.inputs(), SKILLS, project.folder / "measured")
    with pytest.raises(InputError, match=r"env\.prompt"):
        await evaluate_skills(
            project.inputs("env.prompt='Do: {skill}'"), SKILLS, project.folder / "measured"
        )
    with pytest.raises(InputError, match="temperature"):
        await evaluate_skills(
            project.inputs("model.agent.temperature=0.5"), SKILLS, project.folder / "measured"
        )
    with pytest.raises(InputError, match=r"grader\.exact"):
        await evaluate_skills(
            project.inputs("env.grader=contains"), SKILLS, project.folder / "measured"
        )


async def test_evaluation_needs_neither_an_optimizer_nor_splits(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{key: value for key, value in row.items() if key != "split"} for row in items(3, 0, 0)]
    project = make_project("model.optimizer=anthropic/claude-sonnet", rows=rows)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    inputs = read_inputs(load_config(project.config(), project.settings), training=False)
    [measured] = await evaluate_skills(
        inputs, {"new": SKILLS["new"]}, project.folder / "measured", split="all"
    )
    assert measured.tally.scored == 3


async def test_the_price_of_an_unused_optimizer_may_be_unknown(
    make_project: MakeProject,
) -> None:
    project = make_project(
        "budget.usd=9", "model.prices={agent: {input: 1, output: 1}}", rows=items(4, 8, 0)
    )
    with pytest.raises(InputError, match="no price is known for openai/optimizer"):
        await project.train()
    inputs = read_inputs(load_config(project.config(), project.settings), training=False)
    [measured] = await evaluate_skills(inputs, {"new": SKILLS["new"]}, project.folder / "measured")
    assert measured.tally.scored == 8


async def test_an_empty_or_unknown_split_is_an_error_with_its_name(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=items(4, 8, 0))
    with pytest.raises(InputError, match="test split is empty"):
        await evaluate_skills(project.inputs(), SKILLS, project.folder / "measured", split="test")
    with pytest.raises(InputError, match="nonsense"):
        await evaluate_skills(
            project.inputs(), SKILLS, project.folder / "measured", split="nonsense"
        )


async def test_more_rollouts_than_fit_in_memory_are_refused_before_the_first(
    make_project: MakeProject,
) -> None:
    project = make_project("budget.calls=1", rows=items(4, 8, 0))
    problem = (
        r"^repeats: 6,251 with 8 items and 2 skills gives 100,016 rollouts\. "
        r"At most 100,000 are possible\."
    )
    with pytest.raises(InputError, match=problem):
        await evaluate_skills(project.inputs(), SKILLS, project.folder / "measured", repeats=6_251)
    assert not project.calls and not (project.folder / "measured").exists()
