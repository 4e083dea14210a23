"""A proposer of the user that hangs ends with the time budget and when the run is asked to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skillfit.run.budget import BudgetReached
from skillfit.run.control import Control, Interrupted
from skillfit.run.events import RunFinished
from tests.support.chat_server import Call
from tests.training.practice_project import Script, items
from tests.training.project_fixture import MakeProject

pytestmark = pytest.mark.timeout(120)
SMALL = ("evaluation.ship_test=false", "evaluation.eval_test=false")
CODE = """
import asyncio
from skillfit.models.protocol import Message, Request

class Hangs:
    def __init__(self, parts):
        self.optimizer = parts.optimizer

    async def propose(self, skill, rollouts, context):
        await rollouts.outcomes()
        if {asks}:
            await self.optimizer.model.complete(Request((Message("user", "Well?"),), "rank"))
        await asyncio.sleep(3600)
"""


def hanging(folder: Path, *, asks: bool = False) -> str:
    file = folder / "parts.py"
    file.write_text(CODE.replace("{asks}", str(asks)))
    return f"optimizer.proposer={file}:Hangs"


async def test_the_time_budget_ends_it(make_project: MakeProject, tmp_path: Path) -> None:
    project = make_project(hanging(tmp_path), *SMALL, "budget.minutes=0.1", rows=items(4, 4, 2))
    try:
        await project.train()
    except BudgetReached as error:
        assert error.cap == "minutes"
    else:
        [finished] = project.events(RunFinished)
        assert finished.finish_reason == "budget"


async def test_a_stop_ends_it_after_the_call_in_flight(
    make_project: MakeProject, tmp_path: Path
) -> None:
    control, script = Control(), Script()

    async def stopping(call: Call) -> object:
        if call.stage == "rank":
            control.stop()
            await asyncio.sleep(0.2)  # the reply comes after the stop
            return "Well."
        return script(call)

    project = make_project(hanging(tmp_path, asks=True), *SMALL, script=stopping)
    for _ in range(2):
        with pytest.raises(Interrupted):
            await project.train(control=control)
        assert len(project.asked("rank")) == 1  # its reply was recorded
        control = Control()
        asyncio.get_running_loop().call_later(2, control.stop)
