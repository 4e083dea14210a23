"""Mutated replies: what a broken, hostile or merely odd server may send instead of a good one.

Everything is drawn from a `random.Random`, so a case is repeated by its seed.
"""

from __future__ import annotations

import json
import random
from typing import Any

_RAW = "@raw@"  # strings that begin so are written into the JSON without quotes

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, -0.0, 2**31, 2**63, -(2**63), 10**15),
    *(f"{_RAW}{text}" for text in ("9" * 30, "9" * 400, "9" * 5000, "1e999", "NaN", "-Infinity")),
    *(f"{_RAW}{'[' * depth}{']' * depth}" for depth in (50, 150, 500, 5000)),
    *(f"{_RAW}{text}" for text in ('{"a":' * 150 + "1" + "}" * 150, "[" * 4096, "{", "")),
    *("", " ", "\x00", "\x1b[2J", "\ud83d", "\ufeff", "﷽" * 50, "x" * 20_000, "null", "5", "NaN"),
    *('"' * 50, "\\" * 51, "[" * 4096, "<think>", "</think>", "```json\n{", "<tool_call>"),
    *([], {}, [[]], [None], [5], ["x"], [{}], {"": None}, {"type": None}, {"text": {"text": []}}),
)
ODD_TEXTS: tuple[bytes, ...] = (
    *(b"", b" ", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\\ud800", b"\\u0000"),
    *(b"[" * 500, b"{" * 500, b'"', b"'", b"\\", b",", b":", b"}", b"]", b"//", b"/*", b"NaN"),
    *(b"9" * 500, b"1e999", b"\n" * 500, b"\r\n\r\n", b"data: ", b"event: error\ndata: {}\n\n"),
)


def mutated_value(value: Any, luck: random.Random) -> Any:
    """The value with one to three parts replaced, removed, repeated or wrapped."""
    for _ in range(luck.randint(1, 3)):
        value = _mutate_once(json.loads(json.dumps(value)), luck)
    return value


def _mutate_once(value: Any, luck: random.Random) -> Any:
    places = list(_places(value, ()))
    *path, last = luck.choice(places) if places else (None,)
    if last is None:
        return luck.choice(ODD_VALUES)
    holder = value
    for step in path:
        holder = holder[step]
    how = luck.choice(("replace", "replace", "replace", "remove", "wrap", "repeat", "move"))
    if how == "replace":
        holder[last] = luck.choice(ODD_VALUES)
    elif how == "remove":
        del holder[last]
    elif how == "wrap":
        holder[last] = luck.choice(([holder[last]], {"value": holder[last]}))
    elif how == "repeat" and isinstance(holder, list):
        holder.extend([holder[last]] * luck.choice((1, 3, 200)))
    elif isinstance(holder, dict):
        holder[luck.choice(("", "error", "choices", "content", "usage"))] = holder.pop(last)
    return value


def _places(value: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The paths of all parts of a value."""
    found = [path] if path else []
    if isinstance(value, (dict, list)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            found += _places(part, (*path, name))
    return found


def as_json(value: Any) -> bytes:
    """The value as JSON text, with raw parts as they are and half surrogates as escapes."""
    text = json.dumps(value, ensure_ascii=True)
    while (start := text.find(f'"{_RAW}')) >= 0:
        end = start + 1
        while text[end] != '"' or text[end - 1] == "\\":
            end += 1
        raw = json.loads(text[start : end + 1])
        text = text[:start] + raw.removeprefix(_RAW) + text[end + 1 :]
    return text.encode("utf-8", "surrogatepass")


def mutated_bytes(data: bytes, luck: random.Random) -> bytes:
    """The text with something cut, inserted, repeated or changed in one to three places."""
    for _ in range(luck.randint(1, 3)):
        at = luck.randint(0, len(data))
        to = luck.randint(at, min(len(data), at + 200))
        instead = {
            "cut": b"",
            "remove": data[to:],
            "insert": luck.choice(ODD_TEXTS) + data[at:],
            "repeat": data[at:to] * luck.choice((1, 2, 50)) + data[at:],
            "change": bytes([luck.randrange(256)]) + data[at + 1 :],
        }
        data = data[:at] + instead[luck.choice(list(instead))]
    return data


def mutated_reply(reply: dict[str, Any], luck: random.Random) -> bytes:
    """A JSON body in which something is wrong: a value, the text, or both."""
    how = luck.random()
    if how < 0.6:
        return as_json(mutated_value(reply, luck))
    if how < 0.85:
        return mutated_bytes(as_json(reply), luck)
    return mutated_bytes(as_json(mutated_value(reply, luck)), luck)


_STATUSES = (
    *(200, 200, 200, 200, 201, 204, 206, 301, 304, 307, 308),
    *(400, 401, 404, 418, 429, 500, 502, 529, 99, 999),
)
_TYPES = (
    *("application/json", "application/json", "text/html", "text/event-stream", ""),
    *("application/json; charset=punycode", "application/json; charset=utf-16"),
    *("application/json; charset=hex", "\xff", "a" * 3000),
)
_HEADERS = (
    *("Content-Encoding: gzip", "Content-Encoding: br", "Content-Encoding: identity, gzip"),
    *("Retry-After: 0", "Retry-After: -1", "Retry-After: 1e300", "Retry-After: soon"),
    *("Retry-After: Wed, 21 Oct 99999999 07:28:00 GMT", "Date: never", "retry-after-ms: NaN"),
    *("Location: http://127.0.0.1:9/", "Location: //[", "Location: http://h:99999/"),
    *("Set-Cookie: a=b", "Connection: upgrade"),
    *(
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: gzip",
        "Content-Length: -5",
        "X: " + "y" * 9000,
    ),
    *("no colon here", ": no name", "X-Null: \x00", "HTTP/1.1 200 OK"),
)


def mutated_http(body: bytes, luck: random.Random) -> bytes:
    """A whole HTTP answer in which something is wrong, from the status line to the last byte."""
    status = luck.choice(_STATUSES)
    lines = [f"HTTP/1.1 {status} {luck.choice(('OK', '', 'x' * 9000))}"]
    lines.append(f"Content-Type: {luck.choice(_TYPES)}")
    lines += luck.sample(_HEADERS, luck.choice((0, 0, 1, 2)))
    length = len(body) + luck.choice((0, 0, 0, -3, 7))
    if not any("chunked" in line for line in lines) or luck.random() < 0.3:
        lines.append(f"Content-Length: {length}")
    answer = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
    return mutated_bytes(answer, luck) if luck.random() < 0.4 else answer
