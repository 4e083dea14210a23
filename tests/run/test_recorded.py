"""Every model call goes through the journal."""

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from skillfit.errors import SkillfitError
from skillfit.models.protocol import (
    AuthFailed,
    Message,
    ModelError,
    Overloaded,
    Reply,
    Request,
    ToolCall,
    Usage,
)
from skillfit.run.journal import Journal, RecordedModel
from skillfit.run.store import DamagedRun


@dataclass
class Echo:
    id: str = "scripted/echo"
    context_window: int = 1000
    sent: list[Request] = field(default_factory=list)
    error: ModelError | None = None

    async def complete(self, request: Request) -> Reply:
        self.sent.append(request)
        if self.error:
            raise self.error
        used = Usage(calls=1, input=3, output=len(self.sent), usd=0.01)
        return Reply(
            request.messages[-1].content, (ToolCall("1", "read", "{}"),), usage=used, model="echo-1"
        )


def _request(text: str = "hi", **more: str) -> Request:
    return Request((Message("user", text),), stage="merge", **more)


async def test_a_request_is_sent_once_and_its_reply_is_complete_after_a_resume(
    tmp_path: Path,
) -> None:
    path, model = tmp_path / "journal.sqlite", Echo()
    journal = Journal(path)
    first = await RecordedModel(model, journal, "optimizer").complete(_request())
    journal.close()
    again = await RecordedModel(model, Journal(path), "optimizer").complete(_request())
    assert again == first
    assert len(model.sent) == 1


async def test_requests_that_differ_in_text_purpose_or_role_are_separate_calls(
    tmp_path: Path,
) -> None:
    journal, model = Journal(tmp_path / "journal.sqlite"), Echo()
    recorded = RecordedModel(model, journal, "optimizer")
    for request in (_request(), _request("ho"), _request(purpose="item 2")):
        await recorded.complete(request)
    await RecordedModel(model, journal, "judge").complete(_request())
    assert len(model.sent) == 4
    keys = [entry.key for entry in journal.entries("call/")]
    assert keys[0] == f"call/optimizer/merge/{_request().fingerprint()}"
    assert [(row.stage, row.role, row.model) for row in journal.bill().rows] == [
        ("merge", "judge", "scripted/echo"),
        ("merge", "optimizer", "scripted/echo"),
    ]


async def test_a_recorded_model_has_the_attributes_of_its_model(tmp_path: Path) -> None:
    recorded = RecordedModel(Echo(), Journal(tmp_path / "journal.sqlite"), "agent")
    assert (recorded.id, recorded.context_window) == ("scripted/echo", 1000)


async def test_a_failed_call_is_billed_and_sent_again_on_resume(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    model = Echo(error=AuthFailed("no", usage=Usage(calls=1)))
    recorded = RecordedModel(model, journal, "agent")
    with pytest.raises(AuthFailed):
        await recorded.complete(_request())
    model.error = None
    assert (await recorded.complete(_request())).text == "hi"
    assert journal.bill().total.calls == 2


async def test_accepted_lost_replies_stay_lost_on_replay(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.sqlite"
    model = Echo(error=Overloaded("busy"))
    journal = Journal(path)
    recorded = RecordedModel(model, journal, "optimizer")
    with journal.decision("step 1"), pytest.raises(Overloaded):
        await recorded.complete(_request())
    journal.close()
    model.error = None
    journal = Journal(path)
    recorded = RecordedModel(model, journal, "optimizer")
    with journal.decision("step 1"), pytest.raises(Overloaded, match="busy"):
        await recorded.complete(_request())
    assert len(model.sent) == 1
    with journal.decision("step 2"):
        assert (await recorded.complete(_request())).text == "hi"
    assert len(model.sent) == 2


async def test_a_decision_that_was_not_made_loses_no_reply(tmp_path: Path) -> None:
    journal, model = Journal(tmp_path / "journal.sqlite"), Echo(error=Overloaded("busy"))
    recorded = RecordedModel(model, journal, "optimizer")

    async def decide(fail: bool, clear: bool = False) -> None:
        with journal.decision("step 1") as losses:
            with pytest.raises(Overloaded):
                await recorded.complete(_request())
            assert losses
            if clear:
                losses.clear()
            if fail:
                raise SkillfitError("stopped")

    with pytest.raises(SkillfitError, match="stopped"):
        await decide(fail=True)
    await decide(fail=False, clear=True)
    with pytest.raises(Overloaded):  # outside of a decision
        await recorded.complete(_request())
    assert len(model.sent) == 3
    model.error = None
    with journal.decision("step 1"):
        assert (await recorded.complete(_request())).text == "hi"


@pytest.mark.parametrize("spoilt", ['{"text": 5}', '{"text": "x", "usage": {"input": 1.5}}', "[]"])
async def test_an_unreadable_recorded_reply_names_the_damaged_journal(
    tmp_path: Path, spoilt: str
) -> None:
    path, model = tmp_path / "journal.sqlite", Echo()
    journal = Journal(path)
    await RecordedModel(model, journal, "optimizer").complete(_request())
    journal.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE effects SET value = ?", (spoilt.encode(),))
    db.close()
    recorded = RecordedModel(model, Journal(path), "optimizer")
    with pytest.raises(DamagedRun, match=r"record 1 \(Reply\) cannot be read"):
        await recorded.complete(_request())


async def test_the_cost_of_a_call_that_the_budget_ended_is_billed(tmp_path: Path) -> None:
    class Stopped(Echo):
        async def complete(self, request: Request) -> Reply:
            failure = Overloaded("busy", usage=Usage(calls=2, input=7))
            raise SkillfitError("no budget left") from failure

    journal = Journal(tmp_path / "journal.sqlite")
    with pytest.raises(SkillfitError, match="no budget left"):
        await RecordedModel(Stopped(), journal, "agent").complete(_request())
    (spend,) = journal.bill().rows
    assert (spend.usage.calls, spend.usage.input) == (2, 7)
