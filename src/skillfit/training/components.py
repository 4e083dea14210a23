"""The parts of a run that do work, and small things around them.

`Components` bundles what the loop's functions are handed. What a step finds out is in
`TrainingState`, which the functions take and return. Three components count or keep something of
their own: the gate its pool and evidence, the engine its statistics, the leak filter its refusals.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from skillfit.config.schema import Config
from skillfit.errors import Exit, SkillfitError
from skillfit.gate import Gate, GateSettings, Leak, LeakIndex
from skillfit.models.protocol import Model, Reply, Request, Usage
from skillfit.optimize.optimizer import Optimizer, Patch, Payload
from skillfit.optimize.proposer import Proposer
from skillfit.plain_text import shorten
from skillfit.rollout import Arm, Outcome, RolloutRequest, Rollouts, gather
from skillfit.run.budget import Budget
from skillfit.run.control import SteeringRequest
from skillfit.run.events import Discarded, Event, StageFinished, StageStarted
from skillfit.run.records import SkillCandidate, Suggestion, TokenCounts
from skillfit.skill import EXAMPLE_OP, Edit, Skill
from skillfit.tasks.item import Item
from skillfit.tasks.task import Task
from skillfit.training.plan import Place, Plan, planned_lag

Emit = Callable[[Event], None]


class Interrupted(SkillfitError):
    """The user asked to stop. Everything done so far is saved."""

    exit_code = Exit.INTERRUPTED

    def __init__(self, path: Path | None) -> None:
        """`path`: the run that can be resumed; None for commands that only measure."""
        hint = "Run the same command again: what was measured is kept."
        if path is not None:
            hint = f"Resume with: skillfit resume {path}"
        super().__init__("Stopped.", hint=hint)


class Control:
    """How a caller asks a run to stop: work in flight finishes and is saved, nothing new starts."""

    def __init__(self) -> None:
        self.stopping = False
        self._on_stop: list[Callable[[], None]] = []

    def stop(self) -> None:
        self.stopping = True
        for callback in self._on_stop:
            callback()

    def check(self, run: Path) -> None:
        """Raise Interrupted if the user asked to stop. Called before new work."""
        if self.stopping:
            raise Interrupted(run)

    def on_stop(self, callback: Callable[[], None]) -> None:
        self._on_stop.append(callback)
        if self.stopping:
            callback()


class Stage:
    """A stage being timed: `with Stage(emit, place, "gate"): …`, or `done()` when it ends later."""

    def __init__(
        self, emit: Emit, place: Place, name: str, total: int = 0, log: StepLog | None = None
    ) -> None:
        """`total`: rollouts that the stage will make, for progress displays."""
        self._emit, self._place, self._name, self._log = emit, place, name, log
        self._begun = time.monotonic()
        self.seconds = 0.0
        emit(StageStarted(epoch=place.epoch, step=place.step, stage=name, total=total))

    def done(self) -> None:
        self.seconds = time.monotonic() - self._begun
        if self._log is not None:
            self._log.seconds[self._name] = self.seconds
        place = self._place
        self._emit(
            StageFinished(
                epoch=place.epoch, step=place.step, stage=self._name, seconds=self.seconds
            )
        )

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.done()


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
    """What a step writes down about itself: seconds per stage, usage, blocked proposals."""

    seconds: dict[str, float] = field(default_factory=dict)
    usage: UsageByStage = field(default_factory=UsageByStage)
    blocked: int = 0

    def add(self, other: StepLog) -> None:
        self.seconds |= other.seconds
        self.usage.merge(other.usage)
        self.blocked += other.blocked


_counted_into: ContextVar[UsageByStage | None] = ContextVar("_counted_into", default=None)


@contextmanager
def counting_usage(usage: UsageByStage) -> Iterator[None]:
    """Count the optimizer calls made inside, in tasks started inside too."""
    token = _counted_into.set(usage)
    try:
        yield
    finally:
        _counted_into.reset(token)


class CountedModel:
    """A model whose replies are counted by `counting_usage`. `check` may refuse a call."""

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
        usage = _counted_into.get()
        if usage is not None:
            usage.add(request.stage, reply.usage)
        return reply


class LeakFilter:
    """Keeps text out of the skill that carries hidden answers or passes the token ceiling.

    Each refusal is emitted with its evidence. Without an index (`evaluation.leak_check: false`)
    every text passes. The index of a large task takes seconds, so it is built for the first text
    and not before the first rollout. `blocked` counts refusals over the run.
    """

    def __init__(
        self, build_index: Callable[[], LeakIndex] | None, emit: Emit, max_tokens: int | None
    ) -> None:
        self._build_index, self._emit, self._max_tokens = build_index, emit, max_tokens
        self._index: LeakIndex | None = None
        self.blocked = 0

    def passes(self, text: str, step: int, *, example: bool = False) -> bool:
        """`example`: the text goes into the fenced examples, where training answers belong."""
        if self._index is None and self._build_index is not None:
            self._index = self._build_index()
        leaks = self._index.check(text, examples=example) if self._index else ()
        if leaks:
            self.blocked += 1
            self._emit(_leak_event(step, text, leaks))
        return not leaks

    def fits(self, wanted: Skill, present: Skill, what: str, step: int) -> bool:
        """Whether a skill stays below the token ceiling. One that shrinks always does."""
        limit = self._max_tokens
        if limit is None or wanted.tokens <= max(limit, present.tokens):
            return True
        reason = f"the skill would have about {wanted.tokens} tokens; {limit} are allowed"
        stays = "the skill stays as it is"
        self._emit(Discarded(step=step, stage=what, what="text", reason=reason, evidence=stays))
        return False

    def clean(self, patch: Patch, step: int) -> Patch:
        """The patch without the proposals that leak."""
        kept = []
        for proposal in patch.proposals:
            # Only edits of the fenced examples may show training answers.
            payload = proposal.payload
            example = isinstance(payload, Edit) and payload.op == EXAMPLE_OP
            if self.passes(_written_text(payload), step, example=example):
                kept.append(proposal)
        return replace(patch, proposals=tuple(kept))


def _leak_event(step: int, text: str, leaks: Sequence[Leak]) -> Discarded:
    kinds = [f"{leak.kind} of item {leak.item}" if leak.item else leak.kind for leak in leaks]
    return Discarded(
        step=step,
        stage="leak_check",
        what=shorten(text, 200),
        reason=f"carries {', '.join(kinds)}",
        evidence=" | ".join(leak.evidence for leak in leaks),
    )


def _written_text(payload: Payload) -> str:
    """What a proposal would put into the skill."""
    if isinstance(payload, Suggestion):
        return payload.instruction
    return payload.new_skill if isinstance(payload, SkillCandidate) else payload.content


class SelectionRollouts:
    """The gate's way to measure skills: one rollout per (skill, item) pair.

    A gate does not know in which stage it is asked. The stage says so with
    `with selection.during(phase, step, usage):` around its call of the gate: rollouts that start in
    that block carry phase and step in their events, and are counted in `usage`. No decision
    depends on it.
    """

    def __init__(self, engine: Rollouts, run: Path) -> None:
        self._engine, self._run = engine, run
        self._phase, self._step = "gate", 0
        self._usage = UsageByStage()

    @contextmanager
    def during(self, phase: str, step: int, usage: UsageByStage) -> Iterator[None]:
        before = self._phase, self._step, self._usage
        self._phase, self._step, self._usage = phase, step, usage
        try:
            yield
        finally:
            self._phase, self._step, self._usage = before

    def __call__(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> Coroutine[Any, Any, list[Outcome]]:
        """The rollouts are queued at once; the result waits for them."""
        requests = [RolloutRequest(arm, item, repeat) for arm, item in arms]
        running = self._engine.start(requests, phase=self._phase, step=self._step, series=series)
        return self._outcomes(running, self._usage)

    async def _outcomes(
        self, running: Sequence[asyncio.Future[Outcome]], usage: UsageByStage
    ) -> list[Outcome]:
        outcomes = await gather(running)
        raise_if_skipped(outcomes, self._run)
        usage.add_outcomes("evaluate", outcomes)
        return outcomes


def raise_if_skipped(outcomes: Sequence[Outcome], run: Path) -> None:
    """Nothing is decided from rollouts that a stop request kept from running."""
    if any(outcome.status == "skipped" for outcome in outcomes):
        raise Interrupted(run)


@dataclass(frozen=True, slots=True)
class Components:
    """What the loop works with. See assemble.py for how it is put together."""

    config: Config
    path: Path  # the run directory
    task: Task
    initial: Skill
    plan: Plan
    engine: Rollouts
    gate: Gate
    gate_settings: GateSettings
    selection: SelectionRollouts
    optimizer: Optimizer | None  # None: no optimizer model is configured
    proposer: Proposer
    leaks: LeakFilter
    emit: Emit
    check_stop: Callable[[], None]  # raises Interrupted once the user asked to stop
    persist_failures: Callable[[], Awaitable[None]]  # before a decision is emitted
    budget: Budget
    # Requests of the user since the last call (steering.recorded_requests)
    new_requests: Callable[[str, Sequence[str]], Awaitable[list[SteeringRequest]]]

    @property
    def lag(self) -> int:
        """By how many steps edits join later than they were written."""
        return planned_lag(self.config.train.lag, self.plan.total_steps, self.gate.pools_edits)

    def stage(self, place: Place, name: str, total: int = 0, log: StepLog | None = None) -> Stage:
        return Stage(self.emit, place, name, total, log)
