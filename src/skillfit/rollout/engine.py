"""When to stop believing in the machinery: a run whose rollouts all fail the same way must not burn
on.

Rollouts: run items under a skill, each paid for once, none in another's way.

Everything planned is known at once as a list of asyncio tasks in planned order; a bounded window
decides how many really run, so ten thousand items of big context cost no more memory than the
window's. A failed rollout is an outcome, not an exception. What stops a run (bad key, wrong config,
spent budget, dead machinery) is an exception: nothing new is started after it, and what is in
flight, being paid for already, finishes and is recorded.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from skillfit.agents.agent import Agent
from skillfit.errors import InfrastructureError, SkillfitError
from skillfit.models.protocol import AnswerPending, Meter, ModelError, Usage
from skillfit.rollout.executor import Assignment, Executor, LocalExecutor, Worker, WorkerLost
from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Failure, Outcome
from skillfit.run.events import EventLog, RolloutFinished
from skillfit.run.journal import Journal
from skillfit.tasks.item import Item, TaskFailure

if TYPE_CHECKING:
    from skillfit.skill import Skill
    from skillfit.tasks.task import Task


# Failures that say nothing about skill or item. Others (refused, context_too_long, agent, …) may be
# a candidate's own doing and then are the gate's business.
_MACHINERY = ("rate_limit", "overloaded", "network", "timeout", "worker", "sandbox")
_ENOUGH = 5  # failures that are no accident any more


@dataclass(slots=True)
class Batch:
    """The rollouts of one `start`. `proven`: something was scored earlier in this run, so the
    set-up as such works.
    """

    planned: int
    floor: float
    proven: bool
    scored: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    given_up: dict[str, Outcome] = field(default_factory=dict)

    def watch(self, outcome: Outcome) -> InfrastructureError | None:
        """Count one more outcome; the reason to stop, if there is one now."""
        if outcome.failure is None:
            self.scored += outcome.status == "scored"
            return None
        kind = outcome.failure.kind
        self.failed[kind] += 1
        count = self.failed[kind]
        said = f"The last said: {outcome.failure.message}"
        systemic = kind in _MACHINERY or not self.proven
        if systemic and not self.scored and count == self.failed.total() >= _ENOUGH:
            return _stop(f"The first {count} rollouts all failed ({kind}). {said}")
        broken = sum(self.failed[name] for name in _MACHINERY)
        if broken >= _ENOUGH and broken > (1 - self.floor) * self.planned:
            return _stop(
                f"{broken} of {self.planned} rollouts failed, too many for a coverage of {self.floor:.0%}. {said}"
            )
        return None

    @property
    def complete(self) -> bool:
        return self.scored + self.failed.total() == self.planned

    @property
    def coverage(self) -> float:
        return self.scored / self.planned if self.planned else 1.0


def _stop(message: str) -> InfrastructureError:
    return InfrastructureError(
        message, hint="Nothing is lost: start the same run again when the cause is mended."
    )


_FATAL = ("auth", "quota", "config")  # no other rollout would fare better
_RETRIES = 1  # of a whole rollout; the model client has retried each call many times by then
_WORKER_RETRIES = 3


@dataclass(frozen=True, slots=True)
class _Planned:
    skill: Skill
    item: Item
    repeat: int
    phase: str
    step: int
    series: str
    instruction: str
    batch: Batch


class Rollouts:
    """`start` plans rollouts and returns at once; `run` waits for them.

    `max_in_flight` is the window: make it about twice the model's concurrency, so that a rollout
    that waits out a retry or grades its answer leaves no request slot idle. `meter` is for agents
    and evaluators whose calls happen out of our sight (programs, the user's own code): each rollout
    is then metered and billed as a whole, at what `price` makes of its tokens where it names no
    dollars. What one costs is known afterwards only, so as much is set aside as the dearest one so
    far took, and with `careful` (a cap on dollars or tokens) the first one runs alone. `timeout`
    counts the work, not the wait for a slot.
    """

    def __init__(
        self,
        task: Task,
        agent: Agent | None,
        journal: Journal,
        events: EventLog,
        *,
        executor: Executor | None = None,
        meter: Meter | None = None,
        price: Callable[[Usage], Usage] = lambda usage: usage,
        careful: bool = False,
        timeout: float | None = None,
        max_in_flight: int = 64,
        coverage_floor: float = 0.6,
        seed: int = 42,
    ) -> None:
        self._worker = Worker(agent, task.grader, task.evaluator)
        self._journal = journal
        self._events = events
        self._executor = executor or LocalExecutor()
        self._meter = meter
        self._price = price
        self._dearest = Usage(
            calls=1
        )  # what a metered rollout may cost: the most one has cost so far
        self._cost_unknown, self._alone = meter is not None and careful, asyncio.Lock()
        self._timeout = timeout
        self._window = asyncio.Semaphore(max_in_flight)
        self._coverage_floor = coverage_floor
        self._seed = seed
        self._stopped_by: SkillfitError | None = None
        self._proven = False
        self._open: dict[str, Outcome] = {}  # failed, and nothing decided without them yet
        self.stopping = False

    def start(
        self,
        skill: Skill,
        items: Sequence[Item],
        *,
        phase: str,
        series: str,
        step: int = 0,
        repeats: Iterable[int] = range(1),
        instruction: str = "",
    ) -> list[asyncio.Task[Outcome]]:
        """One task per item and repeat: all items of the first repeat, then all of the next.
        `phase` and `step` say who asks (as in StageStarted); `series` says which rollouts count as
        the same and are shared.
        """
        asked = [(item, repeat) for repeat in repeats for item in items]
        batch = Batch(len(asked), self._coverage_floor, self._proven)
        plans = [
            _Planned(skill, item, repeat, phase, step, series, instruction, batch)
            for item, repeat in asked
        ]
        tasks = [asyncio.create_task(self._outcome(plan)) for plan in plans]
        for task in tasks:
            task.add_done_callback(_seen)
        return tasks

    async def run(
        self,
        skill: Skill,
        items: Sequence[Item],
        *,
        phase: str,
        series: str,
        step: int = 0,
        repeats: Iterable[int] = range(1),
        instruction: str = "",
    ) -> list[Outcome]:
        """As `start`, and waits: the outcomes in planned order."""
        return await gather(
            self.start(
                skill,
                items,
                phase=phase,
                series=series,
                step=step,
                repeats=repeats,
                instruction=instruction,
            )
        )

    def stop(self) -> None:
        """Finish what is in flight and start nothing new: the rest of what was planned comes back
        skipped.
        """
        self.stopping = True

    async def close(self) -> None:
        await self._executor.close()

    async def _outcome(self, plan: _Planned) -> Outcome:
        async with self._window:
            key = _key(plan)
            given_up = self._journal.get(_asking(plan, key), Outcome)
            if given_up is None and not self._journal.has(key):
                if self._stopped_by is not None:
                    raise self._stopped_by
                if self.stopping:
                    return _skipped(plan)
            outcome = given_up or await self._journaled(key, plan)
        if outcome.status == "skipped":
            return outcome
        self._events.emit(_event(key, plan, outcome))
        self._proven = self._proven or outcome.status == "scored"
        broken = plan.batch.watch(outcome)
        if broken is not None:
            self._stopped_by = broken
            raise broken
        if outcome.failure is not None:
            plan.batch.given_up[_asking(plan, key)] = outcome
        if plan.batch.complete:
            if plan.batch.coverage >= self._coverage_floor:
                await self._give_up(plan.batch.given_up)
            else:
                self._open |= plan.batch.given_up
        return outcome

    async def go_on_without_failed(self) -> None:
        """The run has decided without batches of which too few rollouts were scored. A later run of
        the same code must decide the same, so their failure is a fact from here on; whoever asks at
        another step tries them again. Until this is called, starting again tries them again. Single
        failures among enough scored rollouts are given up at once.
        """
        failed, self._open = self._open, {}
        await self._give_up(failed)

    async def _give_up(self, failed: Mapping[str, Outcome]) -> None:
        for key, outcome in failed.items():
            await self._journal.note(key, outcome, Outcome, stage="rollout")

    async def _journaled(self, key: str, plan: _Planned) -> Outcome:
        begun = time.monotonic()
        tried = 0
        while True:
            try:
                return await self._journal.once(
                    key,
                    partial(self._roll, plan),
                    returns=Outcome,
                    stage="rollout",
                    role="agent",
                    usage=lambda outcome: outcome.usage if self._meter else Usage(),
                )
            except AnswerPending:
                raise  # nothing stops: the other prompts of this stage are still to be written
            except (ModelError, TaskFailure) as error:
                if error.kind in _FATAL:
                    self._stopped_by = error
                    raise
                if self.stopping:
                    return _skipped(
                        plan
                    )  # what a stop cut short is no failure: it is tried again on resume
                tried += 1
                if self._stopped_by is not None or tried > _retries(error):
                    return _failed(plan, error, time.monotonic() - begun)
            except SkillfitError as error:
                self._stopped_by = error
                raise

    async def _roll(self, plan: _Planned) -> Outcome:
        if self._cost_unknown:
            async with self._alone:
                if self._cost_unknown:
                    outcome = await self._roll_metered(plan)
                    self._cost_unknown = False
                    return outcome
        return await self._roll_metered(plan)

    async def _roll_metered(self, plan: _Planned) -> Outcome:
        purpose = f"{plan.series}/{plan.item.id}/{plan.repeat}"
        assignment = Assignment(
            plan.skill, plan.item, _seed(self._seed, plan), purpose, plan.instruction, self._timeout
        )
        reservation = await self._meter.reserve("agent", self._dearest) if self._meter else None
        begun, used = time.monotonic(), self._dearest
        try:
            attempt, score = await self._executor.run(self._worker, assignment)
            used = self._price(attempt.usage)
        except ModelError as error:
            used = error.usage = self._price(error.usage)
            raise
        finally:
            if reservation:
                reservation.settle(used)
                self._dearest = max(
                    self._dearest,
                    used,
                    key=lambda usage: (usage.usd or 0, usage.tokens, usage.calls),
                )
        return Outcome(
            plan.item.id,
            plan.repeat,
            "scored",
            score,
            None,
            attempt,
            used,
            time.monotonic() - begun,
        )


def _skipped(plan: _Planned) -> Outcome:
    return Outcome(plan.item.id, plan.repeat, "skipped")


def _failed(plan: _Planned, error: ModelError | TaskFailure, seconds: float) -> Outcome:
    usage = error.usage if isinstance(error, ModelError) else Usage()
    return Outcome(
        plan.item.id,
        plan.repeat,
        "failed",
        failure=Failure(error.kind, str(error)),
        usage=usage,
        seconds=seconds,
    )


def _retries(error: ModelError | TaskFailure) -> int:
    if isinstance(error, WorkerLost):
        return _WORKER_RETRIES
    if error.kind == "sandbox":  # the program never ran; the next start may work
        return _RETRIES
    return (
        _RETRIES
        if isinstance(error, ModelError) and error.retryable and error.kind != "timeout"
        else 0
    )


def _key(plan: _Planned) -> str:
    parts = ["rollout", plan.series, plan.skill.hash, plan.item.fingerprint(), str(plan.repeat)]
    if plan.instruction:
        parts.append(hashlib.sha256(plan.instruction.encode()).hexdigest()[:16])
    return "/".join(parts)


def _asking(plan: _Planned, key: str) -> str:
    return f"given_up/{plan.phase}/{plan.step}/{key}"


def _seed(run_seed: int, plan: _Planned) -> int:
    """Not of the skill: skills under comparison meet the same luck."""
    text = f"{run_seed}/{plan.series}/{plan.item.id}/{plan.repeat}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


def _event(key: str, plan: _Planned, outcome: Outcome) -> RolloutFinished:
    return RolloutFinished(
        rollout=key,
        phase=plan.phase,
        step=plan.step,
        item=plan.item.id,
        repeat=plan.repeat,
        skill_hash=plan.skill.hash,
        status=outcome.status,
        hard=outcome.score.hard if outcome.score else None,
        soft=outcome.score.soft if outcome.score else None,
        failure=f"{outcome.failure.kind}: {outcome.failure.message}" if outcome.failure else "",
        seconds=outcome.seconds,
        calls=outcome.usage.calls,
        tokens=outcome.usage.tokens,
        usd=outcome.usage.usd,
    )


def _seen(task: asyncio.Task[Outcome]) -> None:
    """A task whose caller already failed on another is not worth a warning from asyncio."""
    if not task.cancelled():
        task.exception()
