"""Check what a server sent before anything else uses or records it.

Each protocol describes its reply as a `WireModel`. An answer that does not fit is a `NoReply`: the
call failed, is retried like other failures, and counts with the most it can have cost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from skillfit.models.failures import classify
from skillfit.models.json_text import parse_json
from skillfit.models.prices import input_bound
from skillfit.models.protocol import BadReply, NoReply, Request, ToolCall, Usage

MAX_TOKEN_COUNT = 100_000_000  # no call has this many; a larger count is an error of the server
_MAX_NAME = 200
_MAX_PROBLEMS = 3


def _whole_number(value: Any) -> Any:
    if value is None:
        return 0
    return int(value) if isinstance(value, float) and value.is_integer() else value


TokenCount = Annotated[
    int, BeforeValidator(_whole_number), Field(strict=True, ge=0, le=MAX_TOKEN_COUNT)
]


class WireModel(BaseModel):
    """Part of a reply as it comes over the wire. Fields that nobody reads are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


W = TypeVar("W", bound=WireModel)


def read_reply(form: type[W], body: Mapping[str, Any], model_id: str) -> W:
    """The body as a reply of this form. Some gateways send their errors with status 200."""
    _raise_error_inside(body, model_id)
    try:
        return form.model_validate(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        named = [
            f"{'.'.join(map(str, problem['loc']))[:_MAX_NAME] or 'reply'}: {problem['msg']}"
            for problem in problems[:_MAX_PROBLEMS]
        ]
        raise NoReply(
            f"{model_id} sent a reply that cannot be read: {'; '.join(named)}."
        ) from error


def _raise_error_inside(body: Mapping[str, Any], model_id: str) -> None:
    error, vendor_status = body.get("error"), body.get("base_resp")
    if isinstance(vendor_status, Mapping) and vendor_status.get("status_code"):
        raise classify(400, body, {}, model_id)
    if isinstance(error, str) and error:
        raise classify(500, body, {}, model_id)
    if isinstance(error, Mapping) and error:
        code = error.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else _status_of(body)
        raise classify(status, body, {}, model_id)


def _status_of(body: Mapping[str, Any]) -> int:
    """A failed response of the Responses API is the server's fault; other errors name theirs."""
    return 500 if body.get("status") == "failed" else 400


def counted(
    usage: Usage | None, request: Request, text: str, calls: tuple[ToolCall, ...], model_id: str
) -> Usage:
    """The usage to bill. What the server does not report counts with the most it can have been,
    because counting zero would hide cost.
    """
    usage = usage or Usage()
    return replace(
        usage,
        calls=1,
        input=usage.input or input_bound(request, model_id),
        output=usage.output or sum(len(part.encode()) for part in (text, *map(str, calls))),
    )


def tool_call(call_id: str | None, name: str | None, arguments: Any, number: int) -> ToolCall:
    """A checked tool call. `number` makes an id where the server sends none."""
    if not name or len(name) > _MAX_NAME:
        raise BadReply("The reply calls a tool without a usable name.")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(call_id or f"call_{number}", name, arguments or "{}")


def argument_object(call: ToolCall) -> dict[str, Any]:
    """The arguments as an object. What the model wrote may be no JSON, or no object."""
    try:
        value = parse_json(call.arguments or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": call.arguments}


def argument_json(call: ToolCall) -> str:
    """The arguments as the JSON text of an object. Servers refuse a conversation with anything
    else in it.
    """
    try:
        valid = isinstance(parse_json(call.arguments), dict)
    except ValueError:
        valid = False
    return call.arguments if valid else json.dumps(argument_object(call), ensure_ascii=False)


def model_name(value: Any) -> str:
    """The model's name as the server reports it."""
    return value[:_MAX_NAME] if isinstance(value, str) else ""
