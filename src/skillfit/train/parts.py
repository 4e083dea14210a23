"""What a run is made of, put together elsewhere (assemble.py) and handed to the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skillfit.config.schema import Config
from skillfit.errors import Exit, SkillfitError
from skillfit.gate import Gate, GateSettings, RaceGate, StrictGate
from skillfit.models import Model, Role
from skillfit.optimize.optimizer import Optimizer
from skillfit.rollout.engine import Rollouts
from skillfit.rollout.outcome import Outcome
from skillfit.run.budget import Budget
from skillfit.run.directory import RunDirectory
from skillfit.run.events import Discarded, Event, PreflightFinished, RolloutFinished, StageFinished, StageStarted, Stored
from skillfit.run.recorded import RecordedModel
from skillfit.skill import Skill
from skillfit.tasks.item import Item
from skillfit.tasks.task import Task
from skillfit.train.ledger import Ledger
from skillfit.train.plan import Plan
from skillfit.train.screen import Screen


class Interrupted(SkillfitError):
    """The person asked to stop; everything done so far is kept."""

    exit_code = Exit.INTERRUPTED

    def __init__(self, path: Path) -> None:
        super().__init__("Stopped.", hint=f"Go on with: skillfit resume {path}")


class Control:
    """How a face asks a run to stop: what is in flight finishes and is saved, nothing new is begun."""

    def __init__(self) -> None:
        self.stopping = False
        self._on_stop: list[Callable[[], None]] = []

    def stop(self) -> None:
        self.stopping = True
        for tell in self._on_stop:
            tell()

    def admit(self, run: Path) -> Callable[[], None]:
        """To be asked before new work: raises once the person has asked to stop."""

        def refuse() -> None:
            if self.stopping:
                raise Interrupted(run)

        return refuse

    def on_stop(self, tell: Callable[[], None]) -> None:
        self._on_stop.append(tell)
        if self.stopping:
            tell()


class Counts:
    """What a run counts about itself from its events: the same on replay."""

    def __init__(self) -> None:
        self._rollouts: dict[str, bool] = {}
        self.discarded = 0
        self.grader_blind = False

    def __call__(self, stored: Stored) -> None:
        event = stored.event
        if isinstance(event, RolloutFinished) and event.status != "skipped":
            self._rollouts[event.key] = event.status == "scored"
        elif isinstance(event, Discarded) and event.stage != "leak_check":
            self.discarded += 1
        elif isinstance(event, PreflightFinished):
            self.grader_blind = any(check["name"] == "blind" and check["verdict"] == "stop" for check in event.checks)

    @property
    def planned(self) -> int:
        return len(self._rollouts)

    @property
    def scored(self) -> int:
        return sum(self._rollouts.values())


@dataclass(slots=True)
class Position:
    """Where the run is, for those who only say it in events."""

    epoch: int = 0
    step: int = 0
    stage: str = ""


@dataclass(slots=True)
class Parts:
    config: Config
    run: RunDirectory
    task: Task
    initial: Skill
    plan: Plan
    rollouts: Rollouts
    ship_rollouts: Rollouts | None  # under the second grader, where there is one
    optimizer: Optimizer | None  # None: only worked examples are proposed
    recorded: RecordedModel | None  # the optimizer's model
    probes: Mapping[Role, Model]  # the models as connected, for the preflight's tiny calls
    screen: Screen
    ledger: Ledger
    budget: Budget
    gate_settings: GateSettings
    counts: Counts
    at: Position = field(default_factory=Position)
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        kind = RaceGate if self.config.evaluation.gate == "race" else StrictGate
        self.gate = kind(self.measure, self.task.selection, self.gate_settings)

    def emit(self, event: Event) -> None:
        self.run.events.emit(event)

    def stage(self, stage: str, total: int = 0) -> Stage:
        """Begin a stage of the step the run is at."""
        return Stage(self, self.at.epoch, self.at.step, stage, total)

    async def measure(self, skill: Skill, items: Sequence[Item], *, repeat: int, series: str) -> list[Outcome]:
        """One rollout of each item under a skill: the gate's way to learn about it."""
        return await self._measure(self.rollouts, skill, items, repeat, series)

    async def measure_to_ship(self, skill: Skill, items: Sequence[Item], *, repeat: int, series: str) -> list[Outcome]:
        """The same under the second grader, where there is one."""
        return await self._measure(self.ship_rollouts or self.rollouts, skill, items, repeat, series)

    async def _measure(self, by: Rollouts, skill: Skill, items: Sequence[Item], repeat: int, series: str) -> list[Outcome]:
        outcomes = await by.run(skill, items, phase=self.at.stage, step=self.at.step, repeats=[repeat], series=series)
        self.refuse_skipped(outcomes)
        self.ledger.add_outcomes("evaluate", outcomes)
        return outcomes

    def refuse_skipped(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing is decided on rollouts that were never run because the person asked to stop."""
        if any(outcome.status == "skipped" for outcome in outcomes):
            raise Interrupted(self.run.path)

    async def go_on_without_lost(self) -> None:
        """Before a decision is said: what could not be had for it, rollouts and optimizer replies, stays lost on replay."""
        for engine in filter(None, (self.rollouts, self.ship_rollouts)):
            await engine.go_on_without_failed()
        if self.recorded is not None:
            await self.recorded.go_on_without_lost()


class Stage:
    """A stage being timed: `with parts.stage("gate"): …`, or `done()` when it ends elsewhere."""

    def __init__(self, parts: Parts, epoch: int, step: int, stage: str, total: int) -> None:
        self._parts, self._epoch, self._step, self._stage = parts, epoch, step, stage
        self._begun = time.monotonic()
        self.seconds = 0.0
        parts.at.stage = stage
        parts.emit(StageStarted(epoch=epoch, step=step, stage=stage, total=total))

    def done(self) -> None:
        self.seconds = time.monotonic() - self._begun
        self._parts.emit(StageFinished(epoch=self._epoch, step=self._step, stage=self._stage, seconds=self.seconds))

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.seconds = time.monotonic() - self._begun
        if kind is None:
            self.done()
