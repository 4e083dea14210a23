"""Rollouts on a Ray cluster.

Attempt and grading run in Ray workers. Model calls do not: a worker has no key, no journal and no
limiter. Where the agent or grader holds a model, the worker gets a `RemoteModel` instead. Its
requests go to the mailbox, an actor on the driver's node. The driver takes them from there, answers
them with the real model, and puts the reply back. So journal, budget and limits stay in the driver,
and a rollout gives the same result wherever it runs. A request whose worker has died is answered
and recorded all the same: when the rollout is repeated, its reply is already there.

Files that items name, and `env.corpus`, must be readable under the same path on every node. Command
line agents run on the nodes too, and read their keys from the environment of the Ray workers there.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import itertools
import os
import pickle
import socket
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from skillfit.errors import InfrastructureError, InputError, SkillfitError
from skillfit.models.protocol import Model, ModelError, Reply, Request
from skillfit.rollout.engine import Assignment, Worker, WorkerLost
from skillfit.tasks.item import RowAt, ScoredAttempt

_MOST_WAITING = 10_000  # requests that may wait in the mailbox for their reply
_PROBE_SECONDS = 5.0
_CLOSE_SECONDS = 5.0
_PAUSES_BEFORE_RETRY = (1.0, 4.0)  # seconds
_NO_CLIENT_PROCESS = ("Initialization failure from server", "has already been disconnected")
_SET_TOKEN = (
    "copy its token (~/.ray/auth_token on the head node) to the same place here, or set "
    "RAY_AUTH_TOKEN; then set RAY_AUTH_MODE=token."
)


class RayExecutor:
    """Runs rollouts as Ray tasks.

    `address` is the value of the setting `executor`. "ray": the cluster this process is connected
    to, else the one that RAY_ADDRESS names or that runs on this machine, else a new one here.
    "ray://HOST:PORT": the cluster whose Ray Client server listens there. Each rollout takes `cpus`
    of a node, which limits how many run at the same time.
    """

    def __init__(self, address: str = "ray", *, cpus: float = 1.0) -> None:
        ray = _import_ray()
        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            _connect(ray, address)
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        mailbox = ray.remote(num_cpus=0, max_concurrency=_MOST_WAITING)(_Mailbox)
        self._ray = ray
        self._mailbox: Any = mailbox.options(scheduling_strategy=here).remote()
        self._roll_out: Any = ray.remote(num_cpus=cpus, max_retries=0)(_roll_out)
        self._models: list[Model] = []
        self._packed: dict[int, tuple[Worker, Any]] = {}
        self._delivering: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[Reply]] = set()
        self._raised: dict[int | None, SkillfitError] = {}

    @property
    def cores(self) -> int:
        """The CPUs of the whole cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    async def run(self, worker: Worker, assignment: Assignment) -> ScoredAttempt:
        self._delivering = self._delivering or asyncio.create_task(self._deliver())
        reference = self._roll_out.remote(self._mailbox, self._pack(worker), _portable(assignment))
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
        return ScoredAttempt(attempt, score)

    async def close(self) -> None:
        """Disconnect from the cluster. One that was started here ends."""
        if self._delivering is not None:
            # Ray Client prints a traceback when a call that it waits for is cancelled.
            self._mailbox.close.remote()
            await asyncio.wait([self._delivering], timeout=_CLOSE_SECONDS)
        for task in (self._delivering, *self._answering):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._ray.kill(self._mailbox)
        if self._connected_here:
            self._ray.shutdown()

    def _pack(self, worker: Worker) -> Any:
        """Return the worker as an object in Ray's store, packed once; models become numbers."""
        if id(worker) not in self._packed:
            file = io.BytesIO()
            packer = _packer(file, self._models)
            try:
                packer.dump(worker)
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                raise InputError(
                    f"This agent or grader cannot be sent to Ray workers: {error}.",
                    hint=(
                        "Keep open files, connections and locks out of it, or use executor: local."
                    ),
                ) from error
            # The worker is kept too: an id is unique only while its object exists.
            self._packed[id(worker)] = (worker, self._ray.put(file.getvalue()))
        return self._packed[id(worker)][1]

    async def _deliver(self) -> None:
        while asked := await self._mailbox.take.remote():
            for ticket, number, request in asked:
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
            error = InfrastructureError(f"The model call failed: {type(error).__name__}: {error}")
        # The journal recognises an error it has billed by identity: the copy that comes back from
        # the worker would be billed again.
        self._raised[ticket] = error
        portable = (
            error
            if isinstance(error, ModelError)
            else SkillfitError(error.message, hint=error.hint)
        )
        self._mailbox.answer.remote(ticket, _Raised(ticket, portable))


@dataclass(frozen=True, slots=True)
class _Raised:
    """The error of a model call, and the ticket under which the driver keeps the original."""

    ticket: int
    error: SkillfitError


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """What a worker has in place of one of the driver's models."""

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
    """An actor. Workers `ask` and wait; the driver `take`s the requests and `answer`s them."""

    def __init__(self) -> None:
        self._tickets = itertools.count()
        self._asked: asyncio.Queue[tuple[int, int, Request] | None] = asyncio.Queue()
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
        """Wait for requests. An empty list: the mailbox was closed."""
        asked = [await self._asked.get()]
        while not self._asked.empty():
            asked.append(self._asked.get_nowait())
        return [] if None in asked else [one for one in asked if one is not None]

    async def close(self) -> None:
        self._asked.put_nowait(None)

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


def _roll_out(mailbox: Any, packed: bytes, assignment: Assignment) -> tuple[Any, int | None]:
    """Run in a Ray worker. Our own errors are returned, because Ray changes the type of errors that
    are raised.
    """
    raised: list[_Raised] = []
    worker: Worker = _Unpacker(packed, mailbox, raised).load()
    try:
        return asyncio.run(worker.do(assignment)), None
    except SkillfitError as error:
        return error, next((known.ticket for known in raised if known.error is error), None)


def _packer(file: io.BytesIO, models: list[Model]) -> Any:
    cloudpickle = _import_ray().cloudpickle

    class Packer(cloudpickle.CloudPickler):  # type: ignore[misc, name-defined]
        def persistent_id(self, value: Any) -> tuple[str, int, int] | None:
            if not (hasattr(type(value), "complete") and hasattr(type(value), "context_window")):
                return None
            numbers = [number for number, model in enumerate(models) if model is value]
            if not numbers:
                models.append(value)
            return value.id, value.context_window, numbers[0] if numbers else len(models) - 1

    for name, module in list(sys.modules.items()):
        if name.startswith("skillfit_user_"):  # the user's own file: workers cannot import it
            cloudpickle.register_pickle_by_value(module)
    return Packer(file)


def _portable(assignment: Assignment) -> Assignment:
    """Put the item's row into the assignment: the file that holds the row may be on this machine
    only.
    """
    item = assignment.item
    if isinstance(item.row, RowAt):
        item = item.loaded()
    return replace(assignment, item=item)


class _Quiet(TypedDict):
    """Arguments of `ray.init` for less output."""

    log_to_driver: bool
    logging_level: str


def _connect(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = _Quiet(log_to_driver=False, logging_level="error")
    try:
        if address != "ray":
            _require_reachable(address)
            _join_by_client(ray, address, quiet)
        elif not _join_running_cluster(ray, quiet):
            ray.init(address="local", include_dashboard=False, **quiet)
    except ray.exceptions.RayError as error:  # among others: a token is needed and there is none
        hint = f"If the cluster uses token authentication, {_SET_TOKEN}"
        raise InfrastructureError(f"Ray: {error}", hint=hint) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InfrastructureError(
            f"No connection to the Ray cluster ({address}): {error}",
            hint="Check that the cluster is up and has this version of Ray and Python. If it uses "
            "token authentication, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN.",
        ) from error


def _join_by_client(ray: Any, address: str, quiet: _Quiet) -> None:
    """Connect through the Ray Client. The head node starts a process for each client; a busy head
    node may fail to start it and succeed a moment later.
    """
    for pause in _PAUSES_BEFORE_RETRY:
        try:
            ray.init(address=address, **quiet)
            return
        except ConnectionError as error:
            if not any(words in str(error) for words in _NO_CLIENT_PROCESS):
                raise
        ray.shutdown()
        time.sleep(pause)
    ray.init(address=address, **quiet)


def _join_running_cluster(ray: Any, quiet: _Quiet) -> bool:
    """Connect to the cluster that RAY_ADDRESS names or that this machine is part of, if any."""
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError as error:
        if "Could not find any running Ray instance" in str(error):
            return False
        raise
    return True


def _require_reachable(address: str) -> None:
    """Raise at once what Ray itself would report only after minutes: nothing listens at the
    address, or a token is missing.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"executor: {address} has no port.", hint="Write ray://HOST:10001.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
    except OSError as error:
        raise InfrastructureError(
            f"Nothing listens at {host}:{port}: {error}.",
            hint="The port is that of the Ray Client server, usually 10001 on the head node.",
        ) from error
    if "RAY_AUTH_MODE" not in os.environ and _has_token():
        os.environ["RAY_AUTH_MODE"] = "token"  # a cluster without authentication ignores it
        _reread_settings()
    elif "RAY_AUTH_MODE" not in os.environ and _needs_token(f"{host}:{port}"):
        raise InfrastructureError(
            f"The Ray cluster at {host}:{port} refused the connection.",
            hint=f"It uses token authentication: {_SET_TOKEN}",
        )


def _has_token() -> bool:
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named).expanduser() if named else Path.home() / ".ray" / "auth_token"
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or file.is_file()


def _reread_settings() -> None:
    """Make Ray read its settings again: it has read them from the environment when it was
    imported.
    """
    settings = getattr(importlib.import_module("ray._raylet"), "Config", None)
    if settings is not None:  # None: a version of Ray without token authentication
        settings.initialize("")


def _needs_token(target: str) -> bool:
    """Return whether the Ray Client server rejects a request without a token."""
    try:
        import grpc
    except ImportError as error:
        raise InputError(
            "executor: ray://… needs the Ray Client.", hint="pip install 'skillfit[ray]'"
        ) from error
    with grpc.insecure_channel(target) as channel:
        ask = channel.unary_unary("/ray.rpc.RayletDriver/ClusterInfo")
        try:
            ask(b"", timeout=_PROBE_SECONDS)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise InputError("executor: ray needs Ray.", hint="pip install 'skillfit[ray]'") from error
    return ray
