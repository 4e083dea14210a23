"""Plan a run by the number of rollouts a person wants to spend (`budget.rollouts`).

Fixed costs come first: the check, the baseline, the comparison at the end, the ship test and the
test split. The rest goes to steps. Where the selection split is too large for the budget, fewer of
its items are used, so that several steps are possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from skillfit.config.schema import Config
from skillfit.errors import InputError
from skillfit.gate.ship import MOST_REPEATS

PREFLIGHT_ITEMS = 10  # training items that the check tries
PREFLIGHT_REPEATS = 2  # with the skill; and once without a part of it
ENOUGH_STEPS = 6  # fewer steps are planned only when the budget has no room for more
SMALLEST_SELECTION = 8
MEASURED_PER_STEP = 40  # selection rollouts of a step, where the split is smaller than this
MOST_PASSES = 4
BATCH = 20  # training rollouts of a step, where the settings ask for more


@dataclass(frozen=True, slots=True)
class SplitSizes:
    train: int
    selection: int
    test: int


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What a number of rollouts buys."""

    steps: int
    batch_size: int
    selection: int  # selection items used
    ship_repeats: int
    total: int  # rollouts, at the most


def selection_passes(selection: int) -> int:
    """Passes over the selection items per step: several where there are few items."""
    return max(1, min(MOST_PASSES, round(MEASURED_PER_STEP / max(1, selection))))


def plan_rollouts(config: Config, sizes: SplitSizes, rollouts: int) -> RolloutPlan:
    """The plan for about this number of rollouts. Raises when it is too small for one step."""
    found: RolloutPlan | None = None
    for selection in _selection_sizes(sizes.selection):
        for repeats in range(MOST_REPEATS, 0, -1):
            plan = _plan(config, sizes, rollouts, selection, repeats)
            if plan is None:
                continue
            if plan.steps >= ENOUGH_STEPS:
                return plan
            if found is None or plan.steps > found.steps:
                found = plan
    if found is None:
        least = _fixed(config, sizes, min(SMALLEST_SELECTION, sizes.selection), 1)
        step = _step(config, sizes, min(SMALLEST_SELECTION, sizes.selection))
        raise InputError(
            f"budget.rollouts: {rollouts} is too small for one step and the ship test.",
            hint=f"This task needs at least {least + step}.",
        )
    return found


def _selection_sizes(items: int) -> list[int]:
    """The whole split first, then smaller parts of it."""
    sizes = []
    size = items
    while size > SMALLEST_SELECTION:
        sizes.append(size)
        size = max(SMALLEST_SELECTION, size * 3 // 4)
    return [*sizes, min(size, items)]


def _plan(
    config: Config, sizes: SplitSizes, rollouts: int, selection: int, repeats: int
) -> RolloutPlan | None:
    fixed = _fixed(config, sizes, selection, repeats)
    step = _step(config, sizes, selection)
    steps = (rollouts - fixed) // step
    steps_per_epoch = ceil(sizes.train / _batch_size(config, sizes))
    while steps > 0:
        slow = _slow_updates(config, sizes, ceil(steps / steps_per_epoch))
        total = fixed + steps * step + slow
        if total <= rollouts:
            return RolloutPlan(steps, _batch_size(config, sizes), selection, repeats, total)
        steps -= 1
    return None


def _batch_size(config: Config, sizes: SplitSizes) -> int:
    """Small batches: more steps are worth more than more trajectories per step."""
    return min(config.train.batch_size, BATCH, sizes.train)


def _fixed(config: Config, sizes: SplitSizes, selection: int, repeats: int) -> int:
    """Rollouts besides the steps."""
    evaluation = config.evaluation
    preflight = min(PREFLIGHT_ITEMS, sizes.train) * (PREFLIGHT_REPEATS + 1)
    ship = (1 + evaluation.finalists) * repeats * selection
    return (
        (preflight if evaluation.preflight else 0)
        + selection  # the baseline
        + 2 * selection  # the composed skill against the incumbent
        + (ship if evaluation.ship_test else 0)
        + (2 * sizes.test if evaluation.eval_test else 0)
    )


def _step(config: Config, sizes: SplitSizes, selection: int) -> int:
    gradient = config.gradient
    training = _batch_size(config, sizes) * config.train.accumulation * gradient.rollouts_per_item
    if gradient.deep_reflection:
        training += gradient.deep_reflection_items
    return training + selection * selection_passes(selection)


def _slow_updates(config: Config, sizes: SplitSizes, epochs: int) -> int:
    """Both skills on some training items, after every epoch but the first and the last."""
    optimizer = config.optimizer
    if not optimizer.use_slow_update and not optimizer.use_meta_skill:
        return 0
    compared = min(optimizer.slow_update_samples, sizes.train)
    if optimizer.longitudinal_pair_policy == "changed":
        compared = sizes.train
    return 2 * compared * max(0, epochs - 2)
