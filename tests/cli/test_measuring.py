"""`eval` and `check`: what fails can be read, and what was measured before is named as such."""

import json
import re
from pathlib import Path

import pytest

from skillfit.api import Run
from skillfit.errors import Exit
from tests.cli.cli_project import Shell

EVAL = ("env.limit=8", "--run", "measured")


@pytest.fixture
def better(finished: Path, tmp_path: Path) -> Path:
    """A skill that scores higher than the project's."""
    file = tmp_path / "better.md"
    file.write_text(Run.open(finished / "run").best_skill.text)
    return file


def test_eval_says_which_rollouts_were_measured_before_and_when(shell: Shell, config: Path) -> None:
    first = shell("eval", config, *EVAL)
    assert "measured before" not in first.out
    again = shell("eval", config, *EVAL)
    assert "8 of 8 rollouts were measured before (from 20" in again.out
    assert "not sent again. --fresh measures again." in again.out
    more = shell("eval", config, *EVAL, "--repeats", "2")
    assert "8 of 16 rollouts were measured before" in more.out
    (told,) = shell("eval", config, *EVAL, "--json").json
    assert told["recorded"] == 8 and told["measured_at"].startswith("20")


def test_a_skill_that_is_measured_under_two_names_counts_once(shell: Shell, config: Path) -> None:
    skill = config.parent / "triage-tickets"
    twice = ("--skill", skill, "--skill", skill / "SKILL.md")
    shell("eval", config, *EVAL, *twice)
    assert "16 of 16 rollouts were measured before" in shell("eval", config, *EVAL, *twice).out


@pytest.fixture
def failing(config: Path) -> tuple[str, ...]:
    """Overrides with an agent whose rollouts all fail, and a limit of one item a type."""
    (config.parent / "broken.py").write_text("def agent(request): raise ValueError('no agent')\n")
    agent = f"model.agent=scripted/{config.parent / 'broken.py'}:agent"
    return agent, "env.limit=4", "--run", "failing"


def test_a_skill_of_which_no_rollout_was_scored_has_no_score(
    shell: Shell, config: Path, failing: tuple[str, ...]
) -> None:
    result = shell("eval", config, *failing)
    assert result.code == Exit.INFRASTRUCTURE
    assert "0.000" not in result.out and "failed" in result.out
    assert "No rollout of triage-tickets was scored" in result.out
    (told,) = shell("eval", config, *failing, "--json").json
    assert (told["hard"], told["soft"], told["interval"], told["scored"]) == (None, None, None, 0)
    assert all(one == {"hard": None, "scored": 0} for one in told["by_type"].values())
    shown = shell("show", "failing").out
    assert "triage-tickets has no score, because every rollout failed" in shown
    shell("report", "failing", "--format", "md", "--out", "report.md")
    assert "| triage-tickets | 0 | no score | |" in Path("report.md").read_text()
    (listed,) = [one for one in shell("ls", ".", "--json").json if one["run"].endswith("failing")]
    assert listed["selection"]["baseline"] is None


def test_eval_fresh_measures_again_and_keeps_the_former_measurement(
    shell: Shell, config: Path
) -> None:
    shell("eval", config, *EVAL)
    fresh = shell("eval", config, *EVAL, "--fresh")
    assert fresh.code == 0 and "measured before" not in fresh.out
    assert Path("measured.old-1/journal.sqlite").is_file()
    (told,) = shell("eval", config, *EVAL, "--fresh", "--json").json
    assert told["recorded"] == 0 and told["measured_at"] is None


def test_eval_of_several_skills_has_a_paired_difference(
    shell: Shell, config: Path, better: Path
) -> None:
    skills = ("--skill", config.parent / "triage-tickets", "--skill", better)
    output = shell("eval", config, "--run", "both", *skills)
    assert "2 against 1, paired by item (90 %): +0." in output.out
    first, second = shell("eval", config, "--run", "both", *skills, "--json").json
    assert first["gain"] is None
    low, high = second["gain"]["interval"]
    assert second["gain"]["difference"] == pytest.approx(second["hard"] - first["hard"])
    assert low < second["gain"]["difference"] < high
    assert high - low < (first["interval"][1] - first["interval"][0]) * 2


def test_a_limit_per_split_holds_for_all_splits_together(shell: Shell, config: Path) -> None:
    (told,) = shell("eval", config, "env.limit=4", "--split", "all", "--json").json
    assert told["planned"] == 12
    (told,) = shell("eval", config, "--split", "all", "--run", "whole", "--json").json
    assert told["planned"] == len((config.parent / "tasks.jsonl").read_text().splitlines())


def test_eval_lists_what_fails_with_answer_and_expected_answer(shell: Shell, config: Path) -> None:
    output = shell("eval", config, *EVAL)
    (told,) = shell("eval", config, *EVAL, "--json").json
    failed = told["failed"]
    assert failed and len(failed) == round((1 - told["hard"]) * 8)
    for item in failed:
        assert item["score"] == 0 and item["answer"] and item["answer"] != item["expected"]
        assert f"  {item['id']}  0.000" in output.out
    assert f"expected {failed[0]['expected']}" in output.out


def test_check_lists_what_fails_under_the_whole_skill(shell: Shell, config: Path) -> None:
    output = shell("check", config, "--run", "checked")
    told = shell("check", config, "--run", "checked", "--json").json
    assert 0 < len(told["failed"]) <= 8
    assert f"The skill does not solve {len(told['failed'])} items:" in output.out


def test_show_report_export_and_ls_take_an_evaluation(shell: Shell, config: Path) -> None:
    (told,) = shell("eval", config, *EVAL, "--json").json
    shown = shell("show", "measured")
    assert shown.code == 0 and shown.out.startswith("Measured on 8 selection rollouts each:")
    assert told["failed"][-1]["id"] in shown.out
    assert shell("show", "measured", "--json").json["failed"] == {told["skill"]: told["failed"]}
    assert shell("report", "measured").code == 0
    page = Path("measured/report.html").read_text()
    assert told["failed"][0]["id"] in page and "Rejected" not in page and "<h2>Edits" not in page
    assert shell("report", "measured", "--format", "md").code == 0
    assert "| triage-tickets | 8 |" in Path("measured/report.md").read_text()
    assert shell("export", "measured", "--out", "out").code == 0
    for file in Path("out").rglob("conversation.json"):
        assert json.loads(file.read_text())[0]["content"].strip()
    (listed,) = shell("ls", ".").out.splitlines()[1:]
    for word in (
        "measured",
        "evaluation",
        "triage-tickets",
        "practice/agent",
        f"{told['hard']:.3f}",
    ):
        assert word in listed


def test_show_report_export_and_ls_take_a_check(shell: Shell, config: Path) -> None:
    told = shell("check", config, "--run", "checked", "--json").json
    shown = shell("show", "checked")
    assert shown.code == 0 and shown.out.startswith("Checked, not trained.")
    assert told["failed"][0]["id"] in shown.out and "go  gold:" in shown.out
    assert shell("report", "checked").code == 0
    assert told["failed"][0]["id"] in Path("checked/report.html").read_text()
    assert shell("export", "checked", "--out", "out").code == 0
    assert "checked" in shell("ls", ".").out.splitlines()[1].split()
    trained = shell("train", config, "env.limit=8", "train.num_epochs=1", "--run", "other")
    assert trained.code in (0, 3, 4) and "Checked, not trained" not in shell("show", "other").out


def test_export_writes_whole_inputs_although_the_log_has_them_cut(
    shell: Shell, config: Path
) -> None:
    tasks = config.parent / "tasks.jsonl"
    rows = [json.loads(line) for line in tasks.read_text().splitlines()]
    for row in rows:
        row["input"] += " And more." * 200
    tasks.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    shell("eval", config, *EVAL)
    assert shell("export", "measured", "--out", "whole").err == ""
    tasks.unlink()
    assert "Long inputs are cut" in shell("export", "measured", "--out", "cut").err
    for folder, long in (("whole", True), ("cut", False)):
        for file in Path(folder).rglob("conversation.json"):
            assert (len(json.loads(file.read_text())[0]["content"]) > 2_000) == long


def test_eval_without_a_skill_says_whether_the_skill_helps(
    shell: Shell, config: Path, better: Path
) -> None:
    measured = shell("eval", config, "--no-skill", "--skill", better, "--run", "lift")
    assert f"{better} with practice/agent: helps. Over no skill, paired by item" in measured.out
    bare, with_skill = shell(
        "eval", config, "--no-skill", "--skill", better, "--run", "lift", "--json"
    ).json
    assert bare["skill"] == "no skill" and bare["lift"] is None
    assert with_skill["lift"] == "helps" and with_skill["gain"]["interval"][0] > 0
    assert with_skill["per_rollout"]["tokens"] > bare["per_rollout"]["tokens"] > 0
    assert with_skill["cheaper"] is False
    first = shell("show", "lift").out.splitlines()[0]
    lift = rf"{re.escape(str(better))}: helps, \+[\d.]+ points \(.+\) over no skill\. Measured on"
    assert re.match(lift, first)


def test_eval_exports_the_comparison_as_agentskills_describes(
    shell: Shell, config: Path, better: Path
) -> None:
    line = ("eval", config, "env.limit=6", "--no-skill", "--skill", better, "--repeats", "2")
    (bare, told) = shell(*line, "--export", "files", "--json").json
    made = json.loads(Path("files/benchmark.json").read_text())
    assert made["run_summary"]["with_skill"]["pass_rate"]["mean"] == told["hard"]
    assert made["run_summary"]["without_skill"]["pass_rate"]["mean"] == bare["hard"]
    assert made["run_summary"]["delta"]["pass_rate"] == told["hard"] - bare["hard"]
    assert len(made["runs"]) == 2 * 2 * 6 and made["metadata"]["runs_per_configuration"] == 2
    item = made["metadata"]["evals_run"][0]
    graded = json.loads(Path(f"files/eval-{item}/with_skill/run-2/grading.json").read_text())
    assert graded["summary"]["total"] == 1 and graded["assertion_results"][0]["evidence"]
    assert Path(f"files/eval-{item}/without_skill/run-1/outputs/answer.txt").read_text()


def test_eval_export_needs_both_sides(shell: Shell, config: Path) -> None:
    refused = shell("eval", config, "--export", "files")
    assert refused.code == 2 and "Add --no-skill." in refused.err
