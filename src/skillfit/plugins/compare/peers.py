"""Other optimizers as ways of `skillfit compare`: gepa and skillopt, where they are installed.

A peer runs in a process of its own (peer_process.py), sandboxed like other programs: without our
environment, network and files. It asks over one inherited socket, in lines of JSON, and gets:

- the initial skill, and the inputs of the training items. Of selection items it gets numbers, and
  later scores. Test items and graders never leave this process.
- rollouts. They go through the rollout engine, so they are recorded and paid once. The peer is told
  to stop when those that it asks for do not fit into its number.
- calls of the optimizer's model, through the run's own client.

The packages draw their random numbers from the seed, so a second start asks the same again and gets
the recorded answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from skillfit.errors import Exit, InputError, SkillfitError
from skillfit.models import ModelError
from skillfit.models.failures import can_be_lost
from skillfit.models.protocol import AnswerPending, Message, Request
from skillfit.optimize.context import expected_answer, steps_text, verdict_text
from skillfit.optimize.optimizer import Optimizer
from skillfit.plain_text import duration, head_and_tail, last_part, quantity
from skillfit.rollout import Arm, Outcome, RolloutRequest
from skillfit.rollout.outcome import raise_if_skipped, settle
from skillfit.run.control import Control
from skillfit.run.directory import Identity, RunDirectory
from skillfit.run.events import ItemsRead, RunStarted, SkillsMeasured
from skillfit.sandbox.programs import (
    InheritedDescriptors,
    ProcessResult,
    SandboxNotStarted,
    choose_isolation,
    run_untrusted,
    scratch_folder,
)
from skillfit.skill import Skill
from skillfit.tasks.item import Item
from skillfit.training.assemble import Assembled, Listener, assemble
from skillfit.training.inputs import Inputs, item_records
from skillfit.training.measure import Measured
from skillfit.training.schedule import SplitSizes

FEWEST_ROLLOUTS = 20
MANY_ROLLOUTS = 600
_SCRIPT = Path(__file__).with_name("peer_process.py")
_RESULT = "peer/result"  # the key of the journal
_LONGEST_LINE = 1 << 24  # bytes of one question
_MOST_AT_ONCE = 64  # questions that wait for their answers
_MOST_TEXT = 20_000  # characters of one text about a rollout
_MEMORY = 8 << 30  # bytes of address space
_PROCESSES = 512  # and threads
_LONGEST = 30 * 24 * 3600.0  # seconds; `budget.minutes` and _SILENT end a peer earlier
_SILENT = 600.0  # seconds without a question while none is being answered
_ENDING = 60.0  # seconds after it was told to stop
_MORE_PROMPTS = 0.5  # seconds in which threads of a peer may write more handoff prompts
_SHOWN = 1500  # characters of its stderr


class PeerFailed(SkillfitError):
    """The process of another optimizer failed. The comparison continues without this way."""

    exit_code = Exit.INFRASTRUCTURE


@dataclass(frozen=True, slots=True)
class Peer:
    """Another optimizer."""

    name: str  # of its package too
    lowest: tuple[int, ...]  # version
    install: str
    file: str  # in its package, without which it cannot work
    selection: int = 20  # items that it measures a skill on
    selection_of_many: int = 20  # the same from MANY_ROLLOUTS on

    def refuse_missing(self) -> None:
        """Raise an error if the package cannot be used."""
        package = self.package
        if package is None:
            raise InputError(f"--way {self.name} needs the package {self.name}.", hint=self.install)
        found = tuple(int(part) for part in re.findall(r"\d+", self.version)[:3])
        if found and found < self.lowest:
            lowest = ".".join(map(str, self.lowest))
            raise InputError(
                f"--way {self.name} needs {self.name} {lowest} or newer; {self.version} is "
                "installed.",
                hint=self.install,
            )
        if not (package / self.file).is_file():
            raise InputError(
                f"--way {self.name} needs {self.file} of {self.name}, which the installed package "
                f"lacks ({package}).",
                hint=self.install,
            )

    @property
    def package(self) -> Path | None:
        """The folder of the installed package; None where it is not installed."""
        spec = find_spec(self.name)
        return Path(spec.origin).parent if spec is not None and spec.origin else None

    @property
    def version(self) -> str:
        try:
            return version(self.name)
        except PackageNotFoundError:  # a source folder on the path
            return ""

    def selection_items(self, rollouts: int, sizes: SplitSizes) -> int:
        """Return how many selection items it measures a skill on: at the most a quarter of the
        rollouts, so that it can measure several skills. Raises an error for too few rollouts.
        """
        if rollouts < FEWEST_ROLLOUTS:
            raise InputError(
                f"{self.name} needs at least {quantity(FEWEST_ROLLOUTS, 'rollout')}.",
                hint="Give it more with --rollouts.",
            )
        if not sizes.train or not sizes.selection:
            raise InputError(f"{self.name} needs items to train on and items to select with.")
        most = self.selection_of_many if rollouts >= MANY_ROLLOUTS else self.selection
        return min(most, rollouts // 4, sizes.selection)


# With these numbers of selection items they did best on the tuning seeds of bench.real.
PEERS: Mapping[str, Peer] = {
    "gepa": Peer("gepa", (0, 1, 4), "pip install 'skillfit[gepa]'", "api.py"),
    "skillopt": Peer(
        "skillopt",
        (0, 2, 0),
        # The wheel 0.2.0 of PyPI lacks its prompts; the repository has them.
        "pip install 'skillopt @ git+https://github.com/microsoft/SkillOpt'",
        "prompts/analyst_error.md",
        selection_of_many=40,
    ),
}


@dataclass(frozen=True, slots=True)
class PeerResult:
    """What a peer found."""

    body: str  # of its best skill
    rollouts: int


async def find_skill(
    inputs: Inputs,
    peer: Peer,
    rollouts: int,
    path: Path,
    *,
    listeners: Sequence[Listener] = (),
    control: Control | None = None,
) -> PeerResult:
    """Let a peer find a skill in the run directory `path`. Nothing that is recorded there is paid
    for again, and a peer that ended is not run again.

    Raises PeerFailed where the peer failed, and what the user must fix or wait for.
    """
    control = control or Control()
    with RunDirectory.open(path, _identity(inputs, peer, rollouts)) as run:
        known = run.journal.get(_RESULT, PeerResult)
        if known is not None:
            return known
        peer.refuse_missing()
        async with assemble(inputs, run, listeners, control) as ready:
            found = await _found(inputs, peer, rollouts, run, ready)
            run.journal.record(_RESULT, found, PeerResult)
            return found


def _identity(inputs: Inputs, peer: Peer, rollouts: int) -> Identity:
    return {
        **inputs.identity(),
        "kind": "peer",
        "peer": peer.name,
        "rollouts": rollouts,
    }


async def _found(
    inputs: Inputs, peer: Peer, rollouts: int, run: RunDirectory, ready: Assembled
) -> PeerResult:
    components = ready.components
    if components.optimizer is None:
        raise InputError(f"{peer.name} needs model.optimizer.")
    sizes = SplitSizes.of(inputs.task)
    run.events.emit(
        RunStarted.of(
            run.run_id,
            inputs.config,
            inputs.skill,
            {"train": sizes.train, "selection": sizes.selection},
        )
    )
    run.events.emit(ItemsRead(items=item_records(inputs.task)))
    seed = inputs.config.train.seed
    chosen = random.Random(seed).sample(
        inputs.task.selection, peer.selection_items(rollouts, inputs.available)
    )
    service = _PeerService(
        ready,
        components.optimizer,
        inputs.skill,
        {f"train-{at}": item for at, item in enumerate(inputs.task.train)},
        {f"selection-{at}": item for at, item in enumerate(chosen)},
        rollouts,
    )
    with components.decision("peer"):
        async with components.budget.sending():
            await _PeerConversation(peer, service, inputs).hold(seed)
    if service.best is None:
        raise PeerFailed(f"{peer.name} ended without a skill that it had measured.")
    found = {"initial": inputs.skill, peer.name: inputs.skill.with_body(service.best)}
    scores = [
        Measured(name, skill, tuple(chosen), tuple(service.measured[skill.hash])).record
        for name, skill in found.items()
        if skill.hash in service.measured
    ]
    if scores:
        run.events.emit(SkillsMeasured(split="selection", repeats=1, scores=scores))
    return PeerResult(service.best, service.used)


@dataclass(frozen=True, slots=True)
class _PeerTurn:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class _PeerQuestion:
    """What a peer asks for."""

    id: int
    do: Literal["roll_out", "complete", "best"]
    skill: str = ""
    items: tuple[str, ...] = ()
    messages: tuple[_PeerTurn, ...] = ()
    max_tokens: int | None = None


_QUESTIONS = TypeAdapter(_PeerQuestion)


@dataclass
class _PeerService:
    """Answers the questions of a peer."""

    ready: Assembled
    optimizer: Optimizer
    initial: Skill
    train: Mapping[str, Item]
    selection: Mapping[str, Item]
    rollouts: int
    used: int = 0  # rollouts
    calls: int = 0  # of the optimizer's model
    best: str | None = None
    stopped: bool = False  # the peer was told to stop, because it has used up what it may
    # Outcomes on selection items, by the hash of the skill.
    measured: defaultdict[str, list[Outcome]] = field(default_factory=lambda: defaultdict(list))
    _seen: Counter[str] = field(default_factory=Counter)

    async def answer(self, question: _PeerQuestion) -> dict[str, Any]:
        """Return the reply. Raises what ends the peer."""
        self.ready.components.check_stop()
        if question.do == "best":
            self.best = question.skill
            return {"value": None}
        if question.do == "complete":
            self.calls += 1
            self.stopped = self.stopped or self.calls > self.rollouts  # it asks without an end
        if self.stopped:
            return {"stop": True}
        if question.do == "complete":
            return await self._completed(question)
        return await self._rolled_out(question)

    def _number(self, *parts: str) -> int:
        """Count equal questions, so that each has an answer of its own."""
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        self._seen[key] += 1
        return self._seen[key] - 1

    async def _completed(self, question: _PeerQuestion) -> dict[str, Any]:
        messages = tuple(Message(turn.role, turn.content) for turn in question.messages)
        number = self._number(*(f"{turn.role}\0{turn.content}" for turn in question.messages))
        request = Request(
            messages,
            stage="peer",
            purpose=f"peer {number}",
            max_tokens=self.optimizer.reply_tokens(question.max_tokens),
        )
        try:
            async with self.optimizer.workers:
                return {"value": (await self.optimizer.model.complete(request)).text}
        except ModelError as error:
            if not can_be_lost(error.kind):
                raise
            return {"error": f"The call failed: {error.message}"}

    async def _rolled_out(self, question: _PeerQuestion) -> dict[str, Any]:
        items = [self.train.get(name) or self.selection[name] for name in question.items]
        if self.used + len(items) > self.rollouts:
            self.stopped = True
            return {"stop": True}
        self.used += len(items)
        arm = Arm(self.initial.with_body(question.skill))
        requests = [
            RolloutRequest(arm, item, self._number(arm.skill.hash, name))
            for name, item in zip(question.items, items, strict=True)
        ]
        outcomes = await self.ready.components.engine.run(requests, stage="evaluate", series="peer")
        raise_if_skipped(outcomes)
        if items and not any(outcome.score for outcome in outcomes):
            cause = next((one.failure.message for one in outcomes if one.failure), "")
            raise PeerFailed(f"No rollout that it asked for was scored. {cause}".strip())
        shown = []
        for name, item, outcome in zip(question.items, items, outcomes, strict=True):
            shown.append(self._shown(name, item, outcome))
            if name in self.selection:
                self.measured[arm.skill.hash].append(outcome)
        return {"value": shown}

    def _shown(self, name: str, item: Item, outcome: Outcome) -> dict[str, Any] | None:
        """Return what the peer learns of a rollout: of a selection item its score only."""
        if outcome.score is None:
            return None
        trains = name in self.train
        texts = {
            "trajectory": steps_text(outcome, trace=True),
            "verdict": verdict_text(outcome),
            "expected": expected_answer(item),
        }
        # Several are read in one prompt.
        most = min(_MOST_TEXT, self.optimizer.room(self.initial.body) * 3 // 16)
        steps = outcome.attempt.steps if outcome.attempt else ()
        return {
            "hard": outcome.score.hard,
            "soft": outcome.score.soft,
            "turns": sum(step.role == "assistant" for step in steps) or 1,
            **{key: head_and_tail(text, most) if trains else "" for key, text in texts.items()},
        }


@dataclass
class _PeerConversation:
    """Runs the process of a peer, and reads and answers its lines."""

    peer: Peer
    service: _PeerService
    inputs: Inputs
    _answering: set[asyncio.Task[dict[str, Any]]] = field(default_factory=set)
    _pending: AnswerPending | None = None  # handoff prompts that wait for answers

    async def hold(self, seed: int) -> None:
        """Run the peer to its end. Raises PeerFailed when it fails."""
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours, limit=_LONGEST_LINE)
        inherited = InheritedDescriptors([theirs.detach()])
        with scratch_folder("peer") as folder:
            process = asyncio.ensure_future(self._process(folder, inherited))
            try:
                writer.write(_line(self._work(seed)))
                ended = await self._read(reader, writer)
                if ended:
                    self._require_success(await process)
            except SkillfitError:
                await settle(self._answering)  # what is paid for is recorded
                raise
            finally:
                for task in (*self._answering, process):
                    task.cancel()
                await asyncio.wait({*self._answering, process})
                writer.close()

    async def _process(self, folder: Path, inherited: InheritedDescriptors) -> ProcessResult:
        package = self.peer.package
        try:
            return await run_untrusted(
                [sys.executable, "-I", str(_SCRIPT), *map(str, inherited.descriptors)],
                cwd=folder,
                timeout=_LONGEST,
                memory=_MEMORY,
                processes=_PROCESSES,
                readable=(_SCRIPT, *([package.parent] if package else [])),
                isolation=choose_isolation(self.inputs.config.env.sandbox, "env.sandbox"),
                inherited=inherited,
            )
        except SandboxNotStarted as error:
            raise PeerFailed(f"{self.peer.name}: {error.message}", hint=error.hint) from error
        finally:
            inherited.close()  # also where it was not started: then the connection ends too

    def _work(self, seed: int) -> dict[str, Any]:
        service = self.service
        return {
            "peer": self.peer.name,
            "path": [folder for folder in sys.path if Path(folder).is_absolute()],
            "skill": service.initial.unix_body,
            "train": [
                {"id": name, "input": item.input, "type": item.type}
                for name, item in service.train.items()
            ],
            "selection": list(service.selection),
            "rollouts": service.rollouts,
            "seed": seed,
        }

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer until the peer closes the connection. False: it was told to stop and went on."""
        line = asyncio.ensure_future(reader.readline())
        stopped = 0.0
        clock = asyncio.get_running_loop().time
        try:
            while True:
                wait: float | None = _SILENT
                if self.service.stopped:
                    stopped = stopped or clock()
                    wait = max(0.0, stopped + _ENDING - clock())
                elif self._answering:
                    wait = None
                elif self._pending:
                    wait = _MORE_PROMPTS
                done, _ = await asyncio.wait(
                    {line, *self._answering}, timeout=wait, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    return self._gave_up()
                for answered in [task for task in self._answering if task in done]:
                    self._answering.discard(answered)
                    self._send(writer, answered)
                if line in done:
                    if not (text := self._text(line)):
                        return True
                    self._begin(text)
                    line = asyncio.ensure_future(reader.readline())
        finally:
            line.cancel()

    def _gave_up(self) -> bool:
        if self._pending is not None:
            raise self._pending
        if not self.service.stopped:
            raise PeerFailed(f"{self.peer.name} did nothing for {duration(_SILENT)}.")
        return False

    def _text(self, line: asyncio.Future[bytes]) -> bytes:
        try:
            return line.result()
        except ValueError as error:
            raise PeerFailed(
                f"{self.peer.name} wrote a line of more than {_LONGEST_LINE >> 20} MB."
            ) from error
        except OSError:
            return b""  # it was killed

    def _begin(self, line: bytes) -> None:
        try:
            question = _QUESTIONS.validate_json(line)
            unknown = [
                name
                for name in question.items
                if name not in self.service.train and name not in self.service.selection
            ]
            if unknown:
                raise ValueError(f"there is no item {unknown[0]}")
        except (ValidationError, ValueError) as error:
            raise PeerFailed(f"{self.peer.name} asked for something unknown: {error}") from error
        if len(self._answering) >= _MOST_AT_ONCE:
            raise PeerFailed(f"{self.peer.name} asked more than {_MOST_AT_ONCE} questions at once.")
        task = asyncio.ensure_future(self.service.answer(question))
        task.set_name(str(question.id))
        self._answering.add(task)

    def _send(self, writer: asyncio.StreamWriter, task: asyncio.Task[dict[str, Any]]) -> None:
        try:
            reply = task.result()
        except AnswerPending as pending:
            self._pending = pending  # other threads of the peer may have questions too
            return
        with suppress(OSError):  # it has just ended
            writer.write(_line({"id": int(task.get_name()), **reply}))

    def _require_success(self, result: ProcessResult) -> None:
        if result.code == 0 or (self.service.stopped and self.service.best is not None):
            return
        said = (result.stderr or result.stdout).strip()
        how = f"reached its {result.killed}" if result.killed else f"ended with code {result.code}"
        raise PeerFailed(f"{self.peer.name} {how}: {last_part(said, _SHOWN) or 'it said nothing.'}")


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
