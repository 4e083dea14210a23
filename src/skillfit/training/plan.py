"""The plan of a run: which items each step of each epoch rolls out.

A pure function of the items and the seed. An epoch is one shuffled pass over the training items.
Shuffles and batch seeds equal the reference's, so `recipe: paper` uses the same items in the same
order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from skillfit.tasks.item import Item


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the plan a stage belongs; 0 before the first step and after the last."""

    epoch: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True)
class StepBatch:
    seed: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    epoch: int
    step: int  # over the whole run, from 1
    index: int  # within the epoch, from 1
    batches: tuple[StepBatch, ...]

    @property
    def name(self) -> str:
        return f"step_{self.step:04d}"

    @property
    def place(self) -> Place:
        return Place(self.epoch, self.step)

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(item for batch in self.batches for item in batch.items)


@dataclass(frozen=True, slots=True)
class Epoch:
    number: int
    steps: tuple[PlannedStep, ...]
    slow_order: tuple[
        Item, ...
    ]  # all training items in the order the slow update samples (and tops up) from

    @property
    def name(self) -> str:
        return f"epoch_{self.number:02d}"

    @property
    def last_step(self) -> int:
        return self.steps[-1].step


@dataclass(frozen=True, slots=True)
class Plan:
    epochs: tuple[Epoch, ...]
    steps_per_epoch: int

    @property
    def total_steps(self) -> int:
        return self.steps_per_epoch * len(self.epochs)

    @property
    def batches(self) -> list[StepBatch]:
        return [batch for epoch in self.epochs for step in epoch.steps for batch in step.batches]


def make_plan(
    items: Sequence[Item], *, num_epochs: int, batch_size: int, accumulation: int, seed: int
) -> Plan:
    steps_per_epoch = max(1, ceil(len(items) / (batch_size * accumulation)))
    epochs = []
    for number in range(1, num_epochs + 1):
        batches = _epoch_batches(items, number, steps_per_epoch * accumulation, batch_size, seed)
        steps = tuple(
            PlannedStep(
                epoch=number,
                step=(number - 1) * steps_per_epoch + index + 1,
                index=index + 1,
                batches=tuple(batches[index * accumulation : (index + 1) * accumulation]),
            )
            for index in range(steps_per_epoch)
        )
        epochs.append(Epoch(number, steps, _shuffled(items, seed + number * 2000)))
    return Plan(tuple(epochs), steps_per_epoch)


def _epoch_batches(
    items: Sequence[Item], epoch: int, count: int, size: int, seed: int
) -> list[StepBatch]:
    order = _shuffled(items, seed + epoch * 1000)
    batches = []
    for index in range(count):
        batch_seed = seed + epoch * 1000 + index + 1
        # With accumulation, trailing batches may find no items left: they get a reshuffle rather
        # than nothing.
        batch = order[index * size : (index + 1) * size] or _shuffled(order, batch_seed)[:size]
        batches.append(StepBatch(batch_seed, batch))
    return batches


def _shuffled(items: Sequence[Item], seed: int) -> tuple[Item, ...]:
    order = list(items)
    random.Random(seed).shuffle(order)
    return tuple(order)
