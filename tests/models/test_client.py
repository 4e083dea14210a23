"""Retries, billing and metering, against a real server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from starlette.responses import JSONResponse

from skillfit.errors import InputError
from skillfit.models import Reply, Request, Usage
from skillfit.models.client import check_reply
from skillfit.models.failures import is_unusable, policy
from skillfit.models.limiter import Limiters
from skillfit.models.protocol import (
    AuthFailed,
    BadReply,
    BadRequest,
    Message,
    ModelError,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    Refused,
)
from skillfit.models.providers.scripted import ScriptedModel
from tests.models.clocks_and_meters import CappedMeter, CapReached, InstantClock, say, to
from tests.support.chat_server import Call, ChatServer, RawServer, completion, http


def failing(
    times: int,
    status: int,
    error: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
):
    def script(call: Call) -> str | JSONResponse:
        if call.number < times:
            return JSONResponse({"error": error or {"message": "no"}}, status, headers)
        return "at last"

    return script


async def test_a_reply_has_its_usage_and_price():
    with ChatServer(lambda call: "four") as server:
        reply = await to(server.url).complete(say("2+2?"))
    assert reply.text == "four"
    assert (reply.usage.calls, reply.usage.input, reply.usage.output) == (1, 10, 2)
    assert reply.usage.usd == pytest.approx((10 * 2.5 + 2 * 10) / 1e6)


def reporting(read: int, written: int):
    def script(call: Call) -> JSONResponse:
        usage = {"prompt_tokens": read, "completion_tokens": written}
        return JSONResponse({**completion({"content": "four"}, "gpt-4o"), "usage": usage})

    return script


@pytest.mark.parametrize(("read", "written"), [(90_000_000, 2), (10, 90_000_000)])
async def test_counts_that_cannot_be_are_replaced_by_the_most_that_can(read, written):
    notices: list[str] = []
    with ChatServer(reporting(read, written)) as server:
        model = to(server.url, notices=notices)
        replies = [await model.complete(say("2+2?")) for _ in range(2)]
    for reply in replies:
        assert reply.usage.input < 1000 and reply.usage.output <= 4096
        assert reply.usage.usd is not None and reply.usage.usd < 0.1
    assert len(notices) == 1 and "90,000,000" in notices[0]


async def test_a_server_may_add_text_of_its_own_to_a_request():
    with ChatServer(reporting(20_000, 2)) as server:
        reply = await to(server.url).complete(say("2+2?"))
    assert reply.usage.input == 20_000


async def test_every_request_has_its_stage_and_run_in_headers():
    with ChatServer(lambda call: "ok") as server:
        await to(server.url).complete(say("x", stage="reflect.failure"))
    assert server.calls[0].headers["x-skillfit-stage"] == "reflect.failure"
    assert server.calls[0].headers["x-skillfit-run"] == "run-1"


async def test_server_errors_are_retried_with_growing_jittered_waits():
    clock = InstantClock()
    with ChatServer(failing(3, 500)) as server:
        reply = await to(server.url, clock=clock).complete(say("x"))
    assert reply.text == "at last"
    assert reply.usage.calls == 4
    assert len(clock.slept) == 3
    for wait, middle in zip(clock.slept, (0.5, 1, 2), strict=True):
        assert middle * 0.5 <= wait <= middle * 1.5


async def test_the_error_after_the_last_retry_has_the_usage_of_all_attempts():
    with ChatServer(failing(99, 503)) as server, pytest.raises(Overloaded) as caught:
        await to(server.url, retries=2).complete(say("x"))
    assert len(server.calls) == 3
    assert caught.value.usage.calls == 3


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (401, {"message": "Incorrect API key provided"}, AuthFailed),
        (403, {"message": "no access"}, AuthFailed),
        (
            429,
            {"message": "You exceeded your current quota", "code": "insufficient_quota"},
            QuotaExhausted,
        ),
        (404, {"message": "The model does not exist", "code": "model_not_found"}, BadRequest),
    ],
)
async def test_permanent_failures_are_not_retried(status, error, kind):
    clock = InstantClock()
    with ChatServer(failing(99, status, error)) as server, pytest.raises(kind):
        await to(server.url, clock=clock).complete(say("x"))
    assert len(server.calls) == 1
    assert clock.slept == []


async def test_retry_after_pauses_every_call_to_the_endpoint():
    clock = InstantClock()
    limiters = Limiters(clock)
    with ChatServer(failing(1, 429, headers={"retry-after": "17"})) as server:
        await to(server.url, limiters=limiters).complete(say("x"))
        assert clock.time == 17
        with ChatServer(failing(1, 429, headers={"retry-after": "30"})) as other:
            waiting = to(other.url, limiters=limiters, role="optimizer")
            failed = to(other.url, limiters=limiters, retries=0)
            with pytest.raises(RateLimited):
                await failed.complete(say("x"))
            await waiting.complete(say("y"))
    assert clock.time == 47


async def test_a_date_in_retry_after_counts_from_the_servers_clock():
    clock = InstantClock()
    dates = "Date: Wed, 21 Oct 2026 07:28:00 GMT\r\nRetry-After: Wed, 21 Oct 2026 07:28:42 GMT"
    answers = [
        http("{}", status=f"429 Too Many Requests\r\n{dates}"),
        http(json.dumps(completion({"content": "ok"}, "m"))),
    ]
    with RawServer(lambda number: answers[number]) as server:
        await to(server.url, clock=clock).complete(say("x"))
    assert clock.time == 42


async def test_a_retry_after_of_an_hour_is_not_waited_for():
    clock = InstantClock()
    with (
        ChatServer(failing(1, 429, headers={"retry-after": "3600"})) as server,
        pytest.raises(RateLimited) as caught,
    ):
        await to(server.url, clock=clock).complete(say("x"))
    assert caught.value.retry_after == 3600
    assert clock.time == 0


@pytest.mark.parametrize(
    "content", ["", None, "   \n", "<think>Let me see.</think>", "<think>never ending"]
)
async def test_empty_replies_are_failures_and_are_billed(content):
    with ChatServer(lambda call: {"content": content}) as server, pytest.raises(BadReply) as caught:
        await to(server.url).complete(say("x"))
    assert len(server.calls) == 3  # two retries instead of five, because these replies are billed
    assert caught.value.usage.input == 30


async def test_a_truncated_reply_is_a_failure_that_names_the_setting_to_raise():
    cut = JSONResponse(completion({"content": "half an ans"}, "m", "length"))
    with ChatServer(lambda call: cut) as server, pytest.raises(BadReply, match="max_tokens"):
        await to(server.url).complete(say("x"))


@pytest.mark.parametrize(("temperature", "sent"), [(0.0, 1), (0.7, 3), (None, 3)])
async def test_a_truncated_reply_is_retried_only_if_it_could_differ(temperature, sent):
    cut = JSONResponse(completion({"content": "half an ans"}, "m", "length"))
    request = replace(say("x"), temperature=temperature)
    with ChatServer(lambda call: cut) as server, pytest.raises(BadReply) as caught:
        await to(server.url).complete(request)
    assert len(server.calls) == sent
    assert policy(caught.value.kind).rollout_retries == (sent > 1)
    assert is_unusable(caught.value.kind)


async def test_thinking_is_cut_from_the_answer():
    with ChatServer(lambda call: "<think>two and two</think>\n\nfour") as server:
        assert (await to(server.url).complete(say("x"))).text == "four"
    assert check_reply(Reply("so it is\n</think>\nfour"), "m").text == "four"


async def test_a_lone_surrogate_in_a_scripted_reply_is_replaced():
    reply = await ScriptedModel(["half \ud83d"]).complete(say("x"))
    assert reply.text == "half \ufffd"


async def test_a_refusal_is_not_retried():
    with (
        ChatServer(lambda call: {"content": None, "refusal": "I cannot help"}) as server,
        pytest.raises(Refused, match="cannot help"),
    ):
        await to(server.url).complete(say("x"))
    assert len(server.calls) == 1


async def test_values_of_a_request_take_precedence_over_the_spec():
    with ChatServer(lambda call: "ok") as server:
        model = to(server.url, temperature=0.2, max_tokens=50)
        await model.complete(say("x"))
        await model.complete(say("x", temperature=0.9, max_tokens=7, seed=3))
    assert (server.calls[0].body["temperature"], server.calls[0].body["max_tokens"]) == (0.2, 50)
    assert (
        server.calls[1].body["temperature"],
        server.calls[1].body["max_tokens"],
        server.calls[1].body["seed"],
    ) == (0.9, 7, 3)
    assert "seed" not in server.calls[0].body


@pytest.mark.parametrize(
    ("role", "limit"), [("agent", 4096), ("judge", 4096), ("optimizer", 16384)]
)
async def test_each_role_has_its_default_reply_limit(role, limit):
    with ChatServer(lambda call: "ok") as server:
        await to(server.url, role=role).complete(say("x"))
    assert server.calls[0].body["max_tokens"] == limit


async def test_reasoning_models_get_their_own_parameters_and_a_dropped_temperature_is_reported():
    notices: list[str] = []
    with ChatServer(lambda call: "ok") as server:
        model = to(
            server.url,
            "openai/gpt-5-mini-2025-08-07",
            temperature=0.5,
            reasoning_effort="low",
            notices=notices,
        )
        await model.complete(say("x"))
        await model.complete(say("y"))
    body = server.calls[0].body
    assert body["max_completion_tokens"] == 16384
    assert body["reasoning_effort"] == "low"
    assert "temperature" not in body and "max_tokens" not in body
    assert len(notices) == 1 and "temperature" in notices[0]


async def test_budget_is_reserved_before_each_attempt_and_settled_after_it():
    meter = CappedMeter()
    with ChatServer(failing(1, 500)) as server:
        reply = await to(server.url, meter=meter).complete(say("x"))
    assert len(meter.bounds) == 2 and meter.open == 0
    assert [usage.calls for usage in meter.settled] == [1, 1]
    assert meter.settled[0].tokens == 0
    assert meter.spent + Usage(failed=1) == reply.usage
    assert all((bound.usd or 0) > (reply.usage.usd or 0) for bound in meter.bounds)


async def test_no_attempt_is_sent_without_budget():
    meter = CappedMeter(calls=0)
    with ChatServer(lambda call: "ok") as server, pytest.raises(CapReached):
        await to(server.url, meter=meter).complete(say("x"))
    assert server.calls == []


async def test_a_budget_reached_between_attempts_reports_their_cost():
    meter = CappedMeter(calls=2)
    with ChatServer(failing(99, 500)) as server, pytest.raises(CapReached) as caught:
        await to(server.url, meter=meter).complete(say("x"))
    assert len(server.calls) == 2
    failure = caught.value.__cause__
    assert isinstance(failure, Overloaded) and failure.usage.calls == 2


async def test_concurrent_calls_exceed_neither_the_budget_nor_the_ceiling():
    async def slow(call: Call) -> str:
        await asyncio.sleep(0.01)
        return "word " * 20

    meter = CappedMeter(usd=0.5)
    with ChatServer(slow) as server:
        model = to(server.url, meter=meter, concurrency=6, max_tokens=1000)
        results = await asyncio.gather(
            *(model.complete(say(f"{n}")) for n in range(60)), return_exceptions=True
        )
    answered = [result for result in results if isinstance(result, Reply)]
    assert len(answered) == len(server.calls) == 60
    assert meter.spent == sum((reply.usage for reply in answered), Usage())
    assert 1 < server.most_in_flight <= 6
    assert model.limiter.in_flight == 0


async def test_a_cancelled_call_is_charged_its_upper_bound():
    meter = CappedMeter()
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()

    def never(number: int) -> None:
        loop.call_soon_threadsafe(arrived.set)

    with RawServer(never) as server:
        model = to(server.url, meter=meter)
        task = asyncio.ensure_future(model.complete(say("x")))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert meter.open == 0 and meter.settled == meter.bounds
    assert model.limiter.in_flight == 0


async def test_a_model_can_be_used_from_several_event_loops():
    with ChatServer(lambda call: "ok") as server:
        model = to(server.url)

        def in_a_new_loop() -> str:
            return asyncio.run(model.complete(say("x"))).text

        assert await asyncio.to_thread(in_a_new_loop) == "ok"
        assert await asyncio.to_thread(in_a_new_loop) == "ok"


async def test_a_scripted_model_returns_its_replies_and_records_requests():
    model = ScriptedModel(
        ["one", Reply("two", usage=Usage(calls=1, input=7)), RateLimited("slow down"), ""]
    )
    request = Request((Message("user", "x"),), "rollout")
    assert (await model.complete(request)).text == "one"
    assert (await model.complete(request)).usage.input == 7
    with pytest.raises(RateLimited):
        await model.complete(request)
    with pytest.raises(BadReply, match="empty"):
        await model.complete(request)
    with pytest.raises(BadReply, match="no reply left"):
        await model.complete(request)
    assert len(model.requests) == 5


async def test_a_function_in_a_file_is_a_scripted_model(tmp_path):
    (tmp_path / "script.py").write_text(
        "def answer(request):\n    return request.messages[-1].content.upper()\n"
    )
    model = to("", f"scripted/{tmp_path}/script.py:answer")
    assert (await model.complete(say("größe"))).text == "GRÖSSE"
    assert (await model.complete(say("x"))).usage.usd == 0


@pytest.mark.parametrize("keyword", ["def", "async def"])
async def test_a_scripted_function_that_raises_is_a_failed_call(tmp_path, keyword):
    (tmp_path / "script.py").write_text(
        f"{keyword} answer(request):\n    raise RuntimeError('no way')\n"
    )
    model = to("", f"scripted/{tmp_path}/script.py:answer")
    with pytest.raises(ModelError, match=r"script\.py:answer: RuntimeError: no way \(script\.py:2"):
        await model.complete(say("x"))


async def test_a_scripted_function_may_raise_a_kind_of_failure(tmp_path):
    (tmp_path / "script.py").write_text(
        "from skillfit.models.protocol import Refused\n\n"
        "def answer(request):\n    raise Refused('not this')\n"
    )
    with pytest.raises(Refused, match="not this"):
        await to("", f"scripted/{tmp_path}/script.py:answer").complete(say("x"))


async def test_calls_of_a_scripted_function_that_is_not_async_run_at_the_same_time(tmp_path):
    (tmp_path / "script.py").write_text(
        "import threading\n\nboth = threading.Barrier(2, timeout=30)\n\n"
        "def answer(request):\n    both.wait()\n    return request.messages[-1].content\n"
    )
    model = to("", f"scripted/{tmp_path}/script.py:answer")
    replies = await asyncio.gather(model.complete(say("one")), model.complete(say("two")))
    assert [reply.text for reply in replies] == ["one", "two"]


def test_a_scripted_model_without_the_name_of_a_function_says_so(tmp_path):
    (tmp_path / "script.py").write_text("def answer(request):\n    return 'x'\n")
    with pytest.raises(InputError, match=r"script\.py: the name of the function is missing"):
        to("", f"scripted/{tmp_path}/script.py")
