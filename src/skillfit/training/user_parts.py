"""The parts of a training run that users can replace: gate, proposer, batch sampler, executor.

Each is given from Python as an object, a class or a function, or named in the config. `RunParts`
finds and builds them. What the checks before a run need to know about a part is asked of the part,
not of its name.

A user's part is guarded: when it raises an exception or returns something else than it must, the
error names it. skillfit's own parts are not: an exception in one of them is a bug of skillfit and
must look like one.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from traceback import FrameSummary, StackSummary
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import skillfit
from skillfit.config import Config
from skillfit.errors import InputError, SkillfitError
from skillfit.extensions import (
    PartDescription,
    build_part,
    check_methods,
    describe_part,
    find_extension,
    is_built_in,
    is_reference,
    missing_members,
    name_of,
)
from skillfit.gate import Arm, Gate, GateSettings, Measure, Verdict
from skillfit.gate.base import BaseGate, NotMeasured, WrongResult, has_rule
from skillfit.optimize.optimizer import Patch
from skillfit.optimize.proposer import (
    Proposals,
    Proposer,
    ProposerFactory,
    ProposerParts,
    optimizer_use,
)
from skillfit.rollout import Executor, Outcome
from skillfit.run.directory import PartKind
from skillfit.skill import Edit
from skillfit.tasks import Item, Task
from skillfit.tasks.item import weights_of
from skillfit.training.plan import BatchSampler, Plan
from skillfit.training.state import current_step

GATES = {
    "screening": "skillfit.gate.screening:ScreeningGate",
    "strict": "skillfit.gate.base:StrictGate",
}
PROPOSERS = {
    "reflect": "skillfit.optimize.proposer:AnalystProposer",
    "examples": "skillfit.optimize.proposer:ExampleProposer",
    "both": "skillfit.optimize.proposer:AnalystsAndExamples",
    "corpus": "skillfit.optimize.corpus:CorpusProposer",
    "agent": "skillfit.optimize.agent_proposer:AgentProposer",
}
SAMPLERS = {
    "shuffled": "skillfit.training.plan:ShuffledBatches",
    "balanced": "skillfit.training.plan:BalancedBatches",
}
EXECUTORS = {
    "local": "skillfit.rollout.engine:LocalExecutor",
    "ray": "skillfit.plugins.ray.executor:RayExecutor",
}
FIX = "Fix its code; --debug shows the traceback."
_FIX_RESULT = "Fix its code (docs/extending.md)."
_PACKAGE = Path(skillfit.__file__).parent

GateFactory = Callable[[Measure, Sequence[Item], GateSettings], Gate]
ProposerLike = ProposerFactory | Proposer
SamplerLike = Callable[[], BatchSampler] | BatchSampler
ExecutorLike = Callable[..., Executor] | Executor
ResultCheck = Callable[..., str]  # of a result and the arguments that led to it; empty: none


class UnusedGate:
    """The gate of a run before the run starts. Checks and schedule ask it what it can do; the first
    run takes it. A later run of the same inputs gets a new one.
    """

    def __init__(
        self,
        build: Callable[[Measure, Sequence[Item], GateSettings], Gate],
        items: Sequence[Item],
        settings: GateSettings,
    ) -> None:
        self._build, self._items, self.settings = build, items, settings
        self._measure = _LaterMeasure()

    @cached_property
    def gate(self) -> Gate:
        return self._build(self._measure, self._items, self.settings)

    def take(self, measure: Measure) -> Gate:
        """Return a gate that measures with `measure`."""
        if self._measure.measure is not None:
            return self._build(measure, self._items, self.settings)
        self._measure.measure = measure
        return self.gate


class _LaterMeasure:
    """The rollouts of a run that starts later."""

    def __init__(self) -> None:
        self.measure: Measure | None = None

    def __call__(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> Coroutine[Any, Any, list[Outcome]]:
        if self.measure is None:
            raise RuntimeError("A gate may run rollouts only in a run.")
        return self.measure(arms, repeat=repeat, series=series)


@dataclass(frozen=True, slots=True)
class GivenParts:
    """Parts given from Python. None: the config names the part."""

    gate: GateFactory | None = None
    proposer: ProposerLike | None = None
    sampler: SamplerLike | None = None
    executor: ExecutorLike | None = None


@dataclass(frozen=True, slots=True)
class RunParts:
    """Finds and builds the replaceable parts of one run. Each call of a `build` method makes a new
    part, and raises InputError for one that cannot be found or made.
    """

    config: Config
    given: GivenParts = GivenParts()

    def build_gate(self, measure: Measure, items: Sequence[Item], settings: GateSettings) -> Gate:
        make, source = self._find_gate()
        if not isinstance(make, type) and not missing_members(make, Gate):
            raise InputError(
                f"The gate {source} is an instance, and each run needs a gate of its own.",
                hint="Pass a gate class, or a function (measure, items, settings) -> gate.",
            )
        gate = build_part("gate", make, Gate, measure, items, settings, source=source)
        if isinstance(gate, BaseGate) and not has_rule(gate):
            raise InputError(
                f"The gate {source} has no rule: it defines neither decide nor judge.",
                hint="Define decide(self, new, old), which returns a Ruling (docs/extending.md).",
            )

        def wrong_winner(verdict: Verdict | None, *_: Any) -> str:
            is_incumbent = verdict is None or verdict.winner.hash == gate.incumbent.hash
            return "" if is_incumbent else "a winner that is not the gate's incumbent"

        checks: dict[str, ResultCheck] = {"assign": _wrong_count, "decide": wrong_winner}
        return cast(Gate, guarded("gate", gate, Gate, source, checks))

    def build_proposer(self, parts: ProposerParts) -> Proposer:
        found, source = self._find_proposer()
        proposer = build_part("proposer", found, Proposer, parts, source=source)
        checks = {} if parts.settings.skill_update_mode != "patch" else {"propose": _not_edits}
        return cast(Proposer, guarded("proposer", proposer, Proposer, source, checks))

    @property
    def needs_optimizer(self) -> bool:
        """Whether the proposer cannot do without the optimizer's model."""
        return optimizer_use(self._find_proposer()[0]) == "required"

    @property
    def needs_patch_mode(self) -> bool:
        """Whether the proposer's edits have no effect when the optimizer rewrites the skill."""
        return bool(getattr(self._find_proposer()[0], "needs_patch_mode", False))

    @property
    def writes_notes(self) -> bool:
        """Whether the proposer may write appendix notes."""
        return bool(getattr(self._find_proposer()[0], "writes_notes", True))

    def build_sampler(self) -> BatchSampler:
        found, source = self._find(
            "sampler", self.given.sampler, self.config.train.sampler, SAMPLERS, "train.sampler"
        )
        sampler = build_part("sampler", found, BatchSampler, source=source)
        checks = {"plan": _no_steps}
        return cast(BatchSampler, guarded("sampler", sampler, BatchSampler, source, checks))

    def build_executor(self) -> Executor:
        """Make the executor: one with an address (`ray://HOST:PORT`) with it, others without
        arguments.
        """
        address = self.config.executor
        arguments = (address,) if "://" in address and self.given.executor is None else ()
        found, source = self._find_executor()
        executor = build_part("executor", found, Executor, *arguments, source=source)
        return cast(Executor, guarded("executor", executor, Executor, source))

    @property
    def asks_optimizer(self) -> bool:
        """Whether the proposer may call the optimizer's model."""
        return optimizer_use(self._find_proposer()[0]) != "never"

    def check(self, gate: UnusedGate) -> None:
        """Raise an error for a part that cannot be found or made, before anything is spent.

        Proposer and executor are not made here: the one may use the optimizer's model, and the
        other may connect to a cluster.
        """
        _ = gate.gate
        self.build_sampler()
        for kind, protocol, (found, source) in (
            ("proposer", Proposer, self._find_proposer()),
            ("executor", Executor, self._find_executor()),
        ):
            if isinstance(found, type):
                check_methods(kind, found, protocol, source)

    def describe(self) -> dict[str, PartDescription | None]:
        """Return what tells the parts from others of the same name, for the run's identity; None
        for a part that its setting describes. The executor is left out: where rollouts run does
        not change the results.
        """
        config, given = self.config, self.given
        return {
            "gate": describe_part(given.gate, config.evaluation.gate, self._base),
            "proposer": describe_part(given.proposer, config.proposer, self._base),
            "sampler": describe_part(given.sampler, config.train.sampler, self._base),
        }

    @property
    def _base(self) -> Path:
        return Path(self.config.env.folder)

    def _find_gate(self) -> tuple[Any, str]:
        name = self.config.evaluation.gate
        if name == "screening" and not self.config.evaluation.use_gate:
            name = "strict"  # nothing is decided about edits, so whole skills are measured
        return self._find("gate", self.given.gate, name, GATES, "evaluation.gate")

    def _find_proposer(self) -> tuple[Any, str]:
        name = self.config.proposer
        return self._find("proposer", self.given.proposer, name, PROPOSERS, "optimizer.proposer")

    def _find_executor(self) -> tuple[Any, str]:
        name = self.config.executor.partition("://")[0]
        return self._find("executor", self.given.executor, name, EXECUTORS, "executor")

    def _find(
        self, kind: PartKind, given: Any, name: str, built_in: Mapping[str, str], setting: str
    ) -> tuple[Any, str]:
        """Return what was given from Python or is named in the config, and its name for
        messages.
        """
        if given is not None:
            return given, name_of(given)
        found = find_extension(kind, name, built_in, self._base, setting=setting)
        return found, Path(name).name if is_reference(name) else name


def gate_settings(config: Config, task: Task) -> GateSettings:
    """Return the config, and what a gate is told of the task."""
    return GateSettings(config, weights_of(task.items))


def _wrong_count(
    arms: Sequence[Arm], name: str, items: Sequence[Item], repeats: int, *_: Any
) -> str:
    rollouts = len(items) * repeats
    return "" if len(arms) == rollouts else f"{len(arms)} arms for {rollouts} rollouts"


def _not_edits(found: Proposals | Sequence[Patch], *_: Any) -> str:
    """Refuse suggestions and whole skills, which nothing applies in the mode patch."""
    patches = found.patches if isinstance(found, Proposals) else found
    for patch in patches:
        for proposal in patch.proposals:
            if not isinstance(proposal.payload, Edit):
                kind = type(proposal.payload).__name__
                return f"a {kind}, but optimizer.skill_update_mode: patch applies only Edits"
    return ""


def _no_steps(plan: Plan, *_: Any) -> str:
    empty = not plan.epochs or any(not epoch.steps for epoch in plan.epochs)
    return "an epoch without steps" if empty else ""


class PartFailed(InputError):
    """A user's part raised an exception or returned something else than it must. What was paid for
    is saved: the run can be resumed after the part is fixed.
    """

    def __init__(self, kind: PartKind, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind

    def in_run(self, run: Path, *, from_python: bool) -> PartFailed:
        """Return the same with how to continue. `from_python`: the part was not named in the
        config.
        """
        how = (
            "Call train again to resume." if from_python else f"Resume with: skillfit resume {run}"
        )
        hint = f"{self.hint} Everything so far is saved. {how}"
        return PartFailed(self.kind, self.message, hint=hint)


def guarded(
    kind: PartKind,
    part: Any,
    protocol: type,
    source: str,
    checks: Mapping[str, ResultCheck] | None = None,
) -> Any:
    """Return the part, guarded if it is a user's. `source` is what the user wrote, for messages.
    `checks` has more checks of results, by method; types are checked for all.
    """
    if is_built_in(part):
        return part
    file = getattr(sys.modules.get(type(part).__module__), "__file__", None) or ""
    return _GuardedPart(_Origin(kind, source, file), part, protocol, checks or {})


@dataclass(frozen=True, slots=True)
class _Origin:
    kind: PartKind
    source: str  # what the user wrote
    file: str  # empty: the part's class was written in a notebook


class _GuardedPart:
    """Passes everything on to a user's part. Members of the protocol are guarded, and so are the
    judgements that a gate begins.
    """

    def __init__(
        self, origin: _Origin, part: Any, protocol: type, checks: Mapping[str, ResultCheck]
    ) -> None:
        self._origin, self._part, self._protocol = origin, part, protocol
        self._checks = checks

    def __getattr__(self, name: str) -> Any:
        expected = inspect.getattr_static(self._protocol, name, None)
        if expected is None:
            return getattr(self._part, name)
        if isinstance(expected, property):
            with self._errors():
                value = getattr(self._part, name)
            return self._checked(name, value, expected.fget)
        call = self._await if inspect.iscoroutinefunction(expected) else self._call
        return partial(call, name, expected)

    def _call(self, name: str, expected: Any, *arguments: Any, **named: Any) -> Any:
        with self._errors():
            result = getattr(self._part, name)(*arguments, **named)
        return self._checked(name, result, expected, arguments)

    async def _await(self, name: str, expected: Any, *arguments: Any, **named: Any) -> Any:
        with self._errors():
            result = await getattr(self._part, name)(*arguments, **named)
        return self._checked(name, result, expected, arguments)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Name the part in its errors; skillfit's own (budget, Ctrl-C, of models) pass through."""
        try:
            yield
        except (SkillfitError, NotMeasured):
            raise
        except WrongResult as error:
            where = _definition(error.method)
            raise self._failed(f"{error}{where}.", _FIX_RESULT) from error
        except (Exception, SystemExit) as error:
            what = f"{type(error).__name__}: {error}".removesuffix(": ")
            frames = traceback.extract_tb(error.__traceback__)
            place = _place(frames, self._origin.file)
            hint = FIX if place == frames[-1] else f"It was raised in {_shown(frames[-1])}. {FIX}"
            raise self._failed(f"{what} ({_shown(place)})", hint) from error

    def _checked(self, name: str, result: Any, expected: Any, arguments: Sequence[Any] = ()) -> Any:
        wanted = get_type_hints(expected)["return"]
        problem = ""
        if wanted is NoneType:
            return result  # it is not used
        if not _is_a(result, wanted):
            found = "None" if result is None else type(result).__name__
            problem = f"{found}, expected {_type_name(wanted)}"
        elif name in self._checks:
            problem = self._checks[name](result, *arguments)
        if problem:
            where = _definition(getattr(type(self._part), name, None))
            called = f"{name}()" if callable(getattr(type(self._part), name, None)) else name
            raise self._failed(f"{called} returned {problem}{where}.", _FIX_RESULT)
        if _is_protocol(wanted):
            return _GuardedPart(self._origin, result, wanted, self._checks)
        return result

    def _failed(self, what: str, hint: str) -> PartFailed:
        step = current_step()
        when = f" in step {step}" if step else ""
        message = f"The {self._origin.kind} {self._origin.source} failed{when}: {what}"
        return PartFailed(self._origin.kind, message, hint=hint)


def _place(frames: StackSummary, file: str) -> FrameSummary:
    """Return the line of the user's code that an exception comes from: the last one in the part's
    file, else the last one outside of skillfit, else the last one.
    """
    in_file = [frame for frame in frames if frame.filename == file]
    outside = [frame for frame in frames if _PACKAGE not in Path(frame.filename).parents]
    return (in_file or outside or frames)[-1]


def _shown(frame: FrameSummary) -> str:
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def _definition(member: Any) -> str:
    """Find where a user's method or property is defined, for the end of a message. Empty if
    skillfit defines it, or if it is not a function.
    """
    function: Any = member.fget if isinstance(member, property) else member
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or _PACKAGE in Path(code.co_filename).parents:
        return ""
    return f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"


def _is_a(value: Any, wanted: Any) -> bool:
    """Return whether a value has the type of an annotation, its elements included."""
    if get_origin(wanted) in (Union, UnionType):
        return any(_is_a(value, option) for option in get_args(wanted))
    if _is_protocol(wanted):
        return not missing_members(value, wanted)
    kind = get_origin(wanted) or wanted
    if kind is wanted or not issubclass(kind, Sequence):
        return isinstance(value, Real if kind is float else kind)
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return all(_is_a(element, get_args(wanted)[0]) for element in value)


def _is_protocol(wanted: Any) -> bool:
    return bool(getattr(wanted, "_is_protocol", False))


def _type_name(wanted: Any) -> str:
    """Return an annotation as people write it: `Proposals or a list of Patch`."""
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(_type_name(option) for option in get_args(wanted))
    if get_origin(wanted) is not None:
        return f"a list of {_type_name(get_args(wanted)[0])}"
    return "None" if wanted is NoneType else str(wanted.__name__)
