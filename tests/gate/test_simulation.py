"""A quick part of bench/gate: the promises hold on seeded worlds."""

import asyncio
import math
import statistics

import pytest
from bench.gate.__main__ import compare, setting, ship
from bench.gate.play import START
from bench.gate.world import Setting, World

from skillfit.gate import Candidate, GateSettings, RaceGate, StrictGate
from skillfit.skill import apply_edits


@pytest.mark.parametrize("items", [8, 15, 40])
@pytest.mark.parametrize("finalists", [1, 2])
def test_equal_skills_are_called_improved_in_at_most_five_percent_of_runs(items, finalists):
    runs = 150
    found = ship(setting(items, "noisy"), 0.0, finalists, runs)
    assert found.improved <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / runs)


def test_a_saturated_task_is_not_called_improved_either():
    assert ship(Setting("saturated", 40, 1.2, 0, level=4.0), 0.0, 1, 100).improved <= 0.05


def test_the_ship_test_finds_a_real_gain():
    assert ship(setting(100, "middling"), 1.2, 1, 20).improved >= 0.9


@pytest.mark.parametrize("items", [20, 40])
def test_the_race_gains_more_than_strict_at_equal_rollouts(items):
    found = compare(setting(items, "middling"), 16, ways=("strict", "race"))
    assert found.ratio > 1.2
    assert abs(found.played["race"]["optimism"]) < found.played["strict"]["optimism"]


def test_luck_does_not_pile_up_over_steps_that_change_nothing():
    """Both gates may accept a change in words only. Strict keeps the lucky score of each; the race
    keeps the confirming pass alone, which was selected far less.
    """

    def optimism(kind):
        found = []
        for seed in range(40):
            world = World(Setting("aa", 40, 0.8, 10**9), seed)
            gate, skill = kind(world, world.items, GateSettings(seed=seed)), START
            asyncio.run(gate.baseline(skill))
            for step in range(8):
                edit = world.planted(0.0)
                made = Candidate(apply_edits(skill, [edit]).skill, (edit,))
                skill = asyncio.run(gate.judge(f"step_{step}", skill, [made])).winner
            found.append(gate.best_score - statistics.fmean(world.chances(START)))
        return statistics.fmean(found)

    strict, race = optimism(StrictGate), optimism(RaceGate)
    assert race < 0.75 * strict
