"""`skillfit ablate`: what each line of a skill is worth."""

from __future__ import annotations

from pathlib import Path

import pytest

import skillfit
from skillfit.agents.agent import BaseAgent
from skillfit.cli.ablate import write_shorter
from skillfit.config import load_config
from skillfit.errors import InputError
from skillfit.run.events import AblationFinished
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item
from skillfit.training.inputs import Inputs, read_inputs
from skillfit.training.measure import ablate_skill, evaluate_skills
from tests.support.chat_server import Call
from tests.training.practice_project import COLOURS, items, knowing, system
from tests.training.project_fixture import MakeProject

RULES = "\n".join(f"- {colour} means {COLOURS[colour]}." for colour in ("red", "green", "blue"))
SKILL = (
    f"# Colours\n\nAnswer with the letter of the colour.\n\n{RULES}\n"
    "- gold means wrong.\n- Take your time and be kind to everyone.\n"
)
NEEDED = "- Answer with the letter alone."
ALL_NEEDED = (NEEDED, "- No full stop.", "- No quotes.", "- No explanation.")
DEMO = Path(skillfit.__file__).parent / "cli" / "demo_data" / "triage"
DEMO_RULES = """\
- Mentions of refund, charge or receipt mean billing.
- Mentions of parcel, package or tracking mean delivery.
- Mentions of login, username or email mean account.
- Mentions of return, exchange or broken mean returns.
- Mentions of app, crash or update mean technical.
"""
ROWS = items(20, 20, 0)


async def test_helpful_useless_and_wrong_lines_are_distinguished(make_project: MakeProject) -> None:
    project = make_project(rows=ROWS, skill=SKILL)
    found = await ablate_skill(project.inputs(), project.folder / "run", rollouts=400)
    worth = {unit.text: unit for unit in found.event.units}
    for colour in ("red", "green", "blue"):
        rule = worth[f"- {colour} means {COLOURS[colour]}."]
        assert rule.decision == "keep" and rule.low > 0.1
    useless = worth["- Take your time and be kind to everyone."]
    assert abs(useless.mean) < 0.05 and useless.decision in ("cut", "unsure")
    assert worth["- gold means wrong."].mean < 0.05
    assert found.event.rollouts == 400
    assert not project.asked("reflect.failure")


async def test_each_line_names_the_types_of_items_that_need_it(make_project: MakeProject) -> None:
    typed = [{**row, "type": f"{row['input'].split()[0]} ones"} for row in ROWS]
    project = make_project(rows=typed, skill=SKILL)
    found = await ablate_skill(project.inputs(), project.folder / "run", rollouts=400)
    kinds = {unit.text: unit.kinds for unit in found.event.units}
    for colour in ("red", "green", "blue"):
        (one,) = kinds[f"- {colour} means {COLOURS[colour]}."]
        assert (one.kind, one.items, one.of) == (f"{colour} ones", 10, 40)
        assert one.low > 0.5
    assert not kinds["- Take your time and be kind to everyone."]


async def test_an_ablation_started_again_makes_no_new_rollouts(make_project: MakeProject) -> None:
    project = make_project(rows=ROWS, skill=SKILL)
    first = await ablate_skill(project.inputs(), project.folder / "run", rollouts=120)
    asked = len(project.calls)
    again = await ablate_skill(project.inputs(), project.folder / "run", rollouts=120)
    assert len(project.calls) == asked
    assert again.event == first.event == project.events(AblationFinished)[0]


async def test_without_a_number_earlier_rollouts_are_used(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=ROWS, skill=SKILL)
    first = await ablate_skill(project.inputs(), project.folder / "run", rollouts=200)
    asked = len(project.calls)
    again = await ablate_skill(project.inputs(), project.folder / "run")
    assert len(project.calls) == asked
    assert again.event == first.event


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_a_line_that_all_others_depend_on_is_kept(
    make_project: MakeProject, seed: int
) -> None:
    """Its worth is far larger than that of most proposed edits, for which the prior is made."""

    def answers_if_complete(call: Call) -> str:
        return knowing(call) if NEEDED in system(call) else "That is a colour."

    project = make_project(
        f"train.seed={seed}",
        rows=ROWS,
        skill=f"# Colours\n\n{NEEDED}\n{RULES}\n",
        agent=answers_if_complete,
    )
    found = await ablate_skill(project.inputs(), project.folder / "run")
    line = next(unit for unit in found.event.units if unit.text == NEEDED)
    assert line.decision == "keep"
    assert line.high > 0.5  # it is worth 0.75: without it nothing is solved


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_the_score_of_a_skill_whose_lines_work_only_together_is_not_too_low(
    make_project: MakeProject, seed: int
) -> None:
    def answers_if_told_all(call: Call) -> str:
        complete = all(line in system(call) for line in ALL_NEEDED)
        return knowing(call) if complete else "That is a colour."

    lines = "\n".join(ALL_NEEDED)
    project = make_project(
        f"train.seed={seed}",
        rows=ROWS,
        skill=f"# Colours\n\n{lines}\n{RULES}\n",
        agent=answers_if_told_all,
    )
    score = (await ablate_skill(project.inputs(), project.folder / "run")).event.score
    assert score.low <= 0.75 <= score.high  # gold has no rule
    assert abs(score.mean - 0.75) < 0.1


async def test_the_score_of_the_whole_demo_skill_is_covered_by_its_interval(tmp_path: Path) -> None:
    text = (DEMO / "triage-tickets" / "SKILL.md").read_text("utf-8")
    two_lines = text.replace("alone, in lower case.", "alone.\n- Write it in lower case.")
    skill = tmp_path / "triage-tickets"
    skill.mkdir()
    (skill / "SKILL.md").write_text(two_lines + DEMO_RULES, "utf-8")

    def demo(seed: int) -> Inputs:
        settings = [f"env.skill={skill}", f"train.seed={seed}"]
        return read_inputs(load_config(DEMO / "skillfit.yaml", settings), training=False)

    truth = 0.0
    inputs = demo(0)
    items = {"train": inputs.task.train, "selection": inputs.task.selection}
    for split, among in items.items():
        (measured,) = await evaluate_skills(
            inputs, {"whole": inputs.skill}, tmp_path / "truth", split=split, repeats=6
        )
        truth += measured.tally.hard * len(among) / sum(map(len, items.values()))
    scores = [
        (await ablate_skill(demo(seed), tmp_path / f"run-{seed}")).event.score
        for seed in range(11, 17)
    ]
    assert sum(score.low <= truth <= score.high for score in scores) >= 5
    assert sum(abs(score.mean - truth) for score in scores) / len(scores) < 0.1


async def test_a_longer_ablation_uses_the_rollouts_of_a_shorter_one(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=ROWS, skill=SKILL)
    await ablate_skill(project.inputs(), project.folder / "run", rollouts=50)  # ends inside a round
    assert len(project.calls) == 50
    longer = await ablate_skill(project.inputs(), project.folder / "run", rollouts=130)
    assert len(project.calls) == longer.event.rollouts == 130


@pytest.mark.parametrize(
    ("setting", "change"),
    [
        ("env.grader=f1", "grader"),
        ("env.prompt='Do: {skill}'", "env.prompt"),
        ("train.seed=7", "seed"),
    ],
)
async def test_an_ablation_whose_answers_would_differ_is_not_continued(
    make_project: MakeProject, setting: str, change: str
) -> None:
    project = make_project(rows=ROWS, skill=SKILL)
    await ablate_skill(project.inputs(), project.folder / "run", rollouts=40)
    with pytest.raises(InputError, match=rf"other settings:\n  {change}"):
        await ablate_skill(project.inputs(setting), project.folder / "run", rollouts=40)
    assert len(project.calls) == 40


async def test_the_shorter_skill_is_compared_on_fresh_rollouts_first(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=ROWS, skill=SKILL)
    found = await ablate_skill(project.inputs(), project.folder / "run", rollouts=600, check=True)
    assert found.event.comparison is not None and found.event.holds
    assert found.shorter is not None and found.shorter.tokens < project.inputs().skill.tokens
    assert all(f"{colour} means" in found.shorter.body for colour in ("red", "green", "blue"))


async def test_a_reached_budget_ends_the_ablation_with_its_results_so_far(
    make_project: MakeProject,
) -> None:
    project = make_project("budget.calls=100", rows=ROWS, skill=SKILL)
    found = await ablate_skill(project.inputs(), project.folder / "run", rollouts=400)
    assert len(project.calls) <= 100
    assert 40 <= found.event.rollouts <= 100


async def test_a_skill_without_removable_text_is_refused(
    make_project: MakeProject, tmp_path: Path
) -> None:
    fenced = "# Only a heading\n\n<!-- PROTECTED_START -->\nred means r.\n<!-- PROTECTED_END -->\n"
    project = make_project(rows=ROWS, skill=fenced)
    with pytest.raises(InputError, match="no part"):
        await ablate_skill(project.inputs(), tmp_path / "run")


async def test_nothing_is_cut_when_every_rollout_scores_0(make_project: MakeProject) -> None:
    project = make_project("env.grader={regex: {pattern: '^never this$'}}", rows=ROWS, skill=SKILL)
    found = await ablate_skill(project.inputs(), project.folder / "run", rollouts=240)
    assert found.event.all_zero and found.shorter is None
    assert {unit.decision for unit in found.event.units} == {"unsure"}


async def test_more_rollouts_than_the_regression_supports_are_refused(
    make_project: MakeProject,
) -> None:
    project = make_project("budget.calls=1", rows=ROWS, skill=SKILL)
    with pytest.raises(InputError, match=r"100,001 rollouts\. At most 100,000 are possible"):
        await ablate_skill(project.inputs(), project.folder / "run", rollouts=100_001)
    assert not project.calls and not (project.folder / "run").exists()


class ReadsTables(BaseAgent):
    """Knows the colours that the body or a reference names."""

    async def attempt(self, skill: Skill, item: Item, context: object) -> Attempt:
        text = skill.body + "".join(data.decode() for data in skill.files.values())
        colour = item.input.split()[0]
        known = f"- {colour} means {COLOURS[colour]}." in text
        return Attempt(COLOURS[colour] if known else "x")


async def test_lines_of_references_and_whole_scripts_are_measured(tmp_path: Path) -> None:
    folder = tmp_path / "skill"
    files = {
        "references/colours.md": f"{RULES}\n- gold means o.\n- Tables are nice.\n".encode(),
        "scripts/idle.py": b"print(1)\n",
    }
    Skill.from_text("# Colours\n\n- See references/colours.md.\n", files=files).save(folder)
    settings = {"env": {"skill": str(folder)}, "optimizer": {"parts": ["references", "scripts"]}}
    inputs = read_inputs(
        load_config(settings), task=ROWS, agent=ReadsTables(), grader="exact", training=False
    )
    found = await ablate_skill(inputs, tmp_path / "run", rollouts=400)
    decisions = {unit.id: unit.decision for unit in found.event.units}
    assert set(decisions) == {
        *(f"references/colours.md:L{n}" for n in range(1, 6)),
        "scripts/idle.py",
    }
    assert decisions["references/colours.md:L1"] == "keep"
    assert decisions["scripts/idle.py"] == "cut"
    assert found.event.shorter_files["scripts/idle.py"] == ""
    assert found.event.tokens_after < found.event.tokens_before
    mine = folder / "references/mine.md"
    mine.write_text("- Written while it was measured.\n")
    with pytest.raises(InputError, match="changed while it was measured: nothing was cut"):
        write_shorter(inputs, found, tmp_path / "former")
    assert mine.exists() and (folder / "scripts/idle.py").exists()
    mine.unlink()
    assert write_shorter(inputs, found, tmp_path / "former")
    assert not (folder / "scripts").exists()
    assert RULES in (folder / "references/colours.md").read_text()
    assert Skill.load(tmp_path / "former").hash == inputs.skill.hash
