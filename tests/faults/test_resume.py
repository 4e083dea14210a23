"""Runs that are stopped, killed or started twice: the run directory stays valid, and the same
command resumes the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from skillfit.errors import Exit, InputError
from skillfit.run.budget import BudgetReached
from skillfit.run.control import Control, Interrupted, request_steering
from skillfit.run.events import Event, RolloutFinished, RunFinished, StepFinished, Stored
from tests.support.chat_server import Call
from tests.training.practice_project import (
    SKILL,
    Script,
    TrainingProject,
    differences,
    fingerprint,
    items,
    readable,
)
from tests.training.project_fixture import MakeProject

ROOT = Path(__file__).parents[2]
SETTINGS = ("train.num_epochs=2", "train.batch_size=4", "gradient.minibatch_size=2")


def best_of(project: TrainingProject) -> str:
    """The best skill after the finished steps of a run."""
    steps = project.events(StepFinished)
    return steps[-1].best_skill if steps else SKILL


@pytest.mark.parametrize("proposer", ["reflect", "corpus"])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.7, 0.9])
async def test_a_stopped_run_resumes_and_ends_the_same(
    make_project: MakeProject, share: float, proposer: str
) -> None:
    """`share`: of the rollouts that have finished when it is stopped."""
    settings = (*SETTINGS, "model.concurrency=4", f"optimizer.proposer={proposer}")
    project = make_project(*settings, rows=items(4, 4, 2))
    await project.train(run="straight")
    straight = sorted(map(fingerprint, project.calls))
    project.calls.clear()
    after = 1 + int(share * len(project.events(RolloutFinished, "straight")))
    control, finished = Control(), 0

    def stop(stored: Stored) -> None:
        nonlocal finished
        finished += isinstance(stored.event, RolloutFinished)
        if finished == after:
            control.stop()

    with pytest.raises(Interrupted) as stopped:
        await project.train(listeners=[stop], control=control)
    assert stopped.value.exit_code == Exit.INTERRUPTED
    assert project.events(RunFinished) == []
    await project.train()
    assert (
        sorted(map(fingerprint, project.calls)) == straight
    )  # what was in flight was finished and kept
    assert (
        differences(readable(project.folder / "run"), readable(project.folder / "straight")) == []
    )


@pytest.mark.parametrize("stage", ["rollout", "reflect"])
async def test_a_run_stopped_during_server_errors_sends_nothing_more_and_resumes(
    make_project: MakeProject, stage: str
) -> None:
    script, control, broken = Script(), Control(), 0
    asked_after: list[Call] = []

    def failing(call: Call) -> Any:
        nonlocal broken
        if control.stopping:
            asked_after.append(call)
        if broken < 0 or not call.stage.startswith(stage):
            return script(call)
        broken += 1
        if broken == 3:
            control.stop()
        return JSONResponse({"error": {"message": "down"}}, status_code=500)

    project = make_project(*SETTINGS, "model.concurrency=4", script=failing, rows=items(4, 4, 2))
    with pytest.raises(Interrupted):
        await project.train(control=control)
    assert len(asked_after) < 4  # those that were on their way
    assert project.events(RunFinished) == []
    broken = -1
    await project.train()
    await project.train(run="straight")
    assert project.best() == (project.folder / "straight" / "best_skill.md").read_text()


async def test_a_run_stopped_before_it_begins_sends_nothing(make_project: MakeProject) -> None:
    project, control = make_project("evaluation.preflight=true"), Control()
    control.stop()
    with pytest.raises(Interrupted):
        await project.train(control=control)
    assert project.asked("rollout") == []


async def test_a_cancelled_run_is_closed_and_resumes(
    make_project: MakeProject,
) -> None:
    project = make_project(*SETTINGS, rows=items(4, 4, 2))
    await project.train(run="straight")
    started = asyncio.Event()

    def listen(stored: Stored) -> None:
        if isinstance(stored.event, RolloutFinished) and stored.event.phase == "rollout":
            started.set()

    running = asyncio.create_task(project.train(listeners=[listen]))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await project.train()
    assert (
        differences(readable(project.folder / "run"), readable(project.folder / "straight")) == []
    )


async def test_truncated_and_missing_files_are_written_again(make_project: MakeProject) -> None:
    project = make_project(*SETTINGS, rows=items(4, 4, 2))
    await project.train()
    run = project.folder / "run"
    before, asked = readable(run), len(project.calls)
    for number, name in enumerate(before):
        path = run / name
        if number % 2:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        else:
            path.unlink()
    await project.train()
    assert differences(readable(run), before) == []
    assert len(project.calls) == asked


async def test_a_finished_run_started_again_sends_no_requests(make_project: MakeProject) -> None:
    project = make_project(*SETTINGS, rows=items(4, 4, 2))
    first = await project.train()
    asked = len(project.calls)
    again = await project.train()
    assert len(project.calls) == asked
    assert (again.finish_reason, again.diagnosis) == (first.finish_reason, first.diagnosis)


async def test_two_processes_cannot_write_one_run(
    make_project: MakeProject, tmp_path: Path
) -> None:
    arrived, go_on = threading.Event(), threading.Event()
    script = Script()

    async def waiting(call: Call) -> Any:
        arrived.set()
        await asyncio.to_thread(go_on.wait)
        return script(call)

    project = make_project(script=waiting, rows=items(4, 4, 0))
    order = {
        "config": project.config(),
        "settings": [],
        "run": str(project.folder / "run"),
        "key": "a-key",
        "kill": None,
    }
    program = (
        "import json, sys; from tests.faults.killed_training import train; "
        "print(json.dumps(train(json.loads(sys.argv[1]))))"
    )
    other = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", program, json.dumps(order)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert await asyncio.to_thread(arrived.wait, 60)
        with pytest.raises(InputError, match=rf"in use by .*{other.pid}"):
            await project.train()
    finally:
        go_on.set()
        printed, _ = await asyncio.to_thread(other.communicate)
    assert json.loads(printed)["reason"] in ("improved", "inconclusive", "no_improvement")


async def test_a_changed_config_is_refused_with_what_changed(make_project: MakeProject) -> None:
    project = make_project(rows=items(4, 4, 2))
    await project.train()
    with pytest.raises(InputError, match=r"config\.train\.seed: 42 -> 7") as refused:
        await project.train("train.seed=7", "evaluation.coverage_floor=0.5")
    assert "config.evaluation.coverage_floor: 0.6 -> 0.5" in refused.value.message
    assert "batch_size" not in refused.value.message


async def test_changed_tasks_or_skill_are_refused_with_what_changed(
    make_project: MakeProject,
) -> None:
    project = make_project(rows=items(4, 4, 2))
    await project.train()
    rows = items(4, 5, 2)
    (project.folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="selection items") as refused:
        await project.train()
    assert "train items" not in refused.value.message
    with pytest.raises(InputError, match="grader"):
        await project.train("env.grader=contains")
    (project.folder / "SKILL.md").write_text(SKILL + "\nMore.\n")
    with pytest.raises(InputError, match="skill"):
        await project.train()


async def test_speed_and_length_settings_may_change_on_resume(make_project: MakeProject) -> None:
    project = make_project(rows=items(4, 4, 2))
    first = await project.train("model.concurrency=2")
    asked = len(project.calls)
    again = await project.train(
        "model.concurrency=16", "budget.calls=100000", "env.exec_timeout=60"
    )
    assert (again.finish_reason, len(project.calls)) == (first.finish_reason, asked)


PRICES = {"agent": (100, 4000), "optimizer": (1, 1)}  # dollars per million tokens, read and written


class TestBudget:
    @pytest.mark.parametrize("calls", [1, 7, 23, 40])
    async def test_a_cap_in_calls_is_never_exceeded_and_the_best_skill_so_far_is_returned(
        self, make_project: MakeProject, calls: int
    ) -> None:
        project = make_project(*SETTINGS, rows=items(4, 4, 2))
        result = await project.train(f"budget.calls={calls}")
        assert len(project.calls) <= calls
        assert (result.finish_reason, result.exit_code) == ("budget", Exit.BUDGET)
        cap = "1 call" if calls == 1 else f"{calls} calls"
        assert f"The budget of {cap} is reached" in result.diagnosis
        assert project.best() == SKILL  # nothing is proven without the ship test

    async def test_an_extended_budget_gives_the_same_run_as_the_whole_budget(
        self, make_project: MakeProject
    ) -> None:
        project = make_project(*SETTINGS, rows=items(4, 4, 2))
        await project.train("budget.calls=1000", run="straight")
        straight = len(project.calls)
        for calls in (5, 20, 50, 1000):
            result = await project.train(f"budget.calls={calls}")
        assert result.finish_reason != "budget"
        assert len(project.calls) == 2 * straight
        assert (
            differences(readable(project.folder / "run"), readable(project.folder / "straight"))
            == []
        )

    @pytest.mark.parametrize(
        ("cap", "amount"), [("usd", 0.2), ("usd", 0.3), ("tokens", 3_000), ("tokens", 20_000)]
    )
    async def test_dollar_and_token_caps_are_never_exceeded(
        self, make_project: MakeProject, cap: str, amount: float
    ) -> None:
        script, tokens, usd = Script(), 0, 0.0

        def billing(call: Call) -> Any:
            nonlocal tokens, usd
            answer = script(call)
            usage = json.loads(answer.body)["usage"]
            read, written = PRICES[call.body["model"]]
            tokens += usage["prompt_tokens"] + usage["completion_tokens"]
            usd += (usage["prompt_tokens"] * read + usage["completion_tokens"] * written) / 1e6
            return answer

        table = {
            name: {"input": read, "output": written} for name, (read, written) in PRICES.items()
        }
        limits = ("model.agent.max_tokens=16", f"model.prices={json.dumps(table)}")
        project = make_project(*SETTINGS, *limits, script=billing, rows=items(4, 4, 2))
        result = await project.train(f"budget.{cap}={amount}")
        assert result.finish_reason == "budget"
        assert (usd if cap == "usd" else tokens) <= amount
        assert project.summary()["usage"]["calls"] == len(project.calls) > 0
        assert project.summary()["usage"]["usd"] == pytest.approx(usd)

    async def test_a_dollar_cap_without_a_known_price_is_refused_before_anything_is_spent(
        self, make_project: MakeProject
    ) -> None:
        project = make_project()
        with pytest.raises(InputError, match="no price is known"):
            await project.train("budget.usd=1")
        assert project.calls == []

    def test_a_reached_budget_has_its_own_exit_code(self) -> None:
        assert BudgetReached.exit_code not in (
            Exit.OK,
            Exit.NO_IMPROVEMENT,
            Exit.INCONCLUSIVE,
            Exit.INFRASTRUCTURE,
        )


class TestFinishedRun:
    async def test_starting_it_again_returns_what_is_recorded_without_its_models(
        self, make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project = make_project(*SETTINGS, rows=items(4, 4, 2))
        first = await project.train()
        before = readable(project.folder / "run")
        (project.folder / "run/best_skill.md").unlink()
        monkeypatch.delenv("OPENAI_API_KEY")
        told: list[Stored] = []
        again = await project.train(listeners=[told.append])
        assert (again.finish_reason, again.exit_code) == (first.finish_reason, first.exit_code)
        assert again.diagnosis == first.diagnosis
        assert [stored.event for stored in told] == project.events(Event)
        assert readable(project.folder / "run") == before

    @pytest.mark.parametrize("change", ["budget.calls=1000", "a request"])
    async def test_one_that_can_continue_is_run_again(
        self, make_project: MakeProject, change: str
    ) -> None:
        project = make_project(*SETTINGS, rows=items(4, 4, 2))
        first: list[Stored] = []
        await project.train(listeners=[first.append])
        settings = [change]
        if change == "a request":
            settings = []
            request_steering(project.folder / "run", "budget", "calls", "1000")
        again: list[Stored] = []
        await project.train(*settings, listeners=[again.append])
        assert isinstance(again[-1].event, RunFinished)
        assert again[-1].at > first[-1].at
