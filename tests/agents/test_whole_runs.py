"""Whole runs with agents that are black boxes: programs, Python files, logins, signals."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import skillfit
from skillfit.config import load_config
from skillfit.errors import InputError
from skillfit.models import Usage
from skillfit.run.budget import BudgetReached
from skillfit.run.directory import Identity, RunDirectory
from skillfit.tasks.item import Attempt
from skillfit.training.inputs import read_inputs
from tests.agents.stand_in import DESCRIPTION, StandIn
from tests.sandbox.processes import is_gone, is_running, wait_for
from tests.support.signals import default_signals

COMMAND = [sys.executable, "-m", "skillfit"]
AGENT = """
def solve(skill: str, item: dict) -> str:
    return str(2 * int(item["input"])) if "double" in skill else "?"
"""
# Proposes the one rule that the task needs, whatever it is asked for.
OPTIMIZER = """#!{python}
import json, sys
prompt = sys.stdin.read()
edits = [dict(op="append", target="", content="Always double the number.", sources=[0])]
patch = dict(reasoning="the rule is missing", edits=edits)
print(json.dumps(dict(patch=patch, failure_summary=[], edits=edits, selected_indices=[0])))
"""


def project(folder: Path, **sections: Any) -> Path:
    """A project whose task is solved by doubling, with a Python agent; its config."""
    rows = [{"id": f"i{n}", "input": str(n), "answer": str(2 * n)} for n in range(16)]
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "agent.py").write_text(AGENT)
    (folder / "skill.md").write_text("Answer with a number.\n")
    config: dict[str, Any] = {
        "recipe": "lite",
        "env": {"skill": "skill.md", "tasks": "tasks.jsonl", "agent": "agent.py:solve"},
        "optimizer": {"proposer": "examples"},
    }
    for name, section in sections.items():
        config[name] = config.get(name, {}) | section
    (folder / "skillfit.yaml").write_text(yaml.safe_dump(config))
    return folder / "skillfit.yaml"


def run(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    line = [*COMMAND, *map(str, arguments)]
    env = {**os.environ, **environ}
    return subprocess.run(line, capture_output=True, text=True, timeout=240, env=env, check=False)


def rollouts(run: Path) -> int:
    view = RunDirectory.read(run)
    try:
        return sum(entry.key.startswith("rollout/") for entry in view.journal.entries())
    finally:
        view.close()


# Python agents from YAML


@pytest.fixture(autouse=True)
def _in_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without a path are written below the current folder."""
    monkeypatch.chdir(tmp_path)


def test_a_python_agent_named_in_the_config_can_be_checked_and_trained(tmp_path: Path) -> None:
    config = project(
        tmp_path,
        model={"optimizer": {"id": "cli/fixer", "options": {"file": "fixer.yaml"}}},
        optimizer={"proposer": "reflect"},
    )
    describe_optimizer(tmp_path)
    checked = run("check", config)
    trained = run("train", config, "--run", tmp_path / "run", "--json")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    line = json.loads(trained.stdout)
    assert line["finish_reason"] == "improved", trained.stderr
    assert "Always double the number." in (tmp_path / "run" / "best_skill.md").read_text()


def describe_optimizer(folder: Path) -> None:
    program = folder / "fixer"
    program.write_text(OPTIMIZER.replace("{python}", sys.executable))
    program.chmod(0o755)
    description = {
        "name": "fixer",
        "program": "./fixer",
        "argv": [],
        "model_argv": ["answer"],
        "skills": ".skills",
    }
    (folder / "fixer.yaml").write_text(yaml.safe_dump(description))


def test_the_content_of_the_agents_file_is_part_of_the_run_identity(tmp_path: Path) -> None:
    config = project(tmp_path)
    before = read_inputs(load_config(config)).identity()
    assert read_inputs(load_config(config)).identity() == before

    (tmp_path / "agent.py").write_text(AGENT + "\n# changed\n")

    assert read_inputs(load_config(config)).identity() != before


def test_an_agent_object_can_be_named_in_the_config(tmp_path: Path) -> None:
    config = project(tmp_path, env={"agent": "agent.py:Doubling"})
    (tmp_path / "agent.py").write_text(
        """
from skillfit.tasks.item import Attempt

class Doubling:
    recorded, reports = False, frozenset()

    async def attempt(self, skill, item, context):
        return Attempt(str(2 * int(item.input)))

    def describe(self):
        return {"agent": "doubling"}
"""
    )
    skill = skillfit.Skill.from_text("Any skill.\n")
    measured = skillfit.evaluate(skill, config=config, split="all")

    assert measured.score == 1.0


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("telepathy", "chat, tools, cli, or file.py:name"),
        ("agent.py:nothing", "has no 'nothing'"),
        ("missing.py:solve", "does not exist"),
    ],
)
def test_an_invalid_agent_is_an_error_with_the_expected_form(
    tmp_path: Path, agent: str, message: str
) -> None:
    config = project(tmp_path, env={"agent": agent})
    with pytest.raises(InputError, match=message):
        read_inputs(load_config(config))


# Caps for agents whose use cannot be seen

ROWS = [{"id": f"i{n}", "input": str(n), "answer": "?"} for n in range(30)]


def solve_with_text(skill: str, item: dict[str, Any]) -> str:
    return "?"


def solve_with_usage(skill: str, item: dict[str, Any]) -> Attempt:
    usd = 0.01 * (1 + int(item["input"]) % 5)
    return Attempt("?", usage=Usage(calls=2, input=1000, output=100, usd=usd))


def evaluate(folder: Path, agent: Any, **settings: Any) -> Any:
    return skillfit.evaluate(
        skillfit.Skill.from_text("A skill.\n"),
        ROWS,
        agent=agent,
        split="all",
        run=folder / "run",
        **settings,
    )


def spent(folder: Path) -> Usage:
    view = RunDirectory.read(folder / "run")
    try:
        return view.journal.spent()
    finally:
        view.close()


@pytest.mark.parametrize("budget", [{"usd": 5}, {"tokens": 10_000}], ids=["dollars", "tokens"])
def test_a_cap_that_cannot_be_enforced_is_refused_before_anything_runs(
    tmp_path: Path, budget: dict[str, float]
) -> None:
    def never_called(skill: str, item: dict[str, Any]) -> str:
        raise AssertionError("a rollout ran")

    with pytest.raises(InputError, match="your agent"):
        evaluate(tmp_path, never_called, budget=budget)


def test_rollouts_of_an_agent_that_reports_nothing_count_as_calls(tmp_path: Path) -> None:
    with pytest.raises(BudgetReached, match="20 calls"):
        evaluate(tmp_path, solve_with_text, budget={"calls": 20})

    assert rollouts(tmp_path / "run") == 20
    assert spent(tmp_path).calls == 20


def test_the_configured_cost_of_a_rollout_is_counted(tmp_path: Path) -> None:
    with pytest.raises(BudgetReached):
        evaluate(tmp_path, solve_with_text, budget={"usd": 1}, env={"rollout_usd": 0.1})
    assert spent(tmp_path).usd == pytest.approx(1.0, abs=0.2)
    assert (spent(tmp_path).usd or 0) <= 1.0

    (tmp_path / "free").mkdir()
    evaluate(tmp_path / "free", solve_with_text, budget={"tokens": 5}, env={"rollout_usd": 0})
    assert rollouts(tmp_path / "free" / "run") == 30


def test_a_function_that_returns_attempts_is_billed_as_it_reports(tmp_path: Path) -> None:
    evaluate(tmp_path, solve_with_usage, budget={"usd": 5})

    assert spent(tmp_path).usd == pytest.approx(0.9) and spent(tmp_path).calls == 60


@pytest.mark.parametrize("cap", [0.05, 0.2, 0.6])
def test_a_program_with_varying_cost_does_not_exceed_its_cap(tmp_path: Path, cap: float) -> None:
    """Each rollout costs between one and five cents, and many run at the same time."""
    with pytest.raises(BudgetReached):
        evaluate(tmp_path, solve_with_usage, budget={"usd": cap})

    assert (spent(tmp_path).usd or 0) <= cap


# A program as the agent


def program_config(folder: Path, **agent: Any) -> dict[str, Any]:
    """The stand-in program as the agent, with its own PATH entry."""
    machine = StandIn(folder)
    options = {"file": str(machine.description), "program": str(machine.program)}
    return {"id": "cli/fake", "options": options | agent.pop("options", {}), **agent}


def test_the_concurrency_of_the_config_limits_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KEY", "key-of-the-program-itself")
    at_once = tmp_path / "at-once"
    at_once.mkdir()
    agent = program_config(tmp_path, options={"concurrency": 8, "readable": []})
    program = Path(agent["options"]["program"])
    program.write_text(
        f"""#!{sys.executable}
import os, pathlib, sys, time
mark = pathlib.Path("{at_once}") / str(os.getpid())
mark.touch()
time.sleep(0.2)
print(len(list(mark.parent.iterdir())))
mark.unlink()
"""
    )
    description = DESCRIPTION | {"events": [], "error": [], "usage": []}
    Path(agent["options"]["file"]).write_text(yaml.safe_dump(description))
    measured = skillfit.evaluate(
        skillfit.Skill.from_text("A skill.\n"),
        [{"id": f"i{n}", "input": str(n), "answer": "1"} for n in range(6)],
        agent=agent,
        split="all",
        run=tmp_path / "run",
        model={"concurrency": 1},
        env={"sandbox": "off"},
    )

    assert measured.score == 1.0, "two programs ran at the same time"


# Signals

SLOW = """#!{python}
import json, pathlib, subprocess, sys, time
json.load(sys.stdin)
sleeping = [sys.executable, "-c", "import time; time.sleep(600)", "{word}"]
child = subprocess.Popen(sleeping, start_new_session=True)
time.sleep({seconds})
child.kill()
print(json.dumps(dict(score=1)))
"""


def command_project(folder: Path, word: str, seconds: float) -> Path:
    program = folder / "evaluate"
    program.write_text(SLOW.format(python=sys.executable, word=word, seconds=seconds))
    program.chmod(0o755)
    config = project(
        folder,
        env={"tasks": "command: ./evaluate < items.jsonl", "agent": "chat"},
        model={"concurrency": 1},
    )
    (folder / "items.jsonl").write_text((folder / "tasks.jsonl").read_text())
    return config


def test_rollouts_in_flight_are_recorded_when_the_terminal_closes(
    tmp_path: Path,
) -> None:
    word = f"skillfit-hangup-{os.getpid()}"
    command_project(tmp_path, word, seconds=1.0)
    line = [*COMMAND, "eval", "skillfit.yaml", "--split", "all", "--run", "run"]
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        default_signals()
        os.execvp(line[0], line)
    wait_for(word)
    os.close(terminal)  # what closing the window does
    _, status = os.waitpid(process, 0)

    assert os.waitstatus_to_exitcode(status) == 130
    assert not is_running(word)
    assert rollouts(tmp_path / "run") >= 1


async def test_after_sigkill_no_program_keeps_running_and_the_next_start_removes_its_folders(
    tmp_path: Path,
) -> None:
    word = f"skillfit-killed-{os.getpid()}"
    config = command_project(tmp_path, word, seconds=600)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    line = [*COMMAND, "eval", str(config), "--split", "all", "--run", str(tmp_path / "run")]
    running = subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    wait_for(word)
    running.kill()
    running.wait()

    assert await is_gone(word)
    assert list(scratch.glob("skillfit-*"))
    command_project(tmp_path, word, seconds=0)
    again = run(*line[3:-1], tmp_path / "again", TMPDIR=str(scratch))
    assert again.returncode == 0, again.stderr
    assert list(scratch.glob("skillfit-*")) == []


# The identity of a run


def test_the_run_identity_includes_a_programs_description_but_not_its_location(
    tmp_path: Path,
) -> None:
    config = project(
        tmp_path,
        env={"agent": "chat"},
        model={"agent": {"id": "cli/fixer", "options": {"file": "fixer.yaml"}}},
    )
    describe_optimizer(tmp_path)

    def identity(*overrides: str) -> Identity:
        return read_inputs(load_config(config, overrides)).identity()

    before = identity()
    assert identity("model.agent.options.program=/elsewhere/fixer") == before
    described = yaml.safe_load((tmp_path / "fixer.yaml").read_text())
    (tmp_path / "fixer.yaml").write_text(yaml.safe_dump({**described, "argv": ["--fast"]}))
    assert identity() != before


def test_another_corpus_changes_the_run_identity(tmp_path: Path) -> None:
    config = project(tmp_path, env={"agent": "tools"}, model={"agent": "openai/gpt-5-mini"})
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "page.txt").write_text("text")

    def identity(corpus: str) -> Identity:
        overrides = [f"env.corpus={tmp_path / corpus}"]
        return read_inputs(load_config(config, overrides)).identity()

    assert identity("one") == identity("two"), "the same documents at another place"
    (tmp_path / "two" / "more.txt").write_text("more")
    assert identity("one") != identity("two")


# Whether programs load the skill

READER = """#!{python}
import json, pathlib, sys
(skill,) = pathlib.Path(".skills").glob("*/SKILL.md")
shown = skill.read_text() if {reads} else str(skill)
print(json.dumps(dict(type="tool", name="shell", input="look around", output=shown)))
print(json.dumps(dict(type="message", text="4")))
"""


def reader_project(folder: Path, reads: str) -> Path:
    """A project whose agent is a program that loads its skill when `reads` is true."""
    program = folder / "reader"
    program.write_text(READER.format(python=sys.executable, reads=reads))
    program.chmod(0o755)
    description = {
        "name": "reader",
        "program": "./reader",
        "argv": [],
        "skills": ".skills",
        "events": DESCRIPTION["events"],
    }
    (folder / "reader.yaml").write_text(yaml.safe_dump(description))
    agent = {"id": "cli/reader", "options": {"file": "reader.yaml"}}
    return project(folder, env={"agent": "cli"}, model={"agent": agent})


def test_a_skill_that_is_never_loaded_is_reported_everywhere(tmp_path: Path) -> None:
    config = reader_project(tmp_path, "False")
    checked = run("check", config, "--run", "run", "--json")
    (found,) = [one for one in json.loads(checked.stdout)["checks"] if one["name"] == "skill use"]
    assert found["verdict"] == "warn", checked.stderr
    assert "loaded the skill in none of" in found["message"]

    run("train", config, "--run", "run")
    shown = run("show", "run", "--json")
    assert json.loads(shown.stdout)["skill_loaded"] == 0 < json.loads(shown.stdout)["skill_missed"]
    assert "The agent loaded the skill in 0 of" in run("show", "run").stdout
    run("export", "run", "--out", "out")
    results = [json.loads(path.read_text()) for path in Path("out").rglob("result.json")]
    with_skill = [one for one in results if one["skill_read"] is not None]
    assert with_skill and not any(one["skill_read"] for one in with_skill)
    run("report", "run", "--out", "report.html")
    assert "did not load the skill in" in Path("report.html").read_text()


def test_a_skill_that_is_loaded_in_every_rollout_needs_no_warning(tmp_path: Path) -> None:
    checked = run("check", reader_project(tmp_path, "True"), "--run", "run", "--json")
    (found,) = [one for one in json.loads(checked.stdout)["checks"] if one["name"] == "skill use"]
    assert found["verdict"] == "go", checked.stderr


COUNTS_SKILLS = """#!{python}
import json, pathlib, sys
skills = list(pathlib.Path(".").glob(".skills/*/SKILL.md"))
told = "Use the skill" in sys.stdin.read()
said = f"{{len(skills)}} skills, told: {{told}}"
print(json.dumps(dict(type="message", text=said)))
"""


def test_without_a_skill_a_program_gets_none_and_is_told_of_none(tmp_path: Path) -> None:
    config = reader_project(tmp_path, "True")
    (tmp_path / "reader").write_text(COUNTS_SKILLS.format(python=sys.executable))
    measured = run("eval", config, "--no-skill", "--run", "lift", "--json")
    bare, with_skill = json.loads(measured.stdout)
    assert {one["answer"] for one in bare["failed"]} == {"0 skills, told: False"}
    assert {one["answer"] for one in with_skill["failed"]} == {"1 skills, told: True"}
