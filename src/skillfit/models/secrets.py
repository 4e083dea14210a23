"""Keys live in memory. Whatever is shown or written goes through `redact`, which knows the ones in
use.
"""

from __future__ import annotations

import re

# shorter "keys" (none, local, EMPTY) are placeholders; hiding them would garble ordinary text
_SHORTEST = 6
_live: list[str] = []  # longest first: one key may stand inside another
_LOOKS_LIKE_A_KEY = re.compile(
    r"\b(?:sk|pk|rk|or|gsk|hf|xai)[-_][A-Za-z0-9_\-]{16,}|(?<=Bearer )[A-Za-z0-9._~+/\-]{8,}=*"
)


def remember_secret(secret: str) -> str:
    """Make `redact` hide `secret` from now on; returns it."""
    if len(secret) >= _SHORTEST and secret not in _live:
        _live.append(secret)
        _live.sort(key=len, reverse=True)
    return secret


def redact(text: str) -> str:
    """`text` without any key in use, and without what looks like one."""
    return _LOOKS_LIKE_A_KEY.sub("[secret]", hide_keys_in_use(text))


def hide_keys_in_use(text: str) -> str:
    """`text` without any key in use. For skills, items and replies, where a look-alike is
    somebody's content.
    """
    for secret in _live:
        text = text.replace(secret, "[secret]")
    return text
