"""Prompts as files, answers dropped beside them."""

from __future__ import annotations

import json

import pytest

from skillfit.errors import Exit, InputError
from skillfit.models import Image, Message, Request, Usage
from skillfit.models.protocol import AnswerPending
from skillfit.models.providers.handoff import pending
from tests.models.support import InstantClock, Purse, to

REQUEST = Request(
    (
        Message("system", "You are an analyst."),
        Message("user", "Was ist schief? 🤔", (Image("/pictures/a.png"),)),
    ),
    "reflect.failure",
    schema={"type": "object", "properties": {"why": {"type": "string"}}},
)


async def test_a_prompt_is_written_once_and_waits(tmp_path):
    clock, purse, folder = InstantClock(), Purse(), tmp_path / "handoff"
    model = to("", "handoff", folder=folder, clock=clock, meter=purse)
    for _ in range(2):
        with pytest.raises(AnswerPending) as caught:
            await model.complete(REQUEST)
    assert caught.value.exit_code is Exit.HANDOFF
    assert clock.slept == [] and purse.spent == Usage()
    (waiting,) = pending(folder)
    assert str(waiting.answer) in str(caught.value)
    text = waiting.prompt.read_text(encoding="utf-8")
    for part in (
        "You are an analyst.",
        "Was ist schief? 🤔",
        "/pictures/a.png",
        '"why"',
        waiting.answer.name,
    ):
        assert part in text
    fields = json.loads((folder / f"{waiting.id}.request.json").read_text(encoding="utf-8"))
    assert (
        fields["messages"][1]["content"] == "Was ist schief? 🤔"
        and fields["stage"] == "reflect.failure"
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{waiting.id}.prompt.md",
        f"{waiting.id}.request.json",
    ]


@pytest.mark.parametrize("ending", [".answer.md", ".answer.txt", ".answer.json"])
async def test_the_answer_beside_it_is_the_reply(tmp_path, ending):
    model = to("", "handoff", folder=tmp_path)
    with pytest.raises(AnswerPending):
        await model.complete(REQUEST)
    (waiting,) = pending(tmp_path)
    (tmp_path / f"{waiting.id}{ending}").write_text(
        '{"why": "Tippfehler – 誤"}\n', encoding="utf-8"
    )
    assert pending(tmp_path) == []
    reply = await model.complete(REQUEST)
    assert reply.text == '{"why": "Tippfehler – 誤"}'
    assert reply.usage.usd == 0


async def test_an_empty_answer_is_no_answer(tmp_path):
    model = to("", "handoff", folder=tmp_path)
    with pytest.raises(AnswerPending):
        await model.complete(REQUEST)
    pending(tmp_path)[0].answer.write_text(" \n")
    with pytest.raises(AnswerPending):
        await model.complete(REQUEST)


def test_without_a_folder_there_is_no_handoff():
    with pytest.raises(InputError, match="folder"):
        to("", "handoff")
