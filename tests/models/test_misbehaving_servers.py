"""Servers that hang, break off or send invalid replies: each failure has its own type, and an
unreadable reply is never an answer.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.responses import HTMLResponse, JSONResponse

from skillfit.models.protocol import AuthFailed, BadReply, NetworkFailed, TimedOut, Usage
from tests.models.clocks_and_meters import CappedMeter, say, to
from tests.support.chat_server import ChatServer, RawServer, completion, http

WHOLE = json.dumps(completion({"content": "fine"}, "m"))


async def test_a_silent_server_is_a_timeout_and_is_charged_in_full():
    meter = CappedMeter()
    with RawServer(lambda number: None) as server, pytest.raises(TimedOut) as caught:
        await to(server.url, timeout=0.15, retries=1, meter=meter).complete(say("x"))
    assert server.requests == 2
    failed = Usage(failed=2, failed_tokens=meter.spent.tokens)
    assert caught.value.usage == meter.bounds[0] + meter.bounds[1] + failed


async def test_a_connection_closed_within_the_body_is_retried():
    cut = http(WHOLE[: len(WHOLE) // 2], length=len(WHOLE))
    with RawServer(lambda number: cut if number == 0 else http(WHOLE)) as server:
        reply = await to(server.url).complete(say("x"))
    assert reply.text == "fine"
    assert reply.usage.calls == 2


async def test_a_connection_closed_before_the_reply_is_a_network_failure():
    with RawServer(lambda number: b"") as server, pytest.raises(NetworkFailed):
        await to(server.url, retries=1).complete(say("x"))
    assert server.requests == 2


async def test_a_truncated_json_document_is_never_an_answer():
    with (
        RawServer(lambda number: http(WHOLE[:-25])) as server,
        pytest.raises(NetworkFailed, match="broke off"),
    ):
        await to(server.url, retries=1).complete(say("x"))


async def test_a_refused_connection_costs_nothing():
    with RawServer(lambda number: None) as server:
        url = server.url
    meter = CappedMeter()
    with pytest.raises(NetworkFailed, match="base_url") as caught:
        await to(url, retries=1, meter=meter).complete(say("x"))
    assert caught.value.usage == Usage(failed=2)
    assert meter.spent == Usage()


async def test_calls_to_a_closed_port_are_reported_once_while_they_are_retried():
    with RawServer(lambda number: None) as server:
        url = server.url
    notices: list[str] = []
    model = to(url, retries=3, notices=notices)
    first, *_ = await asyncio.gather(
        *(model.complete(say(str(number))) for number in range(5)), return_exceptions=True
    )
    assert isinstance(first, NetworkFailed)
    assert "connection refused" in str(first)
    assert notices == [
        f"Retrying up to 3 times, waiting about 3.5 s: {first}",
    ]


async def test_the_error_for_a_web_page_names_the_base_url():
    page = HTMLResponse("<html><body>Welcome to nginx!</body></html>")
    with ChatServer(lambda call: page) as server, pytest.raises(BadReply, match="/v1") as caught:
        await to(server.url, retries=0).complete(say("x"))
    assert "text/html" in str(caught.value)


async def test_a_gateways_error_page_is_reported_as_plain_text():
    page = HTMLResponse("<html><h1>502 Bad Gateway</h1></html>", 502)
    with ChatServer(lambda call: page if call.number == 0 else "ok") as server:
        assert (await to(server.url).complete(say("x"))).text == "ok"


@pytest.mark.parametrize(
    "body",
    [{"choices": []}, {"choices": None}, {}, {"choices": [{}]}, {"choices": [{"message": None}]}],
)
async def test_replies_without_a_choice_are_failures(body):
    with ChatServer(lambda call: JSONResponse(body)) as server, pytest.raises(BadReply):
        await to(server.url, retries=0).complete(say("x"))


@pytest.mark.parametrize("body", ["[]", '"hello"', "null", "7"])
async def test_json_that_is_not_an_object_is_a_failure(body):
    with RawServer(lambda number: http(body)) as server, pytest.raises(BadReply):
        await to(server.url, retries=0).complete(say("x"))


async def test_an_error_sent_with_status_200_is_still_an_error():
    answer = {
        "base_resp": {"status_code": 1004, "status_msg": "login fail: invalid key"},
        "choices": None,
    }
    with ChatServer(lambda call: JSONResponse(answer)) as server, pytest.raises(AuthFailed):
        await to(server.url).complete(say("x"))
    assert len(server.calls) == 1


_REFUSE_MANY = """
import asyncio, json, sys, zlib
from skillfit.models.providers import http
from tests.models.clocks_and_meters import say, to
from tests.support.fuzz_server import fuzz_server
from tests.support.peak_memory import peak_megabytes
http.MAX_REPLY_BYTES = 300_000
pad = "x" * 290_000
body = {
    "oversized": pad * 2,
    "invalid": json.dumps({"choices": {"a": pad}}),
    "cut off": json.dumps({"choices": [{"message": {"content": pad}, "finish_reason": "length"}]}),
}[sys.argv[1]]
packed = zlib.compressobj(wbits=31)
body = packed.compress(body.encode()) + packed.flush()
head = "HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Encoding: gzip\\r\\n"
answer = f"{head}Content-Length: {len(body)}\\r\\n\\r\\n".encode() + body
async def main():
    async with fuzz_server(lambda path, request: answer) as root:
        model = to(f"{root}/v1", retries=0, concurrency=8)
        before = peak_megabytes()
        calls = [model.complete(say(str(number))) for number in range(1_000)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert len({str(error) for error in errors}) == 1, errors[0]
        print(peak_megabytes() - before)
asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["oversized", "invalid", "cut off"])
def test_a_thousand_refused_replies_do_not_stay_in_memory(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REFUSE_MANY, kind],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 80  # megabytes, of 290 that were received


async def test_a_reply_without_usage_is_not_free():
    body = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
    meter = CappedMeter()
    with ChatServer(lambda call: JSONResponse(body)) as server:
        reply = await to(server.url, meter=meter).complete(say("x" * 100))
    assert reply.usage.input >= 100 and reply.usage.output >= 5
    assert reply.usage.input <= meter.bounds[0].input


async def test_a_lone_surrogate_in_a_reply_is_replaced():
    half = WHOLE.replace("fine", "fine \\ud83d and \\ud83d\\ude80")
    with RawServer(lambda number: http(half)) as server:
        assert (await to(server.url).complete(say("x"))).text == "fine \ufffd and 🚀"


async def test_prompts_over_128_kib_arrive_complete_in_every_script():
    text = "Größe 大きさ размер 🚀 \x07 \u2028 " * 6000
    assert len(text.encode()) > 200_000
    with ChatServer(lambda call: call.text[-40:] + " – ответ 🎉") as server:
        reply = await to(server.url).complete(say(text))
    assert server.calls[0].body["messages"][0]["content"] == text
    assert reply.text.endswith("– ответ 🎉")
