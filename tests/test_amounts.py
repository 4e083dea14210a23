"""Amounts are written the same way everywhere."""

from __future__ import annotations

import pytest

from skillfit.amounts import (
    budget_amount,
    dollars,
    duration,
    percent,
    points,
    quantity,
    rounded,
    rounded_dollars,
    with_interval,
)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (quantity(1, "item"), "1 item"),
        (quantity(0, "item"), "0 items"),
        (quantity(1200, "item"), "1,200 items"),
        (quantity(1, "edit waits", "edits wait"), "1 edit waits"),
        (quantity(2, "edit waits", "edits wait"), "2 edits wait"),
        (rounded(9_500), "9,500"),
        (rounded(17_300), "17k"),
        (rounded(1_800_000), "1.8M"),
        (dollars(None), ""),
        (dollars(0), "$0.00"),
        (dollars(0.0125), "$0.0125"),
        (dollars(0.00001), "below $0.0001"),
        (dollars(1234.5), "$1,234.50"),
        (rounded_dollars(0), "$0.00"),
        (rounded_dollars(0.00001), "<$0.0001"),
        (rounded_dollars(0.00346), "$0.0035"),
        (rounded_dollars(0.0403), "$0.04"),
        (rounded_dollars(12.345), "$12.35"),
        (rounded_dollars(1234.5), "$1,234"),
        (duration(2.44), "2.4 s"),
        (duration(40), "40 s"),
        (duration(90), "1.5 min"),
        (duration(7500), "2 h 5 min"),
        (budget_amount("usd", 5), "$5.00"),
        (budget_amount("minutes", 30), "30 min"),
        (budget_amount("calls", 1), "1 call"),
        (budget_amount("rollouts", 2000), "2,000 rollouts"),
        (percent(0.325), "32.5\u00a0%"),
        (percent(0.5), "50\u00a0%"),
        (points(-0.0125), "−1.2"),
        (points(-0.0001), "+0.0"),
        (with_interval(0.1234, -0.05, 0.3), "+0.123 (-0.05 … +0.30)"),
    ],
)
def test_an_amount_is_written_for_people(shown: str, expected: str) -> None:
    assert shown == expected
