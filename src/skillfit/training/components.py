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
from math import ceil
from pathlib import Path
from typing import Any

from skillfit.config.schema import BudgetSection, Config
from skillfit.errors import Exit, SkillfitError
from skillfit.gate import Gate, GateSettings, Leak, LeakIndex
from skillfit.gate.samples import Samples, mean
from skillfit.gate.ship import MOST_REPEATS
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import Model, Reply, Request, Usage
from skillfit.optimize.optimizer import Optimizer, Patch, Payload
from skillfit.optimize.proposer import Proposer
from skillfit.plain_text import shorten
from skillfit.rollout import Arm, Outcome, RolloutRequest, Rollouts, Tally, gather
from skillfit.run.budget import Amounts, Budget
from skillfit.run.control import SteeringRequest
from skillfit.run.events import Discarded, Event, StageFinished, StageStarted
from skillfit.run.journal import Journal
from skillfit.run.records import SkillCandidate, Suggestion, TokenCounts
from skillfit.skill import EXAMPLE_OP, Edit, Skill
from skillfit.tasks.item import Attempt, Grader, Item, Score, TaskFailure
from skillfit.tasks.task import Task
from skillfit.training.estimate import SHIP_SAFETY, RolloutCost, step_cost
from skillfit.training.plan import COMPOSE_PASSES, Place, Plan, RolloutPlan, planned_lag
from skillfit.training.replaceable import Abilities

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
    # Requests of the user since the last call (stages.recorded_requests)
    new_requests: Callable[[str, Sequence[str]], Awaitable[list[SteeringRequest]]]

    @property
    def lag(self) -> int:
        """By how many steps edits join later than they were written."""
        return planned_lag(self.config.train.lag, self.plan.total_steps, self.gate.pools_edits)

    def stage(self, place: Place, name: str, total: int = 0, log: StepLog | None = None) -> Stage:
        return Stage(self.emit, place, name, total, log)


@dataclass(frozen=True, slots=True)
class Closing:
    """What only the end of a run needs."""

    journal: Journal
    budget: Budget
    ship_task: Task | None  # the same items under the second grader, where there is one
    ship_engine: Rollouts | None
    engines: Sequence[Rollouts] = ()
    rollout_plan: RolloutPlan | None = None  # what budget.rollouts buys

    def reserve_ship_test(self, run: Components, steps: int) -> int | None:
        """Keep a part of the budget for the ship test, sized by what rollouts cost so far.

        At most half of a cap is kept, and no more than leaves room for the first step, or than is
        left after `steps` of them. Where that is too little, the test gets fewer repeats. Returns
        the repeats (rollouts per item and skill) that there is room for; None: nothing is kept.
        """
        caps, stats = run.config.budget, run.engine.stats
        if not run.config.evaluation.ship_test or not stats.scored:
            return None
        most = MOST_REPEATS if self.rollout_plan is None else self.rollout_plan.ship_repeats
        needs = {repeats: _ship_need(run, repeats) for repeats in range(most, 0, -1)}
        halves = [repeats for repeats, need in needs.items() if _fits(need, caps, 0.5)] or [1]
        used = self._used_by(run, steps)
        fitting = [repeats for repeats in halves if _fits(used + needs[repeats], caps, 1)]
        if not fitting:  # before the first step, a shorter test would not make room for it either
            fitting = [halves[-1] if steps else halves[0]]
        need = needs[fitting[0]]
        minutes = self.budget.minutes / stats.scored * need.rollouts if steps else 0.0
        self.budget.hold_back(_at_most_half(need, caps), min(minutes, (caps.minutes or 0.0) / 2))
        return fitting[0]

    def _used_by(self, run: Components, steps: int) -> Amounts:
        """What will be used after the first step; after others, the calls so far. From what the
        rollouts used, not from the bill: a resumed run must decide the same.
        """
        if self.rollout_plan is not None:
            return Amounts()  # the plan has room for its steps and the ship test
        stats = run.engine.stats
        cost = RolloutCost.mean(stats.scored, stats.usage)
        abilities = Abilities.of(run.gate, run.proposer)
        step = step_cost(run.config, run.task, run.initial, run.plan, cost, abilities)
        if not steps:
            return Amounts.of(stats.usage + step.rollouts + step.optimizer + step.reserved)
        return Amounts(calls=stats.usage.calls + steps * step.optimizer.calls)

    def release_ship_test(self) -> None:
        """Free what was kept."""
        self.budget.release_held()
        for engine in self.engines:
            engine.resume()


def _ship_need(run: Components, repeats: int) -> Amounts:
    """What the ship test takes, and the comparison before it, by what rollouts cost so far."""
    items, stats = len(run.task.selection), run.engine.stats
    rollouts = (1 + run.config.evaluation.finalists) * repeats * items + COMPOSE_PASSES * items
    share = rollouts / stats.scored * SHIP_SAFETY
    return Amounts(
        usd=(stats.usage.usd or 0.0) * share,
        tokens=ceil(stats.usage.tokens * share),
        calls=ceil(stats.usage.calls * share),
        rollouts=rollouts,
    )


def _at_most_half(need: Amounts, caps: BudgetSection) -> Amounts:
    return Amounts(
        usd=need.usd if caps.usd is None else min(need.usd, caps.usd / 2),
        tokens=need.tokens if caps.tokens is None else min(need.tokens, caps.tokens // 2),
        calls=need.calls if caps.calls is None else min(need.calls, caps.calls // 2),
        rollouts=need.rollouts if caps.rollouts is None else min(need.rollouts, caps.rollouts // 2),
    )


def _fits(need: Amounts, caps: BudgetSection, share: float) -> bool:
    """Whether this is at most a share of every cap."""
    pairs = [
        (need.usd, caps.usd),
        (need.tokens, caps.tokens),
        (need.calls, caps.calls),
        (need.rollouts, caps.rollouts),
    ]
    return all(cap is None or amount <= cap * share for amount, cap in pairs)


@dataclass(frozen=True, slots=True)
class BothGraders:
    """Grades with the ship grader, and with the training grader on the same attempt.

    The ship grader decides. When the training grader fails, the rollout is kept without its score.
    """

    ship: Grader
    trained: Grader

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        score = await self.ship.grade(item, attempt)
        try:
            trained = await self.trained.grade(item, attempt)
        except TaskFailure:
            return score
        return replace(score, trained=(trained.hard, trained.soft))

    def patterns(self) -> tuple[str, ...]:
        return (*self.ship.patterns(), *self.trained.patterns())

    def describe(self) -> JsonObject:
        return self.ship.describe()


class ShipRollouts:
    """Measures skills for the ship test and keeps the outcomes."""

    def __init__(
        self, rollouts: SelectionRollouts, settings: GateSettings, *, second_grader: bool
    ) -> None:
        self.rollouts = rollouts
        self._settings = settings
        self._second_grader = second_grader
        self._outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)

    async def measure(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> list[Outcome]:
        outcomes = await self.rollouts(arms, repeat=repeat, series=series)
        for (arm, _), outcome in zip(arms, outcomes, strict=True):
            self._outcomes[arm.skill.hash].append(outcome)
        return outcomes

    def tally(self, skill: Skill) -> Tally | None:
        """Scores under the training grader; None where nothing was scored."""
        samples = self._samples(skill, self._trained_score)
        return samples.tally() if samples.scored else None

    def gap(self, skill: Skill, initial: Skill) -> float | None:
        """With a second grader: the gain under the training grader minus the gain under the second
        one, on the same rollouts.
        """
        if not self._second_grader or skill.hash == initial.hash:
            return None
        gains = []
        for score in (self._trained_score, _ship_score):
            differences = self._samples(skill, score).against(self._samples(initial, score))
            gains.append(mean(list(differences.values())))
        return gains[0] - gains[1]

    def _samples(self, skill: Skill, score_of: Callable[[Score], Score | None]) -> Samples:
        samples = Samples(self._settings)
        for outcome in self._outcomes[skill.hash]:
            score = score_of(outcome.score) if outcome.score is not None else None
            samples.add([replace(outcome, score=score)])
        return samples

    def _trained_score(self, score: Score) -> Score | None:
        if not self._second_grader:
            return score
        return Score(*score.trained) if score.trained else None


def _ship_score(score: Score) -> Score | None:
    """By the ship grader, where the training grader has a score too."""
    return score if score.trained else None
