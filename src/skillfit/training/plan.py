"""The plan of a run: the items that each step rolls out, and what a number of rollouts buys.

A pure function of the items and the settings. A batch sampler decides it; `ShuffledBatches` is the
default. Its shuffles and batch seeds equal SkillOpt's, so `recipe: paper` uses the same items
in the same order.

With `budget.rollouts`, `plan_rollouts` decides about steps and batches. The ship test gets about
30 % of the rollouts. The rest goes to steps: a batch of training rollouts and as many selection
rollouts, which measure the edits that earlier steps proposed. Two rounds of selection rollouts
after the last step measure what joined last. estimate.py counts rollouts with the same functions.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from skillfit.config.schema import Config, TrainSection
from skillfit.errors import InputError
from skillfit.gate.ship import MOST_REPEATS
from skillfit.run.records import RolloutPlan, epoch_name, step_name
from skillfit.tasks.item import Item
from skillfit.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the plan a stage belongs; 0 before the first step and after the last."""

    epoch: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Training items that are rolled out and reflected on together."""

    seed: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step: one batch of training items, or several with `train.accumulation`."""

    epoch: int
    step: int  # over the whole run, from 1
    index: int  # within the epoch, from 1
    batches: tuple[StepBatch, ...]

    @property
    def name(self) -> str:
        return step_name(self.step)

    @property
    def place(self) -> Place:
        return Place(self.epoch, self.step)

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(item for batch in self.batches for item in batch.items)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over the training items."""

    number: int
    steps: tuple[PlannedStep, ...]
    slow_order: tuple[Item, ...]  # training items in the order that the slow update samples them

    @property
    def name(self) -> str:
        return epoch_name(self.number)

    @property
    def last_step(self) -> int:
        return self.steps[-1].step


@dataclass(frozen=True, slots=True)
class Plan:
    """Every step of a run, in order."""

    epochs: tuple[Epoch, ...]

    @property
    def steps_per_epoch(self) -> int:
        return len(self.epochs[0].steps)

    @property
    def total_steps(self) -> int:
        return sum(len(epoch.steps) for epoch in self.epochs)

    @property
    def batches(self) -> list[StepBatch]:
        return [batch for epoch in self.epochs for step in epoch.steps for batch in step.batches]

    def first_steps(self, count: int) -> Plan:
        """The plan cut after `count` steps."""
        epochs = []
        for epoch in self.epochs:
            kept = tuple(step for step in epoch.steps if step.step <= count)
            if kept:
                epochs.append(Epoch(epoch.number, kept, epoch.slow_order))
        return Plan(tuple(epochs))


class BatchSampler(Protocol):
    """Decides which training items each step rolls out."""

    def plan(self, items: Sequence[Item], settings: TrainSection) -> Plan: ...


class ShuffledBatches:
    """An epoch is one shuffled pass over the training items."""

    def order(self, items: Sequence[Item], seed: int) -> tuple[Item, ...]:
        return _shuffled(items, seed)

    def plan(self, items: Sequence[Item], settings: TrainSection) -> Plan:
        size, per_step, seed = settings.batch_size, settings.accumulation, settings.seed
        steps_per_epoch = max(1, ceil(len(items) / (size * per_step)))
        epochs = []
        for number in range(1, settings.num_epochs + 1):
            order = self.order(items, seed + number * 1000)
            batches = _batches(order, number, steps_per_epoch * per_step, size, seed)
            steps = []
            for index in range(steps_per_epoch):
                steps.append(
                    PlannedStep(
                        epoch=number,
                        step=(number - 1) * steps_per_epoch + index + 1,
                        index=index + 1,
                        batches=tuple(batches[index * per_step : (index + 1) * per_step]),
                    )
                )
            slow_order = _shuffled(items, seed + number * 2000)
            epochs.append(Epoch(number, tuple(steps), slow_order))
        return Plan(tuple(epochs))


class BalancedBatches(ShuffledBatches):
    """As ShuffledBatches, but every batch holds a similar mix of item types."""

    def order(self, items: Sequence[Item], seed: int) -> tuple[Item, ...]:
        by_type: defaultdict[str, list[Item]] = defaultdict(list)
        for item in _shuffled(items, seed):
            by_type[item.type].append(item)
        # Each type is spread evenly over the epoch.
        placed = []
        for kind in sorted(by_type):
            group = by_type[kind]
            for at, item in enumerate(group):
                placed.append(((at + 0.5) / len(group), kind, item))
        placed.sort(key=lambda entry: entry[:2])
        return tuple(item for _, _, item in placed)


def _batches(
    order: Sequence[Item], epoch: int, count: int, size: int, seed: int
) -> list[StepBatch]:
    batches = []
    for index in range(count):
        batch_seed = seed + epoch * 1000 + index + 1
        # With accumulation, the last batches of an epoch may find no items left: reshuffle.
        items = tuple(order[index * size : (index + 1) * size])
        batches.append(StepBatch(batch_seed, items or _shuffled(order, batch_seed)[:size]))
    return batches


def _shuffled(items: Sequence[Item], seed: int) -> tuple[Item, ...]:
    order = list(items)
    random.Random(seed).shuffle(order)
    return tuple(order)


MOST_STEPS = 100_000
MOST_AT_ONCE = 100_000  # rollouts that are started at once: those of a step or of an evaluation
MOST_TRAINING_ROLLOUTS = 10_000_000  # of all steps


def refuse_endless_plan(config: Config, items: int, bought: RolloutPlan | None) -> None:
    """Raise an error for a plan that is too large to be built. `items`: the training items.
    `bought`: the plan for `budget.rollouts`, where that is set.
    """
    train, gradient = config.train, config.gradient
    size = min(train.batch_size if bought is None else bought.batch_size, max(1, items))
    per_step = size * train.accumulation * gradient.rollouts_per_item
    refuse_endless(
        f"train.accumulation: {shown_count(train.accumulation)} and gradient.rollouts_per_item: "
        f"{shown_count(gradient.rollouts_per_item)} with batches of {size:,} items "
        "(train.batch_size) give",
        per_step,
        "training rollouts in one step",
        most=MOST_AT_ONCE,
        hint="Use smaller values.",
    )
    if bought is None:
        key, value = "train.num_epochs", train.num_epochs
        steps = value * max(1, -(-items // (size * train.accumulation)))
    else:
        key, value, steps = "budget.rollouts", config.budget.rollouts or 0, bought.steps
    for count, what, most in (
        (steps, "steps", MOST_STEPS),
        (steps * per_step, "training rollouts", MOST_TRAINING_ROLLOUTS),
    ):
        refuse_endless(
            f"{key}: {shown_count(value)} gives a plan of",
            count,
            what,
            most=most,
            hint="Use a smaller value. To train until an amount is spent, set budget.usd, "
            "budget.tokens, budget.calls or budget.minutes.",
        )


def refuse_endless(cause: str, count: int, what: str, *, most: int, hint: str) -> None:
    """Raise an error when settings ask for more than memory could hold. `cause` names them and ends
    with a verb, for example `repeats: 5 gives`.
    """
    if count > most:
        raise InputError(
            f"{cause} {shown_count(count)} {what}. At most {most:,} are possible.", hint=hint
        )


def shown_count(number: int) -> str:
    return f"{number:,}" if number < 10**15 else "more than 10^15"


PREFLIGHT_ITEMS = 10  # training items that the check tries
PREFLIGHT_REPEATS = 2  # with the skill; and once without a part of it
BATCH = 20  # training rollouts of a step, where the settings ask for more
SMALLEST_BATCH = 10  # the same where few rollouts are planned
FEWEST = 4  # training rollouts of a step that can show something
PRUNE_ROUNDS = 2  # rounds of selection rollouts that measure the pending edits after the last step
REWRITE_PASSES = 4  # a paired test: up to two for each of the two skills
SHIP_SHARE = 0.15  # of all rollouts: pairs of the ship test, which are two rollouts each
ENOUGH_PAIRS = 45  # more only where there are more items
FEW_PAIRS = 15  # where few rollouts are planned
FEWEST_PAIRS = 6  # fewer cannot show an improvement


@dataclass(frozen=True, slots=True)
class SplitSizes:
    train: int
    selection: int
    test: int

    @classmethod
    def of(cls, task: Task) -> SplitSizes:
        return cls(len(task.train), len(task.selection), len(task.test))

    def compared(self, config: Config) -> int:
        """The items of the ship test: those of the selection split, and of the test split."""
        return self.selection + (self.test if config.evaluation.eval_test else 0)


def selection_rollouts(config: Config, sizes: SplitSizes) -> int:
    """Selection rollouts of a step under pending edits: as many as training items."""
    return _batch_size(config, sizes) * config.train.accumulation


def gate_rollouts(config: Config, selection: int, per_step: int, pools_edits: bool) -> int:
    """Selection rollouts of a step, at the most. `per_step`: of a gate with a pool. A gate without
    one makes one pass over the items.
    """
    optimizer = config.optimizer
    if pools_edits:
        return per_step + (selection * REWRITE_PASSES if _rewrites(config) else 0)
    adds_notes = optimizer.use_skill_aware_reflection and config.model.optimizer is not None
    return selection * (2 if adds_notes else 1)  # the gate measures a skill with new notes too


def _rewrites(config: Config) -> bool:
    return config.optimizer.skill_update_mode != "patch"


def diagnosis_rollouts(config: Config) -> int:
    """Failures of a step that deep reflection rolls out again, at the most."""
    asks = config.gradient.deep_reflection and config.model.optimizer is not None
    return config.gradient.deep_reflection_items if asks else 0


def looked_back(epochs: int) -> int:
    """How many epochs end with a slow update and a meta skill. The first does not, because there is
    no epoch to compare it with.
    """
    return max(0, epochs - 1)


def look_back_rollouts(config: Config, sizes: SplitSizes, epochs: int, pools_edits: bool) -> int:
    """Rollouts at the end of all epochs, at the most: both skills on some training items, and the
    skill with the lesson on the selection items where it does not wait in a pool.
    """
    optimizer = config.optimizer
    if config.model.optimizer is None:
        return 0
    if not optimizer.use_slow_update and not optimizer.use_meta_skill:
        return 0
    every = optimizer.longitudinal_pair_policy == "changed"
    compared = sizes.train if every else min(optimizer.slow_update_samples, sizes.train)
    pooled = pools_edits and optimizer.slow_update_gate_with_selection
    measured = sizes.selection if optimizer.use_slow_update and not pooled else 0
    return looked_back(epochs) * (2 * compared + measured)


def training_series(step: str, batch: int) -> str:
    """The series of the training rollouts of a step's batch."""
    return f"train/{step}/{batch}"


@dataclass(frozen=True, slots=True)
class CheckRollouts:
    """What the check before a run rolls out besides the first training rollouts of the run."""

    items: int
    repeats: int  # of each item with the skill; the first repeat belongs to the first step
    shortened: bool  # also with a part of the skill removed

    @property
    def total(self) -> int:
        return self.items * (self.repeats + self.shortened)

    @property
    def extra(self) -> int:
        return self.items * (self.repeats - 1 + self.shortened)


def check_rollouts(config: Config, train_items: int) -> CheckRollouts:
    """A small budget is left to the run: then the check reads the first training rollouts only."""
    budget, items = config.budget.rollouts, min(PREFLIGHT_ITEMS, train_items)
    if budget is None or budget >= 600:
        return CheckRollouts(items, PREFLIGHT_REPEATS, shortened=True)
    return CheckRollouts(items, 1, shortened=budget >= 200)


def ship_pairs(config: Config, sizes: SplitSizes, rollouts: float) -> int:
    """Pairs of rollouts of the ship test, at the most, in a run of so many rollouts in all."""
    items = sizes.compared(config)
    few = min(FEW_PAIRS, rollouts // 4)
    wanted = max(few, min(round(SHIP_SHARE * rollouts), max(ENOUGH_PAIRS, items)))
    return int(min(wanted, MOST_REPEATS * items))


def planned_pairs(config: Config, sizes: SplitSizes, plan: Plan) -> int:
    """Pairs of the ship test, at the most, in a run without `budget.rollouts`: as if its steps were
    what a number of rollouts bought.
    """
    training = sum(len(batch.items) for batch in plan.batches) * config.gradient.rollouts_per_item
    measured = plan.total_steps * selection_rollouts(config, sizes)
    return ship_pairs(config, sizes, (training + measured) / (1 - 2 * SHIP_SHARE))


def plan_rollouts(
    config: Config, sizes: SplitSizes, rollouts: int, pools_edits: bool = True
) -> RolloutPlan:
    """The plan for about this number of rollouts. Raises when it is too small for one step.

    `pools_edits`: the gate's property of that name.
    """
    pairs = ship_pairs(config, sizes, rollouts) if config.evaluation.ship_test else 0
    largest = _batch_size(config, sizes)
    smallest = min(largest, FEWEST)
    size = min(largest, max(SMALLEST_BATCH, rollouts // 10))
    while True:
        plan = _longest_plan(config, sizes, rollouts, size, pairs, pools_edits)
        if plan is not None and (pairs >= FEWEST_PAIRS or not config.evaluation.ship_test):
            return plan
        if size == smallest:
            break
        size -= 1
    least = FEWEST_PAIRS if config.evaluation.ship_test else 0
    fewest = _total(config, sizes, smallest, 1, least, pools_edits)
    raise InputError(
        f"budget.rollouts: {rollouts} is too small for one step and the ship test.",
        hint=f"This task needs at least {max(fewest, 4 * least)}.",
    )


def _longest_plan(
    config: Config, sizes: SplitSizes, rollouts: int, size: int, pairs: int, pools_edits: bool
) -> RolloutPlan | None:
    """The plan with the most steps of this size; None when there is no room for one."""

    def total(steps: int) -> int:
        return _total(config, sizes, size, steps, pairs, pools_edits)

    steps, most = 0, rollouts
    while steps < most:
        middle = (steps + most + 1) // 2
        if total(middle) <= rollouts:
            steps = middle
        else:
            most = middle - 1
    per_step = size * config.train.accumulation
    return RolloutPlan(steps, size, per_step, pairs, total(steps)) if steps else None


def _total(
    config: Config, sizes: SplitSizes, size: int, steps: int, pairs: int, pools_edits: bool
) -> int:
    """Rollouts of a run with this many steps of this many training items."""
    batches = size * config.train.accumulation
    training = batches * config.gradient.rollouts_per_item + diagnosis_rollouts(config)
    judged = gate_rollouts(config, sizes.selection, batches, pools_edits)
    epochs = ceil(steps * batches / max(1, sizes.train))
    checked = check_rollouts(config, sizes.train).extra if config.evaluation.preflight else 0
    if pools_edits:  # the first step has nothing to measure yet; the last edits are measured later
        measured = (steps - 1) * judged + PRUNE_ROUNDS * batches
    else:
        measured = (steps + 1) * judged  # the initial skill first
    if not config.evaluation.ship_test and config.evaluation.eval_test:
        measured += 3 * sizes.test
    return (
        checked
        + steps * training
        + measured
        + look_back_rollouts(config, sizes, epochs, pools_edits)
        + (1 + config.evaluation.finalists) * pairs
    )


def _batch_size(config: Config, sizes: SplitSizes) -> int:
    """Small batches: more steps are worth more than more trajectories per step."""
    return min(config.train.batch_size, BATCH, sizes.train)
