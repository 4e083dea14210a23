"""A GGUF file run in this process by llama.cpp (`xllamacpp`), behind its own server on loopback.

The id is `local/path/to/model.gguf`, or `local/org/repo:file.gguf` for a file on the Hugging Face
hub, which is downloaded once. Roles that name the same file with the same options share a server.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from skillfit.atomic_write import replacement
from skillfit.errors import InfrastructureError, InputError
from skillfit.models.protocol import Readiness, Setup
from skillfit.models.providers.openai_protocols import ChatProvider
from skillfit.models.secrets import redact, remember_secret

_CONTEXT = 8192
_DOWNLOAD_TIMEOUT = 60.0  # seconds without any data


def readiness(environ: Mapping[str, str]) -> Readiness:
    """Whether llama.cpp is installed."""
    try:
        installed = importlib.util.find_spec("xllamacpp") is not None
    except ValueError:  # the module is blocked
        installed = False
    return Readiness(installed, "installed" if installed else "pip install 'skillfit[local]'")


@dataclass(frozen=True)
class _Engine:
    """What makes a server: models with equal values share one."""

    path: Path
    context: int
    slots: int
    threads: int
    gpu_layers: int


@dataclass
class _Running:
    server: Any
    key: str = field(repr=False)
    users: int = 0


_running: dict[_Engine, _Running] = {}


class LocalProvider(ChatProvider):
    """The chat API of a local server, which is stopped when its last user closes."""

    def __init__(self, setup: Setup, engine: _Engine, running: _Running) -> None:
        url = f"{running.server.listening_address}/v1"
        super().__init__(
            setup, base_url=url, key=running.key, slots=engine.slots, context_window=engine.context
        )
        self._engine = engine
        running.users += 1
        self._open = True

    async def close(self) -> None:
        await super().close()
        if self._open:
            self._open = False
            running = _running[self._engine]
            running.users -= 1
            if not running.users:
                del _running[self._engine]


def local(setup: Setup) -> LocalProvider:
    """The provider for a GGUF file. Starts its server, or uses the one that runs already."""
    setup.takes("threads", "gpu_layers", "slots", base_url=False, context_window=True)
    options = setup.spec.options
    engine = _Engine(
        path=_file(setup),
        context=setup.spec.context_window or _CONTEXT,
        slots=int(options.get("slots", 2)),
        threads=int(options.get("threads", os.cpu_count() or 1)),
        gpu_layers=int(options.get("gpu_layers", -1)),
    )
    if engine not in _running:
        _running[engine] = _start(engine)
    return LocalProvider(setup, engine, _running[engine])


def _start(engine: _Engine) -> _Running:
    try:
        import xllamacpp
    except ImportError as error:
        raise InputError(
            "Local models need the xllamacpp package.", hint="pip install 'skillfit[local]'"
        ) from error
    with engine.path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise InputError(
                f"{engine.path} is not a GGUF file.",
                hint="Download it again, or convert the model to GGUF.",
            )
    params = xllamacpp.CommonParams()
    params.model.path = str(engine.path)
    params.n_ctx = engine.context * engine.slots
    params.n_parallel = engine.slots
    params.cpuparams.n_threads = engine.threads
    params.n_gpu_layers = engine.gpu_layers
    params.verbosity = -1
    # Other users of this machine can reach loopback too, so the server wants a key.
    key = remember_secret(secrets.token_hex(16))
    params.api_keys = [key]
    try:
        return _Running(xllamacpp.Server(params), key)
    except RuntimeError as error:
        raise InputError(
            f"llama.cpp cannot load {engine.path} with a context of {engine.context} tokens in "
            f"{engine.slots} slots: {error}",
            hint="The file may be damaged or too new. If memory is too small, lower "
            "context_window or options.slots.",
        ) from error


def _file(setup: Setup) -> Path:
    path = Path(setup.name).expanduser()
    if path.is_file():
        return path.resolve()
    repo, _, file = setup.name.partition(":")
    if repo.count("/") == 1 and file.endswith(".gguf") and not path.is_absolute():
        return _from_hub(setup, repo, file)
    raise InputError(
        f"There is no model file at {path}.",
        hint="Give a path to a .gguf file, or local/org/repo:file.gguf.",
    )


def _from_hub(setup: Setup, repo: str, file: str) -> Path:
    """The file in our cache, downloaded first if it is not there. The file gets its name when it is
    complete.
    """
    folder = setup.variable("XDG_CACHE_HOME") or "~/.cache"
    target = Path(folder).expanduser() / "skillfit" / "models" / repo / file
    if target.is_file():
        return target
    url = f"{setup.variable('HF_ENDPOINT') or 'https://huggingface.co'}/{repo}/resolve/main/{file}"
    setup.notice(f"Downloading {url} to {target}.")
    token = setup.key("HF_TOKEN", needed=False)
    try:
        _download(url, token, target)
    except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise InfrastructureError(
            redact(f"Cannot download {url}: {error}"),
            hint="Download the file yourself and give its path.",
        ) from error
    return target


def _download(url: str, token: str, target: Path) -> None:
    """Follows redirects, as the hub redirects to its storage. httpx sends the token to the hub
    only, and fails when fewer bytes arrive than announced.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.stream(
        "GET", url, headers=headers, follow_redirects=True, timeout=_DOWNLOAD_TIMEOUT
    ) as response:
        response.raise_for_status()
        with replacement(target) as file:
            for chunk in response.iter_bytes(1 << 20):
                file.write(chunk)
