"""From a config to the components of a run: the one place that knows every package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from skillfit.agents import Agent, build_agent
from skillfit.agents.agent import AgentPerModel
from skillfit.agents.tools import ToolsAgent
from skillfit.config import Config
from skillfit.errors import TaskFailure
from skillfit.extensions import PartDescription
from skillfit.gate import LeakIndex, TextFilter
from skillfit.models import Limiters, Model, ModelSpec, Prices, Role, Usage, connect
from skillfit.models.failures import policy_of
from skillfit.models.protocol import AnswerPending, ModelError
from skillfit.models.providers.handoff import pending_error
from skillfit.models.registry import refuse_unknown_provider
from skillfit.optimize.optimizer import REPLY_TOKENS, Optimizer
from skillfit.optimize.proposer import OptimizerModel, ProposerParts
from skillfit.record.lists import kept_card
from skillfit.rollout import Executor, RolloutEngine
from skillfit.rollout.engine import RolloutMeter, refuse_unseen_usage
from skillfit.run.budget import Budget, Cap, refuse_unpriced
from skillfit.run.control import Control, Interrupted, RecordedRequests
from skillfit.run.directory import RunDirectory
from skillfit.run.events import Event, Stored, Warned
from skillfit.run.journal import Losses, RecordedModel
from skillfit.run.paid import PaidEffects
from skillfit.run.store import HANDOFF
from skillfit.sandbox.known_good import prove
from skillfit.sandbox.programs import choose_isolation
from skillfit.skill import Skill
from skillfit.skill.parts import part_texts
from skillfit.tasks import Task
from skillfit.tasks.graders import all_patterns
from skillfit.tasks.item import Attempt, Grader, Item, Score
from skillfit.tasks.task import grade_with_retries
from skillfit.training.inputs import Inputs
from skillfit.training.part_filter import PartFilter, known_good_script, refuse_missing_check
from skillfit.training.state import (
    Components,
    CountedModel,
    SelectionRollouts,
    count_usage,
)

Listener = Callable[[Stored], None]


@dataclass(frozen=True, slots=True)
class Assembled:
    """A run that is ready to start."""

    components: Components
    directory: RunDirectory
    probes: Sequence[tuple[Role, Model]]  # the connected models, for the preflight's small calls


@asynccontextmanager
async def assemble(
    inputs: Inputs,
    directory: RunDirectory,
    listeners: Sequence[Listener] = (),
    control: Control | None = None,
) -> AsyncIterator[Assembled]:
    """Connect models, agent, gate and optimizer; close them at the end."""
    config, control = inputs.config, control or Control()
    async with _open(inputs, directory, listeners, control) as (models, engine, ship_engine):
        recorded = (
            models.connect("optimizer", config.model.optimizer) if config.model.optimizer else None
        )
        counted = CountedModel(recorded, control.check) if recorded is not None else None
        optimizer = _optimizer(config, counted, directory) if counted is not None else None
        index = partial(_leak_index, inputs) if config.evaluation.leak_check else None
        gate = inputs.gate.take(SelectionRollouts(engine))
        paid = PaidEffects(directory.journal, models.budget, check=control.check, count=count_usage)

        @contextmanager
        def decision(name: str) -> Iterator[Losses]:
            with directory.journal.decision(name) as losses:
                yield losses
                control.check()  # what a stop cut short is tried again on resume

        async def no_calls() -> None:
            return None

        components = Components(
            config=config,
            path=directory.path,
            task=inputs.task,
            initial=inputs.skill,
            schedule=inputs.schedule(gate),
            engine=engine,
            ship_task=inputs.ship_task,
            ship_engine=ship_engine,
            gate=gate,
            gate_settings=inputs.gate.settings,
            optimizer=optimizer,
            calls_settled=counted.settled if counted is not None else no_calls,
            proposer=inputs.parts.build_proposer(
                ProposerParts(
                    optimizer,
                    inputs.task.train,
                    config.optimizer,
                    directory.events.emit,
                    paid,
                    models.of_optimizer(),
                )
            ),
            text_filter=TextFilter(index, directory.events.emit, config.optimizer.max_skill_tokens),
            part_filter=await _part_filter(config, inputs.skill, paid, directory.events.emit),
            emit=directory.events.emit,
            check_stop=control.check,
            decision=decision,
            journal=directory.journal,
            budget=models.budget,
            requests=RecordedRequests(directory.journal, directory.path),
        )
        yield Assembled(components, directory, models.clients)


async def _part_filter(
    config: Config, skill: Skill, paid: PaidEffects, emit: Callable[[Event], None]
) -> PartFilter:
    """Make the filter of edits. Where scripts are trained, one that must work is tried first."""
    isolation = None
    if "scripts" in config.optimizer.parts:
        refuse_missing_check(config.optimizer, skill)
        isolation = choose_isolation(config.env.sandbox, "env.sandbox")
        await prove(known_good_script(isolation))
    return PartFilter(config.optimizer, isolation, paid, emit)


@asynccontextmanager
async def open_engine(
    inputs: Inputs,
    directory: RunDirectory,
    listeners: Sequence[Listener] = (),
    control: Control | None = None,
    budgets: list[Budget] | None = None,
) -> AsyncIterator[RolloutEngine]:
    """Yield the rollout engine alone, for commands that only measure.

    A command that measures in several runs hands them one list of `budgets`, so that the caps hold
    for all together.
    """
    async with _open(inputs, directory, listeners, control or Control(), budgets) as (_, engine, _):
        yield engine


@asynccontextmanager
async def _open(
    inputs: Inputs,
    directory: RunDirectory,
    listeners: Sequence[Listener],
    control: Control,
    budgets: list[Budget] | None = None,
) -> AsyncIterator[tuple[_Models, RolloutEngine, RolloutEngine | None]]:
    """Yield the models, the rollout engine, and that of the ship test if it has its own grader."""
    for listener in listeners:
        directory.events.listen(listener)
    async with AsyncExitStack() as resources:
        resources.enter_context(kept_card(directory.journal, directory.events))
        control.read_usage = directory.journal.spent
        models = _Models(inputs.config, directory, resources, budgets)
        for role, deferred in inputs.deferred.items():
            deferred.bind(models.connect(role, deferred.spec))
        if inputs.task.evaluator is not None:
            await resources.enter_async_context(inputs.task.evaluator.opened(directory.path))
        agent = inputs.agent or _agent(inputs, models)
        await _prove_programs(inputs, agent)
        ship_task = _ship_task_with_both_graders(inputs)
        engine = _engine(inputs, inputs.task, agent, models, directory)
        ship_engine = _engine(inputs, ship_task, agent, models, directory) if ship_task else None
        control.on_stop(lambda: models.budget.stop(Interrupted()))
        for one in filter(None, (engine, ship_engine)):
            control.on_stop(one.stop)
            resources.push_async_callback(one.close)
        try:
            yield models, engine, ship_engine
        except AnswerPending as first:
            raise pending_error(directory.path / HANDOFF) from first


async def _prove_programs(inputs: Inputs, agent: Agent | None) -> None:
    """Raise why programs of right answers, or commands of the agent, would fail on this machine.
    Nothing is spent before.
    """
    tasks = [task for task in (inputs.task, inputs.ship_task) if task is not None]
    known = [program for task in tasks for program in task.known_good()]
    agents = agent.agents.values() if isinstance(agent, AgentPerModel) else (agent,)
    modules = [module for one in known for module in one.modules]
    known += [one.known_good(modules) for one in agents if isinstance(one, ToolsAgent)][:1]
    for program in known:
        await prove(program)


class _Models:
    """Connects the models of a run. All share one budget and the limiters of their endpoints."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        resources: AsyncExitStack,
        budgets: list[Budget] | None = None,
    ) -> None:
        caps = config.budget
        self._config, self._directory, self._resources = config, directory, resources
        self.prices = Prices(config.model.prices)
        self._limiters = Limiters()
        self.clients: list[tuple[Role, Model]] = []
        for spec in (*config.model.by_role().values(), *config.model.agents):
            refuse_unknown_provider(spec.id)  # before its price is missed
        specs = [*config.model.by_role().values(), *config.model.agents[1:]]
        # A command-line agent may know its price itself: `refuse_unseen_usage` looks at it.
        if config.model.agent is not None and config.model.agent.is_cli:
            specs = [spec for spec in specs if not spec.is_cli]
        refuse_unpriced(caps, [spec.id for spec in specs if self.prices.of(spec.id) is None])
        self.caps = caps
        self.budget = Budget(caps, directory.journal, together=budgets, on_warning=self._warn)
        resources.callback(self.budget.close)

    def with_agent_price(self, usage: Usage) -> Usage:
        """Return what a program used with its dollars: as it reports them, else by the price of its
        model.
        """
        spec = self._config.model.agent
        return (
            usage if usage.usd is not None or spec is None else self.prices.priced(spec.id, usage)
        )

    def rollout_meter(self, task: Task, agent: Agent | None) -> RolloutMeter:
        """Make the meter for an agent or evaluator whose model calls skillfit does not see. Raises
        when a cap could not be held for it.
        """
        spec, usd = self._config.model.agent, self._config.env.rollout_usd
        reports = task.evaluator.reports if task.evaluator is not None else frozenset()
        name = "the task's own evaluation"
        if task.evaluator is None and agent is not None:
            reports, name = agent.reports, spec.id if spec is not None else "your agent"
        specs = self._config.model.agents or ((spec,) if spec is not None else ())
        has_price = bool(specs) and all(self.prices.of(one.id) is not None for one in specs)
        refuse_unseen_usage(self.caps, name, reports, has_price=has_price, usd_per_rollout=usd)
        return RolloutMeter(
            self.budget,
            price=self.with_agent_price,
            capped=self.caps.usd is not None or self.caps.tokens is not None,
            limits_itself=agent is not None and agent.limits_itself,
            usd_per_rollout=usd,
        )

    def of_optimizer(self) -> OptimizerModel | None:
        """Return the settings of the optimizer's model; None where there is none."""
        spec = self._config.model.optimizer
        return OptimizerModel(spec, self.prices, self._config.env.sandbox) if spec else None

    def _warn(self, cap: Cap, percent: int, message: str) -> None:
        if cap != "rollouts":  # the run is planned to use these
            self._directory.events.emit(Warned(what=f"budget {cap} {percent}", message=message))

    def connect(self, role: Role, spec: ModelSpec) -> RecordedModel:
        client = connect(
            spec,
            role=role,
            run_id=self._directory.run_id,
            meter=self.budget,
            limiters=self._limiters,
            prices=self.prices,
            concurrency=self._config.model.concurrency,
            notice=lambda message: self._directory.events.emit(
                Warned(what=f"{role} model: {message}", message=message)
            ),
            folder=self._directory.path / HANDOFF,
        )
        self._resources.push_async_callback(client.close)
        self.clients.append((role, client))
        return RecordedModel(client, self._directory.journal, role)


def _agent(inputs: Inputs, models: _Models) -> Agent | None:
    config, spec = inputs.config, inputs.config.model.agent
    if spec is None or inputs.task.evaluator is not None:
        return None
    if config.model.agents:
        specs = config.model.by_name()
        agents = {name: _agent_of(one, inputs, models) for name, one in specs.items()}
        return AgentPerModel(
            agents, lambda name, usage: models.prices.priced(specs[name].id, usage)
        )
    return _agent_of(spec, inputs, models)


def _agent_of(spec: ModelSpec, inputs: Inputs, models: _Models) -> Agent:
    is_program = inputs.config.agent_kind == "cli"
    model = None if is_program else models.connect("agent", spec)
    return (inputs.task.build_agent or build_agent)(inputs.config.env, spec, model)


def _engine(
    inputs: Inputs, task: Task, agent: Agent | None, models: _Models, directory: RunDirectory
) -> RolloutEngine:
    """Make the rollout engine. It meters whole rollouts where skillfit does not see the model
    calls.
    """
    config = inputs.config
    in_sight = "agent" in inputs.deferred or (
        agent is not None and agent.recorded and task.evaluator is None
    )
    executor = inputs.parts.build_executor()
    return RolloutEngine(
        task,
        agent,
        directory.journal,
        directory.events,
        config=config,
        executor=executor,
        meter=None if in_sight else models.rollout_meter(task, agent),
        count_rollout=models.budget.rollout,
        max_in_flight=_most_in_flight(agent, executor, config.model.concurrency),
    )


def _most_in_flight(agent: Agent | None, executor: Executor, concurrency: int) -> int:
    """Return how many rollouts may run at the same time. `model.concurrency` limits requests; a
    rollout that waits or is graded needs no request slot. A program is limited by the machine too.
    """
    slots = agent.slots(executor.cores) if agent is not None else None
    return 2 * concurrency if slots is None else min(concurrency, slots)


@dataclass(frozen=True, slots=True)
class BothGraders:
    """Grades with the ship grader, and with the training grader on the same attempt.

    The ship grader decides. When the training grader fails, the rollout is kept without its score,
    unless the failure ends the run or waits for an answer.
    """

    ship: Grader
    training: Grader

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        score = await self.ship.grade(item, attempt)
        try:
            by_training = await grade_with_retries(self.training, item, attempt)
        except (ModelError, TaskFailure) as failure:
            policy = policy_of(failure)
            if policy.fatal or policy.pending:
                raise
            return score
        return replace(score, trained=(by_training.hard, by_training.soft))

    def patterns(self) -> tuple[str, ...]:
        return (*self.ship.patterns(), *self.training.patterns())

    def describe(self) -> PartDescription:
        return self.ship.describe()


def _ship_task_with_both_graders(inputs: Inputs) -> Task | None:
    """Return the task of the ship test, under both graders."""
    task, training = inputs.ship_task, inputs.task.grader
    if task is None or task.grader is None or training is None:
        return task
    return task.with_grader(BothGraders(task.grader, training))


def _optimizer(config: Config, model: Model, directory: RunDirectory) -> Optimizer:
    spec = config.model.optimizer
    return Optimizer(
        model,
        directory.events.emit,
        asyncio.Semaphore(config.gradient.analyst_workers),
        config.gradient,
        config.optimizer,
        (spec.max_tokens if spec else None) or REPLY_TOKENS,
    )


def _leak_index(inputs: Inputs) -> LeakIndex:
    task = inputs.task
    graders = [each.grader for each in (task, inputs.ship_task) if each and each.grader]
    patterns = [pattern for grader in graders for pattern in all_patterns(grader, task.items)]
    hidden = [*task.selection, *task.test]
    known = "\n".join([inputs.skill.text, *part_texts(inputs.skill).values()])
    return LeakIndex.build(task.train, hidden, patterns, known)
