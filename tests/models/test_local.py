"""GGUF files in this process. A real one is used when SKILLFIT_TEST_GGUF names it."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from skillfit.errors import InfrastructureError, InputError
from skillfit.models import ModelSpec, ask, connect
from skillfit.models.providers.openai_protocols import _running
from skillfit.models.registry import local_slots, local_threads, timeout_hint
from tests.models.clocks_and_meters import say
from tests.support.chat_server import RawServer
from tests.support.loopback_server import LoopbackServer

GGUF = os.environ.get("SKILLFIT_TEST_GGUF", "")
real_model = pytest.mark.skipif(not GGUF, reason="SKILLFIT_TEST_GGUF names no GGUF file")


def local(name: str, environ: dict[str, str] | None = None, **spec):
    return connect(
        ModelSpec(id=f"local/{name}", **spec), role="agent", run_id="r", environ=environ or {}
    )


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no model file at .*gone\.gguf"):
        local(f"{tmp_path}/gone.gguf")


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"<html>404</html>"]
)
def test_a_file_that_is_not_gguf_is_refused(tmp_path, content):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(InputError, match="not a GGUF file"):
        local(f"{tmp_path}/m.gguf")


def test_one_core_is_left_for_other_work():
    chosen = ModelSpec(id="local/m.gguf", options={"threads": 1, "slots": 3})
    assert (local_threads(chosen), local_slots(chosen)) == (1, 3)
    assert local_threads(ModelSpec(id="local/m.gguf")) == max(1, os.cpu_count() - 1)
    assert local_slots(ModelSpec(id="openai/gpt-5")) is None
    with pytest.raises(InputError, match=r"options\.threads of local/m\.gguf is 'many'"):
        local_threads(ModelSpec(id="local/m.gguf", options={"threads": "many"}))


def test_the_advice_about_a_timeout_names_the_threads_of_a_local_model():
    assert "It uses 3 threads of" in timeout_hint(
        ModelSpec(id="local/m.gguf", options={"threads": 3})
    )
    assert "thread" not in timeout_hint(ModelSpec(id="openai/gpt-5"))


def test_a_damaged_gguf_is_an_error_not_a_crash(tmp_path):
    pytest.importorskip("xllamacpp")
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + b"\0" * 200)
    with pytest.raises(InputError, match="cannot load"):
        local(f"{tmp_path}/m.gguf")
    assert not _running


@pytest.fixture
def hub(tmp_path):
    """A hub on loopback that serves files below tmp_path/hub."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args) -> None:
            pass

    (tmp_path / "hub").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "hub"))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_from_the_hub_is_downloaded_completely_into_the_cache(tmp_path, hub):
    file = tmp_path / "hub" / "org" / "repo" / "resolve" / "main" / "m.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not a model " * 1000)
    environ = {"HF_ENDPOINT": hub, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with pytest.raises(InputError, match="not a GGUF file"):
        local("org/repo:m.gguf", environ)
    kept = tmp_path / "cache" / "skillfit" / "models" / "org" / "repo" / "m.gguf"
    assert kept.read_bytes() == file.read_bytes()
    assert [path.name for path in kept.parent.iterdir()] == ["m.gguf"]


def test_a_model_missing_from_the_hub_leaves_no_files(tmp_path, hub):
    environ = {"HF_ENDPOINT": hub, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with pytest.raises(InfrastructureError, match="404"):
        local("org/repo:gone.gguf", environ)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def answering(asked: list[tuple[str, str | None]], response: Response) -> Starlette:
    """An app that notes path and token of each request."""

    async def answer(request: Request) -> Response:
        asked.append((request.url.path, request.headers.get("authorization")))
        return response

    return Starlette(routes=[Route("/{path:path}", answer)])


def test_the_token_is_sent_to_the_hub_and_not_to_its_storage(tmp_path):
    asked: list[tuple[str, str | None]] = []
    storage = answering(asked, Response(b"not a model"))
    with LoopbackServer(storage) as other:
        redirect = answering(asked, RedirectResponse(f"{other.root}/file"))
        with LoopbackServer(redirect) as hub:
            environ = {
                "HF_ENDPOINT": hub.root,
                "HF_TOKEN": "hf_secret_of_the_test",
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
            }
            with pytest.raises(InputError, match="not a GGUF file"):
                local("org/repo:m.gguf", environ)
    assert asked == [
        ("/org/repo/resolve/main/m.gguf", "Bearer hf_secret_of_the_test"),
        ("/file", None),
    ]


def test_an_interrupted_download_leaves_no_files(tmp_path):
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nGGUF"
    with RawServer(lambda number: cut) as server:
        hub = server.url.removesuffix("/v1")
        environ = {"HF_ENDPOINT": hub, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        with pytest.raises(InfrastructureError, match="Cannot download"):
            local("org/repo:m.gguf", environ)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@real_model
async def test_a_real_file_answers_in_the_requested_schema_and_roles_share_it():
    class Fruit(BaseModel):
        fruit: str

    path = str(Path(GGUF).resolve())
    first, second = (
        local(path, context_window=2048, max_tokens=64),
        local(path, context_window=2048, max_tokens=64),
    )
    assert len(_running) == 1 and first.limiter.ceiling == 2
    answers = await asyncio.gather(
        ask(first, say("Name one fruit."), Fruit), ask(second, say("Name another fruit."), Fruit)
    )
    assert all(answer.fruit for answer in answers)
    reply = await first.complete(say("Say hello."))
    assert reply.usage.input > 0 and reply.usage.usd == 0
    await first.close()
    await second.complete(say("Say hello again."))
    await second.close()
    await second.close()
    assert not _running
