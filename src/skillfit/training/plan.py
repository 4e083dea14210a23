"""The plan of a run: the items that each step rolls out, and what a number of rollouts buys.

A pure function of the items and the settings. A batch sampler decides it; `ShuffledBatches` is the
default. Its shuffles and batch seeds equal SkillOpt's, so `recipe: paper` uses the same items
in the same order.

With `budget.rollouts`, `plan_rollouts` decides about steps, batches and selection items. Fixed
costs come first: the check, the baseline, the comparison at the end, the ship test and the test
split. The rest goes to steps. Where the selection split is too large for the budget, fewer of its
items are used, so that several steps are possible. estimate.py counts rollouts with the same
functions.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

from skillfit.config.schema import Config, TrainSection
from skillfit.errors import InputError
from skillfit.gate.ship import MOST_REPEATS
from skillfit.models import ModelSpec
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

    def after(self, step: PlannedStep) -> PlannedStep | None:
        """The step that follows, in the next epoch too; None after the last."""
        steps = [planned for epoch in self.epochs for planned in epoch.steps]
        return next((planned for planned in steps if planned.step == step.step + 1), None)

    def first_steps(self, count: int) -> Plan:
        """The plan cut after `count` steps."""
        epochs = []
        for epoch in self.epochs:
            kept = tuple(step for step in epoch.steps if step.step <= count)
            if kept:
                epochs.append(Epoch(epoch.number, kept, epoch.slow_order))
        return Plan(tuple(epochs))


LONG_RUN = 30  # steps from which a lag costs no measurable gain (bench/gate, "lag")
LONG_RUN_LAG = 2


def planned_lag(setting: int | None, steps: int, pools_edits: bool) -> int:
    """By how many steps edits join later than they were written. Without a setting it is decided
    by the length of the run; a gate without a pool of edits needs them in their own step.
    """
    if setting is not None:
        return setting
    return LONG_RUN_LAG if pools_edits and steps >= LONG_RUN else 0


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
ENOUGH_STEPS = 6  # fewer steps are planned only when the budget has no room for more
SMALLEST_SELECTION = 8
MEASURED_PER_STEP = 40  # selection rollouts of a step, where the split is smaller than this
MOST_PASSES = 4
REWRITE_PASSES = 4  # a paired test: up to two for each of the two skills
COMPOSE_PASSES = 2  # over the selection items: the composed skill and the incumbent
BATCH = 20  # training rollouts of a step, where the settings ask for more


@dataclass(frozen=True, slots=True)
class SplitSizes:
    train: int
    selection: int
    test: int

    @classmethod
    def of(cls, task: Task) -> SplitSizes:
        return cls(len(task.train), len(task.selection), len(task.test))


def selection_passes(selection: int) -> int:
    """Passes over the selection items per step: several where there are few items."""
    return max(1, min(MOST_PASSES, round(MEASURED_PER_STEP / max(1, selection))))


def rollouts_per_judgement(selection: int, pools_edits: bool, *, rewrites: bool = False) -> int:
    """Selection rollouts of one judgement, at the most. A gate without a pool makes one pass over
    the items.
    """
    if not pools_edits:
        return selection
    return selection * (REWRITE_PASSES if rewrites else selection_passes(selection))


def gate_rollouts(config: Config, selection: int, pools_edits: bool) -> int:
    """Selection rollouts of a step, at the most."""
    optimizer = config.optimizer
    rewrites = optimizer.skill_update_mode != "patch"
    judged = rollouts_per_judgement(selection, pools_edits, rewrites=rewrites)
    adds_notes = optimizer.use_skill_aware_reflection and config.model.optimizer is not None
    if adds_notes and not pools_edits:
        judged += selection  # the notes enter the skill outside of the gate, which measures them
    return judged


def compose_rollouts(selection: int, pools_edits: bool) -> int:
    """Selection rollouts that compare the composed skill with the incumbent before the ship test,
    at the most. A gate without a pool has measured its skills before.
    """
    return COMPOSE_PASSES * selection if pools_edits else 0


def diagnosis_rollouts(config: Config) -> int:
    """Failures of a step that deep reflection rolls out again, at the most."""
    asks = config.gradient.deep_reflection and config.model.optimizer is not None
    return config.gradient.deep_reflection_items if asks else 0


def looked_back(epochs: int, pools_edits: bool) -> int:
    """How many epochs end with a slow update and a meta skill. The first does not, because there is
    no epoch to compare it with. With a pool, the last does not either: no step is left to measure
    the lesson.
    """
    return max(0, epochs - (2 if pools_edits else 1))


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
    return looked_back(epochs, pools_edits) * (2 * compared + measured)


def plan_rollouts(
    config: Config, sizes: SplitSizes, rollouts: int, pools_edits: bool = True
) -> RolloutPlan:
    """The plan for about this number of rollouts. Raises when it is too small for one step.

    `pools_edits`: the gate's property of that name.
    """
    per_step = _batch_size(config, sizes) * config.train.accumulation
    return _planned(config, sizes, rollouts, pools_edits, ceil(sizes.train / per_step))


def earlier_plan(config: Config, sizes: SplitSizes, rollouts: int) -> RolloutPlan:
    """The plan of versions that did not record it. They planned every run for patches, a gate with
    a pool, an optimizer and no accumulation.
    """
    settings = {"skill_update_mode": "patch", "slow_update_gate_with_selection": True}
    model = config.model.model_copy(update={"optimizer": ModelSpec(id="any/model")})
    optimizer = config.optimizer.model_copy(update=settings)
    then = config.model_copy(update={"model": model, "optimizer": optimizer})
    steps_per_epoch = ceil(sizes.train / _batch_size(config, sizes))
    return _planned(then, sizes, rollouts, True, steps_per_epoch)


def _planned(
    config: Config, sizes: SplitSizes, rollouts: int, pools_edits: bool, steps_per_epoch: int
) -> RolloutPlan:
    found: RolloutPlan | None = None
    for selection in _selection_sizes(sizes.selection):
        used = replace(sizes, selection=selection)
        for repeats in range(MOST_REPEATS, 0, -1):
            plan = _plan(config, used, rollouts, repeats, pools_edits, steps_per_epoch)
            if plan is None:
                continue
            if plan.steps >= ENOUGH_STEPS:
                return plan
            if found is None or plan.steps > found.steps:
                found = plan
    if found is None:
        fewest = replace(sizes, selection=min(SMALLEST_SELECTION, sizes.selection))
        least = _fixed(config, fewest, 1, pools_edits) + _step(config, fewest, pools_edits)
        raise InputError(
            f"budget.rollouts: {rollouts} is too small for one step and the ship test.",
            hint=f"This task needs at least {least}.",
        )
    return found


def ship_repeats(planned: int, finalists: int, compared: bool) -> int:
    """Rollouts per item and skill in the ship test. The plan sets two passes aside to compare the
    composed skill with the incumbent. When no edit was promoted there is nothing to compare, and
    the ship test gets these rollouts.
    """
    spare = 0 if compared else COMPOSE_PASSES // (1 + finalists)
    return min(MOST_REPEATS, planned + spare)


def _selection_sizes(items: int) -> list[int]:
    """The whole split first, then smaller parts of it."""
    sizes = []
    size = items
    while size > SMALLEST_SELECTION:
        sizes.append(size)
        size = max(SMALLEST_SELECTION, size * 3 // 4)
    return [*sizes, min(size, items)]


def _plan(
    config: Config,
    sizes: SplitSizes,
    rollouts: int,
    repeats: int,
    pools_edits: bool,
    steps_per_epoch: int,
) -> RolloutPlan | None:
    """The longest plan with all of these selection items and this many repeats in the ship test."""
    fixed = _fixed(config, sizes, repeats, pools_edits)
    step = _step(config, sizes, pools_edits)
    size = _batch_size(config, sizes)

    def total(steps: int) -> int:
        epochs = -(-steps // steps_per_epoch)
        return fixed + steps * step + look_back_rollouts(config, sizes, epochs, pools_edits)

    steps, most = 0, max(0, (rollouts - fixed) // step)
    while steps < most:
        middle = (steps + most + 1) // 2
        if total(middle) <= rollouts:
            steps = middle
        else:
            most = middle - 1
    return RolloutPlan(steps, size, sizes.selection, repeats, total(steps)) if steps else None


def _batch_size(config: Config, sizes: SplitSizes) -> int:
    """Small batches: more steps are worth more than more trajectories per step."""
    return min(config.train.batch_size, BATCH, sizes.train)


def _fixed(config: Config, sizes: SplitSizes, repeats: int, pools_edits: bool) -> int:
    """Rollouts besides the steps."""
    evaluation = config.evaluation
    preflight = min(PREFLIGHT_ITEMS, sizes.train) * (PREFLIGHT_REPEATS + 1)
    ship = (1 + evaluation.finalists) * repeats * sizes.selection
    return (
        (preflight if evaluation.preflight else 0)
        + sizes.selection  # the baseline
        + compose_rollouts(sizes.selection, pools_edits)
        + (ship if evaluation.ship_test else 0)
        + (2 * sizes.test if evaluation.eval_test else 0)
    )


def _step(config: Config, sizes: SplitSizes, pools_edits: bool) -> int:
    batches = _batch_size(config, sizes) * config.train.accumulation
    training = batches * config.gradient.rollouts_per_item
    judged = gate_rollouts(config, sizes.selection, pools_edits)
    return training + diagnosis_rollouts(config) + judged
