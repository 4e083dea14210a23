"""From a model's id to the provider that is called: `ModelSpec` is the model in a config, `Setup`
what its provider is created from, and `known_providers` lists what can be named.

A provider of a user or of another package is named by an entry point of the group
`skillfit.providers`, as `file.py:name`, or added with `register_provider`.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import ConfigDict, Field, model_validator

from skillfit.errors import InputError, TaskFailure, did_you_mean
from skillfit.extensions import (
    build_part,
    call_user_code,
    extension_names,
    find_extension,
    import_attribute,
    is_extension,
    is_reference,
)
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import AuthFailed, ModelError, Notice, Reply, Request, Role
from skillfit.models.secrets import remember_secret, remember_setting
from skillfit.plain_text import quantity, shorten
from skillfit.settings import Settings

_SECRET = re.compile(
    r"(^|[_-])(api_?key|key|token|secret|password|passwd|sig|signature|code)$", re.IGNORECASE
)
_HARMLESS_PARAMETERS = ("api-version", "api_version", "version")
SCRIPTED = "scripted"  # the provider of models that are functions of the user
LOCAL = "local"  # the provider of models in GGUF files
_KIND = "provider"  # of extension
_OWN_PROVIDER = re.compile(r"(?P<provider>.+\.py:\w+)/(?P<name>.+)")
_LOCAL_SLOTS = 2
# Options of command-line programs that say where and how they run on this machine, not what they
# do. They may change between two starts of one run.
MACHINE_OPTIONS = frozenset({"file", "program", "login", "readable", "isolation", "concurrency"})


class ModelSpec(Settings):
    """The model of one role. In YAML a string is the id."""

    model_config = ConfigDict(use_attribute_docstrings=True, hide_input_in_errors=True)

    id: str
    """`provider/name`: openai, azure, anthropic, gemini, openrouter, qwen, minimax, ollama, local,
    cli, handoff, practice, scripted; a provider's name from another package; or
    `file.py:name/model` for your own.
    """
    base_url: str | None = None
    """Address of the server; default: the provider's usual variable or address. `openai/` works
    with any OpenAI-compatible server.
    """
    key_env: str | None = None
    """Name of the environment variable that holds the key, when it is not the provider's usual one.
    """
    temperature: float | None = None
    """default: the server's own"""
    max_tokens: int | None = Field(default=None, gt=0)
    """The most tokens of one reply; default 16384 for the optimizer and for reasoning models, 4096
    for agent and judge.
    """
    reasoning_effort: str | None = None
    """low, medium, high, or another value of the vendor; default: the server's own"""
    timeout: float = Field(default=300, gt=0)
    """Seconds one attempt may take."""
    retries: int = Field(default=5, ge=0)
    """Attempts after the first, for failures that may be temporary."""
    thinking: Literal["on", "off", "default"] = "default"
    """qwen, minimax: thinking mode; default: the server's own"""
    context_window: int | None = Field(default=None, gt=0)
    """Tokens. For the optimizer, and for local models of any role; default: the known value of the
    model, else 128000.
    """
    options: JsonObject = Field(default_factory=dict)
    """Provider specifics (openai: api; azure: api_version, auth, scope, client_id; minimax: region;
    local: threads (default: all cores but one), gpu_layers, slots; cli: login, env, isolation,
    concurrency and those of the program)."""

    @property
    def is_cli(self) -> bool:
        """Whether the model is a command-line program, which acts by itself."""
        return names_cli_program(self.id)

    @property
    def is_handoff(self) -> bool:
        """Whether prompts are written to files, for a person or another program to answer."""
        return is_handoff(self.id)

    @model_validator(mode="after")
    def _without_secrets(self) -> Self:
        """Refuse keys: a config is written into the run directory."""
        parts = urlsplit(self.base_url or "")
        names = [*self.options, *(name for name, _ in parse_qsl(parts.query))]
        if parts.username or parts.password or any(_SECRET.search(name) for name in names):
            raise ValueError(
                "keys are read from the environment: set the provider's usual variable, "
                "or name another with key_env"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"id": value}
        if not isinstance(value, (Mapping, cls)):
            raise ValueError(
                "it should be provider/name, such as openai/gpt-5-mini, or a mapping with an `id`"
            )
        return value


def local_slots(spec: ModelSpec | None) -> int | None:
    """Count the requests that a GGUF model in this process answers at a time; None for other
    models.
    """
    if spec is None or spec.id.partition("/")[0] != LOCAL:
        return None
    return _whole_option(spec, "slots", _LOCAL_SLOTS)


def local_threads(spec: ModelSpec) -> int:
    """Return the threads of a GGUF model in this process. One core is left for other work: when a
    thread waits for a core, all others wait for it, and a reply can take a hundred times longer.
    """
    return _whole_option(spec, "threads", max(1, (os.cpu_count() or 1) - 1))


def _whole_option(spec: ModelSpec, name: str, default: int) -> int:
    value = spec.options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(
            f"options.{name} of {spec.id} is {shorten(repr(value), 60)}.",
            hint="Give a whole number above 0.",
        )
    return value


def timeout_hint(spec: ModelSpec) -> str:
    """Return what to do about a model that did not answer in time."""
    hint = "Raise the model's `timeout` if replies take that long."
    if spec.id.partition("/")[0] != LOCAL:
        return hint
    threads = f"It uses {quantity(local_threads(spec), 'thread')} of {os.cpu_count()} cores"
    return f"{threads}: on a busy machine set the model's options.threads lower. {hint}"


def is_handoff(model_id: str) -> bool:
    """Return whether an id names the model whose prompts are files that somebody answers."""
    return model_id.partition("/")[0] == "handoff"


def names_cli_program(model_id: str) -> bool:
    """Return whether an id (`cli/claude/opus`) names a command-line program."""
    return model_id.startswith("cli/")


class Provider(Protocol):
    """Sends a request once. Retries, limits and metering are done by the client.

    Requests arrive with temperature, max_tokens and reasoning_effort filled in from the spec.
    """

    endpoint: str  # providers with the same endpoint share one rate limit
    slots: int | None  # the most requests in flight; None: the provider does not know
    context_window: int | None  # in tokens; None: the provider does not know

    async def send(self, request: Request) -> Reply:
        """Return the reply with its usage. Raises `ModelError`."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a provider can be used here and now. `detail`: what it found, or what is missing."""

    ready: bool
    detail: str = ""


@dataclass(frozen=True)
class Setup:
    """Everything a provider is created from. Keys are read from `environ`, never from the spec."""

    spec: ModelSpec
    name: str  # the model's id without the provider
    role: Role
    run_id: str
    environ: Mapping[str, str] = field(repr=False)
    notice: Notice = field(repr=False)
    folder: Path | None = None  # where handoff prompts are written

    def takes(
        self,
        *options: str,
        thinking: bool = False,
        base_url: bool = True,
        key_env: bool = True,
        context_window: bool = False,
    ) -> None:
        """Raise for settings of the spec that this provider would ignore."""
        spec = self.spec
        if unknown := sorted(set(spec.options) - set(options)):
            hint = f"Available: {', '.join(options)}." if options else "It has no options."
            raise InputError(f"{spec.id} has no option `{unknown[0]}`.", hint=hint)
        no_window = self.role != "optimizer" and not context_window
        for is_ignored, message, hint in (
            (
                spec.thinking != "default" and not thinking,
                f"{spec.id} has no `thinking` switch.",
                "Use reasoning_effort, or leave it out.",
            ),
            (
                spec.base_url and not base_url,
                f"{spec.id} has no address, so it takes no `base_url`.",
                "Leave it out.",
            ),
            (
                spec.key_env and not key_env,
                f"{spec.id} needs no key, so it takes no `key_env`.",
                "Leave it out.",
            ),
            (
                spec.context_window and no_window,
                f"model.{self.role}.context_window has no effect: only the optimizer's prompts "
                "are cut to fit a context window.",
                "Leave it out.",
            ),
        ):
            if is_ignored:
                raise InputError(message, hint=hint)

    @property
    def known(self) -> KnownProvider:
        """The provider's row in the table of providers."""
        return _named_provider(self.spec.id)

    def key(self, *usual: str, needed: bool) -> str:
        """Return the key, from the variable that the spec names or from one of the usual ones: by
        default those of the provider.
        """
        names = (self.spec.key_env,) if self.spec.key_env else usual or self.known.keys
        key = self.variable(*names)
        if not (key.isascii() and key.isprintable()):
            raise AuthFailed(
                f"The key for {self.spec.id} in {' or '.join(names)} has a line break or another "
                "character that an HTTP header cannot hold.",
                hint="Set the variable to the key alone.",
            )
        if not key and (needed or self.spec.key_env):
            raise AuthFailed(
                f"No key for {self.spec.id}: {' or '.join(names)} is not set.",
                hint="Set it in the environment.",
            )
        return remember_secret(key)

    def variable(self, *names: str) -> str:
        """Return the value of the first of these variables that is set, or an empty text."""
        values = (self.environ.get(name, "").strip() for name in names)
        return next((value for value in values if value), "")

    def address(self, usual: str | None = None) -> str:
        """Return the endpoint: of the spec, else from the provider's variables, else the usual one.

        A user name or password in it is refused. Values in its query are hidden in all messages.
        """
        names = self.known.addresses
        url = self.spec.base_url or self.variable(*names)
        url = url or (self.known.address if usual is None else usual)
        setting = f"{'base_url' if self.spec.base_url else ' or '.join(names)} of {self.spec.id}"
        if "@" in url:
            raise InputError(
                f"{setting} contains a user name or a key.",
                hint="Give the address alone, and the key in the environment.",
            )
        if url and not is_address(url):
            raise InputError(
                f"{setting} is {shorten(url.partition('?')[0], 200)!r}: not an address.",
                hint="Give a complete one, for example http://127.0.0.1:8000/v1.",
            )
        for name, value in parse_qsl(urlsplit(url).query):
            if name.lower() not in _HARMLESS_PARAMETERS:
                remember_setting(name, value)
        return url

    def custom_headers(self, variable: str) -> dict[str, str]:
        """Read the headers that the user wants sent along from a variable, one `Name: value` per
        line.
        """
        headers: dict[str, str] = {}
        for line in self.environ.get(variable, "").split("\n"):
            name, colon, value = line.partition(":")
            if colon:
                headers[name.strip()] = value.strip()
                remember_setting(name.strip(), value.strip())
        return headers

    def headers(self, request: Request) -> dict[str, str]:
        """Return the headers by which a gateway can route requests and attribute their cost."""
        return {"X-Skillfit-Stage": request.stage, "X-Skillfit-Run": self.run_id}


def is_address(url: str) -> bool:
    """Return whether this is a complete address of an HTTP server."""
    if not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:  # a port that is no number, a broken IPv6 address, a name with an empty part
        return False


Factory = Callable[[Setup], Provider]
ReadinessCheck = Callable[[Mapping[str, str]], Readiness]


@dataclass(frozen=True, slots=True)
class KnownProvider:
    """A provider as `skillfit models` lists it.

    `keys` are the environment variables for its key, of which one is enough; without `keys` it
    needs none. `address` is its usual address, and the variables in `addresses` may name another.
    `priced_as` is its name in genai-prices. `free`: its tokens cost no money, unless the user sets
    a price. `probed`: a small call before a run tests whether it answers.

    `factory` and `check` are functions, or `module:function` to import when needed.
    """

    name: str
    about: str
    factory: Factory | str
    keys: tuple[str, ...] = ()
    address: str = ""
    addresses: tuple[str, ...] = ()
    priced_as: str = ""
    check: ReadinessCheck | str | None = None  # None: a key is all it needs
    free: bool = False
    probed: bool = True

    def key_in(self, environ: Mapping[str, str]) -> str | None:
        """Return the variable that holds the key."""
        return next((name for name in self.keys if environ.get(name, "").strip()), None)

    def readiness(self, environ: Mapping[str, str] | None = None) -> Readiness:
        """Say whether this provider can be used: its key is set, its module or program is
        installed, its server answers. Takes at most a second.
        """
        environ = os.environ if environ is None else environ
        if self.keys:
            found = self.key_in(environ)
            if found is None:
                return Readiness(False, f"set {' or '.join(self.keys)}")
            if self.check is None:
                return Readiness(True, found)
        check: ReadinessCheck | None = _imported(self.check)
        return check(environ) if check else Readiness(True)


_OPENAI = "skillfit.models.providers.openai_protocols"
CHAT_API = f"{_OPENAI}:chat"  # the factory of vendors that speak the chat API and differ in nothing
_registry: dict[str, KnownProvider] = {
    provider.name: provider
    for provider in (
        KnownProvider(
            "openai",
            "OpenAI, or any compatible base_url",
            f"{_OPENAI}:openai",
            ("OPENAI_API_KEY",),
            address="https://api.openai.com/v1",
            addresses=("OPENAI_BASE_URL",),
            priced_as="openai",
        ),
        KnownProvider(
            "openrouter",
            "OpenRouter",
            CHAT_API,
            ("OPENROUTER_API_KEY",),
            address="https://openrouter.ai/api/v1",
            priced_as="openrouter",
        ),
        KnownProvider(
            "gemini",
            "Google Gemini",
            CHAT_API,
            ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            address="https://generativelanguage.googleapis.com/v1beta/openai",
            priced_as="google",
        ),
        KnownProvider(
            "qwen",
            "Qwen at DashScope, or vLLM at base_url",
            f"{_OPENAI}:qwen",
            ("DASHSCOPE_API_KEY", "QWEN_API_KEY", "QWEN_CHAT_API_KEY"),
            address="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
            addresses=("QWEN_BASE_URL", "QWEN_CHAT_BASE_URL", "DASHSCOPE_BASE_URL"),
        ),
        KnownProvider(
            "minimax",
            "MiniMax, regions global and cn",
            f"{_OPENAI}:minimax",
            ("MINIMAX_API_KEY",),
            addresses=("MINIMAX_BASE_URL",),
            priced_as="minimax",
        ),
        KnownProvider(
            "ollama",
            "Ollama on this machine or at OLLAMA_HOST",
            f"{_OPENAI}:ollama",
            check=f"{_OPENAI}:ollama_readiness",
            free=True,
        ),
        KnownProvider(
            "azure",
            "Azure OpenAI",
            f"{_OPENAI}:azure",
            ("AZURE_OPENAI_API_KEY",),
            addresses=("AZURE_OPENAI_ENDPOINT",),
            priced_as="azure",
            check=f"{_OPENAI}:azure_readiness",
        ),
        KnownProvider(
            "anthropic",
            "Anthropic",
            "skillfit.models.providers.anthropic:anthropic",
            ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
            address="https://api.anthropic.com",
            addresses=("ANTHROPIC_BASE_URL",),
            priced_as="anthropic",
        ),
        KnownProvider(
            LOCAL,
            "a GGUF file in this process",
            f"{_OPENAI}:local",
            check=f"{_OPENAI}:local_readiness",
            free=True,
        ),
        KnownProvider(
            "handoff",
            "prompts as files, answered by anyone",
            "skillfit.models.providers.handoff:handoff",
            free=True,
            probed=False,
        ),
        KnownProvider(
            SCRIPTED,
            "a Python function, path.py:name",
            "skillfit.models.providers.scripted:scripted",
            free=True,
            probed=False,
        ),
        KnownProvider(
            "practice",
            "the built-in practice pair: rules, no language model",
            "skillfit.models.providers.practice:practice",
            free=True,
        ),
        KnownProvider(
            "cli",
            "a coding agent's command line",
            "skillfit.agents.cli_agent:make_provider",
            check="skillfit.agents.cli_programs:readiness",
        ),
    )
}


def register_provider(
    name: str,
    factory: Factory | str,
    *,
    about: str,
    keys: tuple[str, ...] = (),
    address: str = "",
    check: ReadinessCheck | str | None = None,
    free: bool = False,
    probed: bool = True,
) -> None:
    """Let model ids `name/…` connect through `factory`, a function of `Setup`.

    With `CHAT_API` as the factory, `address` is called as an OpenAI chat API.
    """
    if factory == CHAT_API and not address:
        raise InputError(
            f"The provider {name!r} has no address.", hint="Give one: address='https://…/v1'."
        )
    _registry[name] = KnownProvider(
        name, about, factory, keys, address, check=check, free=free, probed=probed
    )


def known_providers() -> list[KnownProvider]:
    """List the providers, also those of other packages, sorted by name."""
    installed = [name for name in extension_names(_KIND) if name not in _registry]
    found = [*_registry.values(), *map(_installed_provider, installed)]
    return sorted(found, key=lambda provider: provider.name)


def _installed_provider(name: str) -> KnownProvider:
    try:
        return _described(name)
    except InputError as error:
        unusable = Readiness(False, error.message)
        return KnownProvider(name, "another package", "", check=lambda _: unusable)


def _described(name: str) -> KnownProvider:
    """Load a provider that an entry point or `file.py:name` names."""
    found = find_extension(_KIND, name, {})
    if isinstance(found, KnownProvider):
        return replace(found, name=name)
    if not callable(found):
        raise InputError(
            f"The provider {name} is {type(found).__name__}.",
            hint="Expected a class or function of a Setup, or a KnownProvider (docs/extending.md).",
        )
    return KnownProvider(name, (inspect.getdoc(found) or name).partition("\n")[0], found)


def split_id(model_id: str) -> tuple[str, str]:
    """Split an id into the provider, which may be `file.py:name`, and the name of the model."""
    if match := _OWN_PROVIDER.fullmatch(model_id):
        return match["provider"], match["name"]
    provider, _, name = model_id.partition("/")
    return provider, name


def map_file(model_id: str, convert: Callable[[str], str]) -> str:
    """Convert the path of the Python file in `scripted/file.py:name` or `file.py:name/model`."""
    provider, name = split_id(model_id)
    reference, rest = (name, "") if provider == SCRIPTED else (provider, f"/{name}")
    if not is_reference(reference):
        return model_id
    file, _, function = reference.rpartition(":")
    return f"{'scripted/' if not rest else ''}{convert(file)}:{function}{rest}"


def find_provider(model_id: str) -> KnownProvider | None:
    """Return the provider that a model's id names; None for a name that nobody offers."""
    name, _ = split_id(model_id)
    if name in _registry:
        return _registry[name]
    return _described(name) if is_extension(_KIND, name) else None


def create_provider(setup: Setup) -> Provider:
    """Make the provider that a model's id names. Missing keys and unknown names are errors."""
    known = _named_provider(setup.spec.id)
    factory: Factory = _imported(known.factory)
    if getattr(factory, "__module__", "").partition(".")[0] == "skillfit":
        return factory(setup)
    return OwnProvider(build_part(_KIND, factory, Provider, setup, source=known.name), setup)


def refuse_unknown_provider(model_id: str) -> None:
    """Raise an error for an id of which no model can be made, before anything is written."""
    _named_provider(model_id)


def _named_provider(model_id: str) -> KnownProvider:
    known = find_provider(model_id)
    if known is not None:
        return known
    name, slash, _ = model_id.partition("/")
    names = [provider.name for provider in known_providers()]
    hint = did_you_mean(name, names) or f"Available: {', '.join(names)}, or file.py:name/MODEL."
    if not slash:
        hint = f"A model id is provider/name, for example openai/gpt-5. {hint}"
    raise InputError(f"Unknown provider {name!r} in model id {model_id!r}.", hint=hint)


class OwnProvider:
    """A provider of a user or of another package. Whatever it raises is a failed call."""

    def __init__(self, provider: Provider, setup: Setup) -> None:
        missing = [name for name in Provider.__annotations__ if not hasattr(provider, name)]
        if missing:
            raise InputError(
                f"The provider of {setup.spec.id} has no {missing[0]!r}.",
                hint="It has endpoint, slots and context_window (docs/extending.md).",
            )
        self.endpoint, self.slots = provider.endpoint, provider.slots
        self.context_window = provider.context_window
        self._provider, self._id = provider, setup.spec.id

    async def send(self, request: Request) -> Reply:
        reply = await call_own(self._provider.send, request, self._id)
        if not isinstance(reply, Reply):
            raise InputError(
                f"The provider of {self._id} returned {type(reply).__name__} for {request.stage}.",
                hint="Return a skillfit.models.Reply.",
            )
        return reply

    async def close(self) -> None:
        await self._provider.close()


async def call_own(function: Callable[..., Any], request: Request, where: str) -> Any:
    """Call a user's function with a request. Whatever it raises is a failed call."""
    try:
        return await call_user_code(function, request, kind=ModelError.kind, where=where)
    except ModelError:
        raise
    except TaskFailure as failure:
        raise ModelError(failure.message) from failure


def _imported(function: Any) -> Any:
    """Return the function itself, imported when it is given as `module:function`."""
    return import_attribute(function) if isinstance(function, str) else function
