"""Show untrusted text safely.

Models, task files and servers can send terminal escape sequences, direction overrides and invisible
characters. Printed as they are, these can hide or fake what a person reads, for example in a diff
under review. `visible` replaces them with backslash escapes.
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
