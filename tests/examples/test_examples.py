"""Every example works as its README describes, in a copy of its folder, with no network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from skillfit import Run
from skillfit.run.directory import RunDirectory
from skillfit.run.events import Discarded, Event, RolloutFinished

E = TypeVar("E", bound=Event)
EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = ("train.num_epochs=1", "evaluation.preflight=false")


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    shutil.copytree(
        EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("runs", "__pycache__")
    )
    return tmp_path / "examples"


def skillfit(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command as a person runs it: without any key, and with the example's folder on the PATH,
    where it has a program.
    """
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    sources = str(EXAMPLES.parent / "src")  # the sources beside these tests, installed or not
    env = {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", "PYTHONPATH": sources}
    command = [sys.executable, "-m", "skillfit.cli.app", *arguments]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
    )


def events(run: Path, kind: type[E]) -> list[E]:
    with closing(RunDirectory.read(run)) as view:
        found = [stored.event for stored in view.events.of_kind(kind)]
    return [event for event in found if isinstance(event, kind)]


def trained(config: str, overrides: Sequence[str], folder: Path) -> tuple[dict[str, Any], str]:
    done = skillfit("train", config, *overrides, "--run", "runs/test", "--json", folder=folder)
    assert done.returncode in (0, 3, 4), done.stderr
    best = (folder / "runs" / "test" / "best_skill.md").read_text(encoding="utf-8")
    return json.loads(done.stdout.splitlines()[-1]), best


def test_triage_improves_the_skill_and_keeps_its_protected_rule(examples: Path) -> None:
    line, best = trained("skillfit.yaml", [], examples / "triage")
    assert line["finish_reason"] == "improved"
    assert line["selection"]["best"] > line["selection"]["baseline"]
    fence = (
        "<!-- PROTECTED_START -->\n"
        "Stolen equipment is always for hardware, whatever else the request says.\n"
        "<!-- PROTECTED_END -->"
    )
    assert fence in best
    applied = skillfit("apply", "runs/test", "--yes", folder=examples / "triage")
    assert applied.returncode == 0, applied.stderr
    assert (examples / "triage" / "triage-requests" / "SKILL.md").read_text(
        encoding="utf-8"
    ) == best


def test_the_evals_folder_is_graded_by_its_assertions(examples: Path) -> None:
    line, best = trained("offline.yaml", QUICK, examples / "evals-folder")
    assert line["finish_reason"] == "improved"
    assert line["selection"] == {"baseline": 0.0, "best": 1.0}
    assert "Name the command in backticks" in best


def test_the_evals_folder_reports_a_missing_key_before_it_spends(examples: Path) -> None:
    done = skillfit(
        "train", "skillfit.yaml", "--run", "runs/test", folder=examples / "evals-folder"
    )
    assert done.returncode == 6
    assert "OPENAI_API_KEY" in done.stderr


def test_the_python_evaluator_computes_its_own_scores(examples: Path) -> None:
    line, best = trained("skillfit.yaml", [], examples / "python-evaluator")
    assert line["selection"]["best"] > line["selection"]["baseline"]
    assert best.count("Mentions of") > 3


def test_the_cli_agent_finds_its_skill_and_its_code_is_run(examples: Path) -> None:
    folder = examples / "cli-agent"
    line, best = trained(
        "offline.yaml", [*QUICK, "env.limit=4", "evaluation.ship_test=false"], folder
    )
    assert line["finish_reason"] == "improved"
    assert "Raise ValueError when the input is empty." in best


def test_the_cli_agents_real_config_names_the_missing_program(examples: Path) -> None:
    done = skillfit(
        "train",
        "skillfit.yaml",
        "model.agent.options.program=no-such-agent",
        "--run",
        "runs/x",
        folder=examples / "cli-agent",
    )
    assert done.returncode == 2
    assert "no-such-agent is not installed" in done.stderr


def test_a_description_is_measured_trained_applied_and_restored(examples: Path) -> None:
    folder = examples / "trigger"
    command = ["trigger", "pdf-forms", "--queries", "queries.json", "--beside", "beside"]
    command += ["--model", "{id: cli/stand-in, options: {file: stand-in.yaml}}", "--json"]
    skill = folder / "pdf-forms" / "SKILL.md"
    before = skill.read_text(encoding="utf-8")

    def recall() -> float:
        done = skillfit(*command, "--repeats", "1", folder=folder)
        assert done.returncode == 0, done.stderr
        (result,) = json.loads(done.stdout)
        assert len(result["queries"]) == result["scored"] == 36
        return float(result["recall"]["mean"])

    weak = recall()
    optimizer = ["--optimizer", "scripted/offline.py:optimizer"]
    done = skillfit(*command, "--train", *optimizer, "--run", "runs/d", folder=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["finish_reason"] == "improved"

    applied = skillfit("apply", "runs/d", "--yes", folder=folder)
    assert applied.returncode == 0, applied.stderr
    head, _, body = skill.read_text(encoding="utf-8").partition("# PDF forms")
    assert "Fills in forms" in head and before.endswith(body) and "- Fills" not in head
    assert recall() > weak + 0.5
    again = skillfit("apply", "runs/d", "--yes", folder=folder)
    assert "already" in again.stdout

    skill.write_text(skill.read_text(encoding="utf-8").replace("Fills in", "Fills out"))
    assert "has changed since" in skillfit("apply", "runs/d", "--yes", folder=folder).stderr
    undone = skillfit("apply", "runs/d", "--undo", "--force", folder=folder)
    assert undone.returncode == 0, undone.stderr
    assert skill.read_text(encoding="utf-8") == before


def test_drafted_queries_are_a_file_to_review_and_to_measure_with(examples: Path) -> None:
    folder = examples / "trigger"
    draft = ["trigger", "draft", "pdf-forms", "--beside", "beside", "--out", "more.json", "--model"]
    done = skillfit(*draft, "scripted/offline.py:optimizer", folder=folder)
    assert "2 should trigger pdf-forms, 2 should not" in done.stdout, done.stderr
    rows = json.loads((folder / "more.json").read_text(encoding="utf-8"))
    assert [row["should_trigger"] for row in rows] == [True, True, False, False]
    assert "never overwrites" in skillfit(*draft, "handoff", folder=folder).stderr

    agent = ["--model", "{id: cli/stand-in, options: {file: stand-in.yaml}}", "--json"]
    measured = skillfit("trigger", "pdf-forms", "--queries", "more.json", *agent, folder=folder)
    assert json.loads(measured.stdout)[0]["scored"] == 12, measured.stderr

    (folder / "more.json").unlink()
    shutil.rmtree(folder / "more.json.draft")
    waiting = skillfit(*draft, "handoff", folder=folder)
    (prompt,) = (folder / "more.json.draft" / "handoff").glob("*.prompt.md")
    assert "letters, reports" in prompt.read_text(encoding="utf-8"), waiting.stderr
    answer = {"queries": [{"query": "Fill it in", "should_trigger": True}] * 2}
    file = prompt.with_name(prompt.name.replace(".prompt.md", ".answer.json"))
    file.write_text(json.dumps(answer))
    assert (
        "1 should trigger pdf-forms, 0 should not"
        in skillfit(*draft, "handoff", folder=folder).stdout
    )


def test_all_files_of_a_skill_are_trained_applied_and_restored(examples: Path) -> None:
    folder = examples / "whole-skill"

    def files() -> dict[str, bytes]:
        found = sorted(path for path in (folder / "parcels").rglob("*") if path.is_file())
        return {
            path.relative_to(folder / "parcels").as_posix(): path.read_bytes() for path in found
        }

    before = files()
    quick = ("--rollouts", "120", "evaluation.ship_test=false", "evaluation.preflight=false")
    found, best = trained("offline.yaml", quick, folder)
    run = folder / "runs" / "test"
    assert found["unproven"] is False or found["finish_reason"]
    changed = Run(run).record.found_files
    assert "- Peru: C" in changed["references/zones.md"] and "scripts/price.py" in changed
    assert "scripts/weights.py" not in changed
    skillfit("report", "runs/test", folder=folder)
    report = (run / "report.html").read_text(encoding="utf-8")
    assert "<h3><code>references/zones.md</code></h3>" in report
    assert "move to references/customs.md" in report
    refused = [event for event in events(run, Discarded) if event.stage == "parts"]
    assert "scripts/weights.py does not compile" in refused[0].reason
    shown = skillfit("diff", "runs/test", folder=folder).stdout
    assert "+++ b/scripts/price.py" in shown and "+- Peru: C" in shown
    assert skillfit("apply", "runs/test", "--yes", "--force", folder=folder).returncode == 0
    after = files()
    assert after["references/zones.md"].decode() == changed["references/zones.md"]
    assert after["SKILL.md"].decode() == best
    again = skillfit("resume", "runs/test", folder=folder)
    assert again.returncode in (0, 3, 4), again.stderr
    kept = skillfit("verify", "runs/test", "--save", "record.json", folder=folder)
    assert kept.returncode == 0 and "price.py" in (folder / "record.json").read_text()
    (folder / "parcels/references/zones.md").write_text("edited by hand")
    refusal = skillfit("apply", "runs/test", "--undo", folder=folder)
    assert "zones.md has changed since it was applied" in refusal.stderr
    undone = skillfit("apply", "runs/test", "--undo", "--force", "--json", folder=folder)
    [copy] = json.loads(undone.stdout)["copies"]
    assert (folder / copy).read_text() == "edited by hand"
    assert files() == before and not (folder / "parcels/scripts").exists()


def test_a_skillopt_config_trains_unchanged_into_its_own_directory(examples: Path) -> None:
    folder = examples / "from-skillopt"
    overrides = [
        "model.agent=practice/agent",
        "model.optimizer.id=practice/optimizer",
        "train.num_epochs=1",
    ]
    done = skillfit("train", "config.yaml", *overrides, "--json", folder=folder)
    assert done.returncode in (0, 3), done.stderr
    assert "has no meaning here" not in done.stderr
    run = folder / "outputs" / "triage"
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert config["recipe"] == "paper"
    assert config["evaluation"]["gate"] == "strict"
    assert config["model"]["concurrency"] == 8


@pytest.mark.parametrize("config", sorted((EXAMPLES / "real").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_recipe_of_the_whole_table_is_estimated_on_the_sample(
    config: Path, examples: Path
) -> None:
    """Its settings are valid and its task is built, without a key, data or network."""
    sample = f"env.tasks={config.stem}:sample"
    done = skillfit("estimate", config.name, sample, "--json", folder=examples / "real")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rollouts"][1] > 0
    table = (EXAMPLES / "real" / "table.sh").read_text(encoding="utf-8")
    assert re.search(rf"^for name in .*\b{config.stem}\b", table, re.MULTILINE)


def test_the_command_of_the_whole_table_writes_result_files(examples: Path) -> None:
    """With one benchmark, its sample and practice models, and few rollouts."""
    folder = examples / "real"
    table = (folder / "table.sh").read_text(encoding="utf-8")
    table = re.sub("(?<=for name in ).*(?=;)", "searchqa", table)
    (folder / "table.sh").write_text(table.replace("--rollouts 600 --seeds 2", "--way one-shot"))
    (folder / "skillfit").write_text(f'#!/bin/sh\nexec {sys.executable} -m skillfit.cli.app "$@"\n')
    (folder / "skillfit").chmod(0o755)
    models = ["model.agent=practice/agent", "model.optimizer=practice/optimizer"]
    done = subprocess.run(
        ["sh", "table.sh", "env.tasks=searchqa:sample", *models, "budget.usd=null"],
        cwd=folder,
        env={
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "PYTHONPATH": str(EXAMPLES.parent / "src"),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "results" / "searchqa.json").read_text(encoding="utf-8"))
    assert [row["way"] for row in found["rows"]] == ["one-shot"]


def test_every_example_has_a_readme_with_commands_and_is_listed() -> None:
    folders = sorted(
        path.name
        for path in EXAMPLES.iterdir()
        if path.is_dir() and not path.name.startswith((".", "_", "runs"))
    )
    listed = re.findall(
        r"^\| \[([\w-]+)\]", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == folders
    assert [
        name
        for name in folders
        if "```sh\n" not in (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    ] == []


def test_a_custom_gate_proposer_and_sampler_train_a_skill(examples: Path) -> None:
    folder = examples / "custom-parts"
    line, best = trained("skillfit.yaml", [], folder)
    assert line["finish_reason"] == "improved"
    assert "- Mentions of badge mean access." in best
    run = Run.open(folder / "runs" / "test")
    reasons = [verdict.reason for verdict in run.verdicts]
    assert any("less than five points above the incumbent" in reason for reason in reasons)
    assert any(verdict.decision == "accept" for verdict in run.verdicts)
    tasks = (folder / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    team_of = {row["id"]: row["type"] for row in map(json.loads, tasks)}
    teams: dict[int, set[str]] = {}
    for rollout in events(folder / "runs" / "test", RolloutFinished):
        if rollout.phase == "rollout":
            teams.setdefault(rollout.step, set()).add(team_of[rollout.item])
    assert len(teams) == 16 and all(len(found) == 1 for found in teams.values())


def test_the_same_parts_from_python_give_the_same_run(examples: Path) -> None:
    folder = examples / "custom-parts"
    _, best = trained("skillfit.yaml", [], folder)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    sources = str(EXAMPLES.parent / "src")
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Run.open(folder / "runs" / "first").best_skill.text == best
