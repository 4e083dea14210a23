"""The workflow that `skillfit ci init` writes, by running its shell steps in a repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.examples.test_action import ROOT, environment

COMMENT = '#!/bin/sh\necho "$@" > "$HOME/asked"; cat "$RUNNER_TEMP/comment.md" > "$HOME/comment"\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the CI example, a key to it, and a `gh` that keeps the comment."""
    ignored = shutil.ignore_patterns("runs", "__pycache__", "skill.yml")
    for name in ("ci", "triage"):
        folder = ROOT / "examples" / name
        shutil.copytree(folder, tmp_path / "repo" / "examples" / name, ignore=ignored)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "repo", check=True)
    environment(tmp_path)
    (tmp_path / "bin" / "gh").write_text(COMMENT)
    (tmp_path / "bin" / "gh").chmod(0o755)
    (tmp_path / "temp").mkdir()
    return tmp_path / "repo"


def skillfit(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = environment(folder.parent)
    command = ["skillfit", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def run_steps(repository: Path) -> dict[str, int]:
    """The exit codes of the shell steps of a pull request from the repository itself. Installing is
    left out; after a failure only the steps that always run are run.
    """
    workflow: dict[str, Any] = yaml.safe_load(
        (repository / ".github" / "workflows" / "skill.yml").read_text("utf-8")
    )
    home = repository.parent
    given = {"RUNNER_TEMP": str(home / "temp"), "GH_TOKEN": "t", "NUMBER": "7", **workflow["env"]}
    codes: dict[str, int] = {}
    for step in workflow["jobs"]["skill"]["steps"]:
        if "run" not in step or step["name"] == "Install skillfit":
            continue
        if any(codes.values()) and "always()" not in step.get("if", ""):
            continue
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=repository,
            env={**environment(home), **given},
            timeout=240,
        )
        codes[step["name"]] = done.returncode
    return codes


def test_a_good_skill_passes_and_the_comment_has_all_three_results(repository: Path) -> None:
    done = skillfit("ci", "init", "examples/ci/skillfit.yaml", folder=repository)
    assert done.returncode == 0 and "Commit it." in done.stdout, done.stderr
    assert list(run_steps(repository).values()) == [0] * 5
    comment = (repository.parent / "comment").read_text()
    assert "No problems." in comment
    assert "triage-requests with practice/agent: helps." in comment
    assert "ok: recorded" in comment
    assert "pr comment 7 --edit-last" in (repository.parent / "asked").read_text()
    assert (repository.parent / "summary.md").read_text() == comment


@pytest.mark.parametrize(
    ("spoil", "failed"),
    [
        (lambda text: text.replace("name:", "name: ["), "The skill is well-formed"),
        (lambda text: text[: text.index("\n- ")], "It still scores as well as recorded"),
    ],
)
def test_a_spoilt_skill_fails_at_its_step_and_is_commented(
    repository: Path, spoil: Any, failed: str
) -> None:
    skillfit("ci", "init", "examples/ci/skillfit.yaml", folder=repository)
    skill = repository / "examples" / "ci" / "triage-requests" / "SKILL.md"
    skill.write_text(spoil(skill.read_text()))
    codes = run_steps(repository)
    assert [name for name, code in codes.items() if code] == [failed]
    assert (repository.parent / "comment").read_text().count("```text") >= 1


def test_a_skill_that_hurts_fails(repository: Path) -> None:
    """An agent that is right without the skill and wrong with it."""
    (repository / "agent.py").write_text(
        "def answer(request):\n    return 'no' if 'Triage' in str(request.messages) else 'yes'\n"
    )
    rows = (f'{{"input": "Is {n} even?", "answer": "yes"}}\n' for n in range(0, 40, 2))
    (repository / "tasks.jsonl").write_text("".join(rows))
    (repository / "skillfit.yaml").write_text(
        "model: {agent: 'scripted/agent.py:answer'}\n"
        "env: {skill: examples/ci/triage-requests, tasks: tasks.jsonl, grader: exact}\n"
    )
    record = ("--record", "record.json")
    skillfit("ci", "init", "skillfit.yaml", *record, folder=repository)
    codes = run_steps(repository)
    assert [name for name, code in codes.items() if code] == ["The skill does not hurt"]
    assert "hurts" in (repository.parent / "comment").read_text()


def test_the_workflow_of_the_example_is_what_the_command_writes(repository: Path) -> None:
    package = ("--package", "skillfit")
    skillfit("ci", "init", "examples/ci/skillfit.yaml", *package, folder=repository)
    written = (repository / ".github" / "workflows" / "skill.yml").read_text()
    assert written == (ROOT / "examples" / "ci" / "skill.yml").read_text()


def test_it_names_the_secrets_of_the_models_and_overwrites_nothing(repository: Path) -> None:
    config = repository / "skillfit.yaml"
    config.write_text(
        "model: {agent: openai/gpt-5-mini, judge: anthropic/claude-sonnet}\n"
        "env: {tasks: examples/triage/tasks.jsonl,\n"
        "      skill: examples/ci/triage-requests#description}\n"
    )
    done = skillfit("ci", "init", "skillfit.yaml", folder=repository)
    assert "secrets OPENAI_API_KEY, ANTHROPIC_API_KEY" in done.stdout, done.stderr
    path = repository / ".github" / "workflows" / "skill.yml"
    workflow = yaml.safe_load(path.read_text())
    assert workflow["env"]["SKILL"] == "examples/ci/triage-requests"
    steps = workflow["jobs"]["skill"]["steps"]
    measured = [step["env"] for step in steps if "OPENAI_API_KEY" in step.get("env", {})]
    assert len(measured) == 2
    assert measured[0]["ANTHROPIC_API_KEY"] == "${{ secrets.ANTHROPIC_API_KEY }}"
    again = skillfit("ci", "init", "skillfit.yaml", folder=repository)
    assert again.returncode == 2 and "exists already" in again.stderr
    (repository / "skillfit.yaml").write_text("{model: {agent: practice/agent}, env: {skill: /x}}")
    outside = skillfit("ci", "init", "skillfit.yaml", "--out", "other.yml", folder=repository)
    assert outside.returncode == 2 and "outside of the repository" in outside.stderr
