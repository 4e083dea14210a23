"""Every server that speaks the OpenAI chat API, through the official SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from skillfit.models.classify import classify_exception, read_json
from skillfit.models.limiter import endpoint_of
from skillfit.models.prices import is_reasoning
from skillfit.models.protocol import BadRequest, ModelError, Reply, Request
from skillfit.models.provider import Adapted, Setup
from skillfit.models.wire import chat_messages, chat_reply, chat_tools, response_format, schema_in_prompt

# What may be left out when an endpoint refuses it, and the words in its error that say so.
_OPTIONAL = {
    "response_format": ("response_format", "json_schema", "structured output", "grammar"),
    "temperature": ("temperature",),
    "reasoning_effort": ("reasoning_effort", "reasoning effort"),
    "seed": ("seed",),
    "max_tokens": ("max_tokens", "max_completion_tokens"),
}
_INSTEAD = {
    "response_format": "the schema is asked for in the prompt instead",
    "max_tokens": "the limit is sent under its other name instead",
}


class ChatProvider:
    """One model at one endpoint. Parameters the endpoint refuses are left out from then on, with a notice."""

    def __init__(
        self,
        setup: Setup,
        *,
        base_url: str,
        key: str = "",
        extra: Mapping[str, Any] | None = None,
        sdk_client: Callable[[], Any] | None = None,
        slots: int | None = None,
        model: str = "",
    ) -> None:
        self.endpoint = endpoint_of(base_url, key)
        self.slots = slots
        self._setup = setup
        self._model = model or setup.name
        self._extra = dict(extra or {})
        self._make = sdk_client or (lambda: _plain_client(base_url, key, setup.spec.timeout))
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left_out: set[str] = set()
        self._where = f"{setup.spec.id} at {base_url}"

    async def send(self, request: Request) -> Reply:
        import openai

        body = self._body(request)
        try:
            raw = await self._sdk().chat.completions.with_raw_response.create(
                model=self._model,
                messages=body.pop("messages"),
                extra_body=body,
                extra_headers=self._setup.headers(request),
            )
        except openai.OpenAIError as error:
            failure = classify_exception(error, openai, self._where)
            raise self._adapt(failure, body) from error
        answer = read_json(raw.text, raw.headers.get("content-type", ""), self._where)
        return chat_reply(answer, request, self._setup.spec.id)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    def _sdk(self) -> Any:
        # A connection pool belongs to the event loop it was made in.
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = self._make(), loop
        return self._client

    def _body(self, request: Request) -> dict[str, Any]:
        if "response_format" in self._left_out:
            request = schema_in_prompt(request)
        reasoning = is_reasoning(self._setup.spec.id)
        if reasoning and request.temperature is not None and "temperature" not in self._left_out:
            self._leave_out("temperature", "reasoning models take none")
        swapped = reasoning != ("max_tokens" in self._left_out)
        wanted = {
            "max_completion_tokens" if swapped else "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "reasoning_effort": request.reasoning_effort,
            "seed": request.seed,
            "response_format": response_format(request.schema) if request.schema else None,
            "tools": chat_tools(request) or None,
        }
        body = {
            key: value for key, value in wanted.items() if value is not None and not (key in self._left_out and key != "max_tokens")
        }
        return {"messages": chat_messages(request), **body, **self._extra}

    def _adapt(self, failure: ModelError, sent: Mapping[str, Any]) -> ModelError:
        """The same failure, or `Adapted` when it is about one optional parameter we can do without."""
        if type(failure) is not BadRequest:
            return failure
        said = failure.message.lower()
        for name, words in _OPTIONAL.items():
            was_sent = name in sent or (name == "max_tokens" and "max_completion_tokens" in sent)
            if was_sent and name not in self._left_out and any(word in said for word in words):
                self._leave_out(name, failure.message)
                return Adapted(failure.message)
        return failure

    def _leave_out(self, name: str, why: str) -> None:
        self._left_out.add(name)
        self._setup.notice(f"{self._where} does not take `{name}`: {_INSTEAD.get(name, 'it is left out')}. ({why})")


def _plain_client(base_url: str, key: str, timeout: float) -> Any:
    import openai

    return openai.AsyncOpenAI(base_url=base_url, api_key=key or "none", max_retries=0, timeout=timeout)
