"""Read JSON that others wrote: replies of servers, and JSON that models write by hand.

Whatever the text is, the result is a value or a ValueError, in time proportional to the length of
the text. Values are safe to use further on: nesting is at most `MAX_DEPTH`, integers fit in 64
bits, floats are finite, and strings can be encoded as UTF-8.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pydantic_core

JsonObject = dict[str, Any]
"""A JSON object that comes from outside or goes there: the body of a request or reply, a JSON
schema, a file. Everything else has its own type.
"""

MAX_DEPTH = 200  # also the limit inside pydantic_core
MAX_MODEL_JSON = 1_000_000  # characters of JSON that a model may write
_LARGEST_INT = 2**63 - 1
_MAX_FENCED_BLOCKS = 20  # a reply has one or two; each one is tried as JSON
# Only a number this long, or with an exponent this large, can be out of range.
_LONG_NUMBER = re.compile(r"\d{19}|\d[eE]\+?\d{3}")


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Half of a surrogate pair (an emoji cut in two) is
    replaced.
    """
    try:
        value = pydantic_core.from_json(text, allow_inf_nan=False)
    except (ValueError, TypeError):  # TypeError: the text itself holds half of a surrogate pair
        if not _has_surrogates(text):
            raise
        return _checked(_standard_json(text))
    return _checked(value) if _LONG_NUMBER.search(text) else value


def printed_json(output: str) -> Any:
    """Return the value that a program printed: all of its output, or its last line."""
    try:
        return parse_json(output)
    except ValueError:
        return parse_json(output.rstrip().rpartition("\n")[2])


def parse_model_json(text: str) -> Any:
    """Return the JSON value at the start of a text that a model wrote; what follows the value is
    ignored.

    Accepts common mistakes: comments, trailing commas, single quotes, unquoted keys, Python's
    True/False/None, line breaks and unescaped quotes inside strings. A value that stops midway is
    never completed: it is an error.
    """
    if len(text) > MAX_MODEL_JSON:
        raise ValueError(f"The JSON has more than {MAX_MODEL_JSON:,} characters.")
    try:
        value = _standard_json(text, whole=False)
    except ValueError:
        value = _LenientReader(text).read()
    return _checked(value)


def json_candidates(text: str) -> Iterator[str]:
    """Yield the parts of a model's text that may be its JSON: the whole text, fenced blocks, and
    from the first brackets on.
    """
    text = text.strip()
    if text.startswith(("{", "[")):
        yield text
    yield from _fenced_blocks(text)
    starts = sorted(start for start in (text.find("{"), text.find("[")) if start > 0)
    for start in starts:
        yield text[start:]


def at_path(value: Any, path: str) -> Any:
    """Return the value at a dotted path of nested objects, or None."""
    if isinstance(value, dict) and path in value:
        return value[path]
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _fenced_blocks(text: str) -> Iterator[str]:
    end = 0
    for _ in range(_MAX_FENCED_BLOCKS):
        start = text.find("```", end)
        first_line = text.find("\n", start) if start >= 0 else -1
        close = text.find("```", first_line) if first_line >= 0 else -1
        if close < 0:
            return
        yield text[first_line + 1 : close].strip()
        end = close + 3


def _standard_json(text: str, *, whole: bool = True) -> Any:
    decoder = json.JSONDecoder(strict=False, parse_int=_integer, parse_constant=_not_a_number)
    try:
        return decoder.decode(text) if whole else decoder.raw_decode(text)[0]
    except RecursionError:
        raise ValueError("The JSON is nested too deeply.") from None


def _integer(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("A number in the JSON is out of range.")
    return int(digits)


def _not_a_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number.")


def _has_surrogates(text: str) -> bool:
    return "\\ud" in text.lower() or any("\ud800" <= char <= "\udfff" for char in text)


def _checked(value: Any, depth: int = 0) -> Any:
    """Return the value with surrogate halves replaced; ValueError where something is out of
    range.
    """
    if depth > MAX_DEPTH:
        raise ValueError("The JSON is nested too deeply.")
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {without_surrogates(name): _checked(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_checked(item, depth + 1) for item in value]
    too_large = isinstance(value, int) and abs(value) > _LARGEST_INT
    if too_large or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("A number in the JSON is out of range.")
    return value


def without_surrogates(text: str) -> str:
    """Return the text with every lone half of a surrogate pair replaced, so that UTF-8 can encode
    it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


_SPACE = re.compile(r"(?:\s|//[^\n]*|\#[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)*")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"[A-Za-z_$][\w$-]*")
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_QUOTES = {'"': '"', "'": "'", "“": "”"}
# A quote ends its string when one of these follows; any other quote belongs to the text.
_AFTER_STRING = re.compile(r"\s*(?:[,:}\]]|//|/\*|\Z)")
_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])')


class _LenientReader:
    """Reads one value from the start of a text, from left to right, without backtracking."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def read(self) -> Any:
        self._skip_space()
        return self._value()

    def _value(self) -> Any:
        char = self._peek()
        if char == "{":
            return self._nested(self._object)
        if char == "[":
            return self._nested(self._array)
        if char in _QUOTES:
            return self._string()
        if number := self._take(_NUMBER):
            return float(number) if re.search(r"[.eE]", number) else _integer(number)
        word = self._take(_WORD)
        if word not in _WORDS:
            raise ValueError(f"There is no JSON value at character {self._at}.")
        return _WORDS[word]

    def _nested(self, read: Callable[[], Any]) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError("The JSON is nested too deeply.")
        self._at += 1
        value = read()
        self._depth -= 1
        return value

    def _object(self) -> JsonObject:
        members: JsonObject = {}
        while not self._ends_with("}"):
            name = self._name()
            self._skip_space()
            if self._peek() != ":":
                raise ValueError(f"There is no colon at character {self._at}.")
            self._at += 1
            self._skip_space()
            members[name] = self._value()
            self._skip_comma("}")
        return members

    def _name(self) -> str:
        if self._peek() in _QUOTES:
            return self._string()
        if name := self._take(_WORD):
            return name
        raise ValueError(f"There is no name at character {self._at}.")

    def _array(self) -> list[Any]:
        items: list[Any] = []
        while not self._ends_with("]"):
            items.append(self._value())
            self._skip_comma("]")
        return items

    def _string(self) -> str:
        """Return the text up to the quote that ends it."""
        close = _QUOTES[self._peek()]
        self._at += 1
        parts: list[str] = []
        while True:
            start = self._at
            while self._peek() not in (close, "\\"):
                self._at += 1
            parts.append(self._text[start : self._at])
            if self._peek() == "\\":
                parts.append(self._escape())
            else:
                self._at += 1
                if _AFTER_STRING.match(self._text, self._at):
                    return "".join(parts)
                parts.append(close)

    def _escape(self) -> str:
        """Return the character an escape stands for; an unknown escape keeps its backslash."""
        if escape := self._take(_ESCAPE):
            return str(json.loads(f'"{escape}"'))
        self._at += 1
        following = self._peek()
        self._at += 1
        return following if following in "'\n" else "\\" + following

    def _ends_with(self, close: str) -> bool:
        self._skip_space()
        if self._peek() != close:
            return False
        self._at += 1
        return True

    def _skip_comma(self, close: str) -> None:
        """Move past the comma. It may be missing where the next value is clearly visible."""
        self._skip_space()
        if self._peek() == ",":
            self._at += 1
        elif self._peek() not in (close, *_QUOTES, "{", "["):
            raise ValueError(f"There is no comma at character {self._at}.")

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None  # the pattern matches an empty text too
        self._at = match.end()

    def _peek(self) -> str:
        if self._at >= len(self._text):
            raise ValueError("The JSON stops in the middle.")
        return self._text[self._at]

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match.group()
