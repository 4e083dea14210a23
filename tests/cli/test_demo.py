"""The demo as shipped: it trains, improves, and names its models; the SQL project grades by
running queries.
"""

import json
from importlib.resources import as_file, files
from pathlib import Path

import pytest
import yaml

from skillfit.config import load_config
from skillfit.extensions import load_object
from skillfit.record.fold import read_record
from skillfit.skill import Skill, lint
from skillfit.training.inputs import read_inputs
from tests.cli.cli_project import Shell, project


def test_the_demo_improves_the_skill_rejects_some_edits_and_writes_a_report(
    shell: Shell, tmp_path: Path
) -> None:
    output = shell("demo", "--plain", "--dir", "here")
    assert output.code == 0, output.err
    assert output.out.startswith("improved") and "report.html" in output.out
    assert "practice models (no language model)" in output.err
    assert "promoted s0" in output.err and "dropped" in output.err
    assert (tmp_path / "here" / "run" / "report.html").stat().st_size > 10_000
    record = read_record(tmp_path / "here" / "run")
    assert record.rollouts == (record.rollouts_used.used or 0) <= 300
    kept = [edit for edit in record.edits if edit.in_best]
    left = len(record.edits) - len(kept)
    assert f"edits: {len(kept)} in the skill, {left} not in the skill" in output.out
    assert record.hunks and all(edit.edit.content in record.found_skill for edit in kept)
    composed, fresh = record.point("composed"), record.point("ship_best")
    assert composed is not None and fresh is not None
    *_, last_step, last = [one for one in record.points if one.split == "selection"]
    assert composed == last and composed.estimated and composed.score > last_step.score
    assert "final skill: selection score about" in output.err
    assert f"score on fresh rollouts: initial skill {record.point('ship_initial').score:.3f}" in (  # type: ignore[union-attr]
        output.out
    )
    decisions = {gate.decision for gate in record.gates if not gate.promoted}
    assert decisions == {"no change"}, "an edit that stays pending is not rejected"
    again = shell("demo", "--dir", "here", "--json")
    assert (
        again.code == 0
        and again.json["selection"]["best"] > again.json["selection"]["baseline"] + 0.3
    )


def test_the_demo_refuses_a_folder_with_other_files(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    output = shell("demo", "--dir", "mine")
    assert output.code == 2 and "holds other files" in output.err


@pytest.mark.parametrize("made", [False, True])
def test_a_demo_that_cannot_start_leaves_no_files(
    made: bool, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    folder = tmp_path / "demo"
    if made:
        folder.mkdir()
    refused = shell("demo", "--model", "openai/gpt-5-mini", "--dir", folder)
    assert refused.code == 6 and "OPENAI_API_KEY is not set" in refused.err
    assert f"the copy in {folder} was removed" in refused.err
    assert folder.exists() == made and not (made and any(folder.iterdir()))


def test_the_demo_writes_the_given_model_into_its_project_and_announces_a_duration(
    shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text("def answer(request):\n    return 'SELECT 1'\n")
    made = shell("demo", "--model", "scripted/model.py:answer", "--dir", "demo", "--plain")
    assert "This takes about " in made.err, made
    config = yaml.safe_load(Path("demo/skillfit.yaml").read_text())
    assert config["model"]["agent"]["id"] == f"scripted/{tmp_path}/model.py:answer"
    again = shell("train", "demo/skillfit.yaml", "env.limit=2", "--run", "again", "--force")
    assert again.code in (0, 3, 4), again
    other = shell("demo", "--model", "ollama/nobody", "--dir", "demo")
    assert other.code == 2 and "holds a project with other settings" in other.err


def test_the_demo_refuses_an_optimizer_without_a_model(shell: Shell, tmp_path: Path) -> None:
    output = shell("demo", "--optimizer", "local/model.gguf")
    assert output.code == 2 and "--optimizer needs --model" in output.err
    assert not (tmp_path / "skillfit-demo").exists()


@pytest.mark.parametrize("option", ["--model", "--optimizer"])
def test_the_demo_refuses_an_unknown_model_before_it_copies_anything(
    option: str, shell: Shell, tmp_path: Path
) -> None:
    output = shell("demo", "--model", "local/model.gguf", option, "foo")
    assert output.code == 2 and "Unknown provider 'foo'" in output.err
    assert not (tmp_path / "skillfit-demo").exists()


@pytest.mark.parametrize("name", ["triage", "sql"])
def test_shipped_projects_pass_lint_and_have_distinct_items(name: str, tmp_path: Path) -> None:
    config = load_config(project(tmp_path / name, name))
    assert [problem for problem in lint(config.env.skill) if problem.severity == "error"] == []
    task = read_inputs(config).task
    assert not task.fit_only and len(task.selection) >= 19
    assert len({item.input for item in task.items}) == len(task.items)


def graded(answer: str, gold: str) -> tuple[float, str]:
    with as_file(files("skillfit.cli") / "demo_data" / "sql" / "grader.py") as grader:
        result: tuple[float, str] = load_object(f"{grader}:grade")({"answers": gold}, answer)
    return result


def test_every_gold_query_scores_1_and_queries_without_the_house_rules_do_not(
    tmp_path: Path,
) -> None:
    rows = [
        json.loads(line)
        for line in (project(tmp_path, "sql").parent / "tasks.jsonl").read_text().splitlines()
    ]
    assert all(graded(row["answer"], row["answer"]) == (1.0, "") for row in rows)
    for rule in (
        " AND deleted_at IS NULL",
        " AND status <> 'cancelled'",
        " / 100.0",
        " ORDER BY name",
    ):
        scores = [
            graded(row["answer"].replace(rule, ""), row["answer"])[0]
            for row in rows
            if rule in row["answer"]
        ]
        assert scores.count(0.0) >= 0.5 * len(scores) > 3, rule


GOLD = "SELECT name FROM customers WHERE city = 'Lyon' AND deleted_at IS NULL ORDER BY name"


def test_queries_are_found_in_fences_and_compared_by_rows() -> None:
    assert graded(f"Here you are:\n```sql\n{GOLD};\n```", GOLD)[0] == 1.0
    assert "order is not" in graded(GOLD + " DESC", GOLD)[1]
    assert "Wrong rows" in graded("SELECT 1", GOLD)[1]
    assert "no such column" in graded("SELECT surname FROM customers", GOLD)[1]


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE customers",
        "ATTACH 'x.db' AS x",
        "SELECT 1; SELECT 2",
        "PRAGMA user_version",
        "",
        "I cannot do that",
    ],
)
def test_anything_but_one_read_only_query_scores_0(
    query: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert graded(query, GOLD)[0] == 0.0 and not list(tmp_path.iterdir())


def test_an_endless_query_is_stopped() -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT count(*) FROM n"
    assert "interrupted" in graded(endless, GOLD)[1]


def test_the_initial_skill_does_not_contain_the_house_rules(tmp_path: Path) -> None:
    text = Skill.load(project(tmp_path, "sql").parent / "shop-sql").body
    assert "IS NULL" not in text and "100" not in text
