"""From a config to the parts of a run: the one place that knows every room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillfit.agents import Agent, build_agent
from skillfit.config import Config, identity
from skillfit.errors import InputError
from skillfit.gate import GateSettings, LeakIndex
from skillfit.models import Limiters, Model, ModelSpec, Prices, Reply, Request, Role, connect
from skillfit.optimize.optimizer import Optimizer, OptimizeSettings
from skillfit.rollout.engine import Rollouts
from skillfit.rollout.executor import Executor, LocalExecutor
from skillfit.run.budget import Budget, BudgetWarning, Caps, refuse_unpriced
from skillfit.run.directory import RunDirectory
from skillfit.run.events import Stored, Warned
from skillfit.run.recorded import RecordedModel
from skillfit.skill import Skill
from skillfit.tasks import SplitSettings, Task, TaskSettings, load_task
from skillfit.train.ledger import CountedModel, Ledger
from skillfit.train.parts import Control, Counts, Interrupted, Parts
from skillfit.train.plan import Plan, make_plan

Listener = Callable[[Stored], None]


class LateModel:
    """A model named before the run it is recorded in is open: graders hold it, and they are part of the run's identity."""

    def __init__(self, spec: ModelSpec) -> None:
        self.id = spec.id
        self._model: Model | None = None

    def arrive(self, model: Model) -> None:
        self._model = model

    @property
    def context_window(self) -> int:
        return self._arrived.context_window

    async def complete(self, request: Request) -> Reply:
        return await self._arrived.complete(request)

    @property
    def _arrived(self) -> Model:
        if self._model is None:
            raise RuntimeError(f"{self.id} is called before the run is open.")
        return self._model


@dataclass(slots=True)
class Material:
    """What the person brought: read and checked before anything is opened or spent."""

    config: Config
    skill: Skill
    task: Task
    judge: LateModel | None = None
    solver: LateModel | None = None  # the agent's model, where the task calls it itself (Inspect)
    ship_task: Task | None = None  # the same items under the second grader
    agent: Agent | None = None  # a Python agent given from the API

    def identity(self) -> dict[str, Any]:
        return {"config": identity(self.config), "skill": self.skill.hash, "task": self.task.identity()}


def read_material(
    config: Config,
    *,
    skill: Skill | None = None,
    task: Task | None = None,
    agent: Agent | None = None,
    training: bool = True,
) -> Material:
    """Load skill and tasks. Wrong paths, bad rows and missing models are errors here. Without `training` no optimizer is needed."""
    env = config.env
    judge = LateModel(config.model.judge) if config.model.judge else None
    solver = LateModel(config.model.agent) if config.model.agent and env.tasks.startswith("inspect:") else None
    if skill is None:
        skill = Skill.load(Path(env.skill)) if env.skill else Skill.from_text("")
    given = task is not None
    if task is None:
        if not env.tasks:
            raise InputError("env.tasks is not set: there is nothing to train on.", hint="Name a file, for example tasks.jsonl.")
        _refuse_tasks_inside_skill(env.skill, env.tasks)
        task = load_task(_task_settings(config, env.grader), judge=judge, model=solver)
    ship_task = None
    if (second := config.evaluation.ship_grader) is not None:
        if given:
            raise InputError("evaluation.ship_grader needs env.tasks: a task given from Python brings its own grader.")
        ship_task = load_task(_task_settings(config, second), judge=judge)
    _refuse_missing_models(config, task, agent, training)
    return Material(config, skill, task, judge, solver, ship_task, agent)


def _task_settings(config: Config, grader: str | dict[str, Any] | None) -> TaskSettings:
    env, evaluation = config.env, config.evaluation
    splits = SplitSettings(
        mode=env.split_mode,
        ratio=env.split_ratio,
        seed=env.split_seed,
        limit=env.limit,
        caps={"train": config.train.train_size, "selection": evaluation.sel_env_num, "test": evaluation.test_env_num},
        allow_fit_only=env.allow_fit_only,
    )
    return TaskSettings(env.tasks, grader=grader, fields=env.fields, splits=splits, timeout=env.exec_timeout)


def _refuse_tasks_inside_skill(skill: str, tasks: str) -> None:
    """The agent is given the whole skill folder: answers in it would be handed over. The format's own evals/ is left out of it."""
    folder, file = Path(skill), Path(tasks)
    inside = skill and folder.is_dir() and file.exists() and folder.resolve() in file.resolve().parents
    if inside and "evals" not in file.resolve().relative_to(folder.resolve()).parts and file.name != "evals.json":
        raise InputError(f"{tasks} lies inside the skill folder {skill}: the agent would see the answers.", hint="Move it out.")


def _refuse_missing_models(config: Config, task: Task, agent: Agent | None, training: bool) -> None:
    if task.evaluator is None and agent is None and config.model.agent is None:
        raise InputError("model.agent is not set: nobody uses the skill.", hint="For example model.agent: openai/gpt-5-mini.")
    if training and config.model.optimizer is None and config.optimizer.proposer != "examples":
        raise InputError(
            "model.optimizer is not set: nobody improves the skill.",
            hint="Name one, or set optimizer.proposer: examples, which needs none.",
        )


@asynccontextmanager
async def assemble(
    material: Material, run: RunDirectory, listeners: Sequence[Listener] = (), control: Control | None = None
) -> AsyncIterator[Parts]:
    """The parts of the run, connected and ready; closed again at the end."""
    config = material.config
    control = control or Control()
    counts = Counts()
    run.events.listen(counts)
    for listener in listeners:
        run.events.listen(listener)
    async with AsyncExitStack() as closing:
        models = _Models(material, run, closing)
        if material.judge is not None and config.model.judge is not None:
            material.judge.arrive(models.connect("judge", config.model.judge))
        if material.solver is not None and config.model.agent is not None:
            material.solver.arrive(models.connect("agent", config.model.agent))
        agent = material.agent or _agent(material, models)
        in_sight = material.solver is not None or (agent is not None and agent.recorded and material.task.evaluator is None)
        meter = None if in_sight else models.budget
        rollouts = _rollouts(material.task, run, agent, config, meter)
        ship_rollouts = _rollouts(material.ship_task, run, agent, config, meter) if material.ship_task else None
        for engine in filter(None, (rollouts, ship_rollouts)):
            control.on_stop(engine.stop)
            closing.push_async_callback(engine.close)
        ledger = Ledger()

        def admit() -> None:
            if control.stopping:
                raise Interrupted(run.path)

        recorded = models.connect("optimizer", config.model.optimizer) if config.model.optimizer else None
        yield Parts(
            config=config,
            run=run,
            task=material.task,
            initial=material.skill,
            plan=_plan(material),
            rollouts=rollouts,
            ship_rollouts=ship_rollouts,
            optimizer=_optimizer(config, CountedModel(recorded, ledger, admit), run) if recorded else None,
            recorded=recorded,
            probes=models.clients,
            leaks=_leaks(material) if config.evaluation.leak_check else None,
            ledger=ledger,
            budget=models.budget,
            gate_settings=_gate_settings(config),
            control=control,
            counts=counts,
        )


class _Models:
    """Connects the models of a run. All share one budget and the limiters of their endpoints."""

    def __init__(self, material: Material, run: RunDirectory, closing: AsyncExitStack) -> None:
        config = material.config
        caps = Caps(**config.budget.model_dump())
        self._config, self._run, self._closing = config, run, closing
        self._prices = Prices(config.model.prices)
        self._limiters = Limiters()
        self.clients: dict[Role, Model] = {}
        specs = [spec for spec in (config.model.agent, config.model.optimizer, config.model.judge) if spec is not None]
        refuse_unpriced(caps, [spec.id for spec in specs if self._prices.of(spec.id) is None])
        self.budget = Budget(caps, run.journal, on_warning=self._warn)
        closing.callback(self.budget.save_minutes)

    def _warn(self, warning: BudgetWarning) -> None:
        self._run.events.emit(Warned(what=f"budget {warning.cap} {warning.percent}", message=warning.message))

    def connect(self, role: Role, spec: ModelSpec) -> RecordedModel:
        client = connect(
            spec,
            role=role,
            run_id=self._run.run_id,
            meter=self.budget,
            limiters=self._limiters,
            prices=self._prices,
            concurrency=self._config.model.concurrency,
            notice=lambda message: self._run.events.emit(Warned(what=f"{role} model: {message}", message=message)),
            folder=self._run.path / "handoff",
        )
        self._closing.push_async_callback(client.close)
        self.clients[role] = client
        return RecordedModel(client, self._run.journal, role)


def _agent(material: Material, models: _Models) -> Agent | None:
    config = material.config
    spec = config.model.agent
    if spec is None or material.task.evaluator is not None:
        return None
    env = config.env
    cli = env.agent == "cli" or spec.id.startswith("cli/")
    return build_agent(
        env.agent,
        spec,
        None if cli else models.connect("agent", spec),
        prompt=env.prompt,
        max_turns=env.max_turns,
        max_tokens=env.max_rollout_tokens,
    )


def _rollouts(task: Task, run: RunDirectory, agent: Agent | None, config: Config, meter: Budget | None) -> Rollouts:
    """`meter` bills whole rollouts, for agents and tasks whose model calls happen out of our sight."""
    return Rollouts(
        task,
        agent,
        run.journal,
        run.events,
        executor=_executor(config.executor),
        meter=meter,
        timeout=config.env.exec_timeout,
        max_in_flight=getattr(agent, "slots", None) or 2 * config.model.concurrency,
        coverage_floor=config.evaluation.coverage_floor,
        seed=config.train.seed,
    )


def _executor(name: str) -> Executor:
    if name == "local":
        return LocalExecutor()
    if name == "ray" or name.startswith("ray://"):
        from skillfit.rollout.ray import RayExecutor

        return RayExecutor(name)
    raise InputError(f"executor: {name!r} is not known.", hint="It is local, ray or ray://HOST:PORT.")


def _optimizer(config: Config, model: Model, run: RunDirectory) -> Optimizer:
    gradient, optimizer = config.gradient, config.optimizer
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
            rewrite_reasoning_effort=optimizer.rewrite_reasoning_effort,
            rewrite_max_tokens=optimizer.rewrite_max_completion_tokens,
        ),
    )


def _gate_settings(config: Config) -> GateSettings:
    evaluation = config.evaluation
    return GateSettings(
        metric=evaluation.gate_metric,
        mixed_weight=evaluation.gate_mixed_weight,
        candidates=evaluation.candidates,
        rollout_budget=evaluation.rollout_budget,
        coverage_floor=evaluation.coverage_floor,
        must_pass=evaluation.must_pass,
        use_gate=evaluation.use_gate,
        seed=config.train.seed,
    )


def _leaks(material: Material) -> LeakIndex:
    task = material.task
    patterns = [pattern for each in (task, material.ship_task) if each and each.grader for pattern in each.grader.patterns()]
    return LeakIndex.build(task.train, [*task.selection, *task.test], patterns, material.skill.text)


def _plan(material: Material) -> Plan:
    train = material.config.train
    return make_plan(
        material.task.train,
        num_epochs=train.num_epochs,
        batch_size=train.batch_size,
        accumulation=train.accumulation,
        seed=train.seed,
    )
