"""OpenAI's Responses API, for the models that speak nothing else (codex and pro)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from skillfit.models.protocol import FinishReason, Message, NoReply, Reply, Request, ToolCall, Usage
from skillfit.models.providers.chat import ChatProvider
from skillfit.models.wire import read_image, read_usage, response_format, unreported_usage

_ONLY_RESPONSES = re.compile(r"codex|^(gpt-5|o[13])[.\d]*-pro\b")


def needs_responses(name: str) -> bool:
    return _ONLY_RESPONSES.search(name) is not None


class ResponsesProvider(ChatProvider):
    _path: ClassVar[str] = "/responses"
    _canonical: ClassVar[Mapping[str, str]] = {"text": "response_format", "reasoning": "reasoning_effort"}

    def _body(self, request: Request) -> dict[str, Any]:
        request, left_out = self._prepared(request), self._optional.left_out
        wanted: dict[str, Any] = {"max_output_tokens": request.max_tokens, "temperature": request.temperature, "store": False}
        if request.seed is not None:
            self._optional.leave_out("seed", "the Responses API has none")
        if request.reasoning_effort and "reasoning_effort" not in left_out:
            wanted["reasoning"] = {"effort": request.reasoning_effort}
        if request.schema:
            wanted["text"] = {"format": {"type": "json_schema", **response_format(request.schema)["json_schema"]}}
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
        body = {key: value for key, value in wanted.items() if value is not None and key not in left_out}
        items = [item for message in request.messages for item in _items(message)]
        return {"model": self._setup.name, "input": items, **body, **self._extra}

    def _reply(self, answer: Mapping[str, Any], request: Request) -> Reply:
        output = [item for item in answer.get("output") or () if isinstance(item, Mapping)]
        if not output:
            raise NoReply(f"{self._setup.spec.id} sent a reply without output.", usage=Usage(calls=1))
        parts = [part for item in output if item.get("type") == "message" for part in item.get("content") or ()]
        text = "".join(part.get("text") or part.get("refusal") or "" for part in parts)
        calls = tuple(
            ToolCall(item["call_id"], item["name"], item.get("arguments") or "{}")
            for item in output
            if item.get("type") == "function_call"
        )
        spent = read_usage(answer, "input_tokens", "output_tokens") or unreported_usage(request, text, self._setup.spec.id)
        return Reply(text, calls, _finish(answer, parts, calls), spent, str(answer.get("model") or ""))


def _items(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}]
    kind = "output_text" if message.role == "assistant" else "input_text"
    content: list[dict[str, Any]] = [{"type": kind, "text": message.content}] if message.content else []
    for image in message.images:
        media_type, data = read_image(image)
        content.append({"type": "input_image", "image_url": f"data:{media_type};base64,{data}", "detail": image.detail})
    items: list[dict[str, Any]] = [{"role": message.role, "content": content}] if content else []
    calls = [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls
    ]
    return items + calls


def _finish(answer: Mapping[str, Any], parts: list[Any], calls: tuple[ToolCall, ...]) -> FinishReason:
    if answer.get("status") == "incomplete":
        return "refused" if (answer.get("incomplete_details") or {}).get("reason") == "content_filter" else "length"
    if any(part.get("type") == "refusal" for part in parts):
        return "refused"
    return "tool_calls" if calls else "stop"
