"""Rollouts on a Ray cluster: attempt and grading run in Ray workers, model calls come home.

A worker has no key, no journal and no limiter. Whatever model the agent or grader holds is swapped
for a `RemoteModel` on the way out; its requests travel through the mailbox, an actor on the
driver's node, to the driver, which answers them with the real model. So journal, budget and limits
stay where they are, and a rollout gives the same result wherever it runs. A request whose worker
died is still answered and recorded: the rollout's next try finds it paid for.

Files that items name must be readable on every node.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import pickle
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from skillfit.errors import InfrastructureError, InputError, SkillfitError
from skillfit.models.protocol import Model, ModelError, Reply, Request
from skillfit.rollout.executor import Assignment, Worker, WorkerLost
from skillfit.tasks.item import Attempt, RowAt, Score

_WAITING = 10_000  # requests that may wait in the mailbox for their answer


class RayExecutor:
    """`address`: "ray" uses the cluster this process is connected to, or starts one here;
    "ray://HOST:PORT" joins a cluster. Each rollout takes `cpus` of a node, which is what bounds how
    many run at one time.
    """

    def __init__(self, address: str = "ray", *, cpus: float = 1.0) -> None:
        ray = _ray()
        self._started_here = not ray.is_initialized()
        if self._started_here:
            _connect(ray, address)
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        mailbox = ray.remote(num_cpus=0, max_concurrency=_WAITING)(_Mailbox)
        self._ray = ray
        self._mailbox: Any = mailbox.options(scheduling_strategy=here).remote()
        self._roll: Any = ray.remote(num_cpus=cpus, max_retries=0)(_roll)
        self._models: list[Model] = []
        self._packed: dict[int, tuple[Worker, Any]] = {}
        self._postman: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[Reply]] = set()
        self._raised: dict[int | None, SkillfitError] = {}

    @property
    def cores(self) -> int:
        """The CPUs of the whole cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    async def run(self, worker: Worker, assignment: Assignment) -> tuple[Attempt, Score]:
        self._postman = self._postman or asyncio.create_task(self._deliver())
        reference = self._roll.remote(self._mailbox, self._pack(worker), _portable(assignment))
        failures = self._ray.exceptions
        try:
            result, ticket = await reference
        except asyncio.CancelledError:
            self._ray.cancel(reference)
            raise
        except failures.RayTaskError as error:
            raise error.cause from error
        except failures.RayError as error:
            what = str(error).strip().partition("\n")[0]
            raise WorkerLost(
                f"The Ray worker of item {assignment.item.id} is gone: "
                f"{type(error).__name__}: {what}"
            ) from error
        if isinstance(result, SkillfitError):
            raise self._raised.pop(ticket, result)
        attempt, score = result
        return attempt, score

    async def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        for task in (self._postman, *self._answering):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._ray.kill(self._mailbox)
        if self._started_here:
            self._ray.shutdown()

    def _pack(self, worker: Worker) -> Any:
        """The worker as an object in Ray's store, packed once; models become numbers."""
        if id(worker) not in self._packed:
            file = io.BytesIO()
            packer = _packer(file, self._models)
            try:
                packer.dump(worker)
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                raise InputError(
                    f"This agent or grader cannot travel to Ray workers: {error}.",
                    hint=(
                        "Keep open files, connections and locks out of it, or use executor: local."
                    ),
                ) from error
            self._packed[id(worker)] = (
                worker,
                self._ray.put(file.getvalue()),
            )  # kept with its worker, so the id stays its own
        return self._packed[id(worker)][1]

    async def _deliver(self) -> None:
        while True:
            for ticket, number, request in await self._mailbox.take.remote():
                task: asyncio.Task[Reply] = asyncio.create_task(
                    self._models[number].complete(request)
                )
                self._answering.add(task)
                task.add_done_callback(partial(self._answer, ticket))

    def _answer(self, ticket: int, task: asyncio.Task[Reply]) -> None:
        self._answering.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._mailbox.answer.remote(ticket, task.result())
            return
        if not isinstance(error, SkillfitError):
            error = InfrastructureError(f"The model call broke: {type(error).__name__}: {error}")
        self._raised[ticket] = (
            # the journal knows this one's cost by its identity: a copy from afar would be billed
            # again
            error
        )
        portable = (
            error
            if isinstance(error, ModelError)
            else SkillfitError(error.message, hint=error.hint)
        )
        self._mailbox.answer.remote(ticket, _Raised(ticket, portable))


@dataclass(frozen=True, slots=True)
class _Raised:
    """An error of a call, and the ticket under which the driver keeps the original."""

    ticket: int
    error: SkillfitError


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model of the driver, as a worker sees it."""

    id: str
    context_window: int
    number: int
    mailbox: Any
    raised: list[_Raised]

    async def complete(self, request: Request) -> Reply:
        answer: Reply | _Raised = await self.mailbox.ask.remote(self.number, request)
        if isinstance(answer, _Raised):
            self.raised.append(answer)
            raise answer.error
        return answer


class _Mailbox:
    """An actor. Workers `ask` and wait; the driver `take`s what was asked and `answer`s it."""

    def __init__(self) -> None:
        self._tickets = itertools.count()
        self._asked: asyncio.Queue[tuple[int, int, Request]] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, number: int, request: Request) -> Any:
        ticket = next(self._tickets)
        self._answers[ticket] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((ticket, number, request))
        try:
            return await self._answers[ticket]
        finally:
            del self._answers[ticket]

    async def take(self) -> list[tuple[int, int, Request]]:
        asked = [await self._asked.get()]
        while not self._asked.empty():
            asked.append(self._asked.get_nowait())
        return asked

    async def answer(self, ticket: int, answer: Any) -> None:
        waiting = self._answers.get(ticket)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)


class _Unpacker(pickle.Unpickler):
    def __init__(self, packed: bytes, mailbox: Any, raised: list[_Raised]) -> None:
        super().__init__(io.BytesIO(packed))
        self._mailbox = mailbox
        self._raised = raised

    def persistent_load(self, model: tuple[str, int, int]) -> RemoteModel:
        name, context_window, number = model
        return RemoteModel(name, context_window, number, self._mailbox, self._raised)


def _roll(mailbox: Any, packed: bytes, assignment: Assignment) -> tuple[Any, int | None]:
    """Runs in a Ray worker. Known problems are given back as values: raised, Ray would change their
    type.
    """
    raised: list[_Raised] = []
    worker: Worker = _Unpacker(packed, mailbox, raised).load()
    try:
        return asyncio.run(worker.do(assignment)), None
    except SkillfitError as error:
        return error, next((known.ticket for known in raised if known.error is error), None)


def _packer(file: io.BytesIO, models: list[Model]) -> Any:
    cloudpickle = _ray().cloudpickle

    class Packer(cloudpickle.CloudPickler):  # type: ignore[misc, name-defined]
        def persistent_id(self, value: Any) -> tuple[str, int, int] | None:
            if not (hasattr(type(value), "complete") and hasattr(type(value), "context_window")):
                return None
            numbers = [number for number, model in enumerate(models) if model is value]
            if not numbers:
                models.append(value)
            return value.id, value.context_window, numbers[0] if numbers else len(models) - 1

    for name, module in list(sys.modules.items()):
        if name.startswith(
            "skillfit_user_"
        ):  # a file the person named, which workers could not import
            cloudpickle.register_pickle_by_value(module)
    return Packer(file)


def _portable(assignment: Assignment) -> Assignment:
    """With the item's row inside: the file it stands in may be on this machine only."""
    item = assignment.item
    if isinstance(item.row, RowAt):
        item = item.loaded()
    return replace(assignment, item=item)


def _connect(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    settings: dict[str, Any] = (
        {"include_dashboard": False} if address == "ray" else {"address": address}
    )
    try:
        ray.init(**settings, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        hint = "Check that the cluster is up, or use executor: local."
        raise InfrastructureError(f"No Ray cluster at {address}: {error}", hint=hint) from error


def _ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise InputError("executor: ray needs Ray.", hint="pip install 'skillfit[ray]'") from error
    return ray
