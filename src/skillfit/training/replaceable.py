"""The parts of a training run that users can replace: gate, proposer, batch sampler, executor.

Each is given from Python as an object, a class or a function, or named in the config. What the
checks before a run need to know about a part is asked of the part, not of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from skillfit.config import Config
from skillfit.errors import InputError
from skillfit.extensions import (
    PartDescription,
    build_part,
    check_methods,
    describe_part,
    find_extension,
    is_reference,
    missing_members,
    name_of,
)
from skillfit.gate import Arm, Gate, GateSettings, Measure, Verdict
from skillfit.optimize.proposer import Proposer, ProposerFactory, ProposerParts, asks_optimizer
from skillfit.rollout import Executor, Outcome
from skillfit.run.identity import ReplacedParts
from skillfit.tasks import Item, Task
from skillfit.tasks.item import weights_of
from skillfit.training.plan import BatchSampler, Plan, selection_passes
from skillfit.training.user_part import Problem, guarded

GATES = {
    "screening": "skillfit.gate.screening:ScreeningGate",
    "strict": "skillfit.gate.base:StrictGate",
}
PROPOSERS = {
    "reflect": "skillfit.optimize.proposer:AnalystProposer",
    "examples": "skillfit.optimize.proposer:ExampleProposer",
    "both": "skillfit.optimize.proposer:AnalystsAndExamples",
}
SAMPLERS = {
    "shuffled": "skillfit.training.plan:ShuffledBatches",
    "balanced": "skillfit.training.plan:BalancedBatches",
}
EXECUTORS = {
    "local": "skillfit.rollout.engine:LocalExecutor",
    "ray": "skillfit.plugins.ray_executor:RayExecutor",
}
GateFactory = Callable[[Measure, Sequence[Item], GateSettings], Gate]
ProposerLike = ProposerFactory | Proposer
SamplerLike = Callable[[], BatchSampler] | BatchSampler
ExecutorLike = Callable[..., Executor] | Executor


@dataclass(frozen=True, slots=True)
class Abilities:
    """What gate and proposer say about themselves that decides what a plan takes."""

    pools_edits: bool  # of the gate
    asks_optimizer: bool  # whether the proposer may call the optimizer's model

    @classmethod
    def of(cls, gate: Gate, proposer: Proposer) -> Abilities:
        return cls(gate.pools_edits, asks_optimizer(proposer))


BUILT_IN_ABILITIES = Abilities(pools_edits=True, asks_optimizer=True)  # screening and reflect


@dataclass(frozen=True, slots=True)
class Replaced:
    """Parts given from Python. None: the config names the part."""

    gate: GateFactory | None = None
    proposer: ProposerLike | None = None
    sampler: SamplerLike | None = None
    executor: ExecutorLike | None = None


@dataclass(frozen=True, slots=True)
class RunParts:
    """Finds and builds the replaceable parts of one run."""

    config: Config
    given: Replaced = Replaced()

    def gate(self, measure: Measure, items: Sequence[Item], settings: GateSettings) -> Gate:
        make, source = self._find_gate()
        if not isinstance(make, type) and not missing_members(make, Gate):
            raise InputError(
                f"The gate {source} is an object, and a gate is made for the rollouts of one run.",
                hint="Give its class, or a function (measure, items, settings) -> gate.",
            )
        gate = build_part("gate", make, Gate, measure, items, settings, source=source)

        def wrong_winner(verdict: Verdict, *_: Any) -> str:
            is_incumbent = verdict.winner.hash == gate.incumbent.hash
            return "" if is_incumbent else "a winner that is not the gate's incumbent"

        checks: dict[str, Problem] = {"assign": _wrong_count, "decide": wrong_winner}
        return cast(Gate, guarded("gate", gate, Gate, source, checks))

    def pools_edits(self, items: Sequence[Item], settings: GateSettings) -> bool:
        """Whether the gate pools edits."""
        return self._gate_says("pools_edits", items, settings)

    def checks_must_pass(self, items: Sequence[Item], settings: GateSettings) -> bool:
        """Whether the gate applies `evaluation.must_pass`; False unless it says so."""
        return self._gate_says("checks_must_pass", items, settings)

    def _gate_says(self, what: str, items: Sequence[Item], settings: GateSettings) -> bool:
        """A class says it; where a function makes the gate, the gate is asked."""
        said = getattr(self._find_gate()[0], what, None)
        if not isinstance(said, bool):
            said = getattr(self.gate(_no_rollouts, items, settings), what, False)
        return bool(said)

    def proposer(self, parts: ProposerParts) -> Proposer:
        found, source = self._find_proposer()
        proposer = build_part("proposer", found, Proposer, parts, source=source)
        return cast(Proposer, guarded("proposer", proposer, Proposer, source))

    @property
    def needs_optimizer(self) -> bool:
        """Whether the proposer cannot do without the optimizer's model."""
        return bool(getattr(self._find_proposer()[0], "needs_optimizer", False))

    @property
    def needs_patch_mode(self) -> bool:
        """Whether the proposer's edits have no effect when the optimizer rewrites the skill."""
        return bool(getattr(self._find_proposer()[0], "needs_patch_mode", False))

    def sampler(self) -> BatchSampler:
        found, source = self._find(
            "sampler", self.given.sampler, self.config.train.sampler, SAMPLERS, "train.sampler"
        )
        sampler = build_part("sampler", found, BatchSampler, source=source)
        checks = {"plan": _no_steps}
        return cast(BatchSampler, guarded("sampler", sampler, BatchSampler, source, checks))

    def executor(self) -> Executor:
        """An executor with an address (`ray://HOST:PORT`) is made with it, others without
        arguments.
        """
        address = self.config.executor
        arguments = (address,) if "://" in address and self.given.executor is None else ()
        found, source = self._find_executor()
        executor = build_part("executor", found, Executor, *arguments, source=source)
        return cast(Executor, guarded("executor", executor, Executor, source))

    def abilities(self, items: Sequence[Item], settings: GateSettings) -> Abilities:
        """What the gate and the proposer say about themselves."""
        return Abilities(
            self.pools_edits(items, settings), asks_optimizer(self._find_proposer()[0])
        )

    def check(self, items: Sequence[Item], settings: GateSettings) -> None:
        """Raise an error for a part that cannot be found or made, before anything is spent.

        Proposer and executor are not made here: the one may use the optimizer's model, and the
        other may connect to a cluster.
        """
        self.gate(_no_rollouts, items, settings)
        self.sampler()
        for kind, protocol, (found, source) in (
            ("proposer", Proposer, self._find_proposer()),
            ("executor", Executor, self._find_executor()),
        ):
            if isinstance(found, type):
                check_methods(kind, found, protocol, source)

    def describe(
        self, agent: PartDescription | None, ship_grader: PartDescription | None
    ) -> ReplacedParts:
        """What tells the parts from others of the same name, for the run's identity."""
        config, given = self.config, self.given
        return ReplacedParts(
            gate=describe_part(given.gate, config.evaluation.gate, self._base),
            proposer=describe_part(given.proposer, config.optimizer.proposer, self._base),
            sampler=describe_part(given.sampler, config.train.sampler, self._base),
            agent=agent,
            ship_grader=ship_grader,
        )

    @property
    def _base(self) -> Path:
        return Path(self.config.env.folder)

    def _find_gate(self) -> tuple[Any, str]:
        name = self.config.evaluation.gate
        return self._find("gate", self.given.gate, name, GATES, "evaluation.gate")

    def _find_proposer(self) -> tuple[Any, str]:
        name = self.config.optimizer.proposer
        return self._find("proposer", self.given.proposer, name, PROPOSERS, "optimizer.proposer")

    def _find_executor(self) -> tuple[Any, str]:
        name = self.config.executor.partition("://")[0]
        return self._find("executor", self.given.executor, name, EXECUTORS, "executor")

    def _find(
        self, kind: str, given: Any, name: str, built_in: Mapping[str, str], setting: str
    ) -> tuple[Any, str]:
        """What was given from Python or is named in the config, and its name for messages."""
        if given is not None:
            return given, name_of(given)
        found = find_extension(kind, name, built_in, self._base, setting=setting)
        return found, Path(name).name if is_reference(name) else name


async def _no_rollouts(
    arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
) -> list[Outcome]:
    raise RuntimeError("A gate may run rollouts only after it was made.")


def _wrong_count(arms: Sequence[Arm], name: str, items: Sequence[Item], repeats: int) -> str:
    rollouts = len(items) * repeats
    return "" if len(arms) == rollouts else f"{len(arms)} arms for {rollouts} rollouts"


def _no_steps(plan: Plan, *_: Any) -> str:
    empty = not plan.epochs or any(not epoch.steps for epoch in plan.epochs)
    return "an epoch without steps" if empty else ""


def gate_settings(config: Config, task: Task) -> GateSettings:
    """The config, and what a gate is told of the task."""
    passes = selection_passes(len(task.selection))
    return GateSettings(config, weights_of(task.items), passes=passes)
