"""Anthropic's Messages API, with cache marks on what stays the same from call to call."""

from __future__ import annotations

from typing import Any

from skillfit.models.json_text import JsonObject
from skillfit.models.limiter import endpoint_of
from skillfit.models.prices import full_name
from skillfit.models.protocol import BadRequest, FinishReason, Message, Reply, Request, Usage
from skillfit.models.providers.http import Endpoint, OptionalParameters, bearer, join, without_query
from skillfit.models.registry import Setup
from skillfit.models.wire import (
    TokenCount,
    WireModel,
    argument_object,
    counted,
    model_name,
    read_image,
    read_reply,
    schema_in_prompt,
    strict_schema,
    tool_call,
)

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
_INSTEAD = {"schema": "it is put into the prompt instead"}
_LEFT_OUT_ON_ANY_ERROR = ("schema",)
_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refused",
}


def anthropic(setup: Setup) -> AnthropicProvider:
    """Set up Anthropic, or a server with its API at `base_url` or ANTHROPIC_BASE_URL."""
    setup.takes()
    base_url = setup.address()
    token = "" if setup.spec.key_env else setup.key("ANTHROPIC_AUTH_TOKEN", needed=False)
    key = token or setup.key("ANTHROPIC_API_KEY", needed=True)
    return AnthropicProvider(setup, base_url, key, is_token=bool(token))


class AnthropicProvider:
    """One model behind the Messages API."""

    slots: int | None = None
    context_window: int | None = None

    def __init__(self, setup: Setup, base_url: str, key: str, *, is_token: bool) -> None:
        where = f"{setup.spec.id} at {without_query(base_url)}"
        headers = {
            "anthropic-version": _VERSION,
            **setup.custom_headers("ANTHROPIC_CUSTOM_HEADERS"),
            **(bearer(key) if is_token else {"x-api-key": key}),
        }
        self.endpoint = endpoint_of(base_url, key)
        self._setup = setup
        self._api = Endpoint(join(base_url, "/v1/messages"), where, headers)
        self._optional = OptionalParameters(
            where, setup.notice, _WORDS, _INSTEAD, _LEFT_OUT_ON_ANY_ERROR
        )

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

    def _optional_body(self, request: Request) -> tuple[JsonObject, set[str]]:
        """Return the optional part of the body, and the names of the parameters in it."""
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
        body: JsonObject = {"temperature": sent["temperature"]} if "temperature" in sent else {}
        output: JsonObject = (
            {"effort": sent["reasoning_effort"]} if "reasoning_effort" in sent else {}
        )
        if "schema" in sent:
            output["format"] = {"type": "json_schema", "schema": strict}
        return body | ({"output_config": output} if output else {}), set(sent)


def _system(request: Request) -> JsonObject:
    """Return the system texts as blocks. The last two (instructions, skill) are marked: the
    provider caches everything up to a mark.
    """
    blocks: list[JsonObject] = [
        {"type": "text", "text": m.content}
        for m in request.messages
        if m.role == "system" and m.content
    ]
    for block in blocks[-2:]:
        block["cache_control"] = _CACHED
    return {"system": blocks} if blocks else {}


def _tools(request: Request) -> JsonObject:
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
        for tool in request.tools
    ]
    return {"tools": tools} if tools else {}


def _messages(request: Request) -> list[JsonObject]:
    """Return turns of user and assistant. The last one of a longer conversation is marked, so that
    the next turn reads it from the cache.
    """
    turns: list[JsonObject] = []
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


def _blocks(message: Message) -> list[JsonObject]:
    if message.role == "tool":
        return [
            {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}
        ]
    blocks: list[JsonObject] = (
        [{"type": "text", "text": message.content}] if message.content else []
    )
    for image in message.images:
        data = read_image(image)
        source = {"type": "base64", "media_type": data.media_type, "data": data.base64}
        blocks.append({"type": "image", "source": source})
    for call in message.tool_calls:
        use = {"type": "tool_use", "id": call.id, "name": call.name}
        blocks.append({**use, "input": argument_object(call)})
    return blocks


class _Block(WireModel):
    type: str = ""
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: JsonObject | None = None


class _MessageUsage(WireModel):
    """Here `input_tokens` are those neither read from nor written to the cache."""

    input_tokens: TokenCount = 0
    output_tokens: TokenCount = 0
    cache_read_input_tokens: TokenCount = 0
    cache_creation_input_tokens: TokenCount = 0

    def usage(self) -> Usage:
        cached, written = self.cache_read_input_tokens, self.cache_creation_input_tokens
        return Usage(
            calls=1,
            input=self.input_tokens + cached + written,
            cached=cached,
            output=self.output_tokens,
            written=written,
        )


class _MessageReply(WireModel):
    content: list[_Block]
    stop_reason: str | None = None
    usage: _MessageUsage | None = None
    model: Any = None


def _reply(answer: JsonObject, request: Request, model_id: str) -> Reply:
    message = read_reply(_MessageReply, answer, model_id)
    text = "".join(block.text or "" for block in message.content if block.type == "text")
    calls = tuple(
        tool_call(block.id, block.name, block.input, number)
        for number, block in enumerate(message.content)
        if block.type == "tool_use"
    )
    finish = _FINISH.get(message.stop_reason or "end_turn", "other")
    reported = message.usage.usage() if message.usage else None
    usage = counted(reported, request, text, calls, model_id)
    return Reply(text, calls, finish, usage, model_name(message.model))
