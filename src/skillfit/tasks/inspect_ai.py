"""Inspect AI tasks: the skill goes in as the first system message, Inspect's solver and scorers do the rest, our model answers.

Inspect runs one eval at a time in a process, so rollouts that wait are run together, as samples of one eval; its logs are written
as always and open in `inspect view`. Every model call goes through skillfit's model: journal, budget and limits hold.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from skillfit.errors import InputError, SkillfitError
from skillfit.models.protocol import BadRequest, FinishReason, Message, Model, Request, Tool, ToolCall, Usage
from skillfit.tasks.attempt import Attempt, Score, Step, TaskFailure, as_score
from skillfit.tasks.item import Item
from skillfit.tasks.rows import Row, items_of

if TYPE_CHECKING:
    from skillfit.skill import Skill

_STOP: dict[FinishReason, str] = {
    "stop": "stop",
    "length": "max_tokens",
    "tool_calls": "tool_calls",
    "refused": "content_filter",
    "other": "unknown",
}


@dataclass(slots=True)
class _Rollout:
    """One waiting call, and what its sample does while it runs."""

    skill: Skill
    item: Item
    seed: int
    result: asyncio.Future[tuple[Attempt, Score]]
    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    error: SkillfitError | None = None


_running: ContextVar[_Rollout] = ContextVar("_running")


class InspectEvaluator:
    """Runs items of an Inspect task. The id of an item is the id of its sample."""

    def __init__(self, task: Any, samples: dict[str, Any], model: Model | None, logs: Path, reference: str) -> None:
        self._task, self._samples, self._model, self._logs, self._reference = task, samples, model, logs, reference
        self._waiting: list[_Rollout] = []
        self._runner: asyncio.Task[None] | None = None

    async def __call__(self, skill: Skill, item: Item, seed: int) -> tuple[Attempt, Score]:
        if self._model is None:
            raise InputError("An Inspect task needs the agent's model.", hint="Set model.agent.")
        rollout = _Rollout(skill, item, seed, asyncio.get_running_loop().create_future())
        self._waiting.append(rollout)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run_waiting())
        return await rollout.result

    def describe(self) -> dict[str, Any]:
        return {"inspect": self._reference}

    async def _run_waiting(self) -> None:
        await asyncio.sleep(0.05)  # those who come together go together
        while self._waiting:
            batch: dict[str, _Rollout] = {}
            for rollout in self._waiting:
                if rollout.skill.hash == self._waiting[0].skill.hash:
                    batch.setdefault(rollout.item.id, rollout)
            self._waiting = [rollout for rollout in self._waiting if batch.get(rollout.item.id) is not rollout]
            running = asyncio.ensure_future(self._run(batch))
            await asyncio.wait([running])
            failed = running.exception()
            for rollout in batch.values():
                if not rollout.result.done():
                    rollout.result.set_exception(
                        failed or TaskFailure("inspect", f"Inspect gave no result for item {rollout.item.id}.")
                    )

    async def _run(self, batch: dict[str, _Rollout]) -> None:
        from inspect_ai import eval_async, task_with
        from inspect_ai.dataset import MemoryDataset
        from inspect_ai.util._display import init_display_type

        init_display_type("none")
        setup = self._task.setup or []
        task = task_with(
            copy(self._task),
            dataset=MemoryDataset([self._samples[name] for name in batch], name=self._task.dataset.name),
            setup=[_enter(batch), *(setup if isinstance(setup, Sequence) else [setup])],
            epochs=1,
        )
        model = _bridge(cast(Model, self._model))
        logs = await eval_async(
            task,
            model=model,
            log_dir=str(self._logs),
            fail_on_error=False,
            max_samples=len(batch),
            ctl_server=False,
            log_level="error",
        )
        for sample in logs[0].samples or []:
            rollout = batch[str(sample.id)]
            if rollout.result.done():
                continue  # whoever asked has given up
            if rollout.error is not None:
                rollout.result.set_exception(rollout.error)
            elif sample.error is not None:
                rollout.result.set_exception(TaskFailure("inspect", f"item {sample.id}: {sample.error.message}"))
            else:
                _finish(rollout, sample)
        if logs[0].error is not None:
            raise TaskFailure("inspect", f"Inspect stopped: {logs[0].error.message}")


def load_inspect_task(reference: str, *, base: Path, model: Model | None, logs: Path) -> tuple[list[Item], InspectEvaluator]:
    """The samples of `package/task` or `file.py@task` as items, and the evaluator that runs them."""
    try:
        from inspect_ai._eval.loader import load_tasks
    except ImportError as error:
        raise InputError("Inspect AI is not installed.", hint="pip install 'skillfit[inspect]'") from error
    file, at, name = reference.partition("@")
    if at and not (base / file).is_file():
        raise InputError(f"inspect: {base / file} does not exist.", hint="Write inspect:file.py@task or inspect:package/task.")
    found = load_tasks([f"{(base / file).resolve()}@{name}" if at else reference])
    if len(found) != 1:
        raise InputError(
            f"inspect: {reference!r} names {len(found)} tasks.", hint="Write inspect:file.py@task or inspect:package/task."
        )
    samples: dict[str, Any] = {}
    for number, sample in enumerate(found[0].dataset, 1):
        sample.id = sample.id if sample.id is not None else number
        samples[str(sample.id)] = sample
    items = items_of((Row(_row(name, sample), f"sample {name}") for name, sample in samples.items()), {})
    return items, InspectEvaluator(found[0], samples, model, logs, reference)


def _row(name: str, sample: Any) -> dict[str, Any]:
    text = sample.input if isinstance(sample.input, str) else "\n\n".join(turn.text for turn in sample.input if turn.role == "user")
    answers = [sample.target] if isinstance(sample.target, str) else list(sample.target)
    kept = {"choices": sample.choices, "metadata": sample.metadata}
    return {
        "id": name,
        "input": text,
        "answers": [one for one in answers if one],
        **{key: value for key, value in kept.items() if value},
    }


def _enter(batch: dict[str, _Rollout]) -> Any:
    from inspect_ai.model import ChatMessageSystem
    from inspect_ai.solver import solver

    @solver(name="skillfit_skill")
    def enter() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            rollout = batch[str(state.sample_id)]
            _running.set(rollout)
            if rollout.skill.text.strip():
                state.messages.insert(0, ChatMessageSystem(content=rollout.skill.text))
            return state

        return solve

    return enter()


def _finish(rollout: _Rollout, sample: Any) -> None:
    from inspect_ai.scorer import value_to_float

    values = {}
    for name, score in (sample.scores or {}).items():
        parts = (
            list(score.value.values())
            if isinstance(score.value, dict)
            else score.value
            if isinstance(score.value, list)
            else [score.value]
        )
        numbers = [float(value_to_float()(part)) for part in parts]
        values[name] = sum(numbers) / len(numbers) if numbers else math.nan
    if not values or any(math.isnan(value) for value in values.values()):
        rollout.result.set_exception(TaskFailure("grader", f"item {sample.id}: Inspect's scorers gave no score."))
        return
    steps = tuple(
        Step("tool_result" if turn.role == "tool" else "message", turn.text, turn.role) for turn in sample.messages if turn.text
    )
    evidence = [f"{name}: {score.explanation}" for name, score in sample.scores.items() if score.explanation]
    own = tuple(step for step in steps if step.role in ("assistant", "tool"))
    attempt = Attempt(sample.output.completion, own, usage=rollout.usage)
    try:
        score = as_score({"score": sum(values.values()) / len(values), "evidence": evidence}, source=f"Inspect on item {sample.id}")
    except TaskFailure as failure:
        rollout.result.set_exception(failure)
    else:
        rollout.result.set_result((attempt, score))


def _bridge(model: Model) -> Any:
    """skillfit's model as Inspect sees one."""
    from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ModelAPI, ModelOutput, ModelUsage, get_model, modelapi
    from inspect_ai.tool import ToolCall as InspectCall

    class Bridge(ModelAPI):
        def max_connections(self) -> int:
            return 10_000  # skillfit's own limiter decides

        async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
            rollout = _running.get()
            rollout.calls += 1
            request = Request(
                tuple(_message(turn) for turn in input),
                stage="rollout",
                tools=tuple(Tool(tool.name, tool.description, tool.parameters.model_dump(exclude_none=True)) for tool in tools),
                temperature=config.temperature,
                max_tokens=config.max_tokens,
                seed=rollout.seed,
                purpose=f"{rollout.item.id}/{rollout.seed}/{rollout.calls}",
            )
            try:
                reply = await model.complete(request)
            except SkillfitError as error:
                rollout.error = error
                raise
            rollout.usage += reply.usage
            calls = [
                InspectCall(id=one.id, function=one.name, arguments=json.loads(one.arguments or "{}")) for one in reply.tool_calls
            ]
            message = ChatMessageAssistant(content=reply.text, tool_calls=calls or None, model=model.id, source="generate")
            used = reply.usage
            return ModelOutput(
                model=model.id,
                choices=[ChatCompletionChoice(message=message, stop_reason=_STOP[reply.finish_reason])],
                usage=ModelUsage(input_tokens=used.input - used.cached, output_tokens=used.output, total_tokens=used.tokens),
            )

    modelapi(name="skillfit")(lambda: Bridge)
    return get_model(f"skillfit/{model.id}", memoize=False)


def _message(turn: Any) -> Message:
    parts = [] if isinstance(turn.content, str) else turn.content
    other = [part.type for part in parts if part.type not in ("text", "reasoning")]
    if other:
        raise BadRequest(f"An Inspect message holds {other[0]}.", hint="Only text is passed on to the agent's model.")
    calls = tuple(ToolCall(one.id, one.function, json.dumps(one.arguments)) for one in getattr(turn, "tool_calls", None) or ())
    return Message(turn.role, turn.text, tool_calls=calls, tool_call_id=getattr(turn, "tool_call_id", None) or "")
