"""Where an edit helps: worlds whose effects on types of items are planted."""

import math
import random

import pytest

from skillfit.gate.local_effects import TypedItems, local_effects
from skillfit.gate.regression import PossibleChange, SelectionItems, TrialTable, fit

KINDS = ("dates", "money", "names")
TRAINING = {f"t{number:02d}": KINDS[number % 3] for number in range(60)}
SELECTION = {f"s{number:02d}": KINDS[number % 3] for number in range(30)}
ITEMS = TypedItems.of(list(SELECTION), TRAINING | SELECTION, {})
LEVEL = -0.8  # logits: how often a rollout succeeds without edits


def chance(on, kind, effects):
    """Effects are logits by edit and type; "all" acts on every type."""
    change = sum(effects[edit].get("all", 0.0) + effects[edit].get(kind, 0.0) for edit in on)
    return 1 / (1 + math.exp(-(LEVEL + change)))


def acts_on(effects, *, rollouts, seed=0, items=ITEMS, graded=False):
    """Edit -> the types that it is said to act on. Each rollout has a random half of the edits."""
    rng, table = random.Random(seed), TrialTable()
    for _ in range(rollouts):
        item, kind = rng.choice(list((TRAINING | SELECTION).items()))
        on = [edit for edit in effects if rng.random() < 0.5]
        expected = chance(on, kind, effects)
        score = expected + rng.gauss(0, 0.1) if graded else float(rng.random() < expected)
        table.add(item, on, score)
    family = "linear" if graded else "logistic"
    overall = fit(table.rows(), list(effects), family=family)
    changes = [PossibleChange({edit: 1.0}, present=False) for edit in effects]
    found = local_effects(table.rows(), overall, items, [], changes)
    return dict(zip(effects, found, strict=True))


def truth(kind, edit, effects):
    return chance([edit], kind, effects) - chance([], kind, effects)


LOCAL = {
    "money only": {"money": 2.0},
    "harms names": {"names": -2.0},
    "all": {"all": 1.0},
    "useless 1": {},
    "useless 2": {},
    "useless 3": {},
}


@pytest.mark.parametrize("graded", [False, True])
def test_an_edit_that_acts_on_one_type_is_shown_with_it_and_the_others_without(graded):
    found = acts_on(LOCAL, rollouts=1500, graded=graded)
    kinds = {edit: [one.kind for one in shown] for edit, shown in found.items() if shown}
    kinds.pop("all", None)  # in points it acts a little more where scores are not yet high
    assert kinds == {"money only": ["money"], "harms names": ["names"]}
    (money,) = found["money only"]
    assert (money.items, money.of) == (10, 30)
    assert money.mean == pytest.approx(truth("money", "money only", LOCAL), abs=0.1)
    assert found["harms names"][0].high < 0


def test_a_few_rollouts_show_no_type():
    assert not any(acts_on(LOCAL, rollouts=60).values())


def test_types_are_seldom_shown_by_mistake_and_their_intervals_hold_the_truth():
    named, held, wrong = 0, 0, 0
    for seed in range(12):
        for edit, shown in acts_on(LOCAL, rollouts=600, seed=seed).items():
            for one in shown:
                true = truth(one.kind, edit, LOCAL)
                named, held = named + 1, held + (one.low <= true <= one.high)
                wrong += one.mean * (true - sum(truth(k, edit, LOCAL) for k in KINDS) / 3) <= 0
    assert named >= 12 and wrong <= 0.15 * named and held >= 0.7 * named


@pytest.mark.parametrize("effects", [{}, {"all": 1.2}])
def test_where_edits_act_on_all_types_alike_hardly_any_type_is_shown(effects):
    same = {f"edit {number}": effects for number in range(8)}
    shown = [acts_on(same, rollouts=600, seed=seed) for seed in range(8)]
    assert sum(len(kinds) for found in shown for kinds in found.values()) <= 2


@pytest.mark.parametrize(
    "types",
    [
        {},
        dict.fromkeys(TRAINING | SELECTION, "money"),
        TRAINING | {item: f"type {item}" for item in SELECTION},  # an own type for each item
    ],
    ids=["none", "one", "one for each item"],
)
def test_without_groups_of_items_nothing_is_shown(types):
    items = TypedItems.of(list(SELECTION), types, {})
    assert not any(acts_on(LOCAL, rollouts=1500, items=items).values())


def test_the_effect_on_a_type_respects_the_weights_of_its_items():
    typed = TypedItems.of(list(SELECTION), TRAINING | SELECTION, {"s01": 3.0})
    money = typed.selection["money"]
    expected = SelectionItems.of(money.items, {"s01": 3.0})
    assert money.weights.tolist() == expected.weights.tolist()


def test_the_same_rollouts_give_the_same_effects():
    assert acts_on(LOCAL, rollouts=300) == acts_on(LOCAL, rollouts=300)
