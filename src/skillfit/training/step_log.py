"""What a step writes down about itself: the seconds and the usage of its stages, and its events.

Model calls of the optimizer and rollouts of the gate belong to the stage in which they start: its
name and step are in their events, and their usage is counted in the step's log. They find the stage
through a context variable, as spans are found in tracing libraries, because gates and proposers
may be users' code and need not hand it on. Gates and proposers do not read it. Stage and step are
part of the key under which a lost rollout is recorded, so they are the same on replay.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from skillfit.models.protocol import Model, Reply, Request, Usage
from skillfit.rollout import Arm, Outcome, RolloutRequest, Rollouts, gather
from skillfit.rollout.outcome import raise_if_skipped
from skillfit.run.events import Event, StageFinished, StageStarted
from skillfit.run.records import StageName, TokenCounts
from skillfit.tasks.item import Item
from skillfit.training.plan import Place

Emit = Callable[[Event], None]


class UsageByStage:
    """What stages used, counted from replies and outcomes, so that a replay counts the same."""

    def __init__(self) -> None:
        self._stages: defaultdict[str, Usage] = defaultdict(Usage)

    def add(self, stage: str, usage: Usage) -> None:
        self._stages[stage] += usage

    def add_outcomes(self, stage: str, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self.add(stage, outcome.usage)

    def merge(self, other: UsageByStage) -> None:
        for stage, usage in other._stages.items():
            self.add(stage, usage)

    def counts(self) -> dict[str, TokenCounts]:
        return {
            stage: TokenCounts.of(usage)
            for stage, usage in sorted(self._stages.items())
            if usage.calls
        }


@dataclass(slots=True)
class StepLog:
    """The log of one step, or of another part of a run (then `place.step` is 0)."""

    emit: Emit
    place: Place = field(default_factory=Place)
    seconds: dict[str, float] = field(default_factory=dict)
    usage: UsageByStage = field(default_factory=UsageByStage)
    refused_proposals: int = 0  # by the leak check, before and after merging

    @property
    def step(self) -> int:
        return self.place.step

    def stage(self, name: StageName, total: int = 0) -> Stage:
        """Begin a stage. `total`: rollouts that it will make, for progress displays."""
        return Stage(self, name, total)

    @contextmanager
    def within(self, stage: StageName) -> Iterator[None]:
        """What starts in this block belongs to a stage, which is not timed here."""
        token = _current.set(_Current(self, stage))
        try:
            yield
        finally:
            _current.reset(token)

    def add(self, other: StepLog) -> None:
        """Add what another log counted, for work that was done beside the step."""
        self.seconds |= other.seconds
        self.usage.merge(other.usage)
        self.refused_proposals += other.refused_proposals


class Stage:
    """A stage being timed: `with log.stage("gate"): …`, or `done()` when it ends later."""

    def __init__(self, log: StepLog, name: StageName, total: int) -> None:
        self._log, self._name = log, name
        self._begun = time.monotonic()
        place = log.place
        log.emit(StageStarted(epoch=place.epoch, step=place.step, stage=name, total=total))

    def done(self) -> None:
        seconds, place = time.monotonic() - self._begun, self._log.place
        self._log.seconds[self._name] = seconds
        self._log.emit(
            StageFinished(epoch=place.epoch, step=place.step, stage=self._name, seconds=seconds)
        )

    def __enter__(self) -> Stage:
        self._within = self._log.within(self._name)
        self._within.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: Any) -> None:
        self._within.__exit__(kind, *details)
        if kind is None:
            self.done()


@dataclass(frozen=True, slots=True)
class _Current:
    log: StepLog
    stage: StageName


_current: ContextVar[_Current | None] = ContextVar("_current", default=None)


def current_step() -> int:
    """The step that the current stage belongs to; 0 outside of steps."""
    current = _current.get()
    return current.log.step if current is not None else 0


class CountedModel:
    """The optimizer's model; its usage is counted in the log. `check` may refuse a call."""

    def __init__(self, model: Model, check: Callable[[], None]) -> None:
        self._model = model
        self._check = check

    @property
    def id(self) -> str:
        return self._model.id

    @property
    def context_window(self) -> int:
        return self._model.context_window

    async def complete(self, request: Request) -> Reply:
        self._check()
        reply = await self._model.complete(request)
        current = _current.get()
        if current is not None:
            current.log.usage.add(request.stage, reply.usage)
        return reply


class SelectionRollouts:
    """The gate's way to measure skills (`gate.Measure`); the rollouts are counted in the log."""

    def __init__(self, engine: Rollouts) -> None:
        self._engine = engine

    def __call__(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> Coroutine[Any, Any, list[Outcome]]:
        """The rollouts are queued at once; the result waits for them."""
        current = _current.get()
        stage, step = (current.stage, current.log.step) if current else ("gate", 0)
        requests = [RolloutRequest(arm, item, repeat) for arm, item in arms]
        running = self._engine.start(requests, phase=stage, step=step, series=series)
        return _outcomes(running, current.log.usage if current else None)


async def _outcomes(
    running: Sequence[asyncio.Future[Outcome]], usage: UsageByStage | None
) -> list[Outcome]:
    outcomes = await gather(running)
    raise_if_skipped(outcomes)
    if usage is not None:
        usage.add_outcomes("evaluate", outcomes)
    return outcomes
