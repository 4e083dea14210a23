"""skillfit's model as Inspect sees one: every call of a solver or scorer goes through journal,
budget and limits.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import mimetypes
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillfit.errors import SkillfitError
from skillfit.models.protocol import (
    BadRequest,
    FinishReason,
    Image,
    Message,
    Model,
    Request,
    Tool,
    ToolCall,
    Usage,
)
from skillfit.skill import Skill
from skillfit.skill.document import write_whole
from skillfit.tasks.item import Attempt, Item, Score

# reasons to stop that Inspect calls otherwise
_STOP: dict[FinishReason, str] = {
    "length": "max_tokens",
    "refused": "content_filter",
    "other": "unknown",
}


@dataclass(slots=True, eq=False)
class InspectRollout:
    """One call that waits for its sample, and what the sample does while it runs."""

    skill: Skill
    item: Item
    seed: int
    result: asyncio.Future[tuple[Attempt, Score]]
    context: Context = field(
        default_factory=copy_context
    )  # the caller's: its time limit is the one that counts
    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    error: SkillfitError | None = None
    sample: Any = None  # Inspect's running sample
    begun: asyncio.Event = field(default_factory=asyncio.Event)  # the sample has, or never will

    def __post_init__(self) -> None:
        self.result.add_done_callback(lambda _: self.begun.set())

    def give_up(self) -> None:
        """Nobody waits for the result any more: the sample ends, if it runs."""
        self.result.cancel()
        if self.sample is not None:
            self.sample.interrupt("cancel")


running: ContextVar[InspectRollout] = ContextVar("running")


def bridge(model: Model, images: Path) -> Any:
    """`images`: folder for images that come as data. Their paths are part of the journal's keys, so
    they are named by content.
    """
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        ModelAPI,
        ModelOutput,
        ModelUsage,
        get_model,
        modelapi,
    )

    class Bridge(ModelAPI):
        def max_connections(self) -> int:
            return 10_000  # skillfit's own limiter decides

        async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
            rollout = running.get()
            rollout.calls += 1
            try:
                request = _request(rollout, input, tools, config, images)
                reply = await asyncio.create_task(model.complete(request), context=rollout.context)
            except SkillfitError as error:
                rollout.error = error
                raise
            used, stopped = reply.usage, _STOP.get(reply.finish_reason, reply.finish_reason)
            rollout.usage += used
            calls = [_call(one) for one in reply.tool_calls]
            message = ChatMessageAssistant(
                content=reply.text, tool_calls=calls or None, model=model.id, source="generate"
            )
            return ModelOutput(
                model=model.id,
                choices=[ChatCompletionChoice(message=message, stop_reason=stopped)],
                usage=ModelUsage(
                    input_tokens=used.input - used.cached,
                    output_tokens=used.output,
                    total_tokens=used.tokens,
                ),
            )

    modelapi(name="skillfit")(lambda: Bridge)
    return get_model(f"skillfit/{model.id}", memoize=False)


def _request(rollout: InspectRollout, turns: Any, tools: Any, config: Any, images: Path) -> Request:
    return Request(
        tuple(_message(turn, images) for turn in turns),
        stage="rollout",
        tools=tuple(
            Tool(tool.name, tool.description, tool.parameters.model_dump(exclude_none=True))
            for tool in tools
        ),
        temperature=config.temperature,
        max_tokens=config.max_tokens,
        seed=rollout.seed,
        purpose=f"{rollout.item.id}/{rollout.seed}/{rollout.calls}",
    )


def _call(call: ToolCall) -> Any:
    """Arguments that are not a JSON object go back to the model as Inspect's own complaint about
    them.
    """
    from inspect_ai.tool import ToolCall as InspectCall

    problem = None
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError as error:
        arguments, problem = {}, f"The arguments are not valid JSON: {error}"
    if not isinstance(arguments, dict):
        arguments, problem = {}, "The arguments are not a JSON object."
    return InspectCall(id=call.id, function=call.name, arguments=arguments, parse_error=problem)


def _message(turn: Any, images: Path) -> Message:
    parts = [] if isinstance(turn.content, str) else turn.content
    other = [part.type for part in parts if part.type not in ("text", "reasoning", "image")]
    if other:
        raise BadRequest(
            f"An Inspect message holds {other[0]}.",
            hint="Text and images are passed on to the agent's model.",
        )
    shown = tuple(_image(part, images) for part in parts if part.type == "image")
    calls = tuple(
        ToolCall(one.id, one.function, json.dumps(one.arguments))
        for one in getattr(turn, "tool_calls", None) or ()
    )
    return Message(
        turn.role, text_of(turn), shown, calls, getattr(turn, "tool_call_id", None) or ""
    )


def text_of(turn: Any) -> str:
    """A tool that failed has its error beside its content, not in it."""
    failed = getattr(turn, "error", None)
    return f"Error: {failed.message}" if failed is not None else str(turn.text)


def _image(part: Any, folder: Path) -> Image:
    """Inspect lets only image data through; references in samples have become data by now."""
    head, _, data = part.image.partition(",")
    kind = head.removeprefix("data:").partition(";")[0]
    content = base64.b64decode(data)
    path = (
        folder
        / f"{hashlib.sha256(content).hexdigest()[:32]}{mimetypes.guess_extension(kind) or ''}"
    )
    write_whole(path, content)
    return Image(path, kind, "high" if part.detail == "original" else part.detail)
