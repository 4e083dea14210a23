"""Untrusted text is shown with its control and invisible characters as escapes. Amounts are written
the same way everywhere.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.errors import InputError
from skillfit.plain_text import (
    budget_amount,
    dollars,
    duration,
    last_part,
    mean_score,
    percent,
    points,
    quantity,
    rounded,
    rounded_dollars,
    score_change,
    score_with_interval,
    visible,
    with_interval,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2K\x1b[1G", "\\x1b[2K\\x1b[1G"),
        ("\x9b2J", "\\x9b2J"),
        ("a\bb\x7f\0", "a\\x08b\\x7f\\x00"),
        ("over\rwritten", "over\\rwritten"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("pass\u200bword", "pass\\u200bword"),
        ("\ufefftext", "\\ufefftext"),
        ("one\u2028two\x85three", "one\\u2028two\\x85three"),
        ("\U000e0041\U000e0042", "\\U000e0041\\U000e0042"),
        ("a\U000e0101b\ufe00", "a\\U000e0101b\\ufe00"),
        ("\ud800", "\\ud800"),
        ("a\u200db", "a\\u200db"),
    ],
)
def test_control_and_invisible_characters_become_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "plain text\n\twith tabs\n",
        "windows\r\nlines\r\n",
        "é ü ß 漢字 кириллица עברית العربية हिन्दी",
        "می\u200cخواهم",
        "👩\u200d💻 ❤\ufe0f 1\ufe0f\u20e3 → … “quotes” — €",
    ],
)
def test_ordinary_text_stays_unchanged(text: str) -> None:
    assert visible(text) == text


@given(st.text())
def test_visible_text_cannot_move_the_cursor_and_escaping_is_idempotent(
    text: str,
) -> None:
    shown = visible(text)
    assert not any(ord(letter) < 32 and letter not in "\n\t\r" for letter in shown)
    assert "\r" not in shown.replace("\r\n", "")
    assert visible(shown) == shown


@given(st.text(), st.integers(1, 40))
def test_the_tail_of_a_text_fits_the_limit(text: str, limit: int) -> None:
    end = last_part(text, limit)
    assert len(end) <= limit
    assert end == text or (end[0] == "…" and text.endswith(end[1:]) and len(text) > limit)


def test_the_tail_of_a_text_marks_the_cut() -> None:
    assert last_part("seven of them", 13) == "seven of them"
    assert last_part("seven of them", 8) == "…of them"
    assert last_part("seven of them", 6) == "…them"


def test_error_messages_have_control_characters_escaped() -> None:
    error = InputError("The file \x1b[8mevil is wrong.", hint="Rename \x07 it.")
    assert str(error) == "The file \\x1b[8mevil is wrong. Rename \\x07 it."
    assert "\x1b" not in error.message and "\x07" not in error.hint


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
        (duration(9.97), "10 s"),
        (duration(59.7), "1.0 min"),
        (duration(90), "1.5 min"),
        (duration(599), "10 min"),
        (duration(3599), "1 h 0 min"),
        (duration(7500), "2 h 5 min"),
        (budget_amount("usd", 5), "$5.00"),
        (budget_amount("minutes", 30), "30 min"),
        (budget_amount("calls", 1), "1 call"),
        (budget_amount("rollouts", 2000), "2,000 rollouts"),
        (percent(0.325), "32.5\u00a0%"),
        (percent(0.5), "50\u00a0%"),
        (points(-0.0125), "−1.2"),
        (points(-0.0001), "+0.0"),
        (mean_score(0.41234), "0.412"),
        (score_with_interval(0.02, -0.01, 0.05), "0.020 (0.00 … 0.05)"),
        (score_change(-0.0004), "+0.000"),
        (score_change(-0.12), "-0.120"),
        (with_interval(0.1234, -0.05, 0.3), "+0.123 (-0.05 … +0.30)"),
    ],
)
def test_amounts_are_formatted_for_readers(shown: str, expected: str) -> None:
    assert shown == expected
