"""Every server that speaks the OpenAI chat API.

OpenAI's Responses API, for the models that speak nothing else (codex and pro).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from skillfit.models.limiter import endpoint_of
from skillfit.models.prices import is_reasoning
from skillfit.models.protocol import (
    BadRequest,
    FinishReason,
    Message,
    NoReply,
    Reply,
    Request,
    ToolCall,
    Usage,
)
from skillfit.models.provider import Setup
from skillfit.models.providers.http import Endpoint, SignIn, bearer, join
from skillfit.models.providers.sdk import OfficialSdk, OptionalParameters
from skillfit.models.wire import (
    chat_messages,
    chat_reply,
    chat_tools,
    read_image,
    read_usage,
    response_format,
    schema_in_prompt,
    unreported_usage,
)

_WORDS = {
    "response_format": ("response_format", "json_schema", "structured output", "grammar"),
    "temperature": ("temperature",),
    "reasoning_effort": ("reasoning_effort", "reasoning effort", "reasoning.effort"),
    "seed": ("seed",),
    "max_tokens": ("'max_completion_tokens' instead", "max_tokens"),
}
_INSTEAD = {"response_format": "the schema is asked for in the prompt instead"}


class ChatProvider:
    """One model at one address. The API's paths stand under `root` where that is not the address
    itself; `headers` carry the key where that is not the usual bearer token. `sdk`: through
    OpenAI's own SDK.
    """

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
            self._api = OfficialSdk(
                "openai", base_url, self._path, self._where, headers, api_key=key or "none"
            )
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
        if request.temperature is not None and is_reasoning(self._setup.spec.id):
            self._optional.leave_out("temperature", "models that reason take none")
        return (
            schema_in_prompt(request) if "response_format" in self._optional.left_out else request
        )


_ONLY_RESPONSES = re.compile(r"codex|^(gpt-5|o[13])[.\d]*-pro\b")


def needs_responses(name: str) -> bool:
    return _ONLY_RESPONSES.search(name) is not None


class ResponsesProvider(ChatProvider):
    _path: ClassVar[str] = "/responses"
    _canonical: ClassVar[Mapping[str, str]] = {
        "text": "response_format",
        "reasoning": "reasoning_effort",
    }

    def _body(self, request: Request) -> dict[str, Any]:
        request, left_out = self._prepared(request), self._optional.left_out
        wanted: dict[str, Any] = {
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
        output = [item for item in answer.get("output") or () if isinstance(item, Mapping)]
        if not output:
            raise NoReply(
                f"{self._setup.spec.id} sent a reply without output.", usage=Usage(calls=1)
            )
        parts = [
            part
            for item in output
            if item.get("type") == "message"
            for part in item.get("content") or ()
        ]
        text = "".join(part.get("text") or part.get("refusal") or "" for part in parts)
        calls = tuple(
            ToolCall(item["call_id"], item["name"], item.get("arguments") or "{}")
            for item in output
            if item.get("type") == "function_call"
        )
        spent = read_usage(answer, "input_tokens", "output_tokens") or unreported_usage(
            request, text, self._setup.spec.id
        )
        return Reply(
            text, calls, _finish(answer, parts, calls), spent, str(answer.get("model") or "")
        )


def _items(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [
            {
                "type": "function_call_output",
                "call_id": message.tool_call_id,
                "output": message.content,
            }
        ]
    kind = "output_text" if message.role == "assistant" else "input_text"
    content: list[dict[str, Any]] = (
        [{"type": kind, "text": message.content}] if message.content else []
    )
    for image in message.images:
        media_type, data = read_image(image)
        content.append(
            {
                "type": "input_image",
                "image_url": f"data:{media_type};base64,{data}",
                "detail": image.detail,
            }
        )
    items: list[dict[str, Any]] = [{"role": message.role, "content": content}] if content else []
    calls = [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        for call in message.tool_calls
    ]
    return items + calls


def _finish(
    answer: Mapping[str, Any], parts: list[Any], calls: tuple[ToolCall, ...]
) -> FinishReason:
    if answer.get("status") == "incomplete":
        return (
            "refused"
            if (answer.get("incomplete_details") or {}).get("reason") == "content_filter"
            else "length"
        )
    if any(part.get("type") == "refusal" for part in parts):
        return "refused"
    return "tool_calls" if calls else "stop"
