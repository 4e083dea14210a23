"""Replies of a given form."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from skillfit.models import ask
from skillfit.models.client import reply_form
from skillfit.models.protocol import BadReply, RateLimited
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.models.wire import strict_schema
from tests.models.clocks_and_meters import say, to
from tests.support.chat_server import Call, ChatServer


class Edit(BaseModel):
    op: str
    content: str = ""


class Patch(BaseModel):
    edits: list[Edit]
    why: str


GOOD = '{"edits": [{"op": "append", "content": "Größe – 大"}], "why": "because"}'


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"Here it is:\n```\n{GOOD}\n```\nHope it helps {{really}}!",
        f"Sure. {GOOD} That is all.",
        GOOD.replace('"because"}', '"because",}'),
        GOOD.replace('"', "'"),
        GOOD.replace("{", "{ // a comment\n", 1),
        GOOD.replace("because", "be\ncause").replace("be\ncause", "because"),
    ],
)
async def test_common_json_mistakes_of_models_are_accepted(text):
    model = ScriptedModel([text])
    patch = await ask(model, say("x"), Patch)
    assert patch.why == "because" and patch.edits[0].content == "Größe – 大"
    assert len(model.requests) == 1


@pytest.mark.parametrize("cut", range(1, len(GOOD)))
def test_a_reply_that_stops_midway_is_never_completed(cut):
    with pytest.raises(ValueError):
        reply_form(dict).parse(GOOD[:cut])


@settings(max_examples=30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_valid_json_is_read_unchanged(value):
    text = json.dumps({"value": value}, ensure_ascii=False)
    reply = f"Well: {text}" if "```" not in text else text
    assert reply_form(dict).parse(reply) == {"value": value}


async def test_an_invalid_reply_is_requested_again_with_the_reason():
    model = ScriptedModel(['{"edits": []}', GOOD])
    assert (await ask(model, say("the task"), Patch)).why == "because"
    first, second = model.requests
    assert [m.role for m in second.messages] == ["user", "assistant", "user"]
    assert second.messages[:1] == first.messages
    assert "why: Field required" in second.messages[-1].content


async def test_a_second_invalid_reply_is_a_bad_reply_that_names_the_stage():
    model = ScriptedModel(["no json here", "[]"])
    with pytest.raises(BadReply, match=r"two replies in a row.*merge"):
        await ask(model, say("x", stage="merge"), Patch)
    assert len(model.requests) == 2


async def test_other_failures_are_not_repeated():
    model = ScriptedModel([RateLimited("later")])
    with pytest.raises(RateLimited):
        await ask(model, say("x"), Patch)
    assert len(model.requests) == 1


async def test_the_schema_is_sent_in_strict_form():
    with ChatServer(lambda call: GOOD) as server:
        await ask(to(server.url), say("x"), Patch)
    form = server.calls[0].body["response_format"]["json_schema"]
    assert form["strict"] is True
    assert form["schema"]["required"] == ["edits", "why"]
    assert form["schema"]["additionalProperties"] is False
    edit = form["schema"]["$defs"]["Edit"]
    assert edit["required"] == ["op", "content"] and "default" not in edit["properties"]["content"]


def test_a_schema_with_free_keys_is_not_sent_as_strict():
    class Free(BaseModel):
        scores: dict[str, float]

    assert strict_schema(Free.model_json_schema()) is None


def test_properties_named_like_schema_keywords_are_kept_in_strict_form():
    class Odd(BaseModel):
        title: str
        default: int = Field(default=3)

    strict = strict_schema(Odd.model_json_schema())
    assert strict is not None and set(strict["properties"]) == {"title", "default"} == set(
        strict["required"]
    )


async def test_an_endpoint_without_schemas_gets_instructions_and_a_warning_is_emitted():
    def script(call: Call) -> str | JSONResponse:
        if "response_format" in call.body:
            return JSONResponse(
                {"error": {"message": "This response_format type is unavailable now"}}, 400
            )
        return GOOD

    notices: list[str] = []
    with ChatServer(script) as server:
        model = to(server.url, notices=notices)
        await ask(model, say("first"), Patch)
        await ask(model, say("second"), Patch)
    assert ["response_format" in call.body for call in server.calls] == [True, False, False]
    assert '"edits"' in server.calls[1].text and "JSON schema" in server.calls[1].text
    assert len(notices) == 1 and "response_format" in notices[0]


async def test_a_refused_parameter_is_left_out_only_when_the_endpoint_does_not_know_it():
    def script(call: Call) -> str | JSONResponse:
        if "max_tokens" in call.body:
            words = (
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead."
            )
            return JSONResponse({"error": {"message": words}}, 400)
        return "ok"

    notices: list[str] = []
    with ChatServer(script) as server:
        await to(server.url, "openai/own-model", notices=notices).complete(say("x"))
    assert "max_tokens" not in server.calls[1].body
    assert server.calls[1].body["max_completion_tokens"] == 4096 and len(notices) == 1
    assert "`max_completion_tokens` is sent instead" in notices[0]
    assert "left out" not in notices[0]
    too_hot = JSONResponse({"error": {"message": "temperature must be at most 2"}}, 400)
    with ChatServer(lambda call: too_hot) as server, pytest.raises(Exception, match="at most 2"):
        await to(server.url, temperature=9).complete(say("x"))
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[" * 4096,
        '{"why": ' + "9" * 400 + "}",
        '{"why": ' + "9" * 5000 + "}",
        '{"edits": ' * 3000,
        "\"' " * 30_000,
        "```" + "\n" * 90_000,
        "```json\n" * 10_000,
        "{" * 90_000,
        "<think>" * 10_000,
        '{"why": "' + "x" * 2_000_000 + '"}',
    ],
    ids=lambda text: f"{text[:10]!r}",
)
@pytest.mark.timeout(60)
async def test_an_unreadable_reply_is_requested_again_and_then_a_bad_reply(text):
    model = ScriptedModel([text, text])
    with pytest.raises(BadReply):
        await ask(model, say("x", stage="merge"), Patch)
    model = ScriptedModel([text, GOOD])
    if not text.startswith("<think>"):  # that one is empty already before it is read
        assert (await ask(model, say("x"), Patch)).why == "because"
        assert len(model.requests[1].messages[1].content) <= 50_000


async def test_brackets_in_text_before_the_json_are_ignored():
    model = ScriptedModel([f"As in [1], here it is: {GOOD}"])
    assert (await ask(model, say("x"), Patch)).why == "because"


async def test_a_code_block_inside_the_json_is_not_the_reply():
    why = "Use\n```json\n{}\n```\nas the form."
    text = json.dumps({"edits": [], "why": why}, indent=2).replace("\\n", "\n")
    assert (await ask(ScriptedModel([text]), say("x"), Patch)).why == why


async def test_parsing_a_long_malformed_reply_does_not_block_the_event_loop() -> None:
    """Its quotes take the lenient reader hundreds of thousands of steps."""
    hostile = "x {'a': '" + "' " * 300_000
    reading = asyncio.create_task(ask(ScriptedModel([hostile, GOOD]), say("x"), Patch))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert (await reading).why == "because"
    assert turns > 5
