"""What tokens cost, and the most a request can cost."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.errors import InputError
from skillfit.models import Prices, Request, Usage, context_window_of
from skillfit.models.prices import is_reasoning
from skillfit.models.protocol import Image, Message, Tool


def test_known_models_have_prices_under_any_date_and_prefix():
    assert (
        Prices().of("openai/gpt-5-mini")
        == Prices().of("openai/gpt-5-mini-2025-08-07")
        == Prices().of("openrouter/openai/gpt-5-mini")
    )
    assert Prices().of("anthropic/claude-sonnet") == Prices().of("anthropic/claude-sonnet-4-6")
    assert Prices().of("anthropic/claude-haiku-4-5-20251001") is not None


@pytest.mark.parametrize(
    "model",
    [
        "openai/gpt-5-ultra",
        "openai/my-finetune",
        "azure/deployment-7",
        "openai/gpt-4o-2024-08-06-ft",
    ],
)
def test_a_price_is_never_guessed(model):
    assert Prices().of(model) is None
    assert Prices().priced(model, Usage(calls=1, input=5)).usd is None
    assert Prices().upper_bound(model, Request((Message("user", "x"),), "rollout"), 10).usd is None


@pytest.mark.parametrize(
    "model", ["local/m.gguf", "ollama/qwen3", "practice/anything", "scripted/x.py:f", "handoff"]
)
def test_local_models_are_free(model):
    assert Prices().priced(model, Usage(calls=1, input=5, output=5)).usd == 0


def test_configured_prices_take_precedence_and_match_the_id_or_the_bare_name():
    prices = Prices(
        {"gpt-4o": {"input": 1, "output": 2}, "openai/own": {"input": 3, "output": 4, "cached": 1}}
    )
    assert (
        prices.priced("openai/gpt-4o", Usage(calls=1, input=1_000_000, output=1_000_000)).usd == 3
    )
    assert prices.priced("openai/own", Usage(calls=1, input=2_000_000, cached=1_000_000)).usd == 4


@pytest.mark.parametrize("row", [{"input": 1}, {}, {"input": 1, "output": 2, "outptu": 3}])
def test_an_invalid_price_is_refused_by_name(row):
    with pytest.raises(InputError, match="my-model"):
        Prices({"my-model": row})


def test_cache_reads_and_cache_writes_have_their_own_prices():
    usage = Usage(calls=1, input=3_000_000, cached=1_000_000, written=1_000_000, output=1_000_000)
    assert Prices().priced("anthropic/claude-sonnet-4-6", usage).usd == pytest.approx(
        3 + 0.3 + 3.75 + 15
    )


def test_long_requests_cost_more_where_the_vendor_says_so():
    short, long = (Usage(calls=1, input=tokens, output=1000) for tokens in (200_000, 200_001))
    prices = Prices()
    assert prices.priced("anthropic/claude-sonnet-4-5", short).usd == pytest.approx(0.615)
    assert prices.priced("anthropic/claude-sonnet-4-5", long).usd == pytest.approx(1.222506)
    request = Request((Message("user", "x" * 300_000),), "rollout")
    bound = prices.upper_bound("anthropic/claude-sonnet-4-5", request, 1000)
    at_most = replace(bound, written=bound.input)
    assert (bound.usd or 0) >= (prices.priced("anthropic/claude-sonnet-4-5", at_most).usd or 0)


@pytest.mark.parametrize(
    "model",
    [
        "azure/gpt-4o",
        "gemini/gemini-2.5-flash",
        "minimax/MiniMax-M2",
        "qwen/qwen-plus",
        "openai/qwen-plus",
        "openai/claude-sonnet-4-6",
        "openrouter/qwen/qwen3-max",
        "cli/claude/claude-sonnet-4-6",
    ],
)
def test_models_of_every_vendor_have_prices_also_behind_a_gateway(model):
    price = Prices().of(model)
    assert price is not None and 0 < price.input < price.output


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_price_that_would_void_a_budget_is_refused(value):
    with pytest.raises(InputError, match=r"model\.prices\.my-model\.output"):
        Prices({"my-model": {"input": 1, "output": value}})


def test_prices_are_read_offline():
    code = (
        "import socket; socket.socket.connect = None\n"
        "from skillfit.models import Prices; assert Prices().of('openai/gpt-4o')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_context_windows_are_known_or_default():
    assert context_window_of("openai/gpt-4.1") >= 1_000_000
    assert context_window_of("openai/never-heard-of") == 128_000


@given(st.text(), st.text(), st.integers(0, 5))
def test_no_request_has_more_tokens_than_its_bound(system, user, tools):
    request = Request(
        (Message("system", system), Message("user", user)),
        "rollout",
        tools=tuple(Tool(f"t{n}", user, {"type": "object"}) for n in range(tools)),
    )
    bound = Prices().upper_bound("openai/gpt-4o", request, 100)
    assert bound.input >= len(system.encode()) + len(user.encode()) * (1 + tools)
    assert (bound.calls, bound.output) == (1, 100)


def test_an_image_counts_at_its_maximum_cost(tmp_path):
    plain = Request((Message("user", "x"),), "rollout")
    shown = Request((Message("user", "x", (Image(tmp_path / "a.png"),)),), "rollout")
    extra = {
        model: Prices().upper_bound(model, shown, 1).input
        - Prices().upper_bound(model, plain, 1).input
        for model in ("openai/gpt-4o", "openai/gpt-4o-mini")
    }
    assert extra["openai/gpt-4o-mini"] > extra["openai/gpt-4o"] > 1000


@pytest.mark.parametrize(
    "model",
    [
        "openai/gpt-5",
        "azure/gpt-5.4-mini",
        "openai/gpt-6-sol",
        "openrouter/openai/o3",
        "openai/o4-mini",
    ],
)
def test_reasoning_models_are_recognised_by_name(model):
    assert is_reasoning(model)


@pytest.mark.parametrize(
    "model",
    [
        "openai/gpt-4o",
        "openai/gpt-5-chat-latest",
        "qwen/qwen3-max",
        "ollama/gpt-oss",
        "openai/o-llama",
    ],
)
def test_other_models_are_not_recognised_as_reasoning_models(model):
    assert not is_reasoning(model)


def test_dollars_reported_by_a_program_are_used_without_a_known_price():
    assert Prices().priced("cli/claude", Usage(calls=1, input=10, usd=0.5)).usd == 0.5
    assert Prices().priced("cli/claude", Usage(calls=1, input=10)).usd is None
    assert (
        Prices({"cli/claude": {"input": 1, "output": 1}})
        .priced("cli/claude", Usage(calls=1, input=10**6, usd=0.5))
        .usd
        == 1
    )
