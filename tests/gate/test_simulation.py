"""A quick part of bench/gate: the guarantees hold in seeded simulations."""

import math

import pytest
from bench.gate.gains import compare
from bench.gate.settings import setting
from bench.gate.trust import calibrate, run_null, ship
from bench.gate.world import Setting

SEED = 300


@pytest.mark.parametrize("items", [8, 15, 40])
@pytest.mark.parametrize("finalists", [1, 2])
def test_equal_skills_are_improved_in_at_most_five_percent_of_runs(items, finalists):
    runs = 150
    found = ship(setting(items, "noisy"), 0.0, finalists, runs, SEED)
    assert found.improved <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / runs)


def test_a_saturated_task_is_not_improved():
    saturated = Setting("saturated", 40, 1.2, 0, level=4.0)
    assert ship(saturated, 0.0, 1, 100, SEED).improved <= 0.05


def test_the_ship_test_finds_a_real_gain():
    assert ship(setting(100), 1.2, 1, 20, SEED).improved >= 0.9


@pytest.mark.slow
def test_screening_gains_more_than_the_race_at_equal_rollouts():
    found = compare(setting(40, steps=16), 5, SEED, ways=("race", "screening"))
    assert found.ratio > 1.3
    assert abs(found.ways["screening"]["optimism"]) < 0.06


@pytest.mark.slow
def test_intervals_of_edit_effects_have_about_their_nominal_coverage():
    found = calibrate(setting(40, steps=12), 3, SEED)
    assert found.edits > 400 and 0.7 <= found.selection <= 0.92


@pytest.mark.slow
def test_runs_without_helpful_edits_return_the_initial_skill():
    found = run_null(setting(20, kind="harmful", steps=6), 12, SEED)
    assert found.shipped <= 1 / 12 and found.harmful <= 0.5
