"""Requests and replies on the wire: the OpenAI chat API, which most servers speak, and the checks
that replies of all protocols pass before anything else uses or records them.

Each protocol describes its reply as a `WireModel`. An answer that does not fit is a `NotAReply`:
the call failed, is retried like other failures, and counts with the most it can have cost.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from skillfit.errors import InputError
from skillfit.models.failures import classify
from skillfit.models.json_text import JsonObject, parse_json
from skillfit.models.prices import input_bound
from skillfit.models.protocol import (
    BadReply,
    FinishReason,
    Image,
    Message,
    NotAReply,
    Reply,
    Request,
    ToolCall,
    Usage,
)

MAX_TOKEN_COUNT = 100_000_000  # no call has this many; a larger count is an error of the server
_MAX_NAME = 200
_MAX_PROBLEMS = 3
_IMAGE_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
}


def _whole_number(value: Any) -> Any:
    if value is None:
        return 0
    return int(value) if isinstance(value, float) and value.is_integer() else value


TokenCount = Annotated[
    int, BeforeValidator(_whole_number), Field(strict=True, ge=0, le=MAX_TOKEN_COUNT)
]


class WireModel(BaseModel):
    """Part of a reply as it comes over the wire. Unused fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


W = TypeVar("W", bound=WireModel)


def read_reply(form: type[W], body: JsonObject, model_id: str) -> W:
    """Return the body as a reply of this form. Some gateways send their errors with status 200."""
    _raise_error_inside(body, model_id)
    try:
        return form.model_validate(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        named = [
            f"{'.'.join(map(str, problem['loc']))[:_MAX_NAME] or 'reply'}: {problem['msg']}"
            for problem in problems[:_MAX_PROBLEMS]
        ]
        raise NotAReply(
            f"{model_id} sent a reply that cannot be read: {'; '.join(named)}."
        ) from error


def _raise_error_inside(body: JsonObject, model_id: str) -> None:
    error, vendor_status = body.get("error"), body.get("base_resp")
    if isinstance(vendor_status, Mapping) and vendor_status.get("status_code"):
        raise classify(400, body, {}, model_id)
    if isinstance(error, str) and error:
        raise classify(500, body, {}, model_id)
    if isinstance(error, Mapping) and error:
        code = error.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else _assumed_status(body)
        raise classify(status, body, {}, model_id)


def _assumed_status(body: JsonObject) -> int:
    """Return the status of an error without a code: a failed response of the Responses API is the
    server's fault, any other error that of the request.
    """
    return 500 if body.get("status") == "failed" else 400


def counted(
    usage: Usage | None, request: Request, text: str, calls: tuple[ToolCall, ...], model_id: str
) -> Usage:
    """Return the usage to bill. What the server does not report counts with the most it can have
    been, because counting zero would hide cost.
    """
    usage = usage or Usage()
    return replace(
        usage,
        calls=1,
        input=usage.input or input_bound(request, model_id),
        output=usage.output or sum(len(part.encode()) for part in (text, *map(str, calls))),
    )


def tool_call(call_id: str | None, name: str | None, arguments: Any, number: int) -> ToolCall:
    """Return a checked tool call. `number` makes an id where the server sends none."""
    if not name or len(name) > _MAX_NAME:
        raise BadReply("The reply calls a tool without a usable name.")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(call_id or f"call_{number}", name, arguments or "{}")


def argument_object(call: ToolCall) -> JsonObject:
    """Return the arguments as an object. What the model wrote may be no JSON, or no object."""
    try:
        value = parse_json(call.arguments or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": call.arguments}


def argument_json(call: ToolCall) -> str:
    """Return the arguments as the JSON text of an object. Servers refuse a conversation with
    anything else in it.
    """
    try:
        valid = isinstance(parse_json(call.arguments), dict)
    except ValueError:
        valid = False
    return call.arguments if valid else json.dumps(argument_object(call), ensure_ascii=False)


def model_name(value: Any) -> str:
    """Return the model's name as the server reports it."""
    return value[:_MAX_NAME] if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class ImageData:
    """The bytes of an image, ready to be sent."""

    media_type: str
    base64: str

    @property
    def data_url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"


def read_image(image: Image) -> ImageData:
    """Return the image's data, read now. Its type is read from its bytes, else it is the declared
    one.
    """
    try:
        data = Path(image.path).read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read the image {image.path}: {error.strerror}.") from error
    media_type = image_media_type(data) or image.media_type
    return ImageData(media_type, base64.b64encode(data).decode())


def image_media_type(data: bytes) -> str | None:
    """Return the kind of an image by its first bytes; None for anything that models do not
    accept.
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _IMAGE_SIGNATURES.items() if data.startswith(start)), None)


def schema_in_prompt(request: Request) -> Request:
    """Return the request with its schema in the prompt, for endpoints that cannot enforce one."""
    if request.schema is None:
        return request
    form = json.dumps(request.schema, ensure_ascii=False)
    ask = f"\n\nReply with nothing but one JSON value that follows this JSON schema:\n{form}"
    *before, last = request.messages
    return replace(
        request, schema=None, messages=(*before, replace(last, content=last.content + ask))
    )


def strict_schema(schema: JsonObject) -> JsonObject | None:
    """Return the schema in the form of strict mode (every property required, no others). None when
    it cannot be expressed in that form.
    """
    if schema.get("type") == "object" and not isinstance(schema.get("properties"), Mapping):
        return None  # free-form keys
    strict: JsonObject = {}
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
    return strict_schema(dict(value)) if isinstance(value, Mapping) and key != "const" else value


def chat_messages(request: Request) -> list[JsonObject]:
    return [_chat_message(message) for message in request.messages]


def _chat_message(message: Message) -> JsonObject:
    wire: JsonObject = {"role": message.role, "content": message.content}
    if message.images:
        parts: list[JsonObject] = (
            [{"type": "text", "text": message.content}] if message.content else []
        )
        for image in message.images:
            source = {"url": read_image(image).data_url, "detail": image.detail}
            parts.append({"type": "image_url", "image_url": source})
        wire["content"] = parts
    if message.tool_calls:
        wire["content"] = message.content or None
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": argument_json(call)},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        wire["tool_call_id"] = message.tool_call_id
    return wire


def chat_tools(request: Request) -> list[JsonObject]:
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


def response_format(schema: JsonObject) -> JsonObject:
    strict = strict_schema(schema)
    form = {"name": "reply", "schema": strict or dict(schema), "strict": strict is not None}
    return {"type": "json_schema", "json_schema": form}


class _Function(WireModel):
    name: str | None = None
    arguments: str | JsonObject | None = None


class _ChatToolCall(WireModel):
    id: str | None = None
    function: _Function = Field(default_factory=_Function)


class _TextPart(WireModel):
    text: str | None = None


class _ChatMessage(WireModel):
    content: str | list[_TextPart] | None = None
    refusal: str | None = None
    tool_calls: list[_ChatToolCall] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""


class ReplyChoice(WireModel):
    message: _ChatMessage | None = None
    finish_reason: str | None = None


class _InputDetails(WireModel):
    cached_tokens: TokenCount = 0


class _OutputDetails(WireModel):
    reasoning_tokens: TokenCount = 0


class OpenAiUsage(WireModel):
    """Usage as both OpenAI protocols report it, each under its own names. Cached tokens are part
    of the input tokens.
    """

    input: TokenCount = Field(0, validation_alias=AliasChoices("prompt_tokens", "input_tokens"))
    output: TokenCount = Field(
        0, validation_alias=AliasChoices("completion_tokens", "output_tokens")
    )
    input_details: _InputDetails | None = Field(
        None, validation_alias=AliasChoices("prompt_tokens_details", "input_tokens_details")
    )
    output_details: _OutputDetails | None = Field(
        None, validation_alias=AliasChoices("completion_tokens_details", "output_tokens_details")
    )

    @model_validator(mode="after")
    def _check_cached(self) -> Self:
        if self.cached > self.input:
            raise ValueError("there are more cached tokens than input tokens")
        return self

    @property
    def cached(self) -> int:
        return self.input_details.cached_tokens if self.input_details else 0

    def usage(self) -> Usage:
        reasoning = self.output_details.reasoning_tokens if self.output_details else 0
        return Usage(1, self.input, self.cached, self.output, reasoning)


class _ChatCompletion(WireModel):
    choices: list[ReplyChoice] = Field(min_length=1)
    usage: OpenAiUsage | None = None
    model: Any = None


def chat_reply(body: JsonObject, request: Request, model_id: str) -> Reply:
    """Return the reply in a chat completion."""
    completion = read_reply(_ChatCompletion, body, model_id)
    choice = completion.choices[0]
    message = choice.message or _ChatMessage()
    text, finish = message.text, _FINISH.get(choice.finish_reason or "stop", "other")
    if message.refusal:
        text, finish = message.refusal, "refused"
    calls = tuple(
        tool_call(call.id, call.function.name, call.function.arguments, number)
        for number, call in enumerate(message.tool_calls or ())
    )
    reported = completion.usage.usage() if completion.usage else None
    usage = counted(reported, request, text, calls, model_id)
    return Reply(text, calls, finish, usage, model_name(completion.model))
