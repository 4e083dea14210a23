"""JSON that others wrote: a value or a ValueError, in time that grows with the text alone."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillfit.models.json_text import MAX_DEPTH, parse_json, parse_model_json, printed_json

NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=60)
@given(VALUES)
def test_every_json_value_is_read_by_both_parsers(value: Any) -> None:
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)
        assert parse_json(text) == parse_model_json(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1,}', {"a": 1}),
        ("[1, 2,]", [1, 2]),
        ("{'a': 'it''s'}", {"a": "it''s"}),
        ("{'a': 'don't'}", {"a": "don't"}),
        ("{a: 1, b-c: 2}", {"a": 1, "b-c": 2}),
        ('{"a": True, "b": False, "c": None}', {"a": True, "b": False, "c": None}),
        ('{"a": 1} // that is all', {"a": 1}),
        ('{ // first\n "a": /* second */ 1 # third\n}', {"a": 1}),
        ('{"a": "he said "no" to me"}', {"a": 'he said "no" to me'}),
        ('{"a": "two\nlines",}', {"a": "two\nlines"}),
        ('{"path": "C:\\dir\\new",}', {"path": "C:\\dir\new"}),
        ('{"a": “quoted”}', {"a": "quoted"}),
        ('{"a": [{"b": 1} {"b": 2}]}', {"a": [{"b": 1}, {"b": 2}]}),
        ('{"a": 1\n "b": 2}', {"a": 1, "b": 2}),
        ('{"a": .5, "b": +1, "c": 1.}', {"a": 0.5, "b": 1, "c": 1.0}),
        ('{"a": "\\ud83d\\ude42",}', {"a": "🙂"}),
        ('{"": 1,}', {"": 1}),
        ("{'a': ''}", {"a": ""}),
    ],
)
def test_common_mistakes_of_models_are_accepted(text: str, value: Any) -> None:
    assert parse_model_json(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "[" * 4096,
        '{"a":' * 4096,
        "[" * 2 * MAX_DEPTH + "]" * 2 * MAX_DEPTH,
        "[" * 2 * MAX_DEPTH + "1," + "]" * 2 * MAX_DEPTH,
        '{"a": ' + "9" * 400 + "}",
        '{"a": ' + "9" * 5000 + "}",
        '{"a": -' + "9" * 20 + "}",
        '{"a": 1e999}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        "{a: 1e999,}",
        "{a: NaN,}",
        "",
        "null and void"[4:],
    ],
    ids=lambda text: text[:12] or "empty",
)
def test_unusable_text_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)
    with pytest.raises(ValueError):
        parse_model_json(text)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    [
        "\"' ",
        "'\" ",
        '{"',
        "[{",
        "\\",
        '\\"',
        "/*",
        "*/",
        "//",
        "#",
        '","',
        "{a:",
        "\n",
        " ",
        "“",
        "`",
    ],
)
def test_no_text_takes_superlinear_time(piece: str) -> None:
    """A parser that backtracks at every quote would need hours for these."""
    for start in ("", "{", "[", '{"a": ', '{"a": "', "{'a': '"):
        text = start + piece * (90_000 // len(piece))
        try:
            value = parse_model_json(text)
        except ValueError:
            continue
        assert readable(value)


def readable(value: Any) -> bool:
    """Whether everything in the value can be used further on."""
    if isinstance(value, dict):
        return all(readable(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return all(map(readable, value))
    if isinstance(value, str):
        return value.encode().decode() == value
    return not isinstance(value, float) or math.isfinite(value)


SNIPPETS = st.sampled_from(
    [
        *(
            '{"a":',
            "[",
            "]",
            "}",
            ",",
            ":",
            '"',
            "'",
            "\\",
            "\\ud83d",
            "\\u0000",
            "1e400",
            "9" * 25,
        ),
        *("NaN", "null", "True", "//", "/*", "*/", "#", "\n", " ", "key", "-", ".", "🙂", "\x00"),
    ]
)


@settings(max_examples=400)
@given(st.lists(SNIPPETS | st.text(max_size=5), max_size=40).map("".join))
def test_any_text_is_a_usable_value_or_a_value_error(text: str) -> None:
    for parse in (parse_json, parse_model_json):
        try:
            assert readable(parse(text))
        except ValueError:
            continue


def test_a_lone_surrogate_is_replaced() -> None:
    for text in ('{"a": "x\\ud83dy", "\\ude42": 1}', '{"a": "x\ud83dy", "\ude42": 1}'):
        value = {"a": "x\ufffdy", "\ufffd": 1}
        assert parse_json(text) == parse_model_json(text) == value


@pytest.mark.parametrize("output", ['{"a": 1}', '{\n  "a": 1\n}\n', 'loading\n[1]\n{"a": 1}\n\n'])
def test_a_program_prints_json_alone_or_as_its_last_line(output: str) -> None:
    assert printed_json(output) == {"a": 1}


@pytest.mark.parametrize("output", ["", "\n", "0.5\ndone\n"])
def test_json_on_an_earlier_line_is_not_a_programs_result(output: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|EOF|expected"):
        printed_json(output)
