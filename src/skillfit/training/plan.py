"""Which items each step rolls out: a pure function of the items and the settings.

A batch sampler decides it. The shuffles and batch seeds of `ShuffledBatches` equal SkillOpt's, so
`recipe: paper` uses the same items in the same order. How many steps there are, and what else a run
does, is in schedule.py.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

from skillfit.config.schema import TrainSection
from skillfit.gate import Round
from skillfit.run.records import Phase, epoch_name, step_name
from skillfit.tasks.item import Item


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
    # Set by the schedule
    phase: Phase = "grow"
    round: Round = field(default_factory=Round)  # how pending edits are measured

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
    def steps(self) -> list[PlannedStep]:
        return [step for epoch in self.epochs for step in epoch.steps]

    @property
    def steps_per_epoch(self) -> int:
        return len(self.epochs[0].steps)

    @property
    def total_steps(self) -> int:
        return len(self.steps)

    @property
    def batches(self) -> list[StepBatch]:
        return [batch for step in self.steps for batch in step.batches]

    def first_steps(self, count: int) -> Plan:
        """Return the plan cut after `count` steps."""
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
