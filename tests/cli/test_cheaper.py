"""`evaluation.objective: cheaper`: fewer tokens at a score that is not worse."""

import json
from pathlib import Path

import pytest

from skillfit.errors import Exit
from tests.cli.cli_project import Shell

SETTINGS = ("evaluation.objective=cheaper", "--rollouts", "300")
STORIES = [
    f"The {place} of the help desk was founded long ago. {'It has grown every year since. ' * 9}"
    for place in ("office", "archive", "kitchen")
]


@pytest.fixture
def bloated(config: Path) -> Path:
    """The config of a project whose skill has three long paragraphs that say nothing."""
    document = config.parent / "triage-tickets" / "SKILL.md"
    document.write_text("\n\n".join([document.read_text().rstrip(), *STORIES]) + "\n")
    return config


def test_a_bloated_skill_becomes_cheaper_and_verify_guards_its_tokens(
    shell: Shell, bloated: Path
) -> None:
    before = bloated.with_name("before.md")
    before.write_text((bloated.parent / "triage-tickets" / "SKILL.md").read_text())
    trained = shell("train", bloated, *SETTINGS, "--run", "r")
    assert trained.code == 0, trained.err
    assert "improved: The skill is cheaper and not worse: " in trained.out
    ship = json.loads(Path("r/summary.json").read_text())["ship"]
    assert ship["verdict"] == "improved" and ship["saving"]["low"] > 0
    found = Path("r/best_skill.md").read_text()
    assert sum(story.strip() in found for story in STORIES) < len(STORIES)
    shell("report", "r", "--format", "md")
    assert "cheaper and not worse" in Path("r/report.md").read_text()
    kept = shell("verify", "r", "--json")
    assert kept.code == 0 and kept.json["verdict"] == "ok"
    dearer = shell("verify", "r", "--skill", before)
    assert dearer.code == Exit.REGRESSION
    assert "more tokens in a rollout than recorded" in dearer.out
    compared = shell(
        "eval", bloated, "--skill", before, "--skill", "r/best_skill.md", "--repeats", "2"
    )
    assert "Cheaper, not worse (fewer tokens; a loss of 0.1 is excluded)" in compared.out


def test_the_objective_needs_the_gate_and_the_test_that_act_on_it(
    shell: Shell, config: Path
) -> None:
    for setting in ("evaluation.gate=strict", "evaluation.ship_test=false"):
        refused = shell("train", config, "evaluation.objective=cheaper", setting)
        assert refused.code == 2 and "evaluation.objective: needs" in refused.err


def test_ablate_cuts_only_what_excludes_a_loss_of_the_margin(shell: Shell, bloated: Path) -> None:
    line = ("ablate", bloated, "--by", "paragraph", "--rollouts", "400", "--apply", "--json")
    strict = ("evaluation.objective=cheaper", "evaluation.margin=0.01")
    refused = shell(*line, *strict, "--run", "strict").json
    assert (refused["holds"], refused["applied"]) == (False, False)
    cut = shell(*line, "evaluation.objective=cheaper", "evaluation.margin=0.2", "--run", "cut").json
    assert (cut["holds"], cut["applied"]) == (True, True)
