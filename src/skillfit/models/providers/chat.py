"""Every server that speaks the OpenAI chat API, through the official SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from skillfit.models.classify import classify_exception, read_json
from skillfit.models.limiter import endpoint_of
from skillfit.models.prices import is_reasoning
from skillfit.models.protocol import Reply, Request
from skillfit.models.provider import Setup
from skillfit.models.providers.sdk import OptionalParameters, PerLoop
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
    """One model at one endpoint."""

    _path: ClassVar[str] = "/chat/completions"
    _messages: ClassVar[str] = "messages"
    _canonical: ClassVar[Mapping[str, str]] = {}  # this API's parameter -> our name for it

    def __init__(
        self,
        setup: Setup,
        *,
        base_url: str,
        key: str = "",
        extra: Mapping[str, Any] | None = None,
        make_client: Callable[[], Any] | None = None,
        slots: int | None = None,
        context_window: int | None = None,
    ) -> None:
        self.endpoint = endpoint_of(base_url, key)
        self.slots = slots
        self.context_window = context_window
        self._setup = setup
        self._extra = dict(extra or {})
        self._sdk = PerLoop(make_client or (lambda: _plain_client(base_url, key, setup.spec.timeout)))
        self._where = f"{setup.spec.id} at {base_url}"
        self._optional = OptionalParameters(self._where, setup.notice, _WORDS, _INSTEAD)

    async def send(self, request: Request) -> Reply:
        import openai

        body = self._body(request)
        sent = {self._canonical.get(name, name) for name in body}
        try:
            raw = await self._post(self._sdk.client(), body, self._setup.headers(request))
        except openai.OpenAIError as error:
            raise self._optional.adapt(classify_exception(error, openai, self._where), sent) from error
        answer = read_json(raw.text, raw.headers.get("content-type", ""), self._where)
        return self._reply(answer, request)

    async def close(self) -> None:
        await self._sdk.close()

    async def _post(self, client: Any, body: dict[str, Any], headers: dict[str, str]) -> Any:
        # Straight to the endpoint: the SDK's typed methods walk every message along their types, which costs more than the rest.
        import httpx2

        body = {"model": self._setup.name, self._messages: body.pop("messages"), **body}
        return await client.post(self._path, cast_to=httpx2.Response, body=body, options={"headers": headers})

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
        return {"messages": chat_messages(request), **body, **self._extra}

    def _prepared(self, request: Request) -> Request:
        if request.temperature is not None and is_reasoning(self._setup.spec.id):
            self._optional.leave_out("temperature", "models that reason take none")
        return schema_in_prompt(request) if "response_format" in self._optional.left_out else request


def _plain_client(base_url: str, key: str, timeout: float) -> Any:
    import openai

    transport = openai.DefaultAioHttpClient(timeout=timeout)  # half the CPU of the SDK's other one
    return openai.AsyncOpenAI(base_url=base_url, api_key=key or "none", max_retries=0, timeout=timeout, http_client=transport)
