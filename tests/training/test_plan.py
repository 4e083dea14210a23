from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.config.schema import Config, TrainSection
from skillfit.errors import InputError
from skillfit.tasks.item import Item
from skillfit.training.plan import (
    BalancedBatches,
    ShuffledBatches,
    SplitSizes,
    plan_rollouts,
    selection_passes,
    ship_repeats,
)


def some(count: int) -> list[Item]:
    return [
        Item(f"item-{number}", {"input": str(number)}, split="train") for number in range(count)
    ]


def test_an_epoch_is_the_references_shuffle_with_its_batch_seeds() -> None:
    items = some(10)
    plan = ShuffledBatches().plan(
        items, TrainSection(num_epochs=2, batch_size=4, accumulation=1, seed=42)
    )
    for epoch in plan.epochs:
        expected = list(items)
        random.Random(42 + epoch.number * 1000).shuffle(expected)
        assert [
            item for step in epoch.steps for batch in step.batches for item in batch.items
        ] == expected
        assert [batch.seed for step in epoch.steps for batch in step.batches] == [
            42 + epoch.number * 1000 + n for n in (1, 2, 3)
        ]
        assert [len(step.batches[0].items) for step in epoch.steps] == [4, 4, 2]


def test_the_slow_update_samples_in_the_references_order() -> None:
    items = some(7)
    plan = ShuffledBatches().plan(
        items, TrainSection(num_epochs=3, batch_size=7, accumulation=1, seed=5)
    )
    expected = list(items)
    random.Random(5 + 3 * 2000).shuffle(expected)
    assert plan.epochs[2].slow_order == tuple(expected)


def test_a_batch_that_finds_no_items_left_gets_a_reshuffle_of_the_epoch() -> None:
    items = some(5)
    [step] = (
        ShuffledBatches()
        .plan(items, TrainSection(num_epochs=1, batch_size=4, accumulation=3, seed=1))
        .epochs[0]
        .steps
    )
    order = [item for batch in step.batches[:2] for item in batch.items]
    reshuffled = list(order)
    random.Random(step.batches[2].seed).shuffle(reshuffled)
    assert [len(batch.items) for batch in step.batches] == [4, 1, 4]
    assert list(step.batches[2].items) == reshuffled[:4]


@given(
    count=st.integers(1, 60),
    epochs=st.integers(1, 4),
    batch=st.integers(1, 20),
    accumulation=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_every_item_is_met_in_every_epoch_and_once_unless_a_batch_was_refilled(
    count: int, epochs: int, batch: int, accumulation: int, seed: int
) -> None:
    items = some(count)
    plan = ShuffledBatches().plan(
        items,
        TrainSection(num_epochs=epochs, batch_size=batch, accumulation=accumulation, seed=seed),
    )
    for epoch in plan.epochs:
        batches = [batch for step in epoch.steps for batch in step.batches]
        met = Counter(item.id for batch in batches for item in batch.items)
        assert set(met) == {item.id for item in items}
        planned = batches[: -(-count // batch)]
        assert Counter(item.id for one in planned for item in one.items) == Counter(
            item.id for item in items
        )
        assert all(0 < len(one.items) <= batch for one in batches)
    steps = [step.step for epoch in plan.epochs for step in epoch.steps]
    assert steps == list(range(1, plan.total_steps + 1))
    assert len(steps) == epochs * max(1, -(-count // (batch * accumulation)))


@given(seed=st.integers(0, 10**6))
def test_the_same_seed_plans_the_same_run(seed: int) -> None:
    one, other = (
        ShuffledBatches().plan(
            some(9), TrainSection(num_epochs=2, batch_size=4, accumulation=2, seed=seed)
        )
        for _ in range(2)
    )
    assert one == other


def test_balanced_batches_spread_every_type_over_the_epoch() -> None:
    items = [
        Item(f"{kind}-{n}", {"input": f"{kind} {n}"}, type=kind)
        for kind, count in (("rare", 4), ("common", 12))
        for n in range(count)
    ]
    plan = BalancedBatches().plan(items, TrainSection(num_epochs=1, batch_size=4))
    for step in plan.epochs[0].steps:
        assert sum(item.type == "rare" for item in step.items) == 1
    assert {item.id for step in plan.epochs[0].steps for item in step.items} == {
        item.id for item in items
    }


class TestRolloutBudget:
    SIZES = SplitSizes(train=80, selection=40, test=20)

    @pytest.mark.parametrize("rollouts", [300, 600, 1_200, 5_000])
    def test_it_is_used_well_and_never_passed(self, rollouts: int) -> None:
        plan = plan_rollouts(Config(), self.SIZES, rollouts)
        assert 0.75 * rollouts <= plan.total <= rollouts
        assert plan.steps >= 3 and 8 <= plan.selection <= 40

    def test_more_rollouts_never_buy_fewer_steps_or_items(self) -> None:
        plans = [plan_rollouts(Config(), self.SIZES, total) for total in range(250, 3_000, 50)]
        worth = [plan.steps * (40 + plan.selection) for plan in plans]
        assert worth[-1] > 4 * worth[0]

    def test_a_number_too_small_for_one_step_is_refused_with_the_least(self) -> None:
        with pytest.raises(InputError, match="too small") as refused:
            plan_rollouts(Config(), self.SIZES, 60)
        least = int(re.findall(r"at least (\d+)", refused.value.hint)[0])
        assert plan_rollouts(Config(), self.SIZES, least).steps == 1

    def test_few_items_get_several_passes(self) -> None:
        assert [selection_passes(items) for items in (4, 8, 20, 40, 200)] == [4, 4, 2, 1, 1]


def test_the_ship_test_gets_the_rollouts_of_a_comparison_that_is_not_made() -> None:
    assert ship_repeats(1, 1, compared=True) == 1
    assert ship_repeats(1, 1, compared=False) == 2
    assert ship_repeats(1, 2, compared=False) == 1  # two passes are too few for three skills
    assert ship_repeats(4, 1, compared=False) == 4  # never more than the ship test needs
