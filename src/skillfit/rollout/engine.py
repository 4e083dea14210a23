"""The rollout engine: runs items under skills, each rollout paid for once.

`RolloutEngine.start` queues the planned rollouts in an order that the requests fix. A bounded
window decides how many run at the same time; a rollout gets an asyncio task when its turn comes, so
a queue of 100,000 costs little. Rollouts that the journal has are not run: their outcome is read,
without a task.

A failed rollout is an outcome, not an exception. Errors that stop the whole run (bad key, wrong
config, spent budget, too many failures) are exceptions: after one, no new rollout starts, and
those in flight finish and are recorded.

An `Executor` decides where a rollout runs. It takes one `Assignment` and brings back attempt and
score, or raises what went wrong.

A `RolloutMeter` is used for rollouts whose model calls skillfit does not see: programs and the
user's own code. What such a rollout costs is known only when it has ended. So under a cap the meter
reserves an estimate from the rollouts before it: the highest cost seen, and a margin for how much
the costs vary. The first rollout reserves everything that is left. Until several have shown their
cost, no more run at the same time than have ended, and near the cap they run one by one. A program
that accepts a spending limit is given the reserved amount as its limit. If it reaches the limit,
the engine repeats the rollout with a larger reservation, as long as the budget has one.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from skillfit.agents.agent import Agent, AgentFailure, AttemptContext, remove_workspace
from skillfit.config.schema import BudgetSection, Config
from skillfit.errors import InfrastructureError, InputError, SkillfitError, TaskFailure
from skillfit.models.failures import policy_of, why_stop
from skillfit.models.limiter import time_limit
from skillfit.models.protocol import Meter, ModelError, Reservation, Usage
from skillfit.plain_text import shorten
from skillfit.rollout.outcome import Failure, Outcome, RolloutRequest, gather, mark_retrieved
from skillfit.run.budget import Remaining
from skillfit.run.events import EventLog, RolloutFinished
from skillfit.run.journal import ROLLOUTS, Journal
from skillfit.run.records import StageName
from skillfit.tasks.item import Attempt, Grader, Item, Reported, Score, ScoredAttempt

if TYPE_CHECKING:
    from skillfit.skill import Skill
    from skillfit.tasks.task import Evaluator, Task

_SHOWN_CHARACTERS = 300  # characters of an answer or of feedback in an event
_TAKEN_AT_ONCE = 200  # rollouts taken from the queue before other tasks get a turn
# A program that has a limit stops after the model call that passes it, not before.
_ROOM_ABOVE_LIMIT = 1.25
_NEAR_THE_CAP = 4  # reservations: with less left than this many, rollouts run one by one


class RolloutEngine:
    """Runs rollouts. `start` plans them and returns at once; `run` waits for them.

    `max_in_flight`: rollouts at the same time. Make it about twice the model's concurrency, so
    that a rollout which waits for a retry or is being graded leaves no request slot idle.

    `meter`: only for agents and evaluators whose model calls skillfit does not see (programs, user
    code). Each rollout is then reserved and billed as a whole.

    `count_rollout`: entered around each attempt at a rollout, for a cap on rollouts.

    `config` decides the seed, the coverage floor and the time limit, which counts seconds of work,
    not of waiting for a slot.
    """

    def __init__(
        self,
        task: Task,
        agent: Agent | None,
        journal: Journal,
        events: EventLog,
        *,
        config: Config | None = None,
        executor: Executor | None = None,
        meter: RolloutMeter | None = None,
        count_rollout: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        max_in_flight: int = 64,
    ) -> None:
        self._worker = Worker(agent, task.grader, task.evaluator)
        self._journal = journal
        self._events = events
        self._config = config or Config()
        self._executor = executor or LocalExecutor()
        self._meter = meter
        self._count_rollout = count_rollout
        self._max_in_flight = max_in_flight
        self._queue: deque[_QueuedRollout] = deque()
        self._in_flight = 0
        self._advance_planned = False
        self._stopped_by: SkillfitError | None = None
        self._proven = False
        self._stopping = False
        self.stats = RolloutStats()

    def start(
        self,
        requests: Sequence[RolloutRequest],
        *,
        stage: StageName,
        series: str,
        step: int = 0,
        instruction: str = "",
    ) -> list[asyncio.Future[Outcome]]:
        """Queue the requests and return one future for each, in the order of the requests.

        `stage` and `step`: what the rollouts are for, as in StageStarted.
        `series` separates rollouts that must not be shared: equal requests of one series are one
        rollout.
        """
        batch = _Batch(len(requests), self._config.evaluation.coverage_floor, self._proven)
        pending: dict[int, asyncio.Future[Outcome]] = {}
        loop = asyncio.get_running_loop()
        for at in self._starting_order(requests):
            key = _journal_key(requests[at], series, instruction)
            loss_key = self._journal.loss_key(key)
            plan = _Planned(requests[at], stage, step, series, instruction, batch, key, loss_key)
            pending[at] = queued = _QueuedRollout(plan, loop)
            queued.add_done_callback(mark_retrieved)
            self._queue.append(queued)
        self._advance_soon()
        return [pending[at] for at in range(len(requests))]

    def _starting_order(self, requests: Sequence[RolloutRequest]) -> list[int]:
        """Keep the order given, unless there are more skills than rollouts in flight: then rollouts
        under one skill follow each other. A model on this machine keeps the prompts of its few
        slots only, and would read the skill again for every rollout.
        """
        skills = [request.arm.skill.hash for request in requests]
        rank = {skill: number for number, skill in enumerate(dict.fromkeys(skills))}
        order = list(range(len(requests)))
        if len(rank) > self._max_in_flight:
            order.sort(key=lambda at: rank[skills[at]])
        return order

    async def run(
        self,
        requests: Sequence[RolloutRequest],
        *,
        stage: StageName,
        series: str,
        step: int = 0,
        instruction: str = "",
    ) -> list[Outcome]:
        """Start the requests as `start` does, and wait for their outcomes, in the same order."""
        return await gather(
            self.start(requests, stage=stage, series=series, step=step, instruction=instruction)
        )

    def stop(self) -> None:
        """Finish the rollouts in flight and start no more; the rest come back as skipped."""
        self._stopping = True

    def resume(self) -> None:
        """Allow new rollouts again after an error that stopped them was dealt with."""
        self._stopped_by = None

    async def close(self) -> None:
        await self._executor.close()

    def _advance_soon(self) -> None:
        if not self._advance_planned:
            self._advance_planned = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        """Take rollouts from the queue while there is room for them."""
        self._advance_planned = False
        for _ in range(_TAKEN_AT_ONCE):
            if not self._queue:
                return
            pending = self._queue[0]
            if not pending.done() and not self._replay(pending):
                if self._in_flight == self._max_in_flight:
                    return  # continues when one of these ends
                self._in_flight += 1
                work, context = self._outcome(pending.plan), pending.plan.batch.context.copy()
                task = asyncio.get_running_loop().create_task(work, context=context)
                task.add_done_callback(self._free_place)
                pending.run(task)
            self._queue.popleft()
        self._advance_soon()

    def _free_place(self, _: asyncio.Task[Outcome]) -> None:
        self._in_flight -= 1
        self._advance_soon()

    def _replay(self, pending: _QueuedRollout) -> bool:
        """Read the outcome if the journal has it. A batch with failures needs a task: the failures
        are recorded with its last rollout.
        """
        plan = pending.plan
        if plan.batch.failures or self._journal.has(plan.loss_key):
            return False
        try:
            outcome = self._journal.get(plan.key, Outcome)
            if outcome is None:
                return False
            self._report_outcome(plan, outcome)
        except Exception as error:  # noqa: BLE001 - of a listener: the caller must see it
            pending.set_exception(error)
        else:
            pending.set_result(outcome)
        return True

    async def _outcome(self, plan: _Planned) -> Outcome:
        """Run a rollout and report it.

        With the last one of a batch, the failures of a batch with enough coverage are recorded.
        Those of another become permanent with the decision that is made without them.
        """
        lost = self._journal.get(plan.loss_key, Outcome)
        if lost is None and not self._journal.has(plan.key):
            if self._stopped_by is not None:
                raise self._stopped_by
            if self._stopping:
                return _skipped_outcome(plan)
        outcome = lost or await self._once_with_retries(plan)
        if outcome.status == "skipped":
            return outcome
        stop = self._report_outcome(plan, outcome)
        if stop is not None:
            self._stopped_by = stop
            raise stop
        if outcome.failure is not None:
            plan.batch.failures[plan.loss_key] = outcome
        if plan.batch.complete:
            covered = plan.batch.coverage >= self._config.evaluation.coverage_floor
            keep = self._journal.record if covered else self._journal.lose
            for key, failed in plan.batch.failures.items():
                keep(key, failed, Outcome, stage="rollout")
        return outcome

    def _report_outcome(self, plan: _Planned, outcome: Outcome) -> InfrastructureError | None:
        """Report an outcome to everyone who waits for it. Returns the reason to stop the run, if
        there is one.
        """
        self._events.emit(_finished_event(plan, outcome))
        self.stats.add(plan.key, plan.request.arm.skill.hash, outcome)
        self._proven = self._proven or outcome.status == "scored"
        return plan.batch.count(outcome)

    async def _once_with_retries(self, plan: _Planned) -> Outcome:
        """Return the outcome from the journal, or a new one, retried by the class of its error."""
        begun = time.monotonic()
        tried = 0
        while True:
            try:
                return await self._journal.once(
                    plan.key,
                    partial(self._roll_out, plan),
                    returns=Outcome,
                    stage="rollout",
                    role="agent",
                    usage=lambda outcome: outcome.usage if self._meter else Usage(),
                )
            except (ModelError, TaskFailure) as error:
                decision = policy_of(error)
                if decision.pending:
                    raise  # the other prompts of this stage are still to be written
                if decision.fatal:
                    self._stopped_by = error
                    raise
                if self._stopping:
                    return _skipped_outcome(plan)  # cut short by the stop: tried again on resume
                tried += 1
                if self._stopped_by is not None or tried > decision.rollout_retries:
                    return _failed_outcome(plan, error, time.monotonic() - begun)
            except SkillfitError as error:
                self._stopped_by = error
                raise

    async def _roll_out(self, plan: _Planned) -> Outcome:
        request = plan.request
        assignment = Assignment(
            request.arm.skill,
            request.item,
            _rollout_seed(self._config.train.seed, plan),
            f"{plan.series}/{request.item.id}/{request.repeat}",
            plan.instruction,
            self._config.rollout_seconds,
        )
        begun = time.monotonic()
        if self._meter is None:
            async with self._count_rollout():
                attempt, score = await self._executor.run(self._worker, assignment)
            used = attempt.usage
        else:
            attempt, score, used = await self._metered_attempt(assignment, self._meter)
        return Outcome(
            request.item.id,
            request.repeat,
            "scored",
            score,
            attempt=attempt,
            usage=used,
            seconds=time.monotonic() - begun,
        )

    async def _metered_attempt(
        self, assignment: Assignment, meter: RolloutMeter
    ) -> tuple[Attempt, Score, Usage]:
        """Return an attempt with its score and cost. An attempt that reaches the limit of its
        reservation is made again with a larger one.
        """
        spent, limit = Usage(), 0.0
        while True:
            async with meter.reserve() as reserved:
                try:
                    limited = replace(assignment, max_usd=reserved.max_usd)
                    async with self._count_rollout():
                        attempt, score = await self._executor.run(self._worker, limited)
                except ModelError as error:
                    spent = error.usage = spent + reserved.bill(error.usage)
                    if not policy_of(error).larger_limit or (reserved.max_usd or 0.0) <= limit:
                        raise
                    limit = reserved.max_usd or 0.0
                else:
                    return attempt, score, spent + reserved.bill(attempt.usage)


class RolloutStats:
    """Counts over all rollouts of a run: the same on replay."""

    def __init__(self) -> None:
        self._scored: dict[str, bool] = {}
        self.usage = Usage()  # of the scored rollouts
        self._scores: set[float] = set()
        self._skills: set[str] = set()

    def add(self, key: str, skill_hash: str, outcome: Outcome) -> None:
        """Count an outcome. A rollout that several stages share counts once."""
        known = key in self._scored
        self._scored[key] = outcome.score is not None
        if outcome.score is not None:
            if not known:
                self.usage += outcome.usage
            self._scores |= {outcome.score.hard, outcome.score.soft}
            self._skills.add(skill_hash)

    @property
    def planned(self) -> int:
        return len(self._scored)

    @property
    def scored(self) -> int:
        return sum(self._scored.values())

    @property
    def coverage(self) -> float | None:
        """The share of rollouts that was scored; None before the first."""
        return self.scored / self.planned if self.planned else None

    @property
    def constant(self) -> float | None:
        """The one score that every rollout got, where several skills were tried; else None."""
        if len(self._scores) == 1 and len(self._skills) > 1:
            return next(iter(self._scores))
        return None


class Executor(Protocol):
    """Where rollouts run."""

    @property
    def cores(self) -> int:
        """How many programs can compute at the same time."""
        ...

    async def run(self, worker: Worker, assignment: Assignment) -> ScoredAttempt:
        """Run an assignment. Raises what the worker raised, or `WorkerLost`. Cancelling ends the
        work, wherever it runs.
        """
        ...

    async def close(self) -> None: ...


class LocalExecutor:
    """On this event loop. Calls wait, they do not compute, so one process holds thousands."""

    @property
    def cores(self) -> int:
        return os.cpu_count() or 1

    async def run(self, worker: Worker, assignment: Assignment) -> ScoredAttempt:
        return await worker.do(assignment)

    async def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Worker:
    """Carries out assignments: an agent with a grader, or a task's own evaluator."""

    agent: Agent | None
    grader: Grader | None
    evaluator: Evaluator | None = None

    async def do(self, assignment: Assignment) -> ScoredAttempt:
        """Attempt and grade within the time limit."""
        async with _ended_in_time(assignment):
            item = assignment.item.loaded()
            if self.evaluator is not None:
                return await self.evaluator(assignment.skill, item, assignment.seed)
            assert self.agent is not None and self.grader is not None, (
                "a rollout needs an agent and a grader, or an evaluator"
            )
            context = AttemptContext(
                assignment.seed,
                assignment.purpose,
                assignment.instruction,
                assignment.max_usd,
                assignment.timeout,
            )
            attempt = await self.agent.attempt(assignment.skill, item, context)
            try:
                score = await self.grader.grade(item, attempt)
                return ScoredAttempt(
                    replace(attempt, workspace="") if attempt.workspace else attempt, score
                )
            finally:
                remove_workspace(attempt.workspace)


@asynccontextmanager
async def _ended_in_time(assignment: Assignment) -> AsyncIterator[None]:
    """Cancel the work at its time limit, which is what ends its processes."""
    try:
        async with time_limit(assignment.timeout) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        message = (
            f"The rollout of item {assignment.item.id} was ended after "
            f"{assignment.timeout:g} s, the time that agent and grader have together."
        )
        raise AgentFailure(message, kind="timeout", hint="Raise env.exec_timeout.") from None


@dataclass(frozen=True, slots=True)
class Assignment:
    """One rollout to do: plain data that can be sent to another machine."""

    skill: Skill
    item: Item
    seed: int
    purpose: str
    instruction: str = ""
    timeout: float | None = None
    max_usd: float | None = None  # dollars the attempt may spend


class WorkerLost(ModelError):
    """The process or machine that ran the rollout is gone. The rollout did not cause it and runs
    again elsewhere.
    """

    kind = "worker"


@dataclass(slots=True)
class RolloutMeter:
    """Reserves and bills rollouts as a whole.

    `capped`: there is a cap in dollars or tokens. `limits_itself`: the agent accepts a limit in
    dollars. `usd_per_rollout`: the user's own figure for agents that report no usage.
    """

    budget: CappedMeter
    price: Callable[[Usage], Usage] = lambda usage: usage
    capped: bool = False
    limits_itself: bool = False
    usd_per_rollout: float | None = None
    _seen: int = 0
    _highest: Usage = field(default_factory=Usage)
    _lowest_usd: float = 0.0
    _lowest_tokens: int = 0
    _running: int = 0
    _ended: asyncio.Condition = field(default_factory=asyncio.Condition)

    @asynccontextmanager
    async def reserve(self) -> AsyncIterator[RolloutReservation]:
        """Reserve what the next rollout may cost; wait while the running ones may reach the cap."""
        async with self._ended:
            await self._ended.wait_for(lambda: self._running < self._most_at_once())
            bound = self._bound()
            reservation = await self.budget.reserve("agent", bound)
            self._running += 1
        limit = None
        if self.limits_itself and bound.usd and self.budget.left().usd is not None:
            limit = bound.usd / _ROOM_ABOVE_LIMIT
        reserved = RolloutReservation(limit, self, reservation)
        try:
            yield reserved
        finally:
            reserved.close()
            self._running -= 1
            async with self._ended:
                self._ended.notify_all()

    def priced(self, reported: Usage) -> Usage:
        """Return the usage of a rollout with its price. A rollout counts as at least one call.
        Where nothing was reported the price is unknown, not zero, unless the user has named one.
        """
        calls = max(1, reported.calls)
        if not reported.tokens and not reported.usd:
            return Usage(calls=calls, usd=self.usd_per_rollout)
        return replace(self.price(reported), calls=calls)

    def guess(self, used: Usage) -> Usage:
        """Return what to count for a rollout whose cost is unknown: the highest seen so far."""
        return replace(self._highest, calls=used.calls)

    def learn(self, used: Usage) -> None:
        """Remember what a rollout cost, if it is known."""
        if used.usd is None and not used.tokens:
            return
        usd, tokens = used.usd or 0.0, used.tokens
        self._lowest_usd = min(self._lowest_usd, usd) if self._seen else usd
        self._lowest_tokens = min(self._lowest_tokens, tokens) if self._seen else tokens
        self._seen += 1
        highest = self._highest
        self._highest = Usage(input=max(highest.tokens, tokens), usd=max(highest.usd or 0.0, usd))

    def _most_at_once(self) -> float:
        """Return how many rollouts may run at the same time."""
        if not self.capped:
            return math.inf
        left, bound = self.budget.left(), self._bound()
        few_dollars = left.usd is not None and left.usd < _NEAR_THE_CAP * (bound.usd or 0.0)
        few_tokens = left.tokens is not None and left.tokens < _NEAR_THE_CAP * bound.tokens
        return 1 if few_dollars or few_tokens else max(1, self._seen)

    def _bound(self) -> Usage:
        """Return what to reserve for the next rollout."""
        if not self.capped:
            return Usage(calls=1)
        if not self._seen:
            left = self.budget.left()
            return Usage(calls=1, input=left.tokens or 0, usd=left.usd or 0.0)
        highest_usd, highest_tokens = self._highest.usd or 0.0, self._highest.tokens
        room = _ROOM_ABOVE_LIMIT if self.limits_itself else 1.0
        return Usage(
            calls=1,
            input=round(highest_tokens * self._margin(self._lowest_tokens, highest_tokens)),
            usd=highest_usd * self._margin(self._lowest_usd, highest_usd) * room,
        )

    def _margin(self, lowest: float, highest: float) -> float:
        """Return the most that the next rollout may cost, as a multiple of the highest cost so far:
        large while few rollouts were seen, later as large as they differed.
        """
        spread = (highest - lowest) / highest if highest else 0.0
        return 1 + max(spread, 1 / self._seen)


@dataclass(slots=True)
class RolloutReservation:
    """What is reserved for one rollout."""

    max_usd: float | None  # the limit to give to a program that accepts one
    _meter: RolloutMeter
    _reservation: Reservation  # settling it a second time changes nothing

    def bill(self, reported: Usage) -> Usage:
        """Replace the reservation by what the rollout used. Returns it with its price."""
        used = self._meter.priced(reported)
        self._meter.learn(used)
        self._reservation.settle(used if used.usd is not None else self._meter.guess(used))
        return used

    def close(self) -> None:
        """Bill an estimate when nothing was billed: the cost of a cancelled rollout is unknown."""
        self._reservation.settle(self._meter.guess(Usage(calls=1)))


class CappedMeter(Meter, Protocol):
    """A budget that can say what is left."""

    def left(self) -> Remaining: ...


def refuse_unseen_usage(
    caps: BudgetSection,
    agent: str,
    reports: frozenset[Reported],
    *,
    has_price: bool,
    usd_per_rollout: float | None,
) -> None:
    """Refuse a cap in dollars or tokens that could not be held, because the agent does not report
    what it uses.
    """
    free = usd_per_rollout == 0
    if caps.tokens is not None and "tokens" not in reports and not free:
        raise InputError(
            f"budget.tokens is set, but {agent} does not report the tokens it uses.",
            hint="Cap calls (each rollout counts as one) or minutes instead; or set "
            "env.rollout_usd: 0 if it uses no paid model.",
        )
    seen = "usd" in reports or ("tokens" in reports and has_price)
    if caps.usd is not None and not seen and usd_per_rollout is None:
        why = "no price is known for its model" if "tokens" in reports else "it reports no usage"
        raise InputError(
            f"budget.usd is set, but the cost of {agent} cannot be seen ({why}).",
            hint="Give the price in model.prices, or your own figure for one rollout in "
            "env.rollout_usd (0: it is free), or cap calls or minutes.",
        )


class _QueuedRollout(asyncio.Future[Outcome]):
    """The outcome of a queued rollout. To its callers it is like the rollout's task, which exists
    only once the rollout runs: cancelling it ends the work first.
    """

    def __init__(self, plan: _Planned, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.plan = plan
        self._task: asyncio.Task[Outcome] | None = None

    def run(self, task: asyncio.Task[Outcome]) -> None:
        self._task = task
        task.add_done_callback(self._deliver)

    def cancel(self, msg: Any | None = None) -> bool:
        return super().cancel(msg) if self._task is None else self._task.cancel(msg)

    def _deliver(self, task: asyncio.Task[Outcome]) -> None:
        if task.cancelled():
            super().cancel()
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())


@dataclass(frozen=True, slots=True)
class _Planned:
    """One rollout of a batch, and who asks for it."""

    request: RolloutRequest
    stage: StageName
    step: int
    series: str
    instruction: str
    batch: _Batch
    key: str  # the journal key: rollouts with equal keys are one rollout
    loss_key: str  # where its failure is recorded for the decision in progress


def _journal_key(request: RolloutRequest, series: str, instruction: str) -> str:
    parts = [series, request.arm.skill.hash, request.item.fingerprint(), str(request.repeat)]
    if instruction:
        parts.append(hashlib.sha256(instruction.encode()).hexdigest()[:16])
    return ROLLOUTS + "/".join(parts)


@dataclass(slots=True)
class _Batch:
    """The rollouts of one call to `RolloutEngine.start`, counted as they finish: says when to stop
    the run because they fail for reasons other than the skill.

    `proven`: something was scored earlier in this run, so the setup as such works.
    """

    planned: int
    coverage_floor: float
    proven: bool
    context: Context = field(default_factory=copy_context)  # of the caller of `start`
    scored: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Outcome] = field(default_factory=dict)  # by the key that records the loss

    def count(self, outcome: Outcome) -> InfrastructureError | None:
        """Count one more outcome. Returns the reason to stop the run, if there is one now."""
        if outcome.failure is None:
            self.scored += outcome.status == "scored"
            return None
        self.failed[outcome.failure.kind] += 1
        why = why_stop(
            self.failed,
            outcome.failure.kind,
            scored=self.scored,
            planned=self.planned,
            coverage_floor=self.coverage_floor,
            proven=self.proven,
        )
        if not why:
            return None
        hint = (
            "Everything so far is saved. Fix the cause, then start the same run again. If that "
            "changes a setting of the run, start a new one with --run NAME."
        )
        return InfrastructureError(f"{why} The last error: {outcome.failure.message}", hint=hint)

    @property
    def complete(self) -> bool:
        return self.scored + self.failed.total() == self.planned

    @property
    def coverage(self) -> float:
        return self.scored / self.planned if self.planned else 1.0


def _skipped_outcome(plan: _Planned) -> Outcome:
    return Outcome(plan.request.item.id, plan.request.repeat, "skipped")


def _failed_outcome(plan: _Planned, error: ModelError | TaskFailure, seconds: float) -> Outcome:
    return Outcome(
        plan.request.item.id,
        plan.request.repeat,
        "failed",
        failure=Failure(error.kind, str(error)),
        usage=error.usage if isinstance(error, ModelError) else Usage(),
        seconds=seconds,
    )


def _rollout_seed(run_seed: int, plan: _Planned) -> int:
    """Return a seed that does not depend on the skill: skills under comparison get the same one."""
    text = f"{run_seed}/{plan.series}/{plan.request.item.id}/{plan.request.repeat}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


def _finished_event(plan: _Planned, outcome: Outcome) -> RolloutFinished:
    failure = f"{outcome.failure.kind}: {outcome.failure.message}" if outcome.failure else ""
    return RolloutFinished(
        rollout=plan.key,
        phase=plan.stage,
        step=plan.step,
        item=plan.request.item.id,
        repeat=plan.request.repeat,
        skill_hash=plan.request.arm.skill.hash,
        status=outcome.status,
        hard=outcome.score.hard if outcome.score else None,
        soft=outcome.score.soft if outcome.score else None,
        failure=failure,
        seconds=outcome.seconds,
        calls=outcome.usage.calls,
        tokens=outcome.usage.tokens,
        usd=outcome.usage.usd,
        edits=list(plan.request.arm.edits),
        answer=shorten(outcome.attempt.answer, _SHOWN_CHARACTERS) if outcome.attempt else "",
        feedback=shorten(outcome.score.feedback, _SHOWN_CHARACTERS) if outcome.score else "",
        skill_read=outcome.attempt.skill_read if outcome.attempt else None,
    )
