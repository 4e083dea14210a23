"""Programs of right answers work here before anything is spent, or an error says why not."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skillfit.agents.tools import ToolsAgent
from skillfit.cli.app import app
from skillfit.errors import InfrastructureError, InputError, TaskFailure
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.plugins.benchmarks.spreadsheetbench import WorkbookGrader
from skillfit.plugins.benchmarks.swebench import PatchGrader
from skillfit.sandbox import file_view
from skillfit.sandbox.known_good import KnownGood, imported_modules, prove
from skillfit.sandbox.programs import (
    ISOLATIONS,
    NO_ISOLATION,
    Isolation,
    SandboxNotStarted,
    run_untrusted,
    works,
)
from skillfit.tasks.graders import build_grader, known_good_programs
from skillfit.tasks.item import Attempt, Item

AVAILABLE = [isolation for isolation in ISOLATIONS if works(isolation)]
each = pytest.mark.parametrize("isolation", AVAILABLE, ids=lambda isolation: isolation.name)
LANDLOCK = [isolation for isolation in AVAILABLE if "landlock" in isolation.name]
READ_SETTING = "open('/etc/passwd').read()"
MISSING = "a_package_that_nobody_has"


def code_grader(tests: str) -> KnownGood:
    item = Item("i", {"input": "q", "tests": tests})
    return known_good_programs(build_grader("code"), [item])[0]


@each
async def test_the_packages_of_the_benchmarks_can_be_imported(isolation: Isolation) -> None:
    pytest.importorskip("openpyxl")
    graders = [WorkbookGrader(), PatchGrader()]
    known = [one for grader in graders if (one := grader.known_good([])) is not None]
    known.append(code_grader("import numpy\nimport mimetypes\nmimetypes.init()"))
    known.append(ToolsAgent(ScriptedModel(lambda _: "")).known_good(["openpyxl", "pytest"]))

    for program in known:
        await prove(replace(program, isolation=isolation))

    assert [program.modules[0] for program in known] == ["openpyxl", "pytest", "numpy", "openpyxl"]


@each
async def test_a_missing_package_is_named(isolation: Isolation) -> None:
    agent = ToolsAgent(ScriptedModel(lambda _: "")).known_good([MISSING])
    for program in (code_grader(f"from {MISSING}.part import thing"), agent):
        with pytest.raises(InputError, match=f"import {MISSING}, which is not installed"):
            await prove(replace(program, isolation=isolation))


async def test_missing_pytest_is_named_with_the_extra_that_brings_it() -> None:
    known = PatchGrader(test_command="python -S -m pytest -rA").known_good([])
    assert known is not None

    with pytest.raises(InputError, match="Tests of swebench import pytest") as refused:
        await prove(known)

    assert refused.value.hint == "pip install 'skillfit[swebench]'"


def test_only_what_a_program_needs_counts_as_its_imports() -> None:
    code = """
import numpy as np, os.path
from json import loads
from . import sibling
try:
    import pandas
except ImportError:
    pandas = None
def later(): import scipy
"""
    assert imported_modules([code, "no Python", "import re"]) == ("numpy", "os.path", "json", "re")
    assert code_grader("from answer import add\nimport tests, math").modules == ("math",)


def forbid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Landlock forbid /etc, as a machine does whose files the view does not expect."""
    monkeypatch.setattr(file_view, "_public_settings", lambda: ())


@pytest.mark.parametrize("isolation", LANDLOCK, ids=lambda isolation: isolation.name)
async def test_a_program_that_works_only_without_isolation_is_a_sandbox_failure(
    isolation: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(isolation: Isolation) -> str:
        command = [sys.executable, "-c", READ_SETTING]
        return (await run_untrusted(command, cwd=tmp_path, timeout=30, isolation=isolation)).stderr

    known = KnownGood("programs of answers", isolation, run)
    await prove(known)
    forbid_settings(monkeypatch)

    with pytest.raises(SandboxNotStarted, match=r"under the isolation .*landlock.*/etc/passwd"):
        await prove(known)


async def test_a_program_that_never_works_is_a_failure_of_the_machine() -> None:
    async def run(isolation: Isolation) -> str:
        return "Illegal instruction"

    with pytest.raises(InfrastructureError, match="Answers would fail in the same way: Illegal"):
        await prove(KnownGood("answers", NO_ISOLATION, run))


@pytest.mark.parametrize("isolation", LANDLOCK, ids=lambda isolation: isolation.name)
async def test_a_right_answer_that_may_not_read_a_public_setting_has_no_score(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillfit.tasks.graders.external.choose_isolation", lambda *_: isolation)
    item = Item("i", {"input": "q", "tests": "assert users()"})
    answer = Attempt(f"def users(): return {READ_SETTING}")
    grader = build_grader("code")
    assert (await grader.grade(item, answer)).hard == 1
    forbid_settings(monkeypatch)

    with pytest.raises(TaskFailure, match="from reading /etc/passwd") as failed:
        await grader.grade(item, answer)

    assert failed.value.kind == "sandbox"


@each
async def test_an_answer_that_reads_what_is_hidden_or_missing_scores_0(
    isolation: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillfit.tasks.graders.external.choose_isolation", lambda *_: isolation)
    (tmp_path / "secret").write_text("sesame")
    item = Item("i", {"input": "q", "tests": "assert text() == 'not this'"})
    for path in (tmp_path / "secret", "/etc/shadow", "/etc/nothing-there", "/usr/nothing-there"):
        answer = Attempt(f"def text(): return open({str(path)!r}).read()")
        assert (await build_grader("code").grade(item, answer)).hard == 0


@pytest.mark.parametrize("command", ["check", "eval", "train"])
def test_a_package_that_tests_need_is_named_before_anything_is_spent(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("skill").mkdir()
    Path("skill/SKILL.md").write_text("---\nname: skill\ndescription: d\n---\nWrite code.\n")
    tests = [f"import {MISSING}" if number == 3 else "assert 1" for number in range(8)]
    rows = [json.dumps({"id": str(n), "input": f"q{n}", "tests": t}) for n, t in enumerate(tests)]
    Path("tasks.jsonl").write_text("\n".join(rows))
    env = {"skill": "./skill", "tasks": "tasks.jsonl", "grader": "code"}
    model = {"agent": "practice/agent", "optimizer": "practice/optimizer"}
    Path("c.yaml").write_text(json.dumps({"env": env, "model": model}))

    result = CliRunner().invoke(app, [command, "c.yaml"])

    assert isinstance(result.exception, InputError)
    assert f"import {MISSING}, which is not installed" in str(result.exception)
    assert not list(Path("runs").glob("*/journal.sqlite"))
