"""Measure skills on a split without training: any number of them, with repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillfit.config import identity
from skillfit.errors import InputError
from skillfit.gate.statistics import Interval, interval
from skillfit.rollout import Outcome, Tally, gather, requests_for
from skillfit.rollout.outcome import weighted_values
from skillfit.run.budget import Spending
from skillfit.run.directory import RunDirectory
from skillfit.skill import Skill
from skillfit.tasks.item import Item, weights_of
from skillfit.tasks.splits import split_named
from skillfit.tasks.task import Task
from skillfit.training.assemble import Listener, open_rollouts
from skillfit.training.components import Control, Interrupted
from skillfit.training.inputs import Inputs


@dataclass(frozen=True, slots=True)
class Measured:
    """One skill on one split. Item means are averaged over repeats first, so that repeats never
    pose as items.
    """

    name: str
    skill: Skill
    items: tuple[Item, ...]
    outcomes: tuple[Outcome, ...]  # all items of the first repeat, then of the next

    @property
    def tally(self) -> Tally:
        return Tally.of(self.outcomes, weights_of(self.items))

    @property
    def means(self) -> dict[str, float]:
        """Item id -> its mean hard score, for items that were scored."""
        values: dict[str, list[float]] = {}
        for outcome in self.outcomes:
            if outcome.score is not None:
                values.setdefault(outcome.item_id, []).append(outcome.score.hard)
        return {item: sum(scores) / len(scores) for item, scores in values.items()}

    @property
    def interval(self) -> Interval:
        return interval(list(weighted_values(self.means, weights_of(self.items)).values()))

    @property
    def by_type(self) -> dict[str, Tally]:
        kinds = {item.id: item.type or "all" for item in self.items}
        return {
            kind: Tally.of(
                (o for o in self.outcomes if kinds[o.item_id] == kind), weights_of(self.items)
            )
            for kind in sorted(set(kinds.values()))
        }


async def evaluate(
    inputs: Inputs,
    skills: Mapping[str, Skill],
    path: Path,
    *,
    split: str = "selection",
    repeats: int = 1,
    series: str = "evaluate",
    listeners: Sequence[Listener] = (),
    control: Control | None = None,
    spending: Spending | None = None,
) -> list[Measured]:
    """Roll out each skill on the split's items. What is recorded in the run directory `path` is not
    paid for again. A command that evaluates several times hands each call its one `spending`.
    """
    items = items_of(inputs.task, split)
    with RunDirectory.open(path, _identity(inputs)) as run:
        async with open_rollouts(inputs, run, listeners, control, spending) as rollouts:
            found = await gather(
                rollouts.run(
                    requests_for(skill, items, range(repeats)), phase="evaluate", series=series
                )
                for skill in skills.values()
            )
    if any(outcome.status == "skipped" for outcomes in found for outcome in outcomes):
        raise Interrupted(None)
    return [
        Measured(name, skill, items, tuple(o))
        for (name, skill), o in zip(skills.items(), found, strict=True)
    ]


def _identity(inputs: Inputs) -> dict[str, Any]:
    """How answers come about and are graded. Items, splits, skills and repeats may change: each
    rollout is recorded by its own.
    """
    config, task = identity(inputs.config), inputs.task
    parts = (inputs.agent, task.grader, task.evaluator)
    return {
        "model": {role: config["model"][role] for role in ("agent", "judge")},
        "env": {
            name: config["env"][name]
            for name in ("agent", "prompt", "max_turns", "max_rollout_tokens")
        },
        "seed": config["train"]["seed"],
        "described": [part.describe() if part else None for part in parts],
    }


def items_of(task: Task, split: str) -> tuple[Item, ...]:
    if split == "all":
        return task.items
    split = split_named(split)
    items: tuple[Item, ...] = getattr(task, split)
    if not items:
        raise InputError(
            f"The {split} split is empty.", hint="Change env.split_ratio, or choose another split."
        )
    return items
