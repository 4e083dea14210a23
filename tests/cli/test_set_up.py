"""`skillfit skill install`, and the skill that it installs: its commands work as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from skillfit import __version__
from tests.cli.cli_project import Shell

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "src" / "skillfit" / "plugins" / "agentskills" / "plugin"
SKILL = PLUGIN / "skills" / "improve-skill" / "SKILL.md"


def test_the_skill_is_put_where_each_program_reads_it(shell: Shell) -> None:
    told = shell("skill", "install", "--program", "claude", "--program", "codex", "--json").json
    folders = [".agents/skills/improve-skill", ".claude/skills/improve-skill"]
    assert told == {"installed": folders}
    for folder in folders:
        assert Path(folder, "SKILL.md").read_bytes() == SKILL.read_bytes()
        assert shell("lint", folder).out == "No problems.\n"


def test_an_older_version_is_replaced_and_user_means_the_home_folder(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    there = tmp_path / "home" / ".claude" / "skills" / "improve-skill" / "SKILL.md"
    there.parent.mkdir(parents=True)
    there.write_text("old")
    assert shell("skill", "install", "--program", "claude", "--user").code == 0
    assert there.read_bytes() == SKILL.read_bytes()


def test_without_a_known_program_nothing_is_written(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "--program claude" in shell("skill", "install").err
    assert "--program emacs: unknown." in shell("skill", "install", "--program", "emacs").err
    assert list(tmp_path.iterdir()) == []


def test_the_commands_of_the_skill_work_in_their_order(shell: Shell, config: Path) -> None:
    """With the practice models, in the folder of a user's project."""
    given = {
        "--agent MODEL": "--agent practice/agent",
        "MODEL": "practice/optimizer",
        "FOLDER": str(config.parent / "triage-tickets"),
        "FILE": str(config.parent / "tasks.jsonl"),
        "tasks.jsonl --yes": "drafted.jsonl --yes",
    }
    commands = [
        " ".join(one.split()) for one in re.findall(r"`(skillfit [^`]+)`", SKILL.read_text())
    ]
    assert len(commands) >= 14
    for command in commands:
        for placeholder, value in given.items():
            command = command.replace(placeholder, value)
        done = shell(*command.split()[1:])
        allowed = (0, 1) if "doctor" in command else (0,)
        assert done.code in allowed, f"{command}\n{done.out}{done.err}"
    assert Path("runs/improve/report.html").is_file()
    assert Path(".github/workflows/skill.yml").is_file()


def test_the_plugin_has_the_version_of_the_package_and_the_marketplace_names_it() -> None:
    described = json.loads((PLUGIN / ".claude-plugin" / "plugin.json").read_text())
    assert described["version"] == __version__
    market = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text())
    assert [ROOT / one["source"] for one in market["plugins"]] == [PLUGIN]
