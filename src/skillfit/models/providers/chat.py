"""Every server that speaks the OpenAI chat API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from skillfit.models.limiter import endpoint_of
from skillfit.models.prices import is_reasoning
from skillfit.models.protocol import BadRequest, Reply, Request
from skillfit.models.provider import Setup
from skillfit.models.providers.http import Endpoint, SignIn, bearer, join
from skillfit.models.providers.official import OfficialSdk
from skillfit.models.providers.optional import OptionalParameters
from skillfit.models.wire import chat_messages, chat_reply, chat_tools, response_format, schema_in_prompt

_WORDS = {
    "response_format": ("response_format", "json_schema", "structured output", "grammar"),
    "temperature": ("temperature",),
    "reasoning_effort": ("reasoning_effort", "reasoning effort", "reasoning.effort"),
    "seed": ("seed",),
    "max_tokens": ("'max_completion_tokens' instead", "max_tokens"),
}
_INSTEAD = {"response_format": "the schema is asked for in the prompt instead"}


class ChatProvider:
    """One model at one address. The API's paths stand under `root` where that is not the address itself; `headers` carry the key
    where that is not the usual bearer token. `sdk`: through OpenAI's own SDK."""

    _path: ClassVar[str] = "/chat/completions"
    _canonical: ClassVar[Mapping[str, str]] = {}  # this API's parameter -> our name for it

    def __init__(
        self,
        setup: Setup,
        *,
        base_url: str,
        key: str = "",
        root: str = "",
        headers: Mapping[str, str] | None = None,
        sign_in: SignIn | None = None,
        sdk: bool = False,
        extra: Mapping[str, Any] | None = None,
        slots: int | None = None,
        context_window: int | None = None,
    ) -> None:
        self.endpoint = endpoint_of(base_url, key)
        self.slots = slots
        self.context_window = context_window
        self._setup = setup
        self._extra = dict(extra or {})
        self._where = f"{setup.spec.id} at {base_url}"
        self._optional = OptionalParameters(self._where, setup.notice, _WORDS, _INSTEAD)
        headers = bearer(key) if headers is None else headers
        self._api: Endpoint | OfficialSdk
        if sdk:
            self._api = OfficialSdk("openai", base_url, self._path, self._where, headers, api_key=key or "none")
        else:
            self._api = Endpoint(join(root or base_url, self._path), self._where, headers, sign_in)

    async def send(self, request: Request) -> Reply:
        body = self._body(request)
        try:
            answer = await self._api.post(body, self._setup.headers(request))
        except BadRequest as error:
            self._optional.adapt(error, {self._canonical.get(name, name) for name in body})
            raise
        return self._reply(answer, request)

    async def close(self) -> None:
        await self._api.close()

    def _reply(self, answer: Mapping[str, Any], request: Request) -> Reply:
        return chat_reply(answer, request, self._setup.spec.id)

    def _body(self, request: Request) -> dict[str, Any]:
        request, left_out = self._prepared(request), self._optional.left_out
        limit = "max_completion_tokens" if is_reasoning(self._setup.spec.id) or "max_tokens" in left_out else "max_tokens"
        wanted = {
            limit: request.max_tokens,
            "temperature": request.temperature,
            "reasoning_effort": request.reasoning_effort,
            "seed": request.seed,
            "response_format": response_format(request.schema) if request.schema else None,
            "tools": chat_tools(request) or None,
        }
        body = {key: value for key, value in wanted.items() if value is not None and key not in left_out}
        return {"model": self._setup.name, "messages": chat_messages(request), **body, **self._extra}

    def _prepared(self, request: Request) -> Request:
        if request.temperature is not None and is_reasoning(self._setup.spec.id):
            self._optional.leave_out("temperature", "models that reason take none")
        return schema_in_prompt(request) if "response_format" in self._optional.left_out else request
