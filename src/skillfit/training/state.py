"""What flows through a step: the values that the functions of the loop take and return.

- `Components`: what a run works with.
- `TrainingState`: where training stands. A step takes one and returns the next.
- `Learned`, `StepUpdate`: what the optimizer made of a step's rollouts, and the candidate.
- `StepLog`: what a step writes down about itself, the seconds and the usage of its stages, and
  where its events go.

Model calls of the optimizer and rollouts of the gate belong to the stage in which they start: its
name and step are in their events, and their usage is counted in the step's log. They find the stage
through a context variable, as spans are found in tracing libraries, because gates and proposers
may be users' code and need not hand it on. Gates and proposers do not read it, and no key of the
journal depends on it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillfit.config.schema import Config
from skillfit.gate import Candidate, Gate, GateSettings, TextFilter
from skillfit.models.protocol import Model, Reply, Request, Usage
from skillfit.optimize.context import ItemAttempts, render_memory
from skillfit.optimize.optimizer import Optimizer, Patch
from skillfit.optimize.proposer import Proposals, Proposer
from skillfit.optimize.stages import SelectedProposals, SkillChange
from skillfit.plain_text import note_text
from skillfit.rollout import Arm, Outcome, RolloutEngine, RolloutRequest, gather
from skillfit.rollout.outcome import Tally, raise_if_skipped
from skillfit.run.budget import Budget
from skillfit.run.control import NOTE_ACTIONS
from skillfit.run.events import Event, StageFinished, StageStarted
from skillfit.run.journal import Journal, Losses
from skillfit.run.records import (
    CheckResult,
    EvidenceMemory,
    RefusedText,
    SkipAction,
    StageName,
    StepMemory,
    StepRecord,
    TokenCounts,
)
from skillfit.skill import Skill
from skillfit.tasks.item import Item
from skillfit.tasks.task import Task
from skillfit.training.part_filter import PartFilter
from skillfit.training.plan import Place
from skillfit.training.schedule import Schedule

if TYPE_CHECKING:
    from skillfit.run.control import RecordedRequests, SteeringRequest


Emit = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Components:
    """What a run works with, put together by assemble.py.

    Only the functions that compose a run take all of it: the loop, the end of an epoch, the
    preflight and the finish. A stage is given the parts that it uses.
    """

    config: Config
    path: Path  # the run directory
    task: Task
    initial: Skill
    schedule: Schedule
    engine: RolloutEngine
    ship_task: Task | None  # the same items under the second grader, where there is one
    ship_engine: RolloutEngine | None  # for the ship test, where it has a grader of its own
    gate: Gate
    gate_settings: GateSettings
    optimizer: Optimizer | None  # None: no optimizer model is configured
    calls_settled: Callable[[], Awaitable[None]]  # waits for calls of the optimizer in flight
    proposer: Proposer
    text_filter: TextFilter  # what may enter the skill
    part_filter: PartFilter  # which edits may be tried
    emit: Emit
    check_stop: Callable[[], None]  # raises Interrupted once the user asked to stop
    # Around each decision of the run, by its name: see Journal.decision. What reports the decision
    # comes after the block. Raises Interrupted once the user asked to stop.
    decision: Callable[[str], AbstractContextManager[Losses]]
    journal: Journal
    budget: Budget
    requests: RecordedRequests  # of the user, while the run works

    @property
    def engines(self) -> list[RolloutEngine]:
        return [self.engine] if self.ship_engine is None else [self.engine, self.ship_engine]


@dataclass(frozen=True, slots=True)
class TrainingState:
    """What the optimizer and the records of a run know after a step. The next step starts from it
    and returns a new one. Incumbent, best skill and scores are the gate's.
    """

    epoch_start: Skill  # the incumbent when this epoch began
    # Of the initial skill on the selection items; None for a gate that learns its score from steps
    baseline: Tally | None = None
    meta_skill: str = ""  # the optimizer's advice to itself
    memory: tuple[StepMemory, ...] = ()  # steps of this epoch
    evidence: EvidenceMemory = field(default_factory=EvidenceMemory)  # of the run and earlier ones
    refused: tuple[RefusedText, ...] = ()  # by the leak check, over the run
    feedback: Mapping[str, str] = field(default_factory=dict)  # item -> what people say about it
    cases: tuple[ItemAttempts, ...] = ()  # training rollouts of all steps
    records: tuple[StepRecord, ...] = ()
    proposed: int = 0  # proposals left after merging and the leak check, over the run
    usable_edits: int = 0  # edits that could be applied
    optimizer_failures: int = 0  # optimizer calls without a usable reply
    checks: tuple[CheckResult, ...] = ()  # of the preflight

    def next_epoch(self, incumbent: Skill) -> TrainingState:
        """Return the state at the start of an epoch, with the optimizer's memory of steps empty."""
        return replace(self, epoch_start=incumbent, memory=())

    def with_notes(self, requests: Sequence[SteeringRequest]) -> TrainingState:
        """Return the state after people said that answers are right or wrong."""
        said = dict(self.feedback)
        for request in requests:
            if request.action in NOTE_ACTIONS:
                said[request.target] = note_text(request.action, request.text)
        return replace(self, feedback=said)

    @property
    def memory_text(self) -> str:
        return render_memory(self.memory, self.refused)


@dataclass(frozen=True, slots=True)
class Learned:
    """What the optimizer made of one step's training rollouts (stages 2 to 4)."""

    proposals: Proposals = field(default_factory=Proposals)
    patch: Patch | None = None  # None: nothing was proposed
    selected: SelectedProposals | None = None
    refused: tuple[RefusedText, ...] = ()  # by the leak check, before and after merging


@dataclass(frozen=True, slots=True)
class StepUpdate:
    """The candidate of a step, or why there is none."""

    candidate: Candidate | None
    skipped: SkipAction | None = None  # None: there is a candidate
    change: SkillChange | None = None
    refused: tuple[RefusedText, ...] = ()  # by the leak check


class UsageByStage:
    """What stages used, counted from replies and outcomes, so that a replay counts the same."""

    def __init__(self) -> None:
        self._stages: defaultdict[str, Usage] = defaultdict(Usage)

    def add(self, stage: str, usage: Usage) -> None:
        self._stages[stage] += usage

    def add_outcomes(self, stage: str, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self.add(stage, outcome.usage)

    def counts(self) -> dict[str, TokenCounts]:
        return {
            stage: TokenCounts.of(usage)
            for stage, usage in sorted(self._stages.items())
            if usage.calls
        }


@dataclass(slots=True)
class StepLog:
    """The log of one step, of the end of an epoch (`place` is its last step), or of another part of
    a run (`place.step` is 0).
    """

    emit: Emit
    place: Place = field(default_factory=Place)
    begun: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)
    usage: UsageByStage = field(default_factory=UsageByStage)

    @property
    def step(self) -> int:
        return self.place.step

    def stage(self, name: StageName, total: int = 0) -> Stage:
        """Begin a stage. `total`: rollouts that it will make, for progress displays."""
        return Stage(self, name, total)

    @contextmanager
    def within(self, stage: StageName) -> Iterator[None]:
        """Count what starts in this block to a stage, which is not timed here."""
        token = _current.set(_Current(self, stage))
        try:
            yield
        finally:
            _current.reset(token)


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
    """Return the step that the current stage belongs to; 0 outside of steps."""
    current = _current.get()
    return current.log.step if current is not None else 0


def count_usage(stage: str, usage: Usage) -> None:
    """Count what the optimizer used in the log of the current step."""
    current = _current.get()
    if current is not None:
        current.log.usage.add(stage, usage)


class CountedModel:
    """The optimizer's model; its usage is counted in the log. `check` may refuse a call."""

    def __init__(self, model: Model, check: Callable[[], None]) -> None:
        self._model = model
        self._check = check
        self._in_flight: set[asyncio.Future[None]] = set()

    @property
    def id(self) -> str:
        return self._model.id

    @property
    def context_window(self) -> int:
        return self._model.context_window

    async def complete(self, request: Request) -> Reply:
        self._check()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight.add(ended)
        try:
            reply = await self._model.complete(request)
        finally:
            self._in_flight.discard(ended)
            ended.set_result(None)
        count_usage(request.stage, reply.usage)
        return reply

    async def settled(self) -> None:
        """Wait until no call is in flight."""
        while self._in_flight:
            await asyncio.wait(self._in_flight)


class SelectionRollouts:
    """The gate's way to measure skills (`gate.Measure`); the rollouts are counted in the log."""

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine

    def __call__(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> Coroutine[Any, Any, list[Outcome]]:
        """Queue the rollouts at once; the result waits for them."""
        current = _current.get()
        stage, step = (current.stage, current.log.step) if current else ("gate", 0)
        requests = [RolloutRequest(arm, item, repeat) for arm, item in arms]
        running = self._engine.start(requests, stage=stage, step=step, series=series)
        return _outcomes(running, current.log.usage if current else None)


async def _outcomes(
    running: Sequence[asyncio.Future[Outcome]], usage: UsageByStage | None
) -> list[Outcome]:
    outcomes = await gather(running)
    raise_if_skipped(outcomes)
    if usage is not None:
        usage.add_outcomes("evaluate", outcomes)
    return outcomes
