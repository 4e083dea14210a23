"""Scripted parts for tests of the optimizer: items, outcomes, and an optimizer whose replies
come from a function.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from skillfit.config.schema import GradientSection, OptimizerSection
from skillfit.models import Request
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.optimize.context import Context
from skillfit.optimize.optimizer import Optimizer
from skillfit.optimize.proposer import Reflection, ask_analysts
from skillfit.rollout.outcome import Failure, Outcome, requests_for
from skillfit.run.events import Discarded, Event
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Score, TrajectoryStep

SKILL = Skill.from_text("# Adding\n\nAdd the numbers.\n\nAnswer with the sum.\n")

Answer = dict[str, Any] | str | Exception
GRADIENT = GradientSection.model_fields


@dataclass
class ScriptedOptimizer:
    optimizer: Optimizer
    model: ScriptedModel
    events: list[Event] = field(default_factory=list)

    def asked(self, stage: str) -> list[Request]:
        return [request for request in self.model.requests if request.stage == stage]

    @property
    def discarded(self) -> list[Discarded]:
        return [event for event in self.events if isinstance(event, Discarded)]


def scripted(
    script: Callable[[Request], Answer],
    *,
    context_window: int = 128_000,
    workers: int = 16,
    **settings: Any,
) -> ScriptedOptimizer:
    def line(request: Request) -> str | Exception:
        answer = script(request)
        return json.dumps(answer) if isinstance(answer, dict) else answer

    model = ScriptedModel(line, context_window=context_window)
    events: list[Event] = []
    gradient = {name: settings.pop(name) for name in [*settings] if name in GRADIENT}
    optimizer = Optimizer(
        model,
        events.append,
        asyncio.Semaphore(workers),
        GradientSection(**gradient),
        OptimizerSection(**settings),
    )
    return ScriptedOptimizer(optimizer, model, events)


def text_of(request: Request) -> str:
    return "\n".join(message.content for message in request.messages)


def item(name: str, text: str = "", **row: Any) -> Item:
    return Item(
        name,
        {"input": text or f"What is {name}?", "answers": [f"gold of {name}"], **row},
        split="train",
    )


def outcome(
    name: str,
    hard: float,
    *,
    feedback: str = "",
    answer: str = "",
    steps: Sequence[TrajectoryStep] = (),
    repeat: int = 0,
) -> Outcome:
    attempt = Attempt(answer or f"answer to {name}", tuple(steps))
    return Outcome(
        name,
        repeat,
        "scored",
        Score(hard, feedback=feedback, evidence=("SECRET RUBRIC",)),
        attempt=attempt,
    )


def broken(name: str, repeat: int = 0) -> Outcome:
    return Outcome(name, repeat, "failed", failure=Failure("timeout", "took too long"))


async def reflect_on(
    optimizer: Optimizer,
    skill: Skill,
    items: Sequence[Item],
    rollouts: Sequence[asyncio.Task[Outcome]],
    context: Context,
    **more: Any,
) -> Reflection:
    """Reflect on rollouts of these items, all made under the skill itself."""
    repeats = len(rollouts) // len(items)
    requests = requests_for(skill, items, range(repeats))
    return await ask_analysts(optimizer, skill, requests, rollouts, context, **more)


def finished(outcomes: Sequence[Outcome]) -> list[asyncio.Task[Outcome]]:
    async def give(value: Outcome) -> Outcome:
        return value

    return [asyncio.create_task(give(value)) for value in outcomes]


def append(content: str, **more: Any) -> dict[str, Any]:
    return {"op": "append", "target": None, "content": content, **more}


def analysis(*edits: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"failure_summary": [], "patch": {"reasoning": "because", "edits": list(edits)}, **more}
