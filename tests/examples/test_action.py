"""The GitHub action and the pre-commit hooks, by running their steps on the CI example."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action" / "action.yml").read_text("utf-8"))
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
RECORDED = {
    "skill": "./triage-requests",
    "record": "record.json",
    "tasks": "../triage/tasks.jsonl",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the CI example and of the example that has its tasks."""
    for name in ("ci", "triage"):
        shutil.copytree(
            ROOT / "examples" / name,
            tmp_path / "examples" / name,
            ignore=shutil.ignore_patterns("runs", "__pycache__"),
        )
    return tmp_path / "examples" / "ci"


def environment(tmp_path: Path) -> dict[str, str]:
    """A machine with skillfit installed: the command runs the sources beside these tests."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    command = programs / "skillfit"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m skillfit.cli.app "$@"\n')
    command.chmod(0o755)
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT / "src"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_ACTION_PATH": str(ROOT / "action"),
    }


def filled(text: str, inputs: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)


def run_action(folder: Path, tmp_path: Path, **given: str) -> subprocess.CompletedProcess[str]:
    """Run the shell steps after the installation as GitHub does; stop at the first that fails."""
    defaults = {name: about.get("default", "") for name, about in ACTION["inputs"].items()}
    inputs = {**defaults, **given}
    done = subprocess.CompletedProcess[str]([], 0, "", "")
    for step in ACTION["runs"]["steps"]:
        if step.get("name") in (None, "Install skillfit"):
            continue
        if step.get("if") == "inputs.record != ''" and not inputs["record"]:
            continue
        env = {name: filled(value, inputs) for name, value in step["env"].items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder / filled(step["working-directory"], inputs),
            env={**environment(tmp_path), **env},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if done.returncode != 0:
            break
    return done


def test_the_action_passes_a_skill_with_the_recorded_score(folder: Path, tmp_path: Path) -> None:
    done = run_action(folder, tmp_path, **RECORDED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "summary.md").read_text(encoding="utf-8") == done.stdout != ""


def test_the_action_fails_for_a_skill_that_got_worse(folder: Path, tmp_path: Path) -> None:
    done = run_action(
        folder, tmp_path, **{**RECORDED, "skill": "../triage/triage-requests"}, repeats="1"
    )
    assert done.returncode == 8, done.stdout + done.stderr


def test_the_action_stops_at_a_malformed_skill(folder: Path, tmp_path: Path) -> None:
    broken = folder / "a broken skill"
    broken.mkdir()
    (broken / "SKILL.md").write_text("---\nname: [\n---\nText.\n")
    skills = "./triage-requests\n\n./a broken skill\n"
    done = run_action(folder, tmp_path, **{**RECORDED, "skill": skills})
    assert done.returncode == 2, done.stdout + done.stderr
    assert "a broken skill/SKILL.md:" in done.stdout
    assert not (tmp_path / "summary.md").exists()


def test_the_action_treats_its_inputs_as_text(folder: Path, tmp_path: Path) -> None:
    done = run_action(folder, tmp_path, skill="./triage-requests; touch injected $(touch injected)")
    assert done.returncode != 0
    assert not (folder / "injected").exists()
    scripts = [step["run"] for step in ACTION["runs"]["steps"] if "run" in step]
    assert [script for script in scripts if "${{" in script] == []


def test_the_action_installs_its_own_version_by_default() -> None:
    (install,) = [s for s in ACTION["runs"]["steps"] if s.get("name") == "Install skillfit"]
    assert '"${PACKAGE:-$GITHUB_ACTION_PATH/..}"' in install["run"]
    assert (ROOT / "action" / ".." / "pyproject.toml").is_file()


def run_hook(
    name: str, arguments: list[str], folder: Path, tmp_path: Path
) -> subprocess.CompletedProcess[str]:
    """A hook as pre-commit runs it: its entry, the configured arguments, and changed files."""
    (hook,) = [hook for hook in HOOKS if hook["id"] == name]
    changed = ["triage-requests/SKILL.md", "README.md"]
    files = [file for file in changed if re.search(hook["files"], file)]
    passed = files if hook.get("pass_filenames", True) else []
    return subprocess.run(
        [*shlex.split(hook["entry"]), *arguments, *passed],
        cwd=folder,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_lint_hook_checks_changed_skills(folder: Path, tmp_path: Path) -> None:
    assert run_hook("skillfit-lint", [], folder, tmp_path).returncode == 0
    (folder / "triage-requests" / "SKILL.md").write_text("---\nname: [\n---\nText.\n")
    done = run_hook("skillfit-lint", [], folder, tmp_path)
    assert done.returncode == 2
    assert "triage-requests/SKILL.md:" in done.stdout


def test_the_verify_hook_measures_the_skill(folder: Path, tmp_path: Path) -> None:
    arguments = ["record.json", "--skill", "./triage-requests"]
    done = run_hook("skillfit-verify", arguments, folder, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pre_commit_runs_the_hooks_in_a_repository(folder: Path, tmp_path: Path) -> None:
    """pre-commit itself chooses hooks, stages, files and arguments. The hooks use the skillfit on
    the PATH, because an installation needs the network.
    """
    pytest.importorskip("pre_commit")
    verify = {"id": "skillfit-verify", "args": ["record.json", "--skill", "./triage-requests"]}
    configured = {"skillfit-verify": verify}
    hooks = [{**hook, "language": "system", **configured.get(hook["id"], {})} for hook in HOOKS]
    settings = {"repos": [{"repo": "local", "hooks": hooks}]}
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump(settings))
    env = {**environment(tmp_path), "PRE_COMMIT_HOME": str(tmp_path / "pre-commit")}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
        )

    pre_commit = (sys.executable, "-m", "pre_commit", "run", "--all-files")
    assert run("git", "init", "-q").returncode == 0
    assert run("git", "add", "-A").returncode == 0
    linted = run(*pre_commit)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert "skillfit lint" in linted.stdout and "skillfit verify" not in linted.stdout
    verified = run(*pre_commit, "--hook-stage", "pre-push", "skillfit-verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "Passed" in verified.stdout

    (folder / "triage-requests" / "SKILL.md").write_text("---\nname: [\n---\nText.\n")
    broken = run(*pre_commit)
    assert broken.returncode == 1
    assert "triage-requests/SKILL.md:" in broken.stdout
