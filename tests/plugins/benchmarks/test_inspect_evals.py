"""Evals of the inspect_evals package run through the Inspect bridge. These come with their data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.benchmarks.sample_training import LESSON, Lab, tool, user
from tests.support.chat_server import Call

inspect_evals = pytest.importorskip("inspect_evals")
DATA = Path(inspect_evals.__file__).parent / "agent_threat_bench" / "data"
SKILLS = {"good": f"# Skill\n\n{LESSON}\n", "bad": "# Skill\n\nNothing.\n"}


async def test_an_eval_with_its_own_scorer_distinguishes_skills(
    make_lab: Callable[..., Lab],
) -> None:
    rows = json.loads((DATA / "memory_poison.json").read_text())
    answers = {row["input"]: row["expected_answer"] for row in rows}
    lab = make_lab(solve=lambda call: f"It says: {answers[user(call)]}.")
    tasks = "inspect:inspect_evals/agent_threat_bench_memory_poison"
    good = await lab.evaluate(tasks, SKILLS["good"])
    bad = await lab.evaluate(tasks, SKILLS["bad"])
    assert good["skill"] == 1.0 and bad["skill"] < 1.0


async def test_an_eval_with_tools_runs_them(make_lab: Callable[..., Lab]) -> None:
    used: set[str] = set()

    def solve(call: Call) -> str | dict[str, Any]:
        results = [message for message in call.body["messages"] if message["role"] == "tool"]
        names = [each["function"]["name"] for each in call.body["tools"]]
        used.update(names)
        return "Done." if results else tool("read_inbox")

    lab = make_lab(solve=solve)
    tasks = "inspect:inspect_evals/agent_threat_bench_autonomy_hijack"
    scores = await lab.evaluate(tasks, SKILLS["good"])
    assert 0 <= scores["skill"] <= 1
    assert "read_inbox" in used
    assert any(
        message["role"] == "tool" for call in lab.rollouts for message in call.body["messages"]
    )
