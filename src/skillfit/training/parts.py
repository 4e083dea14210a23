"""What a run is made of, put together elsewhere (assemble.py) and handed to the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from skillfit.run.events import Discarded, Event, PreflightFinished, RolloutFinished, Stored
from skillfit.run.journal import RecordedModel
from skillfit.skill import Skill
from skillfit.tasks.item import Item
from skillfit.tasks.task import Task
from skillfit.training.ledger import Ledger
from skillfit.training.plan import Plan
from skillfit.training.screen import Screen
from skillfit.training.stage import Position, Stage


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

    def admit(self, run: Path) -> None:
        """To be asked before new work: raises once the person has asked to stop."""
        if self.stopping:
            raise Interrupted(run)

    def on_stop(self, tell: Callable[[], None]) -> None:
        self._on_stop.append(tell)
        if self.stopping:
            tell()


class Counts:
    """What a run counts about itself from its events: the same on replay."""

    def __init__(self) -> None:
        self._rollouts: dict[str, bool] = {}
        self._scores: set[float | None] = set()
        self._skills: set[str] = set()
        self.discarded = 0
        self.grader_blind = False

    def __call__(self, stored: Stored) -> None:
        event = stored.event
        if isinstance(event, RolloutFinished) and event.status != "skipped":
            scored = self._rollouts[event.key] = event.status == "scored"
            if scored:
                self._scores |= {event.hard, event.soft}
                self._skills.add(event.skill_hash)
        elif isinstance(event, Discarded) and event.stage != "leak_check":
            self.discarded += 1
        elif isinstance(event, PreflightFinished):
            self.grader_blind = any(
                check["name"] == "blind" and check["verdict"] == "stop" for check in event.checks
            )

    @property
    def planned(self) -> int:
        return len(self._rollouts)

    @property
    def scored(self) -> int:
        return sum(self._rollouts.values())

    @property
    def coverage(self) -> float | None:
        """The share of rollouts that was scored; None before the first."""
        return self.scored / self.planned if self.planned else None

    @property
    def constant(self) -> float | None:
        """What every rollout scored, where several skills were tried and all got the same."""
        return (
            next(iter(self._scores)) if len(self._scores) == 1 and len(self._skills) > 1 else None
        )


@dataclass(slots=True)
class Parts:
    config: Config
    run: RunDirectory
    task: Task
    initial: Skill
    plan: Plan
    rollouts: Rollouts
    ship_task: Task | None  # the same items under the second grader, where there is one
    ship_rollouts: Rollouts | None  # under it
    optimizer: Optimizer | None  # None: only worked examples are proposed
    recorded: RecordedModel | None  # the optimizer's model
    probes: Mapping[Role, Model]  # the models as connected, for the preflight's tiny calls
    screen: Screen
    ledger: Ledger
    budget: Budget
    gate_settings: GateSettings
    counts: Counts
    at: Position
    admit: Callable[[], None]  # raises once the person has asked to stop
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        kind = RaceGate if self.config.evaluation.gate == "race" else StrictGate
        self.gate = kind(self.measure, self.task.selection, self.gate_settings)

    def emit(self, event: Event) -> None:
        self.run.events.emit(event)

    def stage(self, stage: str, total: int = 0) -> Stage:
        """Begin a stage of the step the run is at."""
        return Stage(self.emit, self.at, stage, total)

    async def roll_out(
        self,
        skill: Skill,
        items: Sequence[Item],
        *,
        series: str,
        repeats: Iterable[int] = range(1),
        instruction: str = "",
        counted_as: str = "rollout",
        by: Rollouts | None = None,
    ) -> list[Outcome]:
        """Rollouts for the stage the run is at."""
        outcomes = await (by or self.rollouts).run(
            skill,
            items,
            phase=self.at.stage,
            step=self.at.step,
            series=series,
            repeats=repeats,
            instruction=instruction,
        )
        self.take_in(outcomes, counted_as)
        return outcomes

    def take_in(self, outcomes: Sequence[Outcome], counted_as: str = "rollout") -> None:
        """Count what rollouts used. Nothing is decided on those that were never run because the
        person asked to stop.
        """
        if any(outcome.status == "skipped" for outcome in outcomes):
            raise Interrupted(self.run.path)
        for outcome in outcomes:
            self.ledger.add(counted_as, outcome.usage)

    async def measure(
        self,
        skill: Skill,
        items: Sequence[Item],
        *,
        repeat: int,
        series: str,
        by: Rollouts | None = None,
    ) -> list[Outcome]:
        """One rollout of each item under a skill: the gate's way to learn about it."""
        return await self.roll_out(
            skill, items, series=series, repeats=[repeat], counted_as="evaluate", by=by
        )

    async def go_on_without_lost(self) -> None:
        """Before a decision is said: what could not be had for it, rollouts and optimizer replies,
        stays lost on replay. Not what a stop cut short.
        """
        self.admit()
        for engine in filter(None, (self.rollouts, self.ship_rollouts)):
            await engine.go_on_without_failed()
        if self.recorded is not None:
            await self.recorded.persist_failures()
