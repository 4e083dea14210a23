"""Each vendor's address, key and special parameters."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest

from skillfit.errors import InputError
from skillfit.models import (
    CHAT_API,
    ModelSpec,
    Prices,
    connect,
    known_providers,
    register_provider,
)
from skillfit.models.protocol import AuthFailed, Reply
from skillfit.models.providers.openai_protocols import ollama_address
from skillfit.models.registry import Readiness, Setup
from tests.models.clocks_and_meters import say, to
from tests.support.chat_server import ChatServer, RawServer, http


def at(id: str, environ: dict[str, str], **spec) -> str:
    return connect(
        ModelSpec(id=id, **spec), role="agent", run_id="r", environ=environ
    ).provider.endpoint.rpartition("#")[0]


@pytest.mark.parametrize(
    ("id", "environ", "where"),
    [
        ("openai/gpt-5", {"OPENAI_API_KEY": "k"}, "https://api.openai.com:443"),
        ("openai/m", {"OPENAI_BASE_URL": "http://10.0.0.7:8000/v1"}, "http://10.0.0.7:8000"),
        ("openrouter/openai/gpt-5", {"OPENROUTER_API_KEY": "k"}, "https://openrouter.ai:443"),
        (
            "gemini/gemini-2.5-pro",
            {"GEMINI_API_KEY": "k"},
            "https://generativelanguage.googleapis.com:443",
        ),
        ("qwen/qwen-plus", {"DASHSCOPE_API_KEY": "k"}, "https://dashscope-intl.aliyuncs.com:443"),
        ("minimax/MiniMax-M2", {"MINIMAX_API_KEY": "k"}, "https://api.minimax.io:443"),
        (
            "minimax/MiniMax-M2",
            {"MINIMAX_API_KEY": "k", "MINIMAX_REGION": "cn"},
            "https://api.minimaxi.com:443",
        ),
        ("ollama/qwen3:8b", {}, "http://127.0.0.1:11434"),
        ("anthropic/claude-sonnet", {"ANTHROPIC_API_KEY": "k"}, "https://api.anthropic.com:443"),
        (
            "azure/dep",
            {"AZURE_OPENAI_API_KEY": "k", "AZURE_OPENAI_ENDPOINT": "https://x.openai.azure.com"},
            "https://x.openai.azure.com:443",
        ),
    ],
)
def test_each_vendors_address_follows_its_variables(id, environ, where):
    assert at(id, environ) == where


@pytest.mark.parametrize(
    "id",
    [
        "openai/gpt-5",
        "openrouter/x/y",
        "gemini/g",
        "qwen/qwen-plus",
        "minimax/MiniMax-M2",
        "anthropic/c",
        "azure/d",
    ],
)
def test_a_missing_key_is_reported_before_anything_is_spent(id):
    with pytest.raises(AuthFailed, match="is not set"):
        at(id, {"AZURE_OPENAI_ENDPOINT": "https://x"})


def test_a_spec_can_name_the_variable_of_its_key():
    with pytest.raises(AuthFailed, match="TEAM_KEY is not set"):
        at("openai/gpt-5", {"OPENAI_API_KEY": "k"}, key_env="TEAM_KEY")
    assert at("openai/gpt-5", {"TEAM_KEY": "k"}, key_env="TEAM_KEY")


@pytest.mark.parametrize(
    ("id", "spec", "problem"),
    [
        ("openai/m", {"options": {"regoin": "x"}}, "regoin"),
        ("openai/m", {"thinking": "on"}, "thinking"),
        ("openai/m", {"options": {"api": "grpc"}}, "grpc"),
        ("minimax/MiniMax-M2", {"options": {"region": "mars"}}, "mars"),
        ("minimax/MiniMax-M2.1", {"thinking": "off"}, "always thinks"),
        ("opnai/gpt-5", {}, "Did you mean 'openai'"),
        ("gpt-5", {}, "Unknown provider 'gpt-5'"),
        ("azure/d", {"options": {"auth": "magic"}, "base_url": "https://x"}, "magic"),
        ("practice/agent", {"base_url": "https://x"}, "base_url"),
        ("local/m.gguf", {"base_url": "https://x"}, "base_url"),
        ("handoff", {"base_url": "https://x"}, "base_url"),
        ("scripted/model.py:reply", {"base_url": "https://x"}, "base_url"),
        ("scripted/model.py:reply", {"thinking": "on"}, "thinking"),
        ("scripted/model.py:reply", {"options": {"seed": 3}}, "seed"),
        ("scripted/model.py:reply", {"key_env": "MY_KEY"}, "key_env"),
        ("scripted/model.py:reply", {"context_window": 900}, "context_window"),
        ("practice/agent", {"key_env": "MY_KEY"}, "key_env"),
        ("handoff", {"key_env": "MY_KEY"}, "key_env"),
    ],
)
def test_settings_without_effect_are_refused(id, spec, problem):
    with pytest.raises(InputError, match=problem):
        at(id, {"OPENAI_API_KEY": "k", "MINIMAX_API_KEY": "k", "AZURE_OPENAI_API_KEY": "k"}, **spec)


ADDRESSES = {
    "openai/m": "OPENAI_BASE_URL",
    "azure/m": "AZURE_OPENAI_ENDPOINT",
    "anthropic/m": "ANTHROPIC_BASE_URL",
    "qwen/m": "DASHSCOPE_BASE_URL",
    "minimax/m": "MINIMAX_BASE_URL",
}
KEYS = dict.fromkeys(
    (
        "OPENAI_API_KEY",
        "AZURE_OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "DASHSCOPE_API_KEY",
        "MINIMAX_API_KEY",
    ),
    "k",
)


@pytest.mark.parametrize("id", ADDRESSES)
def test_an_address_with_credentials_is_refused_without_repeating_them(id):
    with pytest.raises(InputError, match=f"{ADDRESSES[id]} of {id} contains") as caught:
        at(id, {**KEYS, ADDRESSES[id]: "https://me:pa55word@gateway.example/v1"})
    assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize("id", ADDRESSES)
@pytest.mark.parametrize(
    "address", ["localhost:8000/v1", "http://host:80a/v1", "http://", "ftp://host/v1"]
)
def test_an_invalid_address_is_reported_before_anything_is_sent(id, address):
    for environ, spec in (({ADDRESSES[id]: address}, {}), ({}, {"base_url": address})):
        with pytest.raises(InputError, match="not an address"):
            at(id, {**KEYS, **environ}, **spec)


def test_an_invalid_ollama_host_is_reported():
    with pytest.raises(InputError, match="OLLAMA_HOST"):
        at("ollama/m", {"OLLAMA_HOST": "host:80a"})


@pytest.mark.parametrize(
    ("thinking", "sent"),
    [("on", {"enable_thinking": True}), ("off", {"enable_thinking": False}), ("default", None)],
)
async def test_qwen_thinking_is_set_in_the_chat_template_on_a_custom_server(thinking, sent):
    with ChatServer(lambda call: "ok") as server:
        await to(server.url, "qwen/Qwen3-4B", thinking=thinking).complete(say("x"))
    assert server.calls[0].body.get("chat_template_kwargs") == sent


async def test_minimax_thinking_uses_its_own_parameter():
    with ChatServer(lambda call: "ok") as server:
        await to(
            server.url, "minimax/MiniMax-M3", thinking="off", environ={"MINIMAX_API_KEY": "kkkkkk"}
        ).complete(say("x"))
    assert server.calls[0].body["thinking"] == {"type": "disabled"}
    assert server.calls[0].headers["authorization"] == "Bearer kkkkkk"


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("box:9999", "http://box:9999"),
        ("https://box.example", "https://box.example:443"),
        (":7777", "http://127.0.0.1:7777"),
    ],
)
def test_ollama_host_is_read_in_every_format(host, address):
    assert ollama_address(host) == address


async def test_azure_by_key_calls_the_deployment():
    environ = {"AZURE_OPENAI_API_KEY": "azure-key-123"}
    with ChatServer(lambda call: "ok") as server:
        await to(
            server.root, "azure/my-dep", environ=environ, options={"api_version": "2025-01-01"}
        ).complete(say("x"))
    assert server.calls[0].path == "/openai/deployments/my-dep/chat/completions"
    assert server.calls[0].headers["api-key"] == "azure-key-123"


@pytest.mark.parametrize("environ", [{"AZURE_OPENAI_API_KEY": "azure-key-123"}, {}])
async def test_a_plain_server_in_place_of_azure_is_called_with_azures_variables(environ):
    with ChatServer(lambda call: "ok") as server:
        environ = {**environ, "OPENAI_API_KEY": "of-another"}
        model = to(server.url, "azure/dep", environ=environ, options={"auth": "openai_compatible"})
        await model.complete(say("x"))
    (call,) = server.calls
    assert (call.path, call.body["model"]) == ("/v1/chat/completions", "dep")
    key = environ.get("AZURE_OPENAI_API_KEY", "none")
    assert call.headers["authorization"] == f"Bearer {key}"


@pytest.mark.parametrize(
    ("environ", "sent"),
    [
        ({"AZURE_OPENAI_API_KEY": "azure-key-123"}, "azure-key-123"),
        ({}, "Bearer token-from-az-1234"),
        (
            {"AZURE_OPENAI_API_KEY": "azure-key-123", "AZURE_OPENAI_AUTH_MODE": "azure_cli"},
            "Bearer token-from-az-1234",
        ),
    ],
)
async def test_azure_chooses_the_sign_in_by_what_the_environment_has(
    tmp_path, monkeypatch, environ, sent
):
    log_in(tmp_path, monkeypatch)
    with ChatServer(lambda call: "ok") as server:
        model = to(server.root, "azure/dep", environ=environ, options={"auth": "auto"})
        await model.complete(say("x"))
    headers = server.calls[0].headers
    assert headers.get("api-key", headers.get("authorization")) == sent


def log_in(folder, monkeypatch):
    """An Azure CLI that is logged in."""
    token = {
        "accessToken": "token-from-az-1234",
        "expires_on": 4102444800,
        "expiresOn": "2100-01-01 00:00:00.000000",
    }
    az = folder / "az"
    az.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(token)}\nEND\n")
    az.chmod(az.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


async def test_azure_cli_sign_in_uses_the_login_of_the_machine(tmp_path, monkeypatch):
    log_in(tmp_path, monkeypatch)
    with ChatServer(lambda call: "ok") as server:
        await to(server.root, "azure/my-dep", options={"auth": "azure_cli"}).complete(say("x"))
    assert server.calls[0].headers["authorization"] == "Bearer token-from-az-1234"


async def test_azure_without_a_login_is_reported_once(tmp_path, monkeypatch):
    az = tmp_path / "az"
    az.write_text(
        "#!/bin/sh\necho \"ERROR: Please run 'az login' to setup account.\" >&2\nexit 1\n"
    )
    az.chmod(az.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with ChatServer(lambda call: "ok") as server, pytest.raises(AuthFailed, match="az login"):
        await to(server.root, "azure/my-dep", options={"auth": "azure_cli"}).complete(say("x"))
    assert server.calls == []


def test_providers_report_what_they_need_and_whether_they_are_ready():
    known = {provider.name: provider for provider in known_providers()}
    assert {
        "openai",
        "azure",
        "anthropic",
        "qwen",
        "minimax",
        "ollama",
        "local",
        "handoff",
        "scripted",
    } <= set(known)
    assert known["gemini"].readiness({}) == Readiness(False, "set GEMINI_API_KEY or GOOGLE_API_KEY")
    assert known["gemini"].readiness({"GOOGLE_API_KEY": "k"}) == Readiness(True, "GOOGLE_API_KEY")
    for name in ("handoff", "practice", "scripted"):
        assert known[name].readiness({}).ready


def test_models_of_programs_can_be_named_without_importing_the_agents():
    code = (
        "import sys\n"
        "from skillfit.models import known_providers\n"
        "assert 'skillfit.agents' not in sys.modules\n"
        "known = {provider.name: provider for provider in known_providers()}\n"
        "print(known['cli'].readiness({'PATH': ''}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "claude" in done.stdout


def readiness(name: str, environ: dict[str, str]) -> Readiness:
    return {provider.name: provider for provider in known_providers()}[name].readiness(environ)


def test_a_local_model_is_ready_where_its_module_is_installed(monkeypatch):
    assert readiness("local", {}).ready
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert readiness("local", {}) == Readiness(
        False, "install it with: pip install 'skillfit[local]'"
    )


def test_ollama_is_ready_where_its_server_answers():
    with RawServer(lambda number: http('{"version": "0.9"}')) as server:
        address = server.url.removesuffix("/v1")
        assert readiness("ollama", {"OLLAMA_HOST": address}) == Readiness(
            True, f"answers at {address}"
        )
    assert readiness("ollama", {"OLLAMA_HOST": address}) == Readiness(
        False, f"no server answers at {address}"
    )
    with RawServer(lambda number: b"no HTTP") as server:
        assert not readiness("ollama", {"OLLAMA_HOST": server.url.removesuffix("/v1")}).ready


def test_azure_needs_an_endpoint_beside_the_key():
    key = {"AZURE_OPENAI_API_KEY": "k"}
    assert not readiness("azure", {}).ready and not readiness("azure", key).ready
    assert readiness("azure", key | {"AZURE_OPENAI_ENDPOINT": "https://x"}).ready


async def test_other_packages_can_register_providers():
    class Parrot:
        endpoint, slots, context_window = "parrot", 1, 99

        def __init__(self, setup: Setup) -> None:
            self.name = setup.name

        async def send(self, request):
            return Reply(f"{self.name}: {request.messages[-1].content}")

        async def close(self) -> None:
            pass

    register_provider("parrot", Parrot, about="repeats")
    model = connect(
        ModelSpec(id="parrot/polly"),
        role="agent",
        run_id="r",
        prices=Prices({"polly": {"input": 0, "output": 0}}),
    )
    assert (await model.complete(say("hello"))).text == "polly: hello"
    assert model.context_window == 99 and model.limiter.ceiling == 1


def test_nothing_heavy_is_imported_before_it_is_needed():
    heavy = "aiohttp httpx httpx2 openai xllamacpp azure genai_prices"
    listed = f"[name for name in {heavy.split()!r} if name in sys.modules]"
    code = f"import sys, skillfit.models; print({listed})"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_a_provider_of_the_chat_api_needs_an_address():
    with pytest.raises(InputError, match="The provider 'nowhere' has no address"):
        register_provider("nowhere", CHAT_API, about="x", keys=("NOWHERE_KEY",))
