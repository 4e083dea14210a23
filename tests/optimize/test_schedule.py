import pytest

from skillfit.optimize.candidate import edit_budget


@pytest.mark.parametrize(
    ("scheduler", "maximum", "minimum", "budgets"),
    [
        ("constant", 4, 2, [4, 4, 4, 4]),
        ("linear", 4, 2, [4, 3, 2, 2]),
        ("cosine", 4, 2, [4, 3, 2, 2]),
        ("linear", 4, 2, [4, 4, 3, 3, 3, 2, 2, 2]),
        ("cosine", 4, 2, [4, 4, 3, 3, 3, 2, 2, 2]),
        ("cosine", 4, 2, [4, 4, 4, 4, 3, 3, 3, 2, 2, 2, 2, 2]),
        ("linear", 8, 2, [7, 6, 5, 4, 3, 2]),
        ("cosine", 16, 2, [15, 14, 12, 9, 6, 4, 3, 2]),
        ("linear", 4, 2, [4]),
        ("cosine", 4, 2, [4]),
        ("autonomous", 4, 2, [None, None]),
    ],
)
def test_schedules_give_the_published_tables(scheduler, maximum, minimum, budgets):
    steps = range(1, len(budgets) + 1)
    assert [
        edit_budget(scheduler, step, len(budgets), maximum=maximum, minimum=minimum)
        for step in steps
    ] == budgets


def test_steps_past_the_plan_stay_at_the_minimum():
    assert edit_budget("cosine", 20, 8, maximum=4, minimum=2) == 2


def test_a_learning_rate_of_zero_stays_zero():
    assert edit_budget("constant", 1, 4, maximum=0, minimum=0) == 0
