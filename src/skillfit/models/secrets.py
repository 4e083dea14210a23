"""Keys are kept in memory only. Whatever is shown or written passes through `redact` or
`hide_keys_in_use`, which know the keys in use.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

HIDDEN = "[secret]"
# Shorter keys (none, local, EMPTY) are placeholders; hiding them would garble ordinary text.
_SHORTEST = 6
_SECRET_NAME = re.compile(
    r"key|token|secret|passw|pwd|auth|credential|signature|cookie|session|^(sig|code)$",
    re.IGNORECASE,
)
_LOOKS_LIKE_A_KEY = re.compile(
    r"\b(?:sk|pk|rk|or|gsk|hf|xai)[-_][A-Za-z0-9_\-]{16,}|(?<=Bearer )[A-Za-z0-9._~+/\-]{8,}=*"
)

_URL_DIGITS = str.maketrans("+/", "-_")

# Longest first, because one secret may be part of another.
_keys: list[str] = []  # hidden everywhere
_private: list[str] = []  # hidden in messages only: in a skill or reply it may be ordinary text


def remember_secret(secret: str) -> str:
    """Hide `secret` everywhere from now on, also where it is escaped, and return it."""
    _add(_keys, secret)
    return secret


def remember_setting(name: str, value: str) -> None:
    """Hide a value that the user sends along (a header, a query parameter). It is hidden everywhere
    when its name or its form says that it is a secret, else in messages only.
    """
    without_scheme = value.rpartition(" ")[2] if " " in value else value  # "Bearer abc"
    for text in {value, without_scheme}:
        is_secret = _SECRET_NAME.search(name) is not None or _has_secret_form(text)
        _add(_keys if is_secret else _private, text)


def redact(text: str) -> str:
    """Hide secrets, private values, and what looks like a key in `text`, for messages and logs."""
    # All places are found before any is replaced: a known value inside something that looks like a
    # key must not hide the rest of it from the pattern, nor the other way round.
    places = [match.span() for match in _LOOKS_LIKE_A_KEY.finditer(text)]
    for value in (*_keys, *_private):
        places += [match.span() for match in re.finditer(re.escape(value), text)]
    shown, end = [], 0
    for start, stop in sorted(places):
        if start >= end:
            shown += [text[end:start], HIDDEN]
        end = max(end, stop)
    return "".join([*shown, text[end:]])


def hide_keys_in_use(text: str) -> str:
    """Hide every key in use in `text`. For skills, items and replies, where text that only looks
    like a key is somebody's content.
    """
    for secret in _keys:
        text = text.replace(secret, HIDDEN)
    return text


def _add(known: list[str], secret: str) -> None:
    if len(secret) < _SHORTEST or secret in known:
        return
    known.extend(form for form in _forms(secret) if form not in known)
    known.sort(key=len, reverse=True)


def _forms(secret: str) -> Iterator[str]:
    """Yield the secret as it may appear: plain, in JSON (also JSON inside JSON), Python, HTML, a
    URL, Base64 (also of `USER:SECRET`), or with every character escaped.
    """
    yield secret
    yield from _base64_forms(secret)
    for escape in ("\\u{:04x}", "\\u{:04X}", "\\x{:02x}"):
        escaped = "".join(escape.format(ord(char)) for char in secret)
        yield escaped
        yield escaped.replace("\\", "\\\\")  # in JSON
    for ascii_only in (False, True):
        escaped = secret
        for _ in range(3):
            escaped = json.dumps(escaped, ensure_ascii=ascii_only)[1:-1]
            yield escaped
    yield repr(secret)[1:-1]
    yield html.escape(secret)
    yield html.escape(secret, quote=False)
    # A variable may hold bytes that are no text.
    yield quote(secret, errors="surrogateescape")
    yield quote(secret, safe="", errors="surrogateescape")
    yield quote_plus(secret, errors="surrogateescape")


def _base64_forms(secret: str) -> Iterator[str]:
    """Yield the digits that stand for the secret alone, at each place where it may begin."""
    data = secret.encode(errors="surrogateescape")
    for before in range(3):
        encoded = b64encode(bytes(before) + data).decode()
        digits = encoded[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        yield digits
        yield digits.translate(_URL_DIGITS)


def _has_secret_form(value: str) -> bool:
    """Return whether a value is too long or too mixed for an ordinary word or name."""
    if " " in value:
        return False
    return len(value) >= 20 or (len(value) >= 16 and any(char.isdigit() for char in value))
