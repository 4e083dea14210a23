"""skillfit's models as Inspect sees them: those of a provider named skillfit. Calls of solvers and
scorers go through it to the journal, the budget and the limiter. Calls to other providers are
refused.

The skill is for the model under test: the model of the eval, and roles that `env.model_roles` binds
to the agent. Calls of other roles, such as a simulated user, are made without it, although the same
model may answer them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import mimetypes
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skillfit.atomic_write import write_whole
from skillfit.errors import SkillfitError, TaskFailure
from skillfit.models.json_text import parse_json
from skillfit.models.protocol import (
    BadRequest,
    FinishReason,
    Image,
    Message,
    Model,
    Reply,
    Request,
    Tool,
    ToolCall,
    Usage,
)
from skillfit.skill import Skill
from skillfit.tasks.item import Item, ScoredAttempt

if TYPE_CHECKING:
    from inspect_ai.log._samples import ActiveSample
    from inspect_ai.model import ChatMessage, ContentImage, GenerateConfig, ModelOutput
    from inspect_ai.tool import ToolCall as InspectCall
    from inspect_ai.tool import ToolChoice, ToolInfo


InspectRole = Literal["agent", "judge"]
PROVIDER = "skillfit"  # the name of our models' provider in Inspect
AGENT: InspectRole = "agent"
JUDGE: InspectRole = "judge"
_FREE_MODELS = ("mockllm/", "none/")  # Inspect's own stand-ins, which make no calls
# Our finish reasons that have another name in Inspect.
_STOP_REASON: dict[FinishReason, str] = {
    "length": "max_tokens",
    "refused": "content_filter",
    "other": "unknown",
}
# Settings that our models do not take. The first ones change the shape of the reply.
_REFUSED_SETTINGS = ("num_choices", "logprobs", "top_logprobs", "prompt_logprobs")
_IGNORED_SETTINGS = ("top_p", "top_k", "frequency_penalty", "presence_penalty", "logit_bias")
_RUNNING: dict[str, InspectRollout] = {}  # by the uuid of Inspect's sample


@dataclass(slots=True)
class SkillDelivery:
    """How the skill of one rollout reaches the model under test.

    It is put before the messages of the sample. A task whose agent has messages of its own sends
    those instead, and then the skill is added to every call of the model under test. The first call
    decides: where the task's own messages bring the skill, its other calls (a critique, a summary)
    stay as they are.
    """

    message: str = ""  # the system message that brings it; empty: there is no skill
    added: bool | None = None  # whether it is added to the calls; None: no call was made yet
    solving: bool = True  # scorers come next, and are no part of the attempt
    other_roles: set[str] = field(default_factory=set)  # that made calls
    conversations: list[list[ChatMessage]] = field(default_factory=list)  # of the model under test

    @property
    def reached(self) -> bool:
        """Whether a call of the model under test had the skill."""
        return bool(self.message) and self.added is not None

    def prepared(self, turns: Sequence[ChatMessage], role: str | None) -> Sequence[ChatMessage]:
        """Return the messages of a call, with the skill or without it. `role`: None for the model
        under test.
        """
        from inspect_ai.model import ChatMessageSystem

        if role is not None:
            if self.solving:
                self.other_roles.add(role)
            return [turn for turn in turns if not self._is_skill(turn)]
        if not self.solving or not self.message:
            return turns
        brought = any(self.message in turn.text for turn in turns)
        if self.added is None:
            self.added = not brought
        if brought or not self.added:
            return turns
        return [ChatMessageSystem(content=self.message), *turns]

    def _is_skill(self, turn: ChatMessage) -> bool:
        return bool(self.message) and turn.role == "system" and turn.text == self.message

    def record(self, turns: Sequence[ChatMessage], reply: ChatMessage) -> None:
        """Remember a call of the model under test: as the next one of a conversation, or the first
        of another.
        """
        if not self.solving:
            return
        said = [turn for turn in turns if turn.role != "system"]
        if self.conversations and _continues(said, self.conversations[-1]):
            self.conversations.pop()
        self.conversations.append([*said, reply])


def _continues(turns: Sequence[ChatMessage], earlier: Sequence[ChatMessage]) -> bool:
    def key(turn: ChatMessage) -> tuple[str, str]:
        return turn.role, turn.text

    return [key(turn) for turn in turns[: len(earlier)]] == [key(turn) for turn in earlier]


@dataclass(slots=True, eq=False)
class InspectRollout:
    """One rollout: the caller waits for `result` while Inspect runs the sample."""

    skill: Skill
    item: Item
    seed: int
    models: Mapping[InspectRole, Model]
    images: Path  # folder for images that arrive as data; journal keys contain their paths
    result: asyncio.Future[ScoredAttempt]
    context: Context = field(default_factory=copy_context)  # the caller's, with its time limit
    usage: Usage = field(default_factory=Usage)
    requests: Counter[str] = field(default_factory=Counter)  # fingerprints of those sent so far
    error: SkillfitError | None = None
    sample: ActiveSample | None = None
    delivery: SkillDelivery = field(default_factory=SkillDelivery)
    begun: asyncio.Event = field(default_factory=asyncio.Event)  # also set when it will not begin

    def __post_init__(self) -> None:
        self.result.add_done_callback(lambda _: self.begun.set())

    def numbered(self, request: Request) -> Request:
        """Return the request with a purpose that makes it unique in the run. Equal requests of one
        rollout are numbered; different ones need no number, so their order does not matter.
        """
        fingerprint = request.fingerprint()
        self.requests[fingerprint] += 1
        number = self.requests[fingerprint]
        return replace(request, purpose=f"{self.item.id}/{self.seed}/{number}")

    def begin(self, active_sample: ActiveSample) -> None:
        """Note that the sample has begun: model calls from within it belong to this rollout."""
        self.sample = active_sample
        _RUNNING[active_sample.sample_uuid] = self
        self.begun.set()

    def end(self) -> None:
        """Note that the sample has ended."""
        if self.sample is not None:
            _RUNNING.pop(self.sample.sample_uuid, None)
            self.sample = None

    def give_up(self) -> None:
        """Drop the result, which is no longer needed: cancel the sample if it runs."""
        self.result.cancel()
        if self.sample is not None:
            self.sample.interrupt("cancel")


def _current_rollout() -> InspectRollout | None:
    """Return the rollout whose sample Inspect is running where this is called."""
    from inspect_ai.log._samples import sample_active

    active = sample_active()
    return _RUNNING.get(active.sample_uuid) if active is not None else None


@cache
def register_inspect_provider() -> None:
    """Make our models known to Inspect: `skillfit/judge` is the judge, any other name of this
    provider the agent's model. Tasks can be given these names as arguments. `plays`: the role in
    which a model is not the one under test.
    """
    from inspect_ai.model import ModelAPI, modelapi

    class Bridge(ModelAPI):
        def __init__(self, model_name: str, plays: str | None = None, **settings: Any) -> None:
            super().__init__(model_name, **settings)
            self.plays = JUDGE if model_name == JUDGE else plays

        def max_connections(self) -> int:
            return 10_000  # skillfit's limiter decides

        async def generate(
            self,
            input: list[ChatMessage],
            tools: list[ToolInfo],
            tool_choice: ToolChoice,
            config: GenerateConfig,
        ) -> ModelOutput:
            rollout = _current_rollout()
            if rollout is None:
                raise TaskFailure(
                    "inspect",
                    "The Inspect task calls a model outside of a running sample, where the call "
                    "cannot be recorded.",
                )
            role = JUDGE if self.model_name == JUDGE else AGENT
            turns = rollout.delivery.prepared(input, self.plays)
            try:
                output = await _ask_model(rollout, role, turns, tools, tool_choice, config)
            except SkillfitError as error:
                rollout.error = error
                raise
            if self.plays is None:
                rollout.delivery.record(input, output.message)
            return output

    modelapi(name=PROVIDER)(lambda: Bridge)


async def _ask_model(
    rollout: InspectRollout,
    role: InspectRole,
    turns: Sequence[ChatMessage],
    tools: Sequence[ToolInfo],
    choice: ToolChoice,
    config: GenerateConfig,
) -> ModelOutput:
    model = rollout.models.get(role)
    if model is None:
        raise TaskFailure(
            "config", f"The Inspect task asks for the {role}.", hint=f"Set model.{role}."
        )
    request = rollout.numbered(
        replace(
            _our_request(turns, tools, choice, config, rollout.images),
            stage="judge" if role == JUDGE else "rollout",
            seed=rollout.seed,
        )
    )
    # In the context of the caller, whose time limit counts.
    reply = await asyncio.create_task(model.complete(request), context=rollout.context)
    rollout.usage += reply.usage
    return _inspect_output(model.id, reply, config.stop_seqs or ())


def _our_request(
    turns: Sequence[ChatMessage],
    tools: Sequence[ToolInfo],
    tool_choice: ToolChoice,
    config: GenerateConfig,
    images: Path,
) -> Request:
    _check_model_settings(config)
    if tool_choice == "none":
        tools = ()
    forced = getattr(tool_choice, "name", None)  # a ToolFunction: only this tool is offered
    offered = tuple(
        Tool(tool.name, tool.description, tool.parameters.model_dump(exclude_none=True))
        for tool in tools
        if forced is None or tool.name == forced
    )
    schema = config.response_schema
    return Request(
        tuple(_our_message(turn, images) for turn in turns),
        stage="rollout",
        tools=offered,
        schema=schema.json_schema.model_dump(exclude_none=True) if schema else None,
        temperature=config.temperature,
        max_tokens=config.max_tokens,
        reasoning_effort=config.reasoning_effort,
    )


def _check_model_settings(config: GenerateConfig) -> None:
    """Refuse or warn about settings of the task that our models do not take."""
    for name in _REFUSED_SETTINGS:
        value = getattr(config, name, None)
        single = name == "num_choices" and value == 1
        if not (value is None or value is False or single):
            raise BadRequest(
                f"The Inspect task sets {name}, which skillfit's models do not support.",
                hint="Remove it from the task's GenerateConfig.",
            )
    ignored = [name for name in _IGNORED_SETTINGS if getattr(config, name, None) is not None]
    if ignored:
        warnings.warn(
            f"The Inspect task sets {', '.join(ignored)}: ignored, skillfit's models do not take "
            "these settings.",
            stacklevel=2,
        )


def _our_message(turn: ChatMessage, images: Path) -> Message:
    parts = [] if isinstance(turn.content, str) else turn.content
    other = [part.type for part in parts if part.type not in ("text", "reasoning", "image")]
    if other:
        raise BadRequest(
            f"An Inspect message contains {other[0]}.",
            hint="Only text and images can be sent to the agent's model.",
        )
    pictures = tuple(_our_image(part, images) for part in parts if part.type == "image")
    calls = tuple(
        ToolCall(call.id, call.function, json.dumps(call.arguments))
        for call in getattr(turn, "tool_calls", None) or ()
    )
    answered = getattr(turn, "tool_call_id", None) or ""
    return Message(turn.role, text_of(turn), pictures, calls, answered)


def text_of(turn: ChatMessage) -> str:
    """Return the text of a message. A failed tool has its error beside its content, not in it."""
    error = getattr(turn, "error", None)
    return f"Error: {error.message}" if error is not None else str(turn.text)


def _our_image(part: ContentImage, folder: Path) -> Image:
    """Save an image, which Inspect has turned into a data URL by now. The file is named by its
    content.
    """
    head, _, data = part.image.partition(",")
    media_type = head.removeprefix("data:").partition(";")[0]
    content = base64.b64decode(data)
    suffix = mimetypes.guess_extension(media_type) or ""
    path = folder / f"{hashlib.sha256(content).hexdigest()[:32]}{suffix}"
    write_whole(path, content)
    return Image(path, media_type, "high" if part.detail == "original" else part.detail)


def _inspect_output(model_id: str, reply: Reply, stop: Sequence[str]) -> ModelOutput:
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        ModelOutput,
        ModelUsage,
    )

    text = _before_stop(reply.text, stop)
    reason = _STOP_REASON.get(reply.finish_reason, reply.finish_reason)
    calls = [_inspect_call(call) for call in reply.tool_calls]
    message = ChatMessageAssistant(
        content=text, tool_calls=calls or None, model=model_id, source="generate"
    )
    used = reply.usage
    usage = ModelUsage(
        input_tokens=used.input - used.cached,
        output_tokens=used.output,
        total_tokens=used.tokens,
    )
    ended = "stop" if text != reply.text else reason
    choice = ChatCompletionChoice(message=message, stop_reason=ended)
    return ModelOutput(model=model_id, choices=[choice], usage=usage)


def _before_stop(text: str, stop: Sequence[str]) -> str:
    """Return the text up to the first stop sequence, as a provider would have returned it."""
    ends = [at for sequence in stop if sequence and (at := text.find(sequence)) >= 0]
    return text[: min(ends)] if ends else text


def _inspect_call(call: ToolCall) -> InspectCall:
    """Convert a tool call. Arguments that are not a JSON object are reported to the model by
    Inspect.
    """
    from inspect_ai.tool import ToolCall as InspectCall

    arguments, problem = {}, None
    try:
        arguments = parse_json(call.arguments or "{}")
    except ValueError as error:
        problem = f"The arguments are not valid JSON: {error}"
    if not isinstance(arguments, dict):
        arguments, problem = {}, "The arguments are not a JSON object."
    return InspectCall(id=call.id, function=call.name, arguments=arguments, parse_error=problem)


@cache
def refuse_other_models() -> None:
    """Refuse from now on a call that a sample makes to another provider before it is sent: skillfit
    could neither record nor budget it. To be called when Inspect has loaded its hooks, because it
    prints those that are there before.
    """
    from inspect_ai.hooks import BeforeModelGenerate, Hooks, SampleScoring, hooks
    from inspect_ai.util import LimitExceededError

    @hooks(name="skillfit", description="Refuses calls that cannot be recorded.")
    class Refusal(Hooks):
        async def on_sample_scoring(self, data: SampleScoring) -> None:
            if rollout := _RUNNING.get(data.sample_id):
                rollout.delivery.solving = False

        async def on_before_model_generate(self, data: BeforeModelGenerate) -> None:
            rollout = _current_rollout()
            if rollout is None or data.model_name.startswith((f"{PROVIDER}/", *_FREE_MODELS)):
                return
            rollout.error = own_model_failure(
                f"The Inspect task called {data.model_name} directly, so skillfit could neither "
                "record nor budget that call."
            )
            # The one exception of a hook that Inspect does not ignore.
            raise LimitExceededError("custom", value=1, limit=0, message=rollout.error.message)


def own_model_failure(message: str) -> TaskFailure:
    """Return the failure of a task that uses its own model instead of ours."""
    return TaskFailure(
        "config",
        message,
        hint="If it is a model role, bind it: env.model_roles: {ROLE: judge}. If it is a task "
        f"argument, set it: env.task_args: {{ARGUMENT: {PROVIDER}/{JUDGE}}}.",
    )


def asks_for_own_model(message: str) -> bool:
    """Return whether an error of Inspect says that a provider's package or key is missing. Only a
    task that creates its own model needs them.
    """
    signs = ("API_KEY", "Unable to initiali", "requires optional dependencies")
    return any(sign in message for sign in signs)


def without_markup(message: str) -> str:
    """Return an error of Inspect without its markup for the terminal, in one line."""
    return " ".join(re.sub(r"\[/?\w+\]", "", message).split())
