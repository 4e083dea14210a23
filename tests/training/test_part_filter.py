"""Edits of untrained parts, and scripts that do not work, are refused before any rollout."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillfit.config.schema import BudgetSection, OptimizerSection
from skillfit.errors import InputError
from skillfit.optimize.optimizer import Proposal
from skillfit.run.budget import Budget
from skillfit.run.control import Interrupted
from skillfit.run.directory import RunDirectory
from skillfit.run.events import Discarded, Event
from skillfit.run.paid import PaidEffects
from skillfit.sandbox.known_good import prove
from skillfit.sandbox.programs import NO_ISOLATION, Isolation, best_isolation
from skillfit.skill import Edit, Skill
from skillfit.training.part_filter import (
    PartFilter,
    check_script,
    known_good_script,
    refuse_missing_check,
)

SKILL = Skill.from_text("# Skill\n", files={"references/a.md": b"- One.\n"})
CHECKED = "import sys\nif sys.argv[1:] == ['--self-check']:\n    sys.exit({code})\n"


def problem(file: str, text: str, command: str = "") -> str:
    skill = Skill.from_text("# Skill\n", files={file: text.encode()})
    return asyncio.run(check_script(skill, file, command, best_isolation()))


def test_a_script_that_compiles_and_passes_its_check_is_accepted() -> None:
    assert problem("scripts/a.py", CHECKED.format(code=0)) == ""
    assert problem("scripts/a.sh", '[ "$1" = --self-check ]\n') == ""
    assert problem("scripts/run", '#!/usr/bin/env sh\n[ "$1" = --self-check ]\n') == ""


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("scripts/a.py", "print(\n# --self-check", "scripts/a.py does not compile (exit 1): "),
        ("scripts/a.sh", "if --self-check\n", "scripts/a.sh does not compile (exit "),
        ("scripts/a.py", CHECKED.format(code=3), "fails its --self-check (exit 3)"),
        ("scripts/a.py", "print(1)\n", "has no --self-check, and optimizer.script_check names"),
        ("scripts/a.rb", "puts '--self-check'\n", "nothing says which program runs scripts/a.rb"),
        (
            "scripts/a",
            "#!/usr/bin/env no-such-shell\n",
            "there is no no-such-shell on this machine",
        ),
        (
            "scripts/a.py",
            "open('/etc/skillfit-was-here', 'w')  # --self-check\n",
            "fails its --self-check (exit 1)",
        ),
        (
            "scripts/a.py",
            "import socket\nsocket.create_connection(('1.1.1.1', 53), 3)  # --self-check\n",
            "fails its --self-check (exit 1)",
        ),
    ],
)
def test_other_scripts_are_refused_with_the_reason(file: str, text: str, why: str) -> None:
    if "skillfit-was-here" in text and best_isolation() == NO_ISOLATION:
        pytest.skip("nothing here keeps a script from writing")
    assert why in problem(file, text)
    assert not Path("/etc/skillfit-was-here").exists()


def test_a_command_of_the_owner_takes_the_place_of_the_self_check() -> None:
    assert problem("scripts/a.py", "print(1)\n", "grep -q print {script}") == ""
    assert "fails 'grep -q none {script}' (exit 1)" in problem(
        "scripts/a.py", "print(1)\n", "grep -q none {script}"
    )


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("grep -q print {script}", ""),
        ("{script} --test", ""),
        ("scripts/check.sh {script}", ""),
        ("./scripts/check.sh {script}", ""),
        ("no-such-program {script}", "there is no program 'no-such-program'"),
        ("./check.sh {script}", r"the skill's folder has no program check\.sh"),
        ("references/a.md {script}", "the skill's folder has no program"),
        ("sh -c 'exit 0", "No closing quotation"),
    ],
)
def test_a_command_that_cannot_run_is_refused_before_the_run(command: str, problem: str) -> None:
    files = {"scripts/check.sh": b"#!/bin/sh\n", "references/a.md": b"- One.\n"}
    skill = replace(Skill.from_text("x", files=files), modes={"scripts/check.sh": 0o755})
    settings = OptimizerSection(script_check=command)
    with pytest.raises(InputError, match=problem) if problem else nullcontext():
        refuse_missing_check(settings, skill)


async def test_a_machine_on_which_no_script_works_is_found_out_before_the_run() -> None:
    await prove(known_good_script(best_isolation()))


def filter_of(
    directory: RunDirectory, events: list[Event], isolation: Isolation, **settings: Any
) -> PartFilter:
    paid = PaidEffects(directory.journal, Budget(BudgetSection(), directory.journal))
    return PartFilter(OptimizerSection(**settings), isolation, paid, events.append)


async def test_only_edits_of_trained_parts_and_working_scripts_are_tried(tmp_path: Path) -> None:
    good = Edit("write", content=CHECKED.format(code=0), file="scripts/good.py")
    reference = Edit("append", content="- Two.", file="references/a.md")
    edits = [
        Edit("append", content="- Body."),
        reference,
        Edit("write", content="print(", file="scripts/bad.py"),
        good,
        Edit("append", content="x", file="assets/a.md"),
    ]
    events: list[Event] = []
    with RunDirectory.open(tmp_path / "run", {}) as run:
        filtered = filter_of(run, events, best_isolation(), parts=("references", "scripts"))
        proposals = [Proposal(edit, "failure") for edit in edits]
        kept = await filtered.usable(proposals, [SKILL, SKILL], 1)
    files = [proposal.edit.file for proposal in kept if proposal.edit is not None]
    assert files == [reference.file, good.file]
    reasons = [event.reason for event in events if isinstance(event, Discarded)]
    assert "optimizer.parts lets edits change references, scripts, not the body" in reasons
    assert any("scripts/bad.py does not compile" in reason for reason in reasons)
    assert any(reason.endswith("not assets/a.md") for reason in reasons)


async def test_a_resumed_run_has_the_recorded_result_of_a_check(tmp_path: Path) -> None:
    marker = tmp_path / "passes"
    edit = Edit("write", content="print(1)", file="scripts/a.py")
    marker.touch()
    for _ in range(2):
        with RunDirectory.open(tmp_path / "run", {}) as run:
            check = {"parts": ("scripts",), "script_check": f"test -e {marker}"}
            filtered = filter_of(run, [], NO_ISOLATION, **check)
            assert await filtered.script_problem(edit, [SKILL]) == ""
        marker.unlink(missing_ok=True)


async def test_a_check_that_never_ends_is_ended_when_the_run_is_asked_to_stop(
    tmp_path: Path,
) -> None:
    edit = Edit("write", content="while True: pass  # --self-check", file="scripts/a.py")
    with RunDirectory.open(tmp_path / "run", {}) as run:
        budget = Budget(BudgetSection(), run.journal)
        paid = PaidEffects(run.journal, budget)
        settings = OptimizerSection(parts=("scripts",))
        filtered = PartFilter(settings, best_isolation(), paid, lambda _: None)
        asyncio.get_running_loop().call_later(0.5, budget.stop, Interrupted())
        with pytest.raises(Interrupted):
            await filtered.script_problem(edit, [SKILL])


async def test_a_flood_of_scripts_is_cut(tmp_path: Path) -> None:
    events: list[Event] = []
    edits = [Edit("write", content=f"print({n}", file=f"scripts/{n}.py") for n in range(12)]
    with RunDirectory.open(tmp_path / "run", {}) as run:
        filtered = filter_of(run, events, NO_ISOLATION, parts=("scripts",))
        assert not await filtered.usable([Proposal(edit, "failure") for edit in edits], [SKILL], 1)
    reasons = [event.reason for event in events if isinstance(event, Discarded)]
    assert sum("does not compile" in reason for reason in reasons) == 10
    assert reasons[-2:] == ["a step checks 10 scripts at most"] * 2
