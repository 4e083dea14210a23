"""Providers for the two OpenAI protocols, and the vendors that speak them.

The protocols are the chat API, which most servers speak, and the Responses API, for models that
have nothing else (codex and pro). Each vendor has its address, its keys, and what it does
differently. For Azure OpenAI the model's name is that of the deployment. It signs in by key, Azure
CLI or managed identity.

`local` runs a GGUF file in this process: llama.cpp (`xllamacpp`) serves the chat API on loopback.
The id is `local/path/to/model.gguf`, or `local/org/repo:file.gguf` for a file on the Hugging Face
hub, which is downloaded once. Roles that name the same file with the same options share a server.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from pydantic import Field

from skillfit.atomic_write import replacement
from skillfit.errors import InfrastructureError, InputError
from skillfit.models.json_text import JsonObject
from skillfit.models.limiter import endpoint_of
from skillfit.models.prices import is_reasoning
from skillfit.models.protocol import AuthFailed, BadRequest, FinishReason, Message, Reply, Request
from skillfit.models.providers.http import (
    Endpoint,
    OptionalParameters,
    SignIn,
    bearer,
    join,
    without_query,
)
from skillfit.models.registry import Readiness, Setup, local_slots, local_threads
from skillfit.models.secrets import redact, remember_secret
from skillfit.models.wire import (
    OpenAiUsage,
    WireModel,
    argument_json,
    chat_messages,
    chat_reply,
    chat_tools,
    counted,
    model_name,
    read_image,
    read_reply,
    response_format,
    schema_in_prompt,
    tool_call,
)

_WORDS = {
    "response_format": ("response_format", "json_schema", "structured output", "grammar"),
    "temperature": ("temperature",),
    "reasoning_effort": ("reasoning_effort", "reasoning effort", "reasoning.effort"),
    "seed": ("seed",),
    "max_tokens": ("'max_completion_tokens' instead", "max_tokens"),
}
_INSTEAD = {
    "response_format": "the schema is put into the prompt instead",
    "max_tokens": "`max_completion_tokens` is sent instead",
}
_LEFT_OUT_ON_ANY_ERROR = ("response_format",)


class ChatProvider:
    """One model at one address. `root`: the address above the API's paths, where it is not
    `base_url`. `headers`: carry the key, where it is not sent as a bearer token. `extra`: fields
    added to every request. `never`: optional parameters that the endpoint is known to reject.
    """

    _path: ClassVar[str] = "/chat/completions"
    _canonical: ClassVar[Mapping[str, str]] = {}  # the API's name of a parameter -> our name

    def __init__(
        self,
        setup: Setup,
        *,
        base_url: str,
        key: str = "",
        root: str = "",
        headers: Mapping[str, str] | None = None,
        sign_in: SignIn | None = None,
        extra: JsonObject | None = None,
        never: Mapping[str, str] | None = None,
        slots: int | None = None,
        context_window: int | None = None,
    ) -> None:
        self.endpoint = endpoint_of(base_url, key)
        self.slots = slots
        self.context_window = context_window
        self._setup = setup
        self._extra = dict(extra or {})
        self._never = dict(never or {})
        where = f"{setup.spec.id} at {without_query(base_url)}"
        self._optional = OptionalParameters(
            where, setup.notice, _WORDS, _INSTEAD, _LEFT_OUT_ON_ANY_ERROR
        )
        headers = bearer(key) if headers is None else headers
        self._api = Endpoint(join(root or base_url, self._path), where, headers, sign_in)

    async def send(self, request: Request) -> Reply:
        self._leave_out_rejected(request)
        no_schemas = "response_format" in self._optional.left_out
        body = self._body(schema_in_prompt(request) if no_schemas else request)
        try:
            answer = await self._api.post(body, self._setup.headers(request))
        except BadRequest as error:
            self._optional.adapt(error, {self._canonical.get(name, name) for name in body})
            raise
        return self._reply(answer, request)

    async def close(self) -> None:
        await self._api.close()

    def _reply(self, answer: JsonObject, request: Request) -> Reply:
        return chat_reply(answer, request, self._setup.spec.id)

    def _body(self, request: Request) -> JsonObject:
        left_out = self._optional.left_out
        limit = (
            "max_completion_tokens"
            if is_reasoning(self._setup.spec.id) or "max_tokens" in left_out
            else "max_tokens"
        )
        wanted = {
            limit: request.max_tokens,
            "temperature": request.temperature,
            "reasoning_effort": request.reasoning_effort,
            "seed": request.seed,
            "response_format": response_format(request.schema) if request.schema else None,
            "tools": chat_tools(request) or None,
        }
        body = {
            key: value for key, value in wanted.items() if value is not None and key not in left_out
        }
        return {
            "model": self._setup.name,
            "messages": chat_messages(request),
            **body,
            **self._extra,
        }

    def _leave_out_rejected(self, request: Request) -> None:
        """Leave out what the request has and the endpoint is known to reject."""
        if request.temperature is not None and is_reasoning(self._setup.spec.id):
            self._optional.leave_out("temperature", "reasoning models take none")
        for name, why in self._never.items():
            if getattr(request, name) is not None:
                self._optional.leave_out(name, why)


_ONLY_RESPONSES = re.compile(r"codex|^(gpt-5|o[13])[.\d]*-pro\b")


def needs_responses(name: str) -> bool:
    """Return whether OpenAI offers this model in the Responses API only."""
    return _ONLY_RESPONSES.search(name) is not None


class ResponsesProvider(ChatProvider):
    """As `ChatProvider`, over the Responses API."""

    _path: ClassVar[str] = "/responses"
    _canonical: ClassVar[Mapping[str, str]] = {
        "text": "response_format",
        "reasoning": "reasoning_effort",
    }

    def _body(self, request: Request) -> JsonObject:
        left_out = self._optional.left_out
        wanted: JsonObject = {
            "max_output_tokens": request.max_tokens,
            "temperature": request.temperature,
            "store": False,
        }
        if request.seed is not None:
            self._optional.leave_out("seed", "the Responses API has none")
        if request.reasoning_effort and "reasoning_effort" not in left_out:
            wanted["reasoning"] = {"effort": request.reasoning_effort}
        if request.schema:
            wanted["text"] = {
                "format": {"type": "json_schema", **response_format(request.schema)["json_schema"]}
            }
        if request.tools:
            wanted["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                    "strict": False,
                }
                for tool in request.tools
            ]
        body = {
            key: value for key, value in wanted.items() if value is not None and key not in left_out
        }
        items = [item for message in request.messages for item in _items(message)]
        return {"model": self._setup.name, "input": items, **body, **self._extra}

    def _reply(self, answer: JsonObject, request: Request) -> Reply:
        model_id = self._setup.spec.id
        response = read_reply(_Response, answer, model_id)
        parts = [part for item in response.output for part in item.parts]
        text = "".join(part.text or part.refusal or "" for part in parts)
        calls = tuple(
            tool_call(item.call_id, item.name, item.arguments, number)
            for number, item in enumerate(response.output)
            if item.type == "function_call"
        )
        reported = response.usage.usage() if response.usage else None
        usage = counted(reported, request, text, calls, model_id)
        return Reply(text, calls, response.finish(), usage, model_name(response.model))


class _ResponsePart(WireModel):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _ResponseItem(WireModel):
    type: str = ""
    content: list[_ResponsePart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | JsonObject | None = None

    @property
    def parts(self) -> list[_ResponsePart]:
        """What the model says; items of other types hold its thinking and its tool calls."""
        return self.content or [] if self.type == "message" else []


class _Incomplete(WireModel):
    reason: str | None = None


class _Response(WireModel):
    output: list[_ResponseItem] = Field(min_length=1)
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: OpenAiUsage | None = None
    model: Any = None

    def finish(self) -> FinishReason:
        if self.status == "incomplete":
            details = self.incomplete_details
            return "refused" if details and details.reason == "content_filter" else "length"
        if any(part.type == "refusal" for item in self.output for part in item.parts):
            return "refused"
        called = any(item.type == "function_call" for item in self.output)
        return "tool_calls" if called else "stop"


def _items(message: Message) -> list[JsonObject]:
    """Return the message as input items of the Responses API."""
    if message.role == "tool":
        return [
            {
                "type": "function_call_output",
                "call_id": message.tool_call_id,
                "output": message.content,
            }
        ]
    kind = "output_text" if message.role == "assistant" else "input_text"
    content: list[JsonObject] = [{"type": kind, "text": message.content}] if message.content else []
    for image in message.images:
        url = read_image(image).data_url
        content.append({"type": "input_image", "image_url": url, "detail": image.detail})
    items: list[JsonObject] = [{"role": message.role, "content": content}] if content else []
    calls = [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": argument_json(call),
        }
        for call in message.tool_calls
    ]
    return items + calls


_MINIMAX = {"global": "https://api.minimax.io/v1", "cn": "https://api.minimaxi.com/v1"}
_MINIMAX_REGION_NAMES = {"global_en": "global", "cn_zh": "cn"}
_NO_EFFORT = {"reasoning_effort": "this vendor has `thinking: on` or `off` instead"}


def chat(setup: Setup) -> ChatProvider:
    """Make a vendor that needs nothing but its address and key."""
    setup.takes()
    keyless = not setup.known.keys
    return ChatProvider(setup, base_url=setup.address(), key=setup.key(needed=not keyless))


def openai(setup: Setup) -> ChatProvider:
    """Set up OpenAI, or a server with its API at `base_url` or OPENAI_BASE_URL, which may need no
    key.
    """
    setup.takes("api")
    base_url = setup.address(usual="")
    api = setup.spec.options.get(
        "api", "responses" if not base_url and needs_responses(setup.name) else "chat"
    )
    if api not in ("chat", "responses"):
        raise InputError(
            f"The option `api` of {setup.spec.id} is {api!r}.", hint="Use chat or responses."
        )
    kind = ResponsesProvider if api == "responses" else ChatProvider
    key = setup.key(needed=not base_url)
    headers = bearer(key) | openai_headers(setup)
    return kind(setup, base_url=setup.address(), key=key, headers=headers)


def openai_headers(setup: Setup) -> dict[str, str]:
    """Return the headers that OpenAI's usual variables ask for."""
    wanted = {
        "OpenAI-Organization": setup.variable("OPENAI_ORG_ID"),
        "OpenAI-Project": setup.variable("OPENAI_PROJECT_ID"),
    }
    return {name: value for name, value in wanted.items() if value} | setup.custom_headers(
        "OPENAI_CUSTOM_HEADERS"
    )


def qwen(setup: Setup) -> ChatProvider:
    """Set up DashScope, or a server of Qwen models (vLLM, SGLang) at `base_url`. Their switches for
    thinking differ.
    """
    setup.takes(thinking=True)
    base_url = setup.address()
    key = setup.key(needed=not setup.address(usual=""))
    extra: JsonObject = {}
    if setup.spec.thinking != "default":
        switch = {"enable_thinking": setup.spec.thinking == "on"}
        dashscope = "dashscope" in (urlsplit(base_url).hostname or "")
        extra = switch if dashscope else {"chat_template_kwargs": switch}
    return ChatProvider(setup, base_url=base_url, key=key, extra=extra, never=_NO_EFFORT)


def minimax(setup: Setup) -> ChatProvider:
    """Set up MiniMax. Its API requires its own spelling of names (MiniMax-M2)."""
    setup.takes("region", thinking=True)
    setup = replace(setup, name=re.sub(r"(?i)^minimax-m(?=\d)", "MiniMax-M", setup.name))
    region = str(setup.spec.options.get("region") or setup.variable("MINIMAX_REGION") or "global")
    region = _MINIMAX_REGION_NAMES.get(region, region)
    if region not in _MINIMAX:
        raise InputError(
            f"MiniMax has no region {region!r}.", hint=f"Available: {', '.join(_MINIMAX)}."
        )
    if setup.spec.thinking == "off" and setup.name.startswith("MiniMax-M2"):
        raise InputError(
            f"{setup.spec.id} always thinks: `thinking: off` is not possible.",
            hint="Leave `thinking` out.",
        )
    thinking = {"on": "adaptive", "off": "disabled"}.get(setup.spec.thinking)
    base_url = setup.address(usual=_MINIMAX[region])
    key = setup.key(needed=True)
    return ChatProvider(
        setup,
        base_url=base_url,
        key=key,
        extra={"thinking": {"type": thinking}} if thinking else {},
        never=_NO_EFFORT,
    )


def ollama(setup: Setup) -> ChatProvider:
    """Set up Ollama on this machine or at OLLAMA_HOST. It silently cuts prompts that are longer
    than its context size, so ours must be the same.
    """
    setup.takes()
    base_url = setup.address(usual=f"{ollama_address(setup.variable('OLLAMA_HOST'))}/v1")
    context = setup.variable("OLLAMA_CONTEXT_LENGTH")
    window = int(context) if context.isdigit() else None
    return ChatProvider(
        setup, base_url=base_url, key=setup.key(needed=False), context_window=window
    )


def ollama_address(host: str) -> str:
    """Return the URL that OLLAMA_HOST means: it may be a URL, `host:port`, a host, or 0.0.0.0."""
    try:
        parts = urlsplit(host if "://" in host else f"http://{host}")
        port = parts.port or (443 if parts.scheme == "https" else 11434)
    except ValueError as error:
        raise InputError(
            f"OLLAMA_HOST is {host!r}: not an address ({error}).",
            hint="For example 127.0.0.1:11434.",
        ) from error
    name = parts.hostname if parts.hostname not in (None, "", "0.0.0.0") else "127.0.0.1"
    return f"{parts.scheme}://{name}:{port}"


def ollama_readiness(environ: Mapping[str, str]) -> Readiness:
    """Return whether an Ollama server answers."""
    import httpx

    try:
        address = ollama_address(environ.get("OLLAMA_HOST", "").strip())
        httpx.get(f"{address}/api/version", timeout=0.5).raise_for_status()
        return Readiness(True, f"answers at {address}")
    except InputError as error:
        return Readiness(False, error.message)
    except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL):
        return Readiness(False, f"no server answers at {address}")


_API_VERSION = "2025-04-01-preview"
_SCOPE = "https://cognitiveservices.azure.com/.default"
_AUTH = ("api_key", "openai_compatible", "azure_cli", "managed_identity", "auto")


def azure(setup: Setup) -> ChatProvider:
    """Set up Azure OpenAI. With `auth: openai_compatible` the endpoint is called as a plain OpenAI
    API, which may need no key. `auth: auto` is the mode in AZURE_OPENAI_AUTH_MODE, else the key
    when there is one, else the login of the Azure CLI.
    """
    setup.takes("api_version", "auth", "scope", "client_id")
    options = setup.spec.options
    endpoint = setup.address()
    if not endpoint:
        raise InputError(
            f"No endpoint for {setup.spec.id}.", hint="Set base_url or AZURE_OPENAI_ENDPOINT."
        )
    chosen = str(options.get("auth", ""))
    auth = chosen if chosen not in ("", "auto") else setup.variable("AZURE_OPENAI_AUTH_MODE")
    if not auth:
        no_key = chosen == "auto" and not setup.key(needed=False)
        auth = "azure_cli" if no_key else "api_key"
    if auth not in _AUTH:
        raise InputError(
            f"Azure has no sign-in {auth!r}.", hint=f"`auth` is one of {', '.join(_AUTH)}."
        )
    by_key = auth in ("api_key", "openai_compatible")
    key = setup.key(needed=False) if by_key else ""
    if auth == "api_key" and not key:
        raise AuthFailed(
            f"No key for {setup.spec.id}: AZURE_OPENAI_API_KEY is not set.",
            hint="Set it, or sign in without a key: option `auth`, azure_cli or managed_identity.",
        )
    if auth == "openai_compatible":
        headers = bearer(key) | openai_headers(setup)
        return ChatProvider(setup, base_url=endpoint, key=key, headers=headers)
    version = str(
        options.get("api_version")
        or setup.variable("AZURE_OPENAI_API_VERSION", "OPENAI_API_VERSION")
        or _API_VERSION
    )
    responses = needs_responses(setup.name)
    root = join(
        endpoint, "/openai" if responses else f"/openai/deployments/{quote(setup.name, safe='')}"
    )
    return (ResponsesProvider if responses else ChatProvider)(
        setup,
        base_url=endpoint,
        key=key,
        root=f"{root}?api-version={version}",
        headers=openai_headers(setup) | ({"api-key": key} if key else {}),
        sign_in=None if by_key else _sign_in(setup, auth),
    )


def azure_readiness(environ: Mapping[str, str]) -> Readiness:
    """Say whether the endpoint is known: a key alone is not enough."""
    if environ.get("AZURE_OPENAI_ENDPOINT", "").strip():
        return Readiness(True, "AZURE_OPENAI_API_KEY and AZURE_OPENAI_ENDPOINT")
    return Readiness(False, "set AZURE_OPENAI_ENDPOINT, or give base_url in the config")


def _sign_in(setup: Setup, auth: str) -> SignIn:
    """Return a function that gives a fresh token of azure-identity."""
    try:
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity import (
            AzureCliCredential,
            ManagedIdentityCredential,
            get_bearer_token_provider,
        )
    except ImportError as error:
        raise InputError(
            f"{setup.spec.id} with auth {auth} needs azure-identity.",
            hint="pip install 'skillfit[azure]'",
        ) from error
    client_id = (
        setup.spec.options.get("client_id")
        or setup.variable("AZURE_OPENAI_MANAGED_IDENTITY_CLIENT_ID")
        or None
    )
    credential = (
        AzureCliCredential()
        if auth == "azure_cli"
        else ManagedIdentityCredential(client_id=client_id)
    )
    scope = str(
        setup.spec.options.get("scope") or setup.variable("AZURE_OPENAI_AD_SCOPE") or _SCOPE
    )
    fresh = get_bearer_token_provider(credential, scope)

    async def sign_in() -> dict[str, str]:
        try:
            return bearer(remember_secret(await asyncio.to_thread(fresh)))
        except ClientAuthenticationError as error:
            hint = (
                "Run `az login`."
                if auth == "azure_cli"
                else "Is a managed identity assigned to this machine?"
            )
            raise AuthFailed(
                f"Azure gave no token for {setup.spec.id} ({auth}): {error.message}", hint=hint
            ) from error

    return sign_in


_LOCAL_CONTEXT = 8192
_DOWNLOAD_TIMEOUT = 60.0  # seconds without any data


def local_readiness(environ: Mapping[str, str]) -> Readiness:
    """Return whether llama.cpp is installed."""
    try:
        installed = importlib.util.find_spec("xllamacpp") is not None
    except ValueError:  # the module is blocked
        installed = False
    return Readiness(
        installed, "installed" if installed else "install it with: pip install 'skillfit[local]'"
    )


@dataclass(frozen=True)
class _LocalEngine:
    """What makes a server: models with equal values share one."""

    path: Path
    context: int
    slots: int
    threads: int
    gpu_layers: int


@dataclass
class _RunningServer:
    server: Any
    key: str = field(repr=False)
    users: int = 0


_running: dict[_LocalEngine, _RunningServer] = {}


class LocalProvider(ChatProvider):
    """The chat API of a local server. When its last user closes, the object of the server is
    deleted, and xllamacpp stops the server with it.
    """

    def __init__(self, setup: Setup, engine: _LocalEngine, running: _RunningServer) -> None:
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
    """Return the provider for a GGUF file. Starts its server, or uses the one that runs already."""
    setup.takes("threads", "gpu_layers", "slots", base_url=False, context_window=True)
    options = setup.spec.options
    engine = _LocalEngine(
        path=_gguf_file(setup),
        context=setup.spec.context_window or _LOCAL_CONTEXT,
        slots=local_slots(setup.spec) or 1,
        threads=local_threads(setup.spec),
        gpu_layers=int(options.get("gpu_layers", -1)),
    )
    if engine not in _running:
        _running[engine] = _start_server(engine)
    return LocalProvider(setup, engine, _running[engine])


def _start_server(engine: _LocalEngine) -> _RunningServer:
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
        return _RunningServer(xllamacpp.Server(params), key)
    except RuntimeError as error:
        raise InputError(
            f"llama.cpp cannot load {engine.path} with a context of {engine.context} tokens in "
            f"{engine.slots} slots: {error}",
            hint="The file may be damaged or too new. If memory is too small, lower "
            "context_window or options.slots.",
        ) from error


def _gguf_file(setup: Setup) -> Path:
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
    """Return the file in our cache, downloaded first if it is not there. The file gets its name
    when it is complete.
    """
    import httpx

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
    """Download `url` to `target`. Follow redirects, as the hub redirects to its storage. httpx
    sends the token to the hub only, and fails when fewer bytes arrive than announced.
    """
    import httpx

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.stream(
        "GET", url, headers=headers, follow_redirects=True, timeout=_DOWNLOAD_TIMEOUT
    ) as response:
        response.raise_for_status()
        with replacement(target) as file:
            for chunk in response.iter_bytes(1 << 20):
                file.write(chunk)
