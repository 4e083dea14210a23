"""Show text: untrusted text safely, long text shortened.

Models, task files and servers can send terminal escape sequences, direction overrides and invisible
characters. Printed as they are, these can hide or fake what a person reads, for example in a diff
under review. `visible` replaces them with backslash escapes.

`shorten`, `one_line` and `head_and_tail` fit a text into a number of characters.
"""

from __future__ import annotations

import re
import unicodedata

# Everything that is not letters, marks, numbers, punctuation, symbols or spaces, plus the invisible
# characters that Unicode counts as marks (variation selectors) or letters (fillers).
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_HIDDEN_RANGES = ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF), (0x115F, 0x1160))
_HIDDEN_CHARACTERS = frozenset("\u034f\u17b4\u17b5\u3164\uffa0")
# Needed inside words of some scripts and inside emoji; harmless between characters beyond ASCII.
_JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f")
# Fast path: text of printable ASCII, tabs and newlines needs no change.
_NEEDS_A_LOOK = re.compile(r"[^\n\t\x20-\x7e]")
_NOTE = 40  # room for the note about what `head_and_tail` left out


def visible(text: str) -> str:
    r"""The text with control and invisible characters as escapes (`\x1b`, `\u202e`).

    Tabs, newlines and CRLF line ends stay as they are. So do ordinary characters of every script.
    """
    if not _NEEDS_A_LOOK.search(text):
        return text
    shown = []
    for position, character in enumerate(text):
        hide = _is_hidden(character) and not _is_harmless_here(text, position)
        shown.append(_escape(character) if hide else character)
    return "".join(shown)


def _is_hidden(character: str) -> bool:
    if character in "\n\t":
        return False
    code = ord(character)
    return (
        unicodedata.category(character) in _HIDDEN_CATEGORIES
        or any(first <= code <= last for first, last in _HIDDEN_RANGES)
        or character in _HIDDEN_CHARACTERS
    )


def _is_harmless_here(text: str, position: int) -> bool:
    """A carriage return that is part of a CRLF, or a joiner within a word or an emoji."""
    character = text[position]
    if character == "\r":
        return text[position + 1 : position + 2] == "\n"
    if character not in _JOINERS:
        return False
    before, after = text[position - 1 : position], text[position + 1 : position + 2]
    return after == "\u20e3" or (before > "\x7f" and not _is_hidden(before))  # or a keycap emoji


def _escape(character: str) -> str:
    code = ord(character)
    if character == "\r":
        return "\\r"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def shorten(text: str, limit: int) -> str:
    """The beginning of the text within `limit` characters, with an ellipsis if some is left out."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def one_line(text: str, limit: int) -> str:
    """The beginning of the text in one line of at most `limit` characters."""
    # Splitting is slow for megabytes, and most characters of a text are not spaces.
    return shorten(" ".join(text[: 20 * limit].split()), limit)


def head_and_tail(text: str, limit: int, head: float = 0.5) -> str:
    """The beginning and the end of the text within `limit` characters, and how much is left out.

    `head` is the share of the beginning.
    """
    if len(text) <= limit:
        return text
    keep = max(0, limit - _NOTE)
    first = int(keep * head)
    last = keep - first
    left_out = len(text) - keep
    return f"{text[:first]}\n[… {left_out:,} characters left out …]\n{text[len(text) - last :]}"
