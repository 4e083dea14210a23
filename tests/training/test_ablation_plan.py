"""Which skill each rollout of an ablation runs under."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, islice
from statistics import fmean

import pytest

from skillfit.gate import Candidate
from skillfit.gate.pool import Pool
from skillfit.skill import Skill
from skillfit.skill.units import units
from skillfit.tasks.item import Item
from skillfit.training.ablation_plan import LEFT_OUT, WHOLE, AblationPlan, PlannedRollout


def planned(
    rounds: int, *, items: int, lines: int = 8, seed: int = 1
) -> list[list[PlannedRollout]]:
    skill = Skill.from_text("# Rules\n\n" + "".join(f"- Rule {n} of all.\n" for n in range(lines)))
    pool = Pool(skill)
    removals = tuple(unit.removal for unit in units(skill, "line"))
    pool.join(Candidate(skill, removals, removes_initial_text=True))
    rows = [Item(f"item-{number}", {"input": str(number)}) for number in range(items)]
    return list(islice(AblationPlan(seed, pool, rows).rounds(), rounds))


@pytest.mark.parametrize("items", [1, 2, 7, 40])
def test_a_round_uses_each_item_once(items: int) -> None:
    for one in planned(9, items=items):
        assert sorted(each.item.id for each in one) == sorted(f"item-{n}" for n in range(items))


@pytest.mark.parametrize("items", [1, 7, 40])
def test_items_take_turns_under_the_whole_skill(items: int) -> None:
    rounds = planned(40, items=items, lines=24)  # so many that no subset leaves out none
    whole = Counter(each.item.id for one in rounds for each in one if not each.arm.edits)
    assert sum(whole.values()) == WHOLE * 40 * items
    assert set(whole.values()) == {6}


def test_each_part_of_a_round_has_its_share_under_the_whole_skill() -> None:
    (one,) = planned(1, items=200, lines=20)
    for start in range(0, 200, 20):
        assert sum(not each.arm.edits for each in one[start : start + 20]) == 3


def test_units_are_left_out_in_their_share_of_all_rollouts() -> None:
    rollouts = [each for one in planned(10, items=60) for each in one]
    without = Counter(edit for each in rollouts for edit in each.arm.edits)
    assert len(without) == 8
    for times in without.values():
        assert times / len(rollouts) == pytest.approx(LEFT_OUT, abs=0.06)


def test_subsets_leave_two_units_out_together_about_as_often_as_apart() -> None:
    """One pair of units after the other: rollouts that treat both alike, minus those that do not.
    The square is the number of subsets on average if units are drawn without regard to each other.
    """
    squares = []
    for seed in range(1, 9):
        subsets = {
            (number, each.arm.edits)
            for number, one in enumerate(planned(3, items=60, lines=12, seed=seed))
            for each in one
            if each.arm.edits
        }
        names = sorted({edit for _, edits in subsets for edit in edits})
        for pair in combinations(names, 2):
            alike = sum((pair[0] in edits) == (pair[1] in edits) for _, edits in subsets)
            squares.append((2 * alike - len(subsets)) ** 2 / len(subsets))
    assert len(squares) == 8 * 66
    assert fmean(squares) < 0.75


def test_the_same_seed_gives_the_same_rounds() -> None:
    assert planned(4, items=9) == planned(4, items=9)
    assert planned(4, items=9) != planned(4, items=9, seed=2)
