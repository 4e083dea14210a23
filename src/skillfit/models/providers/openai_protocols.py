"""Providers for the two OpenAI protocols: the chat API, which most servers speak, and the Responses
API, for models that have nothing else (codex and pro).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from skillfit.models.json_text import JsonObject
from skillfit.models.limiter import endpoint_of
from skillfit.models.prices import is_reasoning
from skillfit.models.protocol import BadRequest, FinishReason, Message, Reply, Request, Setup
from skillfit.models.providers.http import (
    Endpoint,
    OptionalParameters,
    SignIn,
    bearer,
    join,
    without_query,
)
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
_INSTEAD = {"response_format": "the schema is put into the prompt instead"}


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
        extra: Mapping[str, Any] | None = None,
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
        self._optional = OptionalParameters(where, setup.notice, _WORDS, _INSTEAD)
        headers = bearer(key) if headers is None else headers
        self._api = Endpoint(join(root or base_url, self._path), where, headers, sign_in)

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

    def _body(self, request: Request) -> JsonObject:
        request, left_out = self._prepared(request), self._optional.left_out
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

    def _prepared(self, request: Request) -> Request:
        """The request without what the endpoint is known to reject."""
        if request.temperature is not None and is_reasoning(self._setup.spec.id):
            self._optional.leave_out("temperature", "reasoning models take none")
        for name, why in self._never.items():
            if getattr(request, name) is not None:
                self._optional.leave_out(name, why)
        if "response_format" in self._optional.left_out:
            return schema_in_prompt(request)
        return request


_ONLY_RESPONSES = re.compile(r"codex|^(gpt-5|o[13])[.\d]*-pro\b")


def needs_responses(name: str) -> bool:
    """Whether OpenAI offers this model in the Responses API only."""
    return _ONLY_RESPONSES.search(name) is not None


class ResponsesProvider(ChatProvider):
    """As `ChatProvider`, over the Responses API."""

    _path: ClassVar[str] = "/responses"
    _canonical: ClassVar[Mapping[str, str]] = {
        "text": "response_format",
        "reasoning": "reasoning_effort",
    }

    def _body(self, request: Request) -> JsonObject:
        request, left_out = self._prepared(request), self._optional.left_out
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

    def _reply(self, answer: Mapping[str, Any], request: Request) -> Reply:
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
    """The message as input items of the Responses API."""
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
