"""From a config to the parts of a run: the one place that knows every room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from skillfit.agents import Agent, build_agent
from skillfit.config import Config
from skillfit.errors import InputError
from skillfit.gate import GateSettings, LeakIndex
from skillfit.models import Limiters, Model, ModelSpec, Prices, Role, Usage, connect
from skillfit.models.protocol import AnswerPending
from skillfit.models.providers.handoff import waiting
from skillfit.optimize.optimizer import REPLY_TOKENS, Optimizer, OptimizeSettings
from skillfit.rollout.engine import Rollouts
from skillfit.rollout.executor import Executor, LocalExecutor
from skillfit.run.budget import Budget, BudgetWarning, Caps, Spending, refuse_unpriced
from skillfit.run.directory import RunDirectory
from skillfit.run.events import Stored, Warned
from skillfit.run.journal import RecordedModel
from skillfit.tasks import Task
from skillfit.tasks.graders import all_patterns
from skillfit.tasks.item import weights_of
from skillfit.training.ledger import CountedModel, Ledger
from skillfit.training.material import Material, read_material
from skillfit.training.parts import Control, Counts, Interrupted, Parts
from skillfit.training.screen import Screen
from skillfit.training.shipping import BothGraders
from skillfit.training.stage import Position

__all__ = ["Listener", "Material", "assemble", "open_rollouts", "read_material"]

HANDOFF = "handoff"  # the folder of a run where prompts wait for their answers
Listener = Callable[[Stored], None]


@asynccontextmanager
async def assemble(
    material: Material,
    run: RunDirectory,
    listeners: Sequence[Listener] = (),
    control: Control | None = None,
) -> AsyncIterator[Parts]:
    """The parts of the run, connected and ready; closed again at the end."""
    config, control, counts, ledger, at = (
        material.config,
        control or Control(),
        Counts(),
        Ledger(),
        Position(),
    )
    async with _open(material, run, [counts, *listeners], control) as (models, engines):
        recorded = (
            models.connect("optimizer", config.model.optimizer) if config.model.optimizer else None
        )
        admit = partial(control.admit, run.path)
        counted = CountedModel(recorded, ledger, admit) if recorded else None
        leaks = _leaks(material) if config.evaluation.leak_check else None
        yield Parts(
            config=config,
            run=run,
            task=material.task,
            initial=material.skill,
            plan=material.plan(),
            rollouts=engines[0],
            ship_task=material.ship_task,
            ship_rollouts=engines[1] if material.ship_task else None,
            optimizer=_optimizer(config, counted, run) if counted else None,
            recorded=recorded,
            probes=models.clients,
            screen=Screen(leaks, run.events.emit, at, config.optimizer.max_skill_tokens),
            ledger=ledger,
            budget=models.budget,
            gate_settings=_gate_settings(config, material.task),
            counts=counts,
            at=at,
            admit=admit,
        )


@asynccontextmanager
async def open_rollouts(
    material: Material,
    run: RunDirectory,
    listeners: Sequence[Listener] = (),
    control: Control | None = None,
    spending: Spending | None = None,
) -> AsyncIterator[Rollouts]:
    """The rollout engine alone, for those who only measure: no optimizer is connected, no splits
    are needed. A command that measures in several runs hands them one `spending`.
    """
    async with _open(material, run, listeners, control or Control(), spending) as (_, engines):
        yield engines[0]


@asynccontextmanager
async def _open(
    material: Material,
    run: RunDirectory,
    listeners: Sequence[Listener],
    control: Control,
    spending: Spending | None = None,
) -> AsyncIterator[tuple[_Models, list[Rollouts]]]:
    """The models, and a rollout engine for the task and for the same items under the second grader,
    where there is one.
    """
    for listener in listeners:
        run.events.listen(listener)
    async with AsyncExitStack() as closing:
        models = _Models(material.config, run, closing, spending)
        for role, late in material.late.items():
            late.arrive(models.connect(role, late.spec))
        if material.task.evaluator is not None:
            await closing.enter_async_context(material.task.evaluator.opened(run.path))
        agent = material.agent or _agent(material, models)
        engines = [
            _rollouts(material, task, agent, models, run)
            for task in (material.task, _shipping(material))
            if task
        ]
        control.on_stop(lambda: models.budget.stop(Interrupted(run.path)))
        for engine in engines:
            control.on_stop(engine.stop)
            closing.push_async_callback(engine.close)
        try:
            yield models, engines
        except AnswerPending as first:
            raise waiting(run.path / HANDOFF) from first


class _Models:
    """Connects the models of a run. All share one budget and the limiters of their endpoints."""

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        closing: AsyncExitStack,
        spending: Spending | None = None,
    ) -> None:
        caps = Caps(**config.budget.model_dump())
        self._config, self._run, self._closing = config, run, closing
        self._prices = Prices(config.model.prices)
        self._limiters = Limiters()
        self.clients: dict[Role, Model] = {}
        specs = [
            spec
            for spec in (config.model.agent, config.model.optimizer, config.model.judge)
            if spec is not None
        ]
        refuse_unpriced(caps, [spec.id for spec in specs if self._prices.of(spec.id) is None])
        self.budget = Budget(caps, run.journal, spending=spending, on_warning=self._warn)
        closing.callback(self.budget.close)

    def price_of_agent(self, usage: Usage) -> Usage:
        """What a program used, in dollars: its own word where it gives one, else by the price of
        its model.
        """
        spec = self._config.model.agent
        return (
            usage if usage.usd is not None or spec is None else self._prices.priced(spec.id, usage)
        )

    def _warn(self, warning: BudgetWarning) -> None:
        self._run.events.emit(
            Warned(what=f"budget {warning.cap} {warning.percent}", message=warning.message)
        )

    def connect(self, role: Role, spec: ModelSpec) -> RecordedModel:
        client = connect(
            spec,
            role=role,
            run_id=self._run.run_id,
            meter=self.budget,
            limiters=self._limiters,
            prices=self._prices,
            concurrency=self._config.model.concurrency,
            notice=lambda message: self._run.events.emit(
                Warned(what=f"{role} model: {message}", message=message)
            ),
            folder=self._run.path / HANDOFF,
        )
        self._closing.push_async_callback(client.close)
        self.clients[role] = client
        return RecordedModel(client, self._run.journal, role)


def _agent(material: Material, models: _Models) -> Agent | None:
    env, spec = material.config.env, material.config.model.agent
    if spec is None or material.task.evaluator is not None:
        return None
    cli = env.agent == "cli" or spec.id.startswith("cli/")
    return build_agent(
        env.agent,
        spec,
        None if cli else models.connect("agent", spec),
        prompt=env.prompt,
        max_turns=env.max_turns,
        max_tokens=env.max_rollout_tokens,
    )


def _rollouts(
    material: Material, task: Task, agent: Agent | None, models: _Models, run: RunDirectory
) -> Rollouts:
    """Agents and tasks whose model calls happen out of our sight are metered and billed by the
    rollout.
    """
    config = material.config
    in_sight = "agent" in material.late or (
        agent is not None and agent.recorded and task.evaluator is None
    )
    return Rollouts(
        task,
        agent,
        run.journal,
        run.events,
        executor=_executor(config.executor),
        meter=None if in_sight else models.budget,
        price=models.price_of_agent,
        careful=config.budget.usd is not None or config.budget.tokens is not None,
        timeout=config.env.exec_timeout,
        max_in_flight=getattr(agent, "slots", None) or 2 * config.model.concurrency,
        coverage_floor=config.evaluation.coverage_floor,
        seed=config.train.seed,
    )


def _shipping(material: Material) -> Task | None:
    """The task of the ship test, under both graders."""
    task, trained = material.ship_task, material.task.grader
    if task is None or task.grader is None or trained is None:
        return task
    return task.with_grader(BothGraders(task.grader, trained))


def _executor(name: str) -> Executor:
    if name == "local":
        return LocalExecutor()
    if name == "ray" or name.startswith("ray://"):
        from skillfit.plugins.ray_executor import RayExecutor

        return RayExecutor(name)
    raise InputError(
        f"executor: {name!r} is not known.", hint="It is local, ray or ray://HOST:PORT."
    )


def _optimizer(config: Config, model: Model, run: RunDirectory) -> Optimizer:
    gradient, optimizer, spec = config.gradient, config.optimizer, config.model.optimizer
    return Optimizer(
        model,
        run.events.emit,
        asyncio.Semaphore(gradient.analyst_workers),
        OptimizeSettings(
            update_mode=optimizer.skill_update_mode,
            minibatch_size=gradient.minibatch_size,
            merge_batch_size=gradient.merge_batch_size,
            failure_only=gradient.failure_only,
            skill_aware=optimizer.use_skill_aware_reflection,
            appendix_source=optimizer.skill_aware_appendix_source,
            consolidate_threshold=optimizer.skill_aware_consolidate_threshold,
            trace_to_optimizer=gradient.trace_to_optimizer,
            max_skill_tokens=optimizer.max_skill_tokens,
            reply_tokens=(spec.max_tokens if spec else None) or REPLY_TOKENS,
            rewrite_reasoning_effort=optimizer.rewrite_reasoning_effort,
            rewrite_max_tokens=optimizer.rewrite_max_completion_tokens,
        ),
    )


def _gate_settings(config: Config, task: Task) -> GateSettings:
    evaluation = config.evaluation
    return GateSettings(
        metric=evaluation.gate_metric,
        mixed_weight=evaluation.gate_mixed_weight,
        candidates=evaluation.candidates,
        rollout_budget=evaluation.rollout_budget,
        coverage_floor=evaluation.coverage_floor,
        must_pass=evaluation.must_pass,
        max_skill_tokens=config.optimizer.max_skill_tokens,
        use_gate=evaluation.use_gate,
        seed=config.train.seed,
        weights=weights_of(task.items),
    )


def _leaks(material: Material) -> LeakIndex:
    task = material.task
    graders = [each.grader for each in (task, material.ship_task) if each and each.grader]
    patterns = [pattern for grader in graders for pattern in all_patterns(grader, task.items)]
    return LeakIndex.build(task.train, [*task.selection, *task.test], patterns, material.skill.text)
