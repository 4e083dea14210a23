"""Keys are in memory and nowhere else."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from starlette.responses import JSONResponse

from skillfit.models import ModelSpec, redact
from skillfit.models.protocol import AuthFailed
from skillfit.models.secrets import remember_secret
from tests.models.support import say, to
from tests.support.chat_server import ChatServer


async def test_a_server_that_repeats_the_key_does_not_get_it_into_our_words():
    key = "plain-secret-without-a-prefix-77"

    def script(call):
        return JSONResponse(
            {"error": {"message": f"Incorrect API key: {call.headers['authorization']}"}}, 401
        )

    with ChatServer(script) as server:
        model = to(server.url, environ={"OPENAI_API_KEY": key})
        with pytest.raises(AuthFailed) as caught:
            await model.complete(say("x"))
    assert server.calls[0].headers["authorization"] == f"Bearer {key}"
    seen = [
        str(caught.value),
        repr(caught.value),
        repr(model),
        repr(model.spec),
        model.provider.endpoint,
        model.spec.model_dump_json(),
    ]
    assert not [text for text in seen if key in text]


def test_redact_hides_live_keys_and_look_alikes_and_leaves_the_rest():
    remember_secret("hunter2hunter2")
    text = "pass hunter2hunter2, sk-proj-abcdefghijklmnop1234, Bearer abcdefgh1234, keep task-force and skill"
    assert redact(text) == "pass [secret], [secret], Bearer [secret], keep task-force and skill"


def test_placeholder_keys_do_not_garble_text():
    remember_secret("none")
    assert redact("none of it") == "none of it"


@pytest.mark.parametrize(
    "spec",
    [
        {"id": "openai/m", "base_url": "https://user:pa55word@host/v1"},
        {"id": "openai/m", "base_url": "https://pa55word@host/v1"},
        {"id": "openai/m", "base_url": "https://host/v1?api_key=pa55word"},
        {"id": "openai/m", "options": {"api_key": "pa55word"}},
        {"id": "azure/m", "options": {"client_secret": "pa55word"}},
    ],
)
def test_a_config_cannot_hold_a_key(spec):
    with pytest.raises(ValidationError, match="environment") as caught:
        ModelSpec.model_validate(spec)
    assert "pa55word" not in str(caught.value)
