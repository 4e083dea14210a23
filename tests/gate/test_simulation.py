"""A quick part of bench/gate: the promises hold on seeded worlds."""

import asyncio
import math
import statistics

import pytest
from bench.gate.__main__ import compare, setting, ship
from bench.gate.play import START
from bench.gate.world import Setting, World

from skillfit.gate import Candidate, GateSettings, RaceGate
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
    found = compare(setting(items, "middling"), 16)
    assert found.race_gain > 1.2 * found.strict_gain
    assert abs(found.race_optimism) < found.strict_optimism


def test_an_edit_in_words_only_is_seldom_accepted_and_costs_nothing_in_truth():
    """Lenient to explore: the race may accept a no-op, but less often than strict does (41-48 %)."""
    accepted = []
    for seed in range(120):
        world = World(Setting("aa", 40, 0.8, 10**9), seed)
        gate = RaceGate(world, world.items, GateSettings(seed=seed))
        asyncio.run(gate.baseline(START))
        edit = world.planted(0.0)
        verdict = asyncio.run(gate.judge("step_0001", START, [Candidate(apply_edits(START, [edit]).skill, (edit,))]))
        accepted.append(verdict.accepted)
    assert statistics.fmean(accepted) < 0.41
