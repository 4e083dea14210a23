import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.gate.samples import (
    believe,
    detectable_effect,
    item_differences,
    sign_flip_p,
    within_item_variance,
)
from skillfit.intervals import interval, t_quantile

hard_differences = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), max_size=10)


@given(hard_differences)
def test_the_sign_flip_p_value_is_the_share_of_sign_assignments_at_least_as_good(differences):
    sums = [
        sum(s * abs(d) for s, d in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    expected = sum(total >= sum(differences) - 1e-9 for total in sums) / len(sums)
    assert sign_flip_p(differences) == pytest.approx(expected)


def test_the_sign_flip_test_needs_five_winning_items_for_five_percent():
    assert sign_flip_p([1.0] * 4) == 0.0625
    assert sign_flip_p([1.0] * 5) == 0.03125
    assert sign_flip_p([0.0] * 50) == 1.0


def test_mcnemar_with_eight_fixed_and_one_broken_has_its_textbook_value():
    assert sign_flip_p([1.0] * 8 + [-1.0] + [0.0] * 30) == pytest.approx(10 / 512)


@given(st.lists(st.sampled_from([-1.0, -2 / 3, -0.25, 0.0, 1 / 3, 0.5, 1.0]), max_size=60))
def test_one_more_win_never_raises_the_p_value_and_one_more_loss_never_lowers_it(differences):
    p = sign_flip_p(differences)
    assert 0 < p <= 1
    assert sign_flip_p([*differences, 1.0]) <= p <= sign_flip_p([*differences, -1.0])


@given(
    st.lists(st.floats(-1, 1, allow_nan=False), min_size=2, max_size=40),
    st.randoms(use_true_random=False),
)
def test_no_statistic_depends_on_the_order_of_items(differences, random):
    shuffled = list(differences)
    random.shuffle(shuffled)
    assert believe(shuffled).mean == pytest.approx(believe(differences).mean, abs=1e-9)
    assert (believe(shuffled).mean > 1e-9) == (believe(differences).mean > 1e-9)
    assert sign_flip_p(shuffled) == sign_flip_p(differences)


@pytest.mark.parametrize("count", range(1, 200, 7))
def test_one_improved_item_has_the_same_p_value_at_every_size(count):
    belief = believe([0.1 + 0.2 - 0.3] * count + [1.0])
    assert belief.mean > 0 and 0.5 < belief.probability < 0.95
    assert sign_flip_p([0.0] * count + [1.0]) == 0.5


def test_without_differences_the_belief_is_the_prior():
    assert believe([], prior_variance=0.5).variance == 0.5


def test_float_error_alone_is_not_a_difference():
    assert believe([0.1 + 0.2 - 0.3] * 30).mean == 0
    assert believe([1e-17, -1e-17, 3e-17]).mean == 0


@pytest.mark.parametrize(
    ("freedom", "expected"), [(4, 2.132), (9, 1.833), (19, 1.729), (99, 1.660)]
)
def test_t_quantiles_match_the_table(freedom, expected):
    assert t_quantile(0.95, freedom) == pytest.approx(expected, abs=0.004)


def test_an_interval_has_width_even_when_all_items_agree():
    few, many = interval([0.0] * 8), interval([0.0] * 200)
    assert few.low < -0.1 < 0.1 < few.high
    assert -0.02 < many.low < 0 < many.high < 0.02
    assert interval([]).low == -1.0


def test_items_missing_on_one_side_are_not_paired():
    assert item_differences({"a": 1.0, "c": 1.0}, {"a": 0.0, "b": 1.0}) == {"a": 1.0}


def test_noise_is_estimated_only_from_repeats_of_the_same_item():
    assert within_item_variance({"a": [0.0], "b": [1.0]}) is None
    assert within_item_variance({"a": [0.0, 1.0], "b": [1.0, 1.0]}) == pytest.approx(0.25)


def test_more_items_or_repeats_show_smaller_effects():
    assert (
        detectable_effect(20, 0.15)
        > detectable_effect(100, 0.15)
        > detectable_effect(100, 0.15, repeats=4)
    )
    assert detectable_effect(40, 0.25, 1) == pytest.approx(
        (1.684 + 0.842) * math.sqrt(0.5 / 40), abs=0.01
    )
    assert detectable_effect(1, 0.1) == 1.0
    assert detectable_effect(20, 0.0) == pytest.approx(0.216, abs=0.001)


def test_the_sign_flip_test_handles_thousands_of_items() -> None:
    """Ten thousand graded items take less than a second; counting all signs took hours."""
    draw = random.Random(1)
    differences = [draw.choice((-0.5, -0.25, 0.0, 0.25, 0.5, 1.0)) for _ in range(10_000)]
    assert sign_flip_p(differences) < 1e-100
    equal = [draw.choice((-1.0, 1.0)) for _ in range(10_000)]
    z = sum(equal) / 100
    assert sign_flip_p(equal) == pytest.approx(0.5 * math.erfc(z / math.sqrt(2)), abs=0.01)
