from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from skillfit.config.schema import TrainSection
from skillfit.tasks.item import Item
from skillfit.training.plan import BalancedBatches, ShuffledBatches


def some(count: int) -> list[Item]:
    return [
        Item(f"item-{number}", {"input": str(number)}, split="train") for number in range(count)
    ]


def test_an_epoch_uses_skillopts_shuffle_and_batch_seeds() -> None:
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


def test_the_slow_update_samples_in_skillopts_order() -> None:
    items = some(7)
    plan = ShuffledBatches().plan(
        items, TrainSection(num_epochs=3, batch_size=7, accumulation=1, seed=5)
    )
    expected = list(items)
    random.Random(5 + 3 * 2000).shuffle(expected)
    assert plan.epochs[2].slow_order == tuple(expected)


def test_a_batch_without_remaining_items_gets_a_reshuffle_of_the_epoch() -> None:
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
def test_every_item_is_used_once_per_epoch_unless_a_batch_was_refilled(
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
