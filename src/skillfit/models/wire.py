"""Requests and replies as the OpenAI chat API writes them, which most servers speak."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from skillfit.errors import InputError
from skillfit.models.failures import classify
from skillfit.models.prices import input_bound
from skillfit.models.protocol import (
    FinishReason,
    Image,
    Message,
    NoReply,
    Reply,
    Request,
    ToolCall,
    Usage,
)

_SIGNATURES = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}
_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
}


def read_image(image: Image) -> tuple[str, str]:
    """Media type (by its bytes, else as declared) and base64 data, read now."""
    try:
        data = Path(image.path).read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read the image {image.path}: {error.strerror}.") from error
    media_type = next(
        (kind for start, kind in _SIGNATURES.items() if data.startswith(start)), image.media_type
    )
    return media_type, base64.b64encode(data).decode()


def schema_in_prompt(request: Request) -> Request:
    """The request with its schema asked for in words, for endpoints that cannot enforce one."""
    if request.schema is None:
        return request
    form = json.dumps(request.schema, ensure_ascii=False)
    ask = f"\n\nReply with nothing but one JSON value that follows this JSON schema:\n{form}"
    *before, last = request.messages
    return replace(
        request, schema=None, messages=(*before, replace(last, content=last.content + ask))
    )


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema in the form strict mode demands (every property required, no others), None where
    it cannot be put so.
    """
    if schema.get("type") == "object" and not isinstance(schema.get("properties"), Mapping):
        return None  # free-form keys
    strict: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("default", "title") and not isinstance(value, Mapping):
            continue
        done = _strict_part(key, value)
        if done is None:
            return None
        strict[key] = done
    if isinstance(schema.get("properties"), Mapping):
        strict |= {"required": list(schema["properties"]), "additionalProperties": False}
    return strict


def _strict_part(key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):
        parts = {name: strict_schema(part) for name, part in value.items()}
        return None if None in parts.values() else parts
    if key == "additionalProperties" and value is not False:
        return None
    if key in ("anyOf", "allOf", "oneOf", "prefixItems"):
        options = [strict_schema(part) for part in value]
        return None if None in options else options
    return strict_schema(value) if isinstance(value, Mapping) and key != "const" else value


def chat_messages(request: Request) -> list[dict[str, Any]]:
    return [_chat_message(message) for message in request.messages]


def _chat_message(message: Message) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.images:
        parts: list[dict[str, Any]] = (
            [{"type": "text", "text": message.content}] if message.content else []
        )
        for image in message.images:
            media_type, data = read_image(image)
            parts.append(
                {
                    "type": "image_url",
                    "image_url": {
                        "url": f"data:{media_type};base64,{data}",
                        "detail": image.detail,
                    },
                }
            )
        wire["content"] = parts
    if message.tool_calls:
        wire["content"] = message.content or None
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        wire["tool_call_id"] = message.tool_call_id
    return wire


def chat_tools(request: Request) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in request.tools
    ]


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    strict = strict_schema(schema)
    form = {"name": "reply", "schema": strict or dict(schema), "strict": strict is not None}
    return {"type": "json_schema", "json_schema": form}


def chat_reply(body: Mapping[str, Any], request: Request, model_id: str) -> Reply:
    """The reply in a chat completion; some gateways send their errors with status 200."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        error = body.get("error")
        status = (body.get("base_resp") or {}).get("status_code")
        if error or status:
            code = error.get("code") if isinstance(error, Mapping) else None
            raise classify(code if isinstance(code, int) else 400, body, {}, model_id)
        raise NoReply(f"{model_id} sent a reply without choices.", usage=Usage(calls=1))
    choice = choices[0]
    message = choice.get("message") or {}
    text = _text(message.get("content"))
    calls = tuple(
        _tool_call(call, number) for number, call in enumerate(message.get("tool_calls") or ())
    )
    finish = _FINISH.get(choice.get("finish_reason") or "stop", "other")
    if message.get("refusal"):
        text, finish = message["refusal"], "refused"
    usage = read_usage(body, "prompt_tokens", "completion_tokens") or unreported_usage(
        request, text, model_id
    )
    return Reply(text, calls, finish, usage, str(body.get("model") or ""))


def _tool_call(call: Mapping[str, Any], number: int) -> ToolCall:
    function = call.get("function") or {}
    arguments = function.get("arguments") or "{}"
    return ToolCall(
        id=call.get("id") or f"call_{number}",
        name=function.get("name") or "",
        arguments=arguments
        if isinstance(arguments, str)
        else json.dumps(arguments, ensure_ascii=False),
    )


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))
    return content or ""


def read_usage(body: Mapping[str, Any], read: str, written: str) -> Usage | None:
    """What an answer of OpenAI's APIs reports under these names, None where it reports nothing."""
    usage = body.get("usage")
    if not usage:
        return None
    return Usage(
        calls=1,
        input=usage.get(read) or 0,
        cached=(usage.get(f"{read}_details") or {}).get("cached_tokens") or 0,
        output=usage.get(written) or 0,
        reasoning=(usage.get(f"{written}_details") or {}).get("reasoning_tokens") or 0,
    )


def unreported_usage(request: Request, text: str, model_id: str) -> Usage:
    """For servers that report none: counting zero would hide cost, so count the most it can have
    been.
    """
    return Usage(calls=1, input=input_bound(request, model_id), output=len(text.encode()))
