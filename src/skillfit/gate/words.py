"""The words of a text as the leak check and the shortcut audit compare them.

Case, punctuation, accents, invisible characters, inline markup and the separators of long numbers
do not count; CJK is compared by character. `readings` are the texts that a text contains: itself,
what is encoded in it, and its letters backwards. A determined model can still hide an answer: the
rules find what is copied or lightly disguised.
"""

from __future__ import annotations

import html
import re
import unicodedata
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress

Words = tuple[str, ...]

_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")
_INVISIBLE = re.compile(
    r"[\u00ad\u0300-\u036f\u061c\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f"
    r"\ufeff\U000e0000-\U000e0fff]"
)
_INLINE_TAG = re.compile(r"</?(?:b|i|u|s|em|strong|code|mark|span|sub|sup)>", re.IGNORECASE)
_MARKUP_IN_WORD = re.compile(r"(?<=[^\W\d_])[*`~]+(?=[^\W\d_])")
_SEPARATED_NUMBER = re.compile(
    r"(?<![\d.,])\d{1,3}(?:([.,'’_\u00a0\u202f])\d{3})(?:\1\d{3})*(?!\d)"
)
# Most texts have neither, and these are found faster.
_SEPARATED_DIGITS = re.compile(r"\d[.,'’_\u00a0\u202f]\d{3}")
_SINGLE_LETTERS = re.compile(r" \w \w ")
_SPACED_LETTERS = re.compile(r"(?<!\w)(?:[^\W_] ){3,}[^\W_](?!\w)")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{8,}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){4,}")


def plain(text: str) -> str:
    """Return the text without disguise: entities, invisible characters, compatibility forms,
    accents, inline markup and separators within numbers are resolved.
    """
    if "&" in text:
        text = html.unescape(text)
    if _SEPARATED_DIGITS.search(text):
        text = _SEPARATED_NUMBER.sub(lambda number: re.sub(r"\D", "", number[0]), text)
    if not text.isascii():
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKD", text))
        text = unicodedata.normalize("NFC", text)
    if "<" in text:
        text = _INLINE_TAG.sub("", text)
    if any(mark in text for mark in "*`~"):
        text = _MARKUP_IN_WORD.sub("", text)
    if _SINGLE_LETTERS.search(text):
        text = _SPACED_LETTERS.sub(lambda letters: letters[0].replace(" ", ""), text)
    return text


def spelled(text: str) -> Words:
    """Return the words of a text in their own spelling."""
    return tuple(_WORD.findall(plain(text)))


def words(text: str) -> Words:
    return spelled(text.casefold())


def readings(text: str) -> Iterator[str]:
    """Yield the text, what base64 and hexadecimal words in it decode to, and the text backwards
    without digits.
    """
    yield text
    for word in _BASE64.findall(text):
        with suppress(ValueError):  # most words are not base64
            yield b64decode(word + "=" * (-len(word) % 4)).decode()
    for word in _HEX.findall(text):
        with suppress(ValueError):
            yield bytes.fromhex(word).decode()
    # In lower case, so that an acronym is not taken for another one.
    yield re.sub(r"\d", "", text)[::-1].casefold()
