"""What a run would take, before anything is spent: calls, tokens, dollars and minutes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from skillfit.config.schema import Config
from skillfit.gate.ship import MOST_REPEATS
from skillfit.models import Prices, Role
from skillfit.models.spec import ModelSpec
from skillfit.skill import Skill, estimate_tokens
from skillfit.tasks.task import Task
from skillfit.training.plan import Plan
from skillfit.training.rollout_budget import (
    PREFLIGHT_ITEMS,
    PREFLIGHT_REPEATS,
    selection_passes,
)

_SAMPLE = 50  # items whose length is looked at


@dataclass(frozen=True, slots=True)
class Range:
    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __mul__(self, other: Range | float) -> Range:
        by = other if isinstance(other, Range) else Range(other, other)
        return Range(self.low * by.low, self.high * by.high)


_NOTHING = Range(0, 0)
_REPLY = Range(40, 600)  # tokens of an agent's answer
_PROPOSAL = Range(300, 2_500)  # of an optimizer's reply
_SECONDS = Range(1.0, 24.0)  # of one call, and of waiting for others
_JUDGED = Range(1, 2)  # judge calls of one rollout: a pairwise judge is asked both ways round
_TURNS = {"chat": Range(1, 1), "tools": Range(3, 12), "cli": Range(3, 12)}


@dataclass(frozen=True, slots=True)
class Row:
    stage: str
    role: str
    calls: Range
    tokens: Range
    usd: Range | None  # None: no price is known


@dataclass(frozen=True, slots=True)
class Estimate:
    rows: tuple[Row, ...]
    minutes: Range

    @property
    def total(self) -> Row:
        calls, tokens = (
            sum((row.calls for row in self.rows), _NOTHING),
            sum((row.tokens for row in self.rows), _NOTHING),
        )
        priced = [row.usd for row in self.rows if row.usd is not None]
        return Row(
            "total",
            "",
            calls,
            tokens,
            sum(priced, _NOTHING) if len(priced) == len(self.rows) else None,
        )


def estimate(config: Config, task: Task, skill: Skill, plan: Plan) -> Estimate:
    sample = task.items[:_SAMPLE]
    item_tokens = sum(estimate_tokens(item.input) for item in sample) / max(1, len(sample))
    rollouts = _rollouts(config, task, plan)
    turns = _TURNS[
        "cli"
        if config.model.agent and config.model.agent.id.startswith("cli/")
        else config.env.agent
    ]
    prompt = Range(skill.tokens + item_tokens, 2 * skill.tokens + item_tokens + 500)
    rows = [
        _row(config, "agent", stage, count * turns, prompt, _REPLY)
        for stage, count in rollouts.items()
    ]
    if config.model.optimizer is not None and config.optimizer.proposer != "examples":
        shown = config.gradient.minibatch_size * (item_tokens + _REPLY.high)
        material = Range(skill.tokens + 800, 2 * skill.tokens + 2_000 + shown)
        rows += [
            _row(config, "optimizer", stage, count, material, _PROPOSAL)
            for stage, count in _calls(config, plan).items()
        ]
    if config.model.judge is not None:
        graded = Range(item_tokens + 300, item_tokens + 1_500 + _REPLY.high)
        twice = (
            rollouts["ship"] if config.evaluation.ship_grader else _NOTHING
        )  # both graders look at those
        rows.append(
            _row(
                config, "judge", "grading", sum(rollouts.values(), twice) * _JUDGED, graded, _REPLY
            )
        )
    calls = sum((row.calls for row in rows), _NOTHING)
    return Estimate(
        tuple(row for row in rows if row.calls.high),
        calls * _SECONDS * (1 / (60 * config.model.concurrency)),
    )


def _row(config: Config, role: Role, stage: str, calls: Range, prompt: Range, reply: Range) -> Row:
    """What a role's calls in a stage take."""
    spec: ModelSpec | None = getattr(config.model, role)
    price = Prices(config.model.prices).of(spec.id) if spec else None
    usd = calls * (prompt * price.input + reply * price.output) * 1e-6 if price else None
    return Row(stage, role, calls, calls * (prompt + reply), usd)


def _rollouts(config: Config, task: Task, plan: Plan) -> dict[str, Range]:
    """Rollouts per stage, from the least to the most that the plan can take."""
    evaluation, optimizer, gradient = config.evaluation, config.optimizer, config.gradient
    selection, test = len(task.selection), len(task.test)
    steps, later_epochs = plan.total_steps, len(plan.epochs) - 1
    items = sum(len(batch.items) for batch in plan.batches)
    strict = evaluation.gate == "strict"
    # A rewrite gets a paired test: up to two passes for each of the two skills.
    judged = 1 if strict else selection_passes(selection)
    if not strict and optimizer.skill_update_mode != "patch":
        judged = 4
    # A skill that changes outside the gate is measured too.
    noted = steps * selection if strict and optimizer.use_skill_aware_reflection else 0
    compared = min(optimizer.slow_update_samples, len(task.train))
    if optimizer.longitudinal_pair_policy == "changed":
        compared = len(task.train)
    looks_back = optimizer.use_slow_update or optimizer.use_meta_skill
    slow = 2 * compared * later_epochs if looks_back else 0
    if strict and optimizer.use_slow_update:
        slow += later_epochs * selection
    tried = len(task.train[:PREFLIGHT_ITEMS]) * (PREFLIGHT_REPEATS + 1)
    ship = (1 + evaluation.finalists) * MOST_REPEATS * selection
    return {
        "preflight": Range(tried, tried) if evaluation.preflight else _NOTHING,
        "baseline": Range(selection, selection),
        "rollout": Range(items, items) * gradient.rollouts_per_item,
        "diagnosis": Range(0, steps * gradient.deep_reflection_items)
        if gradient.deep_reflection
        else _NOTHING,
        "gate": Range(0, steps * judged * selection + noted),
        "slow_update": Range(0, slow),
        "compose": _NOTHING if strict else Range(0, 2 * selection),
        "ship": Range(0, ship) if evaluation.ship_test else _NOTHING,
        "test": Range(test, 3 * test) if evaluation.eval_test else _NOTHING,
    }


def _calls(config: Config, plan: Plan) -> dict[str, Range]:
    """The optimizer's, from nothing to say to something in every group; replies that have to be
    asked for again not counted.
    """
    gradient, optimizer, steps, later_epochs = (
        config.gradient,
        config.optimizer,
        plan.total_steps,
        len(plan.epochs) - 1,
    )
    sizes = [len(batch.items) for batch in plan.batches]
    groups = sum(
        ceil(size / gradient.minibatch_size) + (not gradient.failure_only and size > 1)
        for size in sizes
    )
    diagnoses = steps if gradient.deep_reflection else 0
    deeper = diagnoses * ceil(gradient.deep_reflection_items / gradient.minibatch_size)
    return {
        "reflect": Range(0 if gradient.failure_only else len(sizes), groups + diagnoses + deeper),
        "merge": Range(0, ceil((groups + deeper) / (gradient.merge_batch_size - 1)) + 2 * steps),
        "select": Range(0, steps * (2 if optimizer.lr_control_mode == "autonomous" else 1)),
        "update": Range(
            0, steps if optimizer.skill_update_mode == "rewrite_from_suggestions" else 0
        ),
        "appendix": Range(0, steps if optimizer.skill_aware_consolidate_threshold else 0),
        "slow_update": Range(0, later_epochs if optimizer.use_slow_update else 0),
        "meta_skill": Range(0, later_epochs if optimizer.use_meta_skill else 0),
    }
