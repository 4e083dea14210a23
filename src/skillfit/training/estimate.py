"""What a run would take, before anything is spent: calls, tokens, dollars and minutes.

Every number is a typical value with a range. After `skillfit check` the cost of a rollout is taken
from what was measured there instead of from assumptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from skillfit.config.schema import Config
from skillfit.errors import InputError
from skillfit.gate.samples import detectable_effect
from skillfit.gate.ship import ASSUMED_NOISE, MOST_REPEATS
from skillfit.models import Prices, Role, Usage
from skillfit.models.protocol import ModelSpec
from skillfit.run.events import RolloutFinished
from skillfit.skill import Skill, estimate_tokens
from skillfit.tasks.task import Task
from skillfit.training.plan import (
    PREFLIGHT_ITEMS,
    PREFLIGHT_REPEATS,
    Plan,
    RolloutPlan,
    SplitSizes,
    plan_rollouts,
    selection_passes,
)

_SAMPLE = 50  # items whose length is looked at


@dataclass(frozen=True, slots=True)
class Range:
    """The least, the typical and the most of an amount."""

    low: float
    typical: float
    high: float

    @classmethod
    def exactly(cls, amount: float) -> Range:
        return cls(amount, amount, amount)

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.typical + other.typical, self.high + other.high)

    def __mul__(self, other: Range | float) -> Range:
        by = other if isinstance(other, Range) else Range.exactly(other)
        return Range(self.low * by.low, self.typical * by.typical, self.high * by.high)


_NOTHING = Range(0, 0, 0)
_REPLY = Range(40, 150, 600)  # tokens of an agent's answer
_PROPOSAL = Range(300, 900, 2_500)  # tokens of an optimizer's reply
_SECONDS = Range(1.0, 5.0, 24.0)  # of one call, waiting for others included
_JUDGED = Range(1, 1, 2)  # judge calls of one rollout: a pairwise judge is asked twice
_TURNS = {"chat": Range(1, 1, 1), "tools": Range(3, 6, 12), "cli": Range(3, 8, 20)}
_CLI_PROMPT = 12_000  # tokens that a coding agent adds to every call: its own prompt and tools


@dataclass(frozen=True, slots=True)
class RolloutCost:
    """What one rollout used on average, measured by `skillfit check`."""

    rollouts: int
    usage: Usage  # per rollout; calls and tokens are rounded up
    seconds: float

    @classmethod
    def of(cls, finished: Sequence[RolloutFinished]) -> RolloutCost | None:
        """From finished rollouts; None when none of them was scored."""
        scored = [event for event in finished if event.status == "scored"]
        if not scored:
            return None
        count = len(scored)
        known = all(event.usd is not None for event in scored)
        usage = Usage(
            calls=ceil(sum(event.calls for event in scored) / count),
            input=ceil(sum(event.tokens for event in scored) / count),
            usd=sum(event.usd or 0.0 for event in scored) / count if known else None,
        )
        return cls(count, usage, sum(event.seconds for event in scored) / count)


@dataclass(frozen=True, slots=True)
class EstimateRow:
    stage: str
    role: str
    calls: Range
    tokens: Range
    usd: Range | None  # None: no price is known


@dataclass(frozen=True, slots=True)
class RunEstimate:
    rows: tuple[EstimateRow, ...]
    minutes: Range
    rollouts: Range
    measured: int = 0  # rollouts behind the cost of a rollout; 0: it is assumed

    @property
    def total(self) -> EstimateRow:
        calls = sum((row.calls for row in self.rows), _NOTHING)
        tokens = sum((row.tokens for row in self.rows), _NOTHING)
        priced = [row.usd for row in self.rows if row.usd is not None]
        usd = sum(priced, _NOTHING) if len(priced) == len(self.rows) else None
        return EstimateRow("total", "", calls, tokens, usd)


def estimate(
    config: Config, task: Task, skill: Skill, plan: Plan, cost: RolloutCost | None = None
) -> RunEstimate:
    """The estimate of a plan. `cost`: what a rollout cost in `skillfit check`."""
    rollouts = _rollouts(config, task, plan)
    sample = task.items[:_SAMPLE]
    item_tokens = sum(estimate_tokens(item.input) for item in sample) / max(1, len(sample))
    rows = [
        _agent_row(config, stage, count, skill, item_tokens, cost)
        for stage, count in rollouts.items()
    ]
    if config.model.optimizer is not None and config.optimizer.proposer != "examples":
        shown = config.gradient.minibatch_size * (item_tokens + _REPLY.typical)
        material = Range(
            skill.tokens + 800,
            1.5 * skill.tokens + 1_500 + shown,
            2 * skill.tokens + 2_000 + 3 * shown,
        )
        for stage, count in _optimizer_calls(config, plan).items():
            rows.append(_row(config, "optimizer", stage, count, material, _PROPOSAL))
    if config.model.judge is not None:
        rows.append(_judge_row(config, rollouts, item_tokens))
    calls = sum((row.calls for row in rows), _NOTHING)
    seconds = _SECONDS if cost is None else _around(cost.seconds / max(1, cost.usage.calls))
    return RunEstimate(
        tuple(row for row in rows if row.calls.high),
        calls * seconds * (1 / (60 * config.model.concurrency)),
        sum(rollouts.values(), _NOTHING),
        cost.rollouts if cost else 0,
    )


def _around(amount: float) -> Range:
    """A measured amount with the room that a few rollouts leave."""
    return Range(0.7 * amount, amount, 1.6 * amount)


def _agent_row(
    config: Config,
    stage: str,
    rollouts: Range,
    skill: Skill,
    item_tokens: float,
    cost: RolloutCost | None,
) -> EstimateRow:
    if cost is not None:
        usd = None if cost.usage.usd is None else rollouts * _around(cost.usage.usd)
        return EstimateRow(
            stage,
            "agent",
            rollouts * cost.usage.calls,
            rollouts * _around(cost.usage.tokens),
            usd,
        )
    spec = config.model.agent
    cli = spec is not None and spec.id.startswith("cli/")
    mode = config.env.agent if config.env.agent in _TURNS else "chat"
    turns = _TURNS["cli" if cli else mode]
    if not cli and mode == "chat" and (config.env.max_turns or 1) > 1:
        turns = Range(1, 1, float(config.env.max_turns or 1))
    own = _CLI_PROMPT if cli else 0
    prompt = Range(
        skill.tokens + item_tokens + own,
        1.3 * skill.tokens + item_tokens + 100 + own,
        2 * skill.tokens + item_tokens + 500 + 3 * own,
    )
    return _row(config, "agent", stage, rollouts * turns, prompt, _REPLY)


def _judge_row(config: Config, rollouts: dict[str, Range], item_tokens: float) -> EstimateRow:
    graded = Range(item_tokens + 300, item_tokens + 600, item_tokens + 1_500 + _REPLY.high)
    # With a second grader both grade the rollouts of the ship test.
    twice = rollouts["ship"] if config.evaluation.ship_grader else _NOTHING
    calls = sum(rollouts.values(), twice) * _JUDGED
    return _row(config, "judge", "grading", calls, graded, _REPLY)


def _row(
    config: Config, role: Role, stage: str, calls: Range, prompt: Range, reply: Range
) -> EstimateRow:
    """What a role's calls in a stage take."""
    spec: ModelSpec | None = getattr(config.model, role)
    price = Prices(config.model.prices).of(spec.id) if spec else None
    usd = calls * (prompt * price.input + reply * price.output) * 1e-6 if price else None
    return EstimateRow(stage, role, calls, calls * (prompt + reply), usd)


def _rollouts(config: Config, task: Task, plan: Plan) -> dict[str, Range]:
    """Rollouts per stage."""
    evaluation, optimizer, gradient = config.evaluation, config.optimizer, config.gradient
    selection, test = len(task.selection), len(task.test)
    steps, epochs = plan.total_steps, len(plan.epochs)
    items = sum(len(batch.items) for batch in plan.batches)
    strict = evaluation.gate == "strict"
    rewrites = not strict and optimizer.skill_update_mode != "patch"
    # A rewrite gets a paired test: up to two passes for each of the two skills.
    passes = 1 if strict else 4 if rewrites else selection_passes(selection)
    gate = steps * passes * selection
    if strict and optimizer.use_skill_aware_reflection:
        gate += steps * selection  # a skill that changes outside the gate is measured too
    looks_back = optimizer.use_slow_update or optimizer.use_meta_skill
    compared = min(optimizer.slow_update_samples, len(task.train))
    if optimizer.longitudinal_pair_policy == "changed":
        compared = len(task.train)
    times = max(0, epochs - 1 if strict else epochs - 2) if looks_back else 0
    slow = times * (2 * compared + (selection if strict else 0))
    tried = len(task.train[:PREFLIGHT_ITEMS]) * (PREFLIGHT_REPEATS + 1)
    arms = 1 + evaluation.finalists
    ship = Range(0, arms * 2 * selection, arms * MOST_REPEATS * selection)
    deep = steps * gradient.deep_reflection_items if gradient.deep_reflection else 0
    return {
        "preflight": Range.exactly(tried) if evaluation.preflight else _NOTHING,
        "baseline": Range.exactly(selection),
        "rollout": Range.exactly(items * gradient.rollouts_per_item),
        "diagnosis": Range(0, deep, deep),
        "gate": Range(0, gate / 2 if rewrites else gate, gate),
        "slow_update": Range(0, slow, slow),
        "compose": _NOTHING if strict else Range(0, selection, 2 * selection),
        "ship": ship if evaluation.ship_test else _NOTHING,
        "test": Range(test, 2 * test, 3 * test) if evaluation.eval_test else _NOTHING,
    }


def _optimizer_calls(config: Config, plan: Plan) -> dict[str, Range]:
    """Optimizer calls per stage; replies that have to be asked for again are not counted."""
    gradient, optimizer, steps = config.gradient, config.optimizer, plan.total_steps
    sizes = [len(batch.items) for batch in plan.batches]
    groups = 0
    for size in sizes:
        groups += ceil(size / gradient.minibatch_size)
        groups += not gradient.failure_only and size > 1
    diagnoses = steps if gradient.deep_reflection else 0
    deeper = diagnoses * ceil(gradient.deep_reflection_items / gradient.minibatch_size)
    reflect = groups + diagnoses + deeper
    merges = ceil((groups + deeper) / (gradient.merge_batch_size - 1)) + 2 * steps
    selects = steps * (2 if optimizer.lr_control_mode == "autonomous" else 1)
    rewrites = steps if optimizer.skill_update_mode == "rewrite_from_suggestions" else 0
    notes = steps if optimizer.skill_aware_consolidate_threshold else 0
    later = max(0, len(plan.epochs) - 1)
    least = 0 if gradient.failure_only else len(sizes)
    return {
        "reflect": Range(least, 0.8 * reflect, reflect),
        "merge": Range(0, 0.6 * merges, merges),
        "select": Range(0, 0.5 * selects, selects),
        "update": Range(0, rewrites, rewrites),
        "appendix": Range(0, 0, notes),
        "slow_update": Range(0, later, later) if optimizer.use_slow_update else _NOTHING,
        "meta_skill": Range(0, later, later) if optimizer.use_meta_skill else _NOTHING,
    }


@dataclass(frozen=True, slots=True)
class BudgetOption:
    """What a number of rollouts would buy."""

    rollouts: int
    plan: RolloutPlan | None  # None: too few for one step
    detectable: float  # smallest gain that the ship test could show


def budget_options(
    config: Config, sizes: SplitSizes, numbers: Sequence[int] = (300, 600, 1_200)
) -> list[BudgetOption]:
    """The plans that `budget.rollouts` would give for some numbers."""
    options = []
    for number in numbers:
        try:
            plan = plan_rollouts(config, sizes, number)
        except InputError:
            options.append(BudgetOption(number, None, 1.0))
            continue
        effect = detectable_effect(plan.selection, ASSUMED_NOISE, plan.ship_repeats)
        options.append(BudgetOption(number, plan, effect))
    return options
