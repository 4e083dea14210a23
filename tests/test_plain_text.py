"""Untrusted text is shown with its control and invisible characters as escapes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.errors import InputError
from skillfit.plain_text import visible


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
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@given(st.text())
def test_what_is_shown_cannot_move_the_cursor_and_stays_the_same_when_shown_again(
    text: str,
) -> None:
    shown = visible(text)
    assert not any(ord(letter) < 32 and letter not in "\n\t\r" for letter in shown)
    assert "\r" not in shown.replace("\r\n", "")
    assert visible(shown) == shown


def test_error_messages_are_visible_text() -> None:
    error = InputError("The file \x1b[8mevil is wrong.", hint="Rename \x07 it.")
    assert str(error) == "The file \\x1b[8mevil is wrong. Rename \\x07 it."
    assert "\x1b" not in error.message and "\x07" not in error.hint
