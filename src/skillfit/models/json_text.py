"""JSON that others wrote."""

from __future__ import annotations

import json
from typing import Any


def whole_json(text: str) -> Any:
    """What the text says. Half a surrogate pair (an emoji cut in two) can stand in JSON as an escape, but nowhere in UTF-8: it is
    replaced."""
    value = json.loads(text)
    if "\\ud" not in text.lower():
        return value
    plain = json.dumps(value, ensure_ascii=False)
    return json.loads(plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
