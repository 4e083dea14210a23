"""The budget's minutes end every kind of waiting: for a reply, for a slot, for Retry-After."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from skillfit.config.schema import BudgetSection
from skillfit.models import ModelSpec, Request, connect
from skillfit.models.client import Client
from skillfit.models.protocol import Message
from skillfit.run.budget import Budget, BudgetReached
from skillfit.run.journal import Journal, RecordedModel
from tests.support.chat_server import Call, ChatServer, RawServer
from tests.training.practice_project import Script
from tests.training.project_fixture import MakeProject

pytestmark = pytest.mark.timeout(60)
SHORT = BudgetSection(minutes=0.05)  # 3 seconds: enough to send the first requests


def request(text: str) -> Request:
    return Request((Message("user", text),), "rollout")


def model_at(url: str, budget: Budget, **more: int) -> Client:
    return connect(
        ModelSpec(id="openai/gpt-4o", base_url=url),
        role="agent",
        run_id="run-1",
        meter=budget,
        environ={},
        **more,
    )


async def test_a_call_to_a_silent_server_ends_with_the_time_budget(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    with RawServer(lambda number: None) as server:
        model = model_at(server.url, Budget(SHORT, journal))
        with pytest.raises(BudgetReached) as caught:
            await RecordedModel(model, journal, "agent").complete(request("x"))
        await model.close()
    assert caught.value.cap == "minutes"
    (spend,) = journal.bill().rows  # the call may have been billed: it counts in full
    assert spend.usage.calls == 1 and spend.usage.output == 4096


async def test_waiting_for_retry_after_ends_with_the_time_budget(tmp_path: Path) -> None:
    limited = JSONResponse({"error": {"message": "later"}}, 429, {"Retry-After": "300"})
    journal = Journal(tmp_path / "journal.sqlite")
    with ChatServer(lambda call: limited) as server:
        model = model_at(server.url, Budget(SHORT, journal))
        with pytest.raises(BudgetReached):
            await RecordedModel(model, journal, "agent").complete(request("x"))
        await model.close()
    assert len(server.calls) == 1
    assert journal.bill().total.calls == 1


async def test_waiting_for_a_slot_or_a_retry_ends_with_the_time_budget(tmp_path: Path) -> None:
    def busy(call: Call) -> JSONResponse:
        return JSONResponse({"error": {"message": "busy"}}, 503)

    with RawServer(lambda number: None) as silent, ChatServer(busy) as failing:
        for url in (silent.url, failing.url):
            budget = Budget(SHORT, Journal(tmp_path / f"{url[-8:-3]}.sqlite"))
            model = model_at(url, budget, concurrency=1)
            calls = [model.complete(request(str(number))) for number in range(20)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            await model.close()
            assert any(isinstance(result, BudgetReached) for result in results)
            assert not any(isinstance(result, TimeoutError) for result in results)
            assert model.limiter.in_flight == 0


@pytest.mark.parametrize("how", ["hangs", "asks for patience"])
async def test_a_run_that_waits_for_the_server_ends_with_its_time_budget(
    make_project: MakeProject, how: str
) -> None:
    script = Script()

    async def slow(call: Call) -> Any:
        if call.stage == "rollout" and call.number > 10:
            if how == "asks for patience":
                return JSONResponse({"error": {"message": "later"}}, 429, {"Retry-After": "300"})
            await asyncio.sleep(12)
        return script(call)

    project = make_project("budget.minutes=0.05", "model.concurrency=4", script=slow)
    result = await project.train()
    assert result.finish_reason == "budget"
    assert project.summary()["finish_reason"] == "budget"
