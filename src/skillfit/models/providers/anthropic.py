"""Anthropic's Messages API, with cache marks on what stays the same from call to call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from skillfit.models.limiter import endpoint_of
from skillfit.models.prices import full_name
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
from skillfit.models.providers.http import Endpoint, bearer, join
from skillfit.models.providers.sdk import OfficialSdk, OptionalParameters, through_sdk
from skillfit.models.wire import read_image, schema_in_prompt, strict_schema, unreported_usage

_VERSION = "2023-06-01"
_CACHED = {"type": "ephemeral"}
_WORDS = {
    "schema": (
        "output_config.format",
        "output_format",
        "json_schema",
        "schema",
        "structured output",
    ),
    "temperature": ("temperature",),
    "reasoning_effort": ("effort",),
}
_INSTEAD = {"schema": "it is asked for in the prompt instead"}
_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refused",
}


def anthropic(setup: Setup) -> AnthropicProvider:
    setup.takes("sdk")
    own = setup.address("ANTHROPIC_BASE_URL")
    token = "" if setup.spec.key_env else setup.key("ANTHROPIC_AUTH_TOKEN", needed=False)
    key = token or setup.key("ANTHROPIC_API_KEY", needed=True)
    return AnthropicProvider(
        setup,
        own or "https://api.anthropic.com",
        key,
        bool(token),
        through_sdk(setup, "anthropic", bool(own)),
    )


class AnthropicProvider:
    slots: int | None = None
    context_window: int | None = None

    def __init__(self, setup: Setup, base_url: str, key: str, is_token: bool, sdk: bool) -> None:
        where = f"{setup.spec.id} at {base_url}"
        headers = {
            "anthropic-version": _VERSION,
            **setup.custom_headers("ANTHROPIC_CUSTOM_HEADERS"),
        }
        self.endpoint = endpoint_of(base_url, key)
        self._setup = setup
        self._api: Endpoint | OfficialSdk
        if sdk:
            how = {"auth_token": key} if is_token else {"api_key": key}
            self._api = OfficialSdk("anthropic", base_url, "/v1/messages", where, headers, **how)
        else:
            headers |= bearer(key) if is_token else {"x-api-key": key}
            self._api = Endpoint(join(base_url, "/v1/messages"), where, headers)
        self._optional = OptionalParameters(where, setup.notice, _WORDS, _INSTEAD)

    async def send(self, request: Request) -> Reply:
        if request.seed is not None:
            self._optional.leave_out("seed", "the Messages API has none")
        optional, sent = self._optional_body(request)
        asked = request if "schema" in sent else schema_in_prompt(request)
        body = {
            "model": full_name(self._setup.name),
            "max_tokens": request.max_tokens or 4096,
            "messages": _messages(asked),
        }
        try:
            answer = await self._api.post(
                body | optional | _system(asked) | _tools(asked), self._setup.headers(request)
            )
        except BadRequest as error:
            self._optional.adapt(error, sent)
            raise
        return _reply(answer, request, self._setup.spec.id)

    async def close(self) -> None:
        await self._api.close()

    def _optional_body(self, request: Request) -> tuple[dict[str, Any], set[str]]:
        """What may be left out, as sent, and the names of what is in it."""
        strict = strict_schema(request.schema) if request.schema else None
        wanted = {
            "temperature": request.temperature,
            "reasoning_effort": request.reasoning_effort,
            "schema": strict,
        }
        sent = {
            name: value
            for name, value in wanted.items()
            if value is not None and name not in self._optional.left_out
        }
        body: dict[str, Any] = {"temperature": sent["temperature"]} if "temperature" in sent else {}
        output: dict[str, Any] = (
            {"effort": sent["reasoning_effort"]} if "reasoning_effort" in sent else {}
        )
        if "schema" in sent:
            output["format"] = {"type": "json_schema", "schema": strict}
        return body | ({"output_config": output} if output else {}), set(sent)


def _system(request: Request) -> dict[str, Any]:
    """System texts as blocks, the last two (instructions, skill) marked: what comes before a mark
    is cached.
    """
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": m.content}
        for m in request.messages
        if m.role == "system" and m.content
    ]
    for block in blocks[-2:]:
        block["cache_control"] = _CACHED
    return {"system": blocks} if blocks else {}


def _tools(request: Request) -> dict[str, Any]:
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
        for tool in request.tools
    ]
    return {"tools": tools} if tools else {}


def _messages(request: Request) -> list[dict[str, Any]]:
    """Turns of user and assistant; a conversation under way is marked at its end, so its next turn
    reads it from the cache.
    """
    turns: list[dict[str, Any]] = []
    for message in request.messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += _blocks(message)
        else:
            turns.append({"role": role, "content": _blocks(message)})
    if len(turns) > 1 and turns[-1]["content"]:
        turns[-1]["content"][-1]["cache_control"] = _CACHED
    return turns


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [
            {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}
        ]
    blocks: list[dict[str, Any]] = (
        [{"type": "text", "text": message.content}] if message.content else []
    )
    for image in message.images:
        media_type, data = read_image(image)
        blocks.append(
            {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
        )
    for call in message.tool_calls:
        blocks.append(
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _arguments(call)}
        )
    return blocks


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        value = json.loads(call.arguments or "{}")
    except ValueError:
        value = None
    return (
        value if isinstance(value, dict) else {"arguments": call.arguments}
    )  # what the model wrote was no object


def _reply(answer: Mapping[str, Any], request: Request, model_id: str) -> Reply:
    content = answer.get("content")
    if not isinstance(content, list):
        raise NoReply(f"{model_id} sent a reply without content.", usage=Usage(calls=1))
    text = "".join(block.get("text") or "" for block in content if block.get("type") == "text")
    calls = tuple(
        ToolCall(
            block["id"], block["name"], json.dumps(block.get("input") or {}, ensure_ascii=False)
        )
        for block in content
        if block.get("type") == "tool_use"
    )
    finish = _FINISH.get(answer.get("stop_reason") or "end_turn", "other")
    usage = answer.get("usage")
    spent = _usage(usage) if usage else unreported_usage(request, text, model_id)
    return Reply(text, calls, finish, spent, str(answer.get("model") or ""))


def _usage(usage: Mapping[str, Any]) -> Usage:
    cached, written = (
        usage.get("cache_read_input_tokens") or 0,
        usage.get("cache_creation_input_tokens") or 0,
    )
    fresh = usage.get("input_tokens") or 0
    return Usage(
        calls=1,
        input=fresh + cached + written,
        cached=cached,
        output=usage.get("output_tokens") or 0,
        written=written,
    )
