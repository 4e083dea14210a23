"""Providers of users and of other packages: named in a config, listed, and guarded."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillfit.config import load_config
from skillfit.errors import InputError
from skillfit.models import ModelError, ModelSpec, connect, known_providers
from skillfit.models.protocol import Message, Request
from skillfit.models.registry import find_provider, map_file, split_id
from skillfit.run.directory import model_identity
from tests.support.chat_server import ChatServer

PROVIDERS = """
from skillfit.models import CHAT_API, KnownProvider, Reply, Usage

class Parrot:
    "Repeats what it is told."
    endpoint, slots, context_window = "parrot", 3, 99

    def __init__(self, setup):
        setup.takes("loud")
        self.loud, self.name = setup.spec.options.get("loud"), setup.name

    async def send(self, request):
        said = request.messages[-1].content
        if said == "fail":
            raise KeyError("no such seed")
        if said == "nothing":
            return None
        return Reply(f"{self.name}: {said.upper() if self.loud else said}", usage=Usage(calls=1))

    async def close(self): ...

class Blocking(Parrot):
    def __init__(self): self.loud, self.name = True, "blocking"

    def send(self, request): ...

class NoEndpoint:
    async def send(self, request): ...
    async def close(self): ...

broken = 3
acme = KnownProvider("x", "Acme", CHAT_API, keys=("ACME_KEY",), address="http://127.0.0.1:9/v1")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own.py").write_text(PROVIDERS)
    return tmp_path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(PROVIDERS)
    info = tmp_path / "my_models-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-models\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[skillfit.providers]\nparrot = my_models:Parrot\nacme = my_models:acme\n"
        "gone = my_models:Missing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def spec_of(folder: Path, written: str) -> ModelSpec:
    (folder / "c.yaml").write_text(f"model: {{agent: {written}}}\n")
    spec = load_config(folder / "c.yaml").model.agent
    assert spec is not None
    return spec


async def answer(spec: ModelSpec, text: str) -> str:
    model = connect(spec, role="agent", run_id="r")
    try:
        return (await model.complete(Request((Message("user", text),), stage="rollout"))).text
    finally:
        await model.close()


async def test_a_provider_is_named_as_a_file_beside_the_config(folder: Path) -> None:
    spec = spec_of(folder, "sub/own.py:Parrot/polly")
    assert spec.id == f"{folder}/sub/own.py:Parrot/polly"
    assert await answer(spec, "hello") == "polly: hello"


async def test_a_provider_gets_the_options_of_its_model(folder: Path) -> None:
    spec = spec_of(folder, "{id: sub/own.py:Parrot/a/b, options: {loud: true}}")
    assert await answer(spec, "hello") == "a/b: HELLO"
    with pytest.raises(InputError, match="has no option `quiet`"):
        connect(
            spec_of(folder, "{id: sub/own.py:Parrot/a, options: {quiet: true}}"),
            role="agent",
            run_id="r",
        )


async def test_a_provider_is_named_by_an_entry_point(folder: Path, package: None) -> None:
    assert await answer(spec_of(folder, "parrot/polly"), "hello") == "polly: hello"


async def test_a_vendor_of_another_package_needs_only_a_row(
    folder: Path, package: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_KEY", "k-123")
    with ChatServer(lambda call: "hi") as server:
        spec = spec_of(folder, f"{{id: acme/large, base_url: '{server.url}', retries: 0}}")
        assert await answer(spec, "hello") == "hi"
    assert server.calls[0].headers["authorization"] == "Bearer k-123"


def test_providers_of_other_packages_are_listed(package: None) -> None:
    listed = {provider.name: provider for provider in known_providers()}
    assert listed["parrot"].about == "Repeats what it is told."
    assert listed["acme"].readiness({}).detail == "set ACME_KEY"
    gone = listed["gone"].readiness({})
    assert not gone.ready and "my_models:Missing" in gone.detail


async def test_whatever_a_provider_raises_is_a_failed_call_with_its_line(folder: Path) -> None:
    spec = spec_of(folder, "{id: sub/own.py:Parrot/a, retries: 0}")
    with pytest.raises(ModelError, match=r"KeyError: 'no such seed' \(own\.py:\d+\)"):
        await answer(spec, "fail")
    with pytest.raises(InputError, match="returned NoneType for rollout"):
        await answer(spec, "nothing")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sub/own.py:Parot/a", "has no 'Parot'"),
        ("sub/gone.py:Parrot/a", r"gone\.py does not exist"),
        ("sub/own.py:broken/a", "is int"),
        ("sub/own.py:Blocking/a", r"send\(\) is not async"),
        ("sub/own.py:NoEndpoint/a", "has no 'endpoint'"),
        ("parot/a", "Unknown provider 'parot'"),
    ],
)
def test_a_provider_that_cannot_be_used_is_refused_before_a_call(
    folder: Path, name: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        connect(spec_of(folder, name), role="agent", run_id="r")


def test_moving_the_project_keeps_the_identity_of_its_models() -> None:
    for model_id in ("/a/own.py:Parrot/b", "scripted/a/own.py:f"):
        moved = map_file(model_id, lambda file: f"/elsewhere/{Path(file).name}")
        assert moved != model_id
        assert model_identity(ModelSpec(id=moved)) == model_identity(ModelSpec(id=model_id))


def test_an_id_is_split_into_provider_and_name() -> None:
    assert split_id("openai/gpt-5") == ("openai", "gpt-5")
    assert split_id("a/b.py:C/d/e") == ("a/b.py:C", "d/e")
    assert split_id("scripted/a/b.py:c") == ("scripted", "a/b.py:c")
    assert find_provider("nothing/x") is None
