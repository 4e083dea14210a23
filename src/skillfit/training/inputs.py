"""What the user gave: config, skill and tasks, read and checked before anything is opened or
spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from skillfit.agents import AGENTS, Agent, CallableAgent, load_agent
from skillfit.agents.agent import corpus_fingerprint
from skillfit.agents.cli_agent import described_program
from skillfit.config import Config
from skillfit.config.requires import ROLLOUTS, TRAINING, RunFacts, refuse_idle
from skillfit.errors import InputError
from skillfit.extensions import describe_part, find_source
from skillfit.gate import Gate
from skillfit.models import Model, ModelSpec, Reply, Request, Role
from skillfit.optimize.memory import evidence_hash, read_evidence
from skillfit.plain_text import quantity, shorten
from skillfit.run.directory import Identity, settings_identity
from skillfit.run.records import EvidenceMemory, ItemRecord, RolloutPlan
from skillfit.run.store import JOURNAL
from skillfit.run.view import RunView
from skillfit.skill import Skill, refuse_unreadable
from skillfit.skill.document import DOCUMENT_NAMES, reads_path
from skillfit.skill.parts import load_trained, trained_path
from skillfit.tasks import Item, Task, load_task
from skillfit.tasks.graders import build_grader, check_items
from skillfit.tasks.item import GraderLike, Split, stable_hash, weights_of
from skillfit.tasks.rows import evals_file
from skillfit.tasks.task import task_from_python
from skillfit.tasks.template import template_parts
from skillfit.training.schedule import (
    Schedule,
    SplitSizes,
    buy,
    check_rollouts,
    extend,
    fewest_rollouts,
    make_schedule,
    refuse_endless_plan,
)
from skillfit.training.user_parts import GivenParts, RunParts, UnusedGate, gate_settings

_SHOWN = 400  # characters of an item's text in the log


class DeferredModel:
    """A model named before the run it is recorded in is open: graders hold it, and they are part of
    the run's identity.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.id, self.spec = spec.id, spec
        self._model: Model | None = None

    def bind(self, model: Model) -> None:
        self._model = model

    @property
    def context_window(self) -> int:
        return self._bound.context_window

    async def complete(self, request: Request) -> Reply:
        return await self._bound.complete(request)

    @property
    def _bound(self) -> Model:
        if self._model is None:
            raise RuntimeError(f"{self.id} is called before the run is open.")
        return self._model


@dataclass(slots=True)
class Inputs:
    """What a run is made from, checked. See `read_inputs`."""

    config: Config
    skill: Skill
    task: Task
    available: SplitSizes
    gate: UnusedGate
    # The judge; the agent's, where the task asks it itself (Inspect)
    deferred: Mapping[Role, DeferredModel] = field(default_factory=dict)
    ship_task: Task | None = None  # the same items under the second grader
    agent: Agent | None = None  # a Python agent given from the API
    given: GivenParts = field(default_factory=GivenParts)  # parts given from the API
    rollout_plan: RolloutPlan | None = None  # what budget.rollouts buys
    evidence: EvidenceMemory = field(default_factory=EvidenceMemory)  # of earlier runs

    @property
    def parts(self) -> RunParts:
        """Gate, proposer, batch sampler and executor."""
        return RunParts(self.config, self.given)

    @property
    def corpus_hash(self) -> str:
        """Of the files of `env.corpus`; empty without one."""
        corpus = self.config.env.corpus
        return corpus_fingerprint(Path(corpus)) if corpus else ""

    def identity(self) -> Identity:
        """Return what must stay the same when this training run is resumed."""
        ship = self.ship_task.grader if self.ship_task else None
        agent = None
        if not isinstance(self.agent, CallableAgent):  # that one describes its file itself
            agent = describe_part(None, self.config.env.agent, Path(self.config.env.folder))
        return {
            "kind": "training",
            "config": settings_identity(self.config),
            "skill": self.skill.hash,
            "task": _task_identity(self.task),
            "parts": {
                **self.parts.describe(),
                "agent": agent,
                "ship_grader": ship.describe() if ship else None,
            },
            "agent": self.agent.describe() if self.agent is not None else None,
            "programs": _programs(self.config),
            "corpus": self.corpus_hash,
            "memory": evidence_hash(self.evidence),
        }

    def refuse_template(self) -> None:
        """Raise an error when tasks or rubric are what `skillfit init` wrote as an example."""
        parts = template_parts(self.config.env.grader, self.task.items)
        if parts:
            raise InputError(
                f"Still the template's text: {' and '.join(parts)}.",
                hint="Put your own in its place; see docs/quickstart.md.",
            )

    def refuse_useless_plan(self) -> None:
        """Raise an error when the plan is too large to be built. A recorded run keeps its plan."""
        refuse_endless_plan(self.config, len(self.task.train), self.rollout_plan)

    def schedule(self, gate: Gate | None = None) -> Schedule:
        """Return what the run does and when. It is built in memory: see `refuse_useless_plan`."""
        return make_schedule(
            self.config,
            self.task,
            gate or self.gate.gate,
            self.parts.build_sampler(),
            self.rollout_plan,
            self.parts.asks_optimizer,
        )


def _task_identity(task: Task) -> Identity:
    """Return hashes of the items, and how they are graded."""
    weights = weights_of(task.items)
    return {
        "train items": _fingerprint(task.train),
        "selection items": _fingerprint(task.selection),
        "test items": _fingerprint(task.test),
        "weights": stable_hash(weights) if weights else "",
        "grader": task.grader.describe() if task.grader else None,
        "evaluator": task.evaluator.describe() if task.evaluator else None,
    }


def _programs(config: Config) -> dict[str, str]:
    """Hash the descriptions of the command-line programs that the run uses, by role."""
    return {
        role: stable_hash(described_program(spec))
        for role, spec in config.model.by_role().items()
        if spec.is_cli
    }


def _fingerprint(items: Iterable[Item]) -> str:
    return stable_hash(sorted(item.fingerprint() for item in items))


def read_inputs(
    config: Config,
    *,
    skill: Skill | None = None,
    task: Task | Iterable[Item | Mapping[str, Any]] | None = None,
    agent: Agent | None = None,
    grader: GraderLike | None = None,
    given: GivenParts | None = None,
    training: bool = True,
) -> Inputs:
    """Load skill and tasks. Wrong paths, bad rows, unknown parts and missing models are errors
    here. Without `training` the optimizer is left out: neither its key nor its price need be known.

    What is given as an argument replaces what the config names.
    """
    if not training:
        models = config.model.model_copy(update={"optimizer": None})
        config = config.model_copy(update={"model": models})
    env, models = config.env, config.model
    judge = DeferredModel(models.judge) if models.judge else None
    agent_model = DeferredModel(models.agent) if models.agent else None
    if skill is None:
        skill = load_trained(env.skill) if env.skill else Skill.from_text("")
    refuse_unreadable(skill, env.skill)
    if task is None:
        loaded = _from_config(config, judge, agent_model, grader)
    else:
        caps = split_caps(config)
        loaded = task_from_python(task, env, caps=caps, grader=grader, judge=judge)
    if not training:
        loaded = loaded.for_measuring()
    if models.agents:
        loaded = loaded.for_models(list(models.by_name()))
    parts = RunParts(config, given or GivenParts())
    rollout_plan, available = None, SplitSizes.of(loaded)
    gate = UnusedGate(parts.build_gate, loaded.selection, gate_settings(config, loaded))
    if training and config.budget.rollouts is not None:
        rollout_plan = buy(config, available, gate.gate, config.budget.rollouts)
    if agent is None and env.agent not in AGENTS:
        agent = load_agent(env.agent, Path(env.folder))
    given_task = task is not None
    _refuse_what_does_not_fit(
        config, loaded, agent, parts, gate, given=given_task, training=training
    )
    ship_task = _ship_task(config, loaded, judge)
    evidence = EvidenceMemory()
    if training and config.optimizer.memory:
        evidence = read_evidence(Path(config.optimizer.memory))
    deferred: dict[Role, DeferredModel] = {}
    if judge is not None:
        deferred["judge"] = judge
    if agent_model is not None and _calls_model(loaded):
        deferred["agent"] = agent_model
    return Inputs(
        config,
        skill,
        loaded,
        available,
        gate,
        deferred,
        ship_task,
        agent,
        parts.given,
        rollout_plan,
        evidence,
    )


def refuse_run_inside_skill(skill: str | Path, path: Path, *, force_new: bool = False) -> None:
    """Raise an error when a new run in `path` would become part of the skill: its files would
    change the skill's hash, and the agent would be given them. A recorded run is not checked.
    """
    if not skill or ((path / JOURNAL).is_file() and not force_new):
        return
    if reads_path(trained_path(str(skill)), path):
        raise InputError(
            f"The run directory {path} is inside the skill {skill}: the run's files would become "
            "part of the skill.",
            hint="Give a directory outside of the skill with --run.",
        )


def with_checked_plan(inputs: Inputs, path: Path) -> Inputs:
    """Return the inputs with the plan of the run in `path`, if it was started with this
    `budget.rollouts`: a run keeps its plan, also where a later version would plan another one or
    refuse it. With another number it keeps the size of its steps. A new plan is refused when it is
    endless: what `skillfit check` rolled out there beyond the check of this plan counts against the
    budget too.
    """
    rollouts = inputs.config.budget.rollouts
    if not (path / JOURNAL).is_file():
        inputs.refuse_useless_plan()
        return inputs
    if rollouts is None:
        return inputs  # the other settings that decide the plan are part of the run's identity
    with closing(RunView.open(path)) as view:
        started = view.started
        done = view.events.rollouts_done()
    if started is not None and started.config.settings.budget.rollouts == rollouts:
        return replace(inputs, rollout_plan=started.rollout_plan)
    config, sizes, gate = inputs.config, inputs.available, inputs.gate.gate
    checked = sum(one.done for one in done if one.phase == "preflight")
    left = rollouts - max(0, checked - check_rollouts(config, sizes.train).total)
    plan = None
    if started is not None and started.rollout_plan is not None:  # its steps may be done already
        plan = extend(started.rollout_plan, config, sizes, gate, left)
    if plan is None and left >= fewest_rollouts(config, sizes, gate):
        plan = buy(config, sizes, gate, left)
    inputs = replace(inputs, rollout_plan=plan or inputs.rollout_plan)
    inputs.refuse_useless_plan()
    return inputs


def with_recorded_evidence(inputs: Inputs, path: Path) -> Inputs:
    """Return the inputs with the evidence that the run in `path` was started with: the file that it
    came from is written anew at the end of a run.
    """
    if not (path / JOURNAL).is_file():
        return inputs
    with closing(RunView.open(path)) as view:
        started = view.started
    if started is None:
        return inputs
    return replace(inputs, evidence=started.evidence or EvidenceMemory())


def _from_config(
    config: Config,
    judge: Model | None,
    agent_model: Model | None,
    grader: GraderLike | None,
) -> Task:
    """Return the task that `env.tasks` names."""
    env = config.env
    if not env.tasks:
        raise InputError(
            "env.tasks is not set: there is nothing to train on.",
            hint="Name a file, for example tasks.jsonl.",
        )
    _refuse_tasks_inside_skill(env.skill, env.tasks)
    task = load_task(env, caps=split_caps(config), grader=grader, judge=judge, model=agent_model)
    wanted, found = config.train.train_size, len(task.train)
    if wanted > found and not env.limit:
        there = quantity(found, "training item")
        raise InputError(
            f"train.train_size is {wanted}, and {env.tasks} has {there}.",
            hint="Set train.train_size to 0 to train on all of them.",
        )
    return task


def split_caps(config: Config) -> dict[Split, int]:
    """Return how many items of each split are used; 0 = all."""
    return {
        "train": config.train.train_size,
        "selection": config.evaluation.sel_env_num,
        "test": config.evaluation.test_env_num,
    }


def _ship_task(config: Config, task: Task, judge: Model | None) -> Task | None:
    """Return the same items under the second grader; None without one."""
    grader = config.evaluation.ship_grader
    if grader is None:
        return None
    built = build_grader(
        grader, judge=judge, base=Path(config.env.folder), key="evaluation.ship_grader"
    )
    check_items(built, task.items)
    return task.with_grader(built)


def _refuse_what_does_not_fit(
    config: Config,
    task: Task,
    agent: Agent | None,
    parts: RunParts,
    gate: UnusedGate,
    *,
    given: bool,
    training: bool,
) -> None:
    """Refuse parts that cannot be built, missing models, and settings that would not act."""
    if training:
        parts.check(gate)
    _refuse_missing_models(config, task, agent, training and parts.needs_optimizer)
    if task.evaluator is not None and agent is not None:
        raise InputError(
            "An agent was given, but the task runs its items itself.", hint="Leave one of them out."
        )
    facts = RunFacts(
        config,
        "task" if task.evaluator is not None else "agent" if agent is None else "python",
        calls_model=_calls_model(task),
        own_scores=given or task.evaluator is not None or ".py:" in config.env.tasks,
        tasks="" if given else config.env.tasks,
        brought=_source_settings(config),
    )
    refuse_idle(facts, ROLLOUTS)
    if not training:
        return
    _refuse_unknown_must_pass(config, task)
    _refuse_lone_document(config)
    facts = replace(
        facts,
        ignored=gate.gate.ignored(),
        writes_notes=parts.writes_notes,
        needs_patch_mode=parts.needs_patch_mode,
    )
    refuse_idle(facts, TRAINING)


def _refuse_tasks_inside_skill(skill: str, tasks: str) -> None:
    """Refuse tasks among the files of the skill, which the agent is given with the answers in them.
    The evals of the Agent Skills format are not among them.
    """
    path = Path(tasks)
    if not skill or not path.exists() or evals_file(path) is not None:
        return
    if reads_path(Path(skill), path):
        raise InputError(
            f"{tasks} is inside the skill {skill}: the agent would see the answers.",
            hint="Move it out.",
        )


def _refuse_lone_document(config: Config) -> None:
    """Refuse training of references and scripts where the skill is no folder."""
    path = trained_path(config.env.skill)
    in_folder = path.is_dir() or path.name in DOCUMENT_NAMES
    if {"references", "scripts"} & {*config.optimizer.parts} and config.env.skill and not in_folder:
        raise InputError(
            f"optimizer.parts: the skill {path} is one file, without references and scripts.",
            hint="Put it into a folder of its own as SKILL.md, and name the folder.",
        )


def _refuse_unknown_must_pass(config: Config, task: Task) -> None:
    if unknown := set(config.evaluation.must_pass) - {item.id for item in task.selection}:
        raise InputError(
            "evaluation.must_pass names items that are not in the selection split: "
            f"{', '.join(sorted(unknown))}.",
            hint="Give them `split: selection`, or take them off the list.",
        )


def _calls_model(task: Task) -> bool:
    """Return whether the task runs its items itself and calls the agent's model for that."""
    return task.evaluator is not None and task.evaluator.needs_model


def _refuse_missing_models(
    config: Config, task: Task, agent: Agent | None, needs_optimizer: bool
) -> None:
    if (
        (task.evaluator is None or _calls_model(task))
        and agent is None
        and config.model.agent is None
    ):
        raise InputError(
            "model.agent is required.",
            hint="For example model.agent: openai/gpt-5-mini.",
        )
    if config.model.optimizer is None and needs_optimizer:
        raise InputError(
            "model.optimizer is required unless optimizer.proposer is 'examples' or your own.",
            hint="Name one, or set optimizer.proposer: examples, which needs none.",
        )


def _source_settings(config: Config) -> frozenset[str]:
    """Return the keys of `env` that have the value which the named task source brings with it: the
    user did not set them.
    """
    env = config.env
    source = find_source(env.tasks, base=Path(env.folder), options=env.task_args)
    brought = source.config.get("env", {}) if source is not None else {}
    return frozenset(
        f"env.{key}" for key, value in brought.items() if getattr(env, key, None) == value
    )


def item_records(task: Task) -> list[ItemRecord]:
    """Return the items as the log of a run keeps them."""
    splits = {"train": task.train, "selection": task.selection, "test": task.test}
    return [_item_record(item.loaded(), split) for split, items in splits.items() for item in items]


def _item_record(item: Item, split: str) -> ItemRecord:
    expected = "\n".join(item.answers) or item.reference
    return ItemRecord(
        item.id,
        split,
        item.type,
        shorten(item.input, _SHOWN),
        shorten(expected, _SHOWN),
        item.weight,
    )
