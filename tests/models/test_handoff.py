"""Prompts as files, with answer files beside them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import BaseModel, TypeAdapter, create_model

from skillfit.errors import Exit, InputError
from skillfit.models import Request, Usage, ask
from skillfit.models.protocol import AnswerPending, Image, Message
from skillfit.models.providers.handoff import Pending, _Form, pending, pending_error
from skillfit.optimize.optimizer import AnalystReply, CorpusReply, EditsReply
from tests.models.clocks_and_meters import CappedMeter, InstantClock, to

REQUEST = Request(
    (
        Message("system", "You are an analyst."),
        Message("user", "Was ist schief? 🤔", (Image("/pictures/a.png"),)),
    ),
    "reflect.failure",
    schema={"type": "object", "properties": {"why": {"type": "string"}}},
)


async def test_a_prompt_is_written_once_and_waits(tmp_path):
    clock, meter, folder = InstantClock(), CappedMeter(), tmp_path / "handoff"
    model = to("", "handoff", folder=folder, clock=clock, meter=meter)
    for _ in range(2):
        with pytest.raises(AnswerPending) as caught:
            await model.complete(REQUEST)
    assert caught.value.exit_code is Exit.HANDOFF
    assert clock.slept == [] and meter.spent == Usage()
    (prompt,) = pending(folder)
    assert str(prompt.answer) in str(caught.value)
    text = prompt.prompt.read_text(encoding="utf-8")
    for part in (
        "You are an analyst.",
        "Was ist schief? 🤔",
        "/pictures/a.png",
        '"why"',
        prompt.answer.name,
    ):
        assert part in text
    fields = json.loads((folder / f"{prompt.id}.request.json").read_text(encoding="utf-8"))
    assert (
        fields["messages"][1]["content"] == "Was ist schief? 🤔"
        and fields["stage"] == "reflect.failure"
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{prompt.id}.answer.json",
        f"{prompt.id}.prompt.md",
        f"{prompt.id}.request.json",
    ]


@pytest.mark.parametrize("ending", [".answer.md", ".answer.txt", ".answer.json"])
async def test_the_answer_file_is_the_reply(tmp_path, ending):
    model = to("", "handoff", folder=tmp_path)
    with pytest.raises(AnswerPending):
        await model.complete(REQUEST)
    (prompt,) = pending(tmp_path)
    (tmp_path / f"{prompt.id}{ending}").write_text('{"why": "Tippfehler – 誤"}\n', encoding="utf-8")
    assert pending(tmp_path) == []
    reply = await model.complete(REQUEST)
    assert reply.text == '{"why": "Tippfehler – 誤"}'
    assert reply.usage.usd == 0


async def test_an_empty_answer_file_is_ignored(tmp_path):
    model = to("", "handoff", folder=tmp_path)
    with pytest.raises(AnswerPending):
        await model.complete(REQUEST)
    pending(tmp_path)[0].answer.write_text(" \n")
    with pytest.raises(AnswerPending):
        await model.complete(REQUEST)


def test_handoff_needs_a_folder():
    with pytest.raises(InputError, match="folder"):
        to("", "handoff")


class Edit(BaseModel):
    op: str = ""
    content: str


class Patch(BaseModel):
    reasoning: str = ""
    edits: list[Edit]


async def asked(folder: Path, request: Request = REQUEST) -> Pending:
    """The prompt that a request leaves behind."""
    with pytest.raises(AnswerPending):
        await to("", "handoff", folder=folder).complete(request)
    (prompt,) = pending(folder)
    return prompt


async def test_a_prompt_begins_with_the_task_and_ends_with_a_short_schema(tmp_path):
    request = replace(REQUEST, schema=Patch.model_json_schema(), purpose="step 3 failures 1")
    prompt = await asked(tmp_path, request)
    text = prompt.prompt.read_text(encoding="utf-8")
    order = ["step 3 failures 1", prompt.answer.name, "You are an analyst.", "Was ist schief?"]
    places = [text.index(part) for part in [*order, "Form of the answer", '"edits"']]
    assert places == sorted(places)
    assert "$defs" not in text and len(text.splitlines()) < 40
    assert prompt.id.startswith("reflect-failure-step-3-failures-1-")


async def test_a_prompt_says_how_to_propose_nothing(tmp_path):
    forms = {
        "edits": Patch.model_json_schema(),
        "patch.edits": create_model("Wrapped", patch=(Patch, ...)).model_json_schema(),
        "with/edits": CorpusReply.model_json_schema(),  # other lists come before them
    }
    for field, form in forms.items():
        prompt = await asked(tmp_path / field, replace(REQUEST, schema=form))
        text = prompt.prompt.read_text(encoding="utf-8")
        assert f"To propose nothing, set `{field.removeprefix('with/')}` to `[]`." in text


async def test_the_answer_file_is_pre_filled_and_is_used_once_it_changes(
    tmp_path,
):
    request = replace(REQUEST, schema=Patch.model_json_schema())
    prompt = await asked(tmp_path, request)
    form = json.loads(prompt.answer.read_text(encoding="utf-8"))
    assert form == {"reasoning": "", "edits": [{"op": "", "content": ""}]}
    prompt.answer.write_text(json.dumps(form))  # the same form, written differently
    assert pending(tmp_path) == [prompt]
    form["edits"][0]["content"] = "- Be brief."
    prompt.answer.write_text(json.dumps(form))
    reply = await ask(to("", "handoff", folder=tmp_path), request, Patch)
    assert reply.edits[0].content == "- Be brief."


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ('{"reasoning": "so"}', "The field `edits` is missing."),
        ('{"edits": [{"op": "append"}]}', "The field `content` is missing."),
        ('{"edits": ["append this"]}', "An object is needed"),
        ("I would not change anything.", "There is no JSON in it."),
        ('{"edits": [', "stops in the middle"),
    ],
)
async def test_an_invalid_answer_is_reported_and_can_be_corrected(tmp_path, answer, problem):
    request = replace(REQUEST, schema=Patch.model_json_schema())
    prompt = await asked(tmp_path, request)
    prompt.answer.write_text(answer)
    model = to("", "handoff", folder=tmp_path)
    with pytest.raises(AnswerPending, match=re.escape(problem)) as caught:
        await model.complete(request)
    assert prompt.answer.name in caught.value.message
    assert problem in pending(tmp_path)[0].problem
    assert problem in pending_error(tmp_path).message
    prompt.answer.write_text('{"edits": []}')
    assert pending(tmp_path) == []
    assert (await model.complete(request)).text == '{"edits": []}'


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (CorpusReply, {"edits": [{"op": "frobnicate", "content": "- Be brief."}]}),
        (CorpusReply, {"edits": [{"content": "- Be brief."}]}),
        (AnalystReply[EditsReply], {"patch": {"edits": [{"op": "move", "target": "a"}]}}),
    ],
)
async def test_an_answer_with_an_unknown_operation_keeps_waiting(tmp_path, form, answer):
    request = replace(REQUEST, schema=form.model_json_schema())
    prompt = await asked(tmp_path, request)
    prompt.answer.write_text(json.dumps(answer))
    with pytest.raises(AnswerPending, match=r"The field `op` is .*; available: append, "):
        await ask(to("", "handoff", folder=tmp_path), request, form)
    edits = answer.get("patch", answer)["edits"]
    edits[0]["op"] = "Insert-After"
    prompt.answer.write_text(json.dumps(answer))
    await ask(to("", "handoff", folder=tmp_path), request, form)


async def test_an_answer_without_edits_is_used(tmp_path):
    request = replace(REQUEST, schema=CorpusReply.model_json_schema())
    prompt = await asked(tmp_path, request)
    prompt.answer.write_text('{"edits": [], "reasoning": "nothing to change"}')
    assert (await ask(to("", "handoff", folder=tmp_path), request, CorpusReply)).edits == []


async def test_an_answer_that_is_not_text_is_reported(tmp_path):
    prompt = await asked(tmp_path)
    prompt.answer.write_bytes(b"\xff\xfe\x00")
    assert pending(tmp_path)[0].problem == "It is not UTF-8 text."


def test_a_schema_of_several_kinds_of_object_is_not_checked():
    schema = TypeAdapter(Edit | Patch).json_schema()
    assert _Form(schema).is_filled_in('{"anything": 1}')


async def test_a_plain_text_answer_needs_no_schema(tmp_path):
    prompt = await asked(tmp_path, replace(REQUEST, schema=None))
    assert prompt.answer.name.endswith(".answer.md") and prompt.answer.read_text() == ""
    prompt.answer.write_text("Typos.\n")
    reply = await to("", "handoff", folder=tmp_path).complete(replace(REQUEST, schema=None))
    assert reply.text == "Typos."
