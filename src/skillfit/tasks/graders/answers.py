"""Graders that compare the answer with the gold ones: as text (exact, normalized, contains, regex,
f1, anls), or as values (choice labels, numbers, JSON fields).
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from skillfit.models.json_text import JsonObject, at_path
from skillfit.tasks.graders.built_in import (
    Pattern,
    TextGrader,
    compiled,
    first_match,
    last_json_object,
    verdict,
)
from skillfit.tasks.item import Attempt, Item, Score, labelled_choices

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalized(text: str) -> str:
    """The text in SQuAD's normal form: lower case, no punctuation, no articles, single spaces."""
    without_punctuation = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def token_f1(text: str, gold: str) -> float:
    """Harmonic mean of precision and recall over normalised tokens."""
    given, meant = normalized(text).split(), normalized(gold).split()
    if not given or not meant:
        return float(given == meant)
    return 2 * (Counter(given) & Counter(meant)).total() / (len(given) + len(meant))


class Exact(TextGrader, name="exact"):
    """The same characters as a gold answer, apart from white space around it."""

    ignore_case: bool = False

    def compare(self, item: Item, text: str) -> Score:
        fold = str.casefold if self.ignore_case else str
        return verdict(any(fold(text) == fold(gold.strip()) for gold in item.answers))


class Normalized(TextGrader, name="normalized"):
    """SQuAD's exact match against any gold answer; soft: token F1."""

    def compare(self, item: Item, text: str) -> Score:
        golds = item.answers
        return verdict(
            any(normalized(text) == normalized(gold) for gold in golds),
            max(token_f1(text, gold) for gold in golds),
        )


class F1(TextGrader, name="f1", short="threshold"):
    """Token F1 against the best gold answer; hard: at or above `threshold`."""

    threshold: float = Field(default=1.0, gt=0, le=1)

    def compare(self, item: Item, text: str) -> Score:
        soft = max(token_f1(text, gold) for gold in item.answers)
        passed = soft >= self.threshold
        return Score(float(passed), soft, "" if passed else "The answer shares too few words.")


class Contains(TextGrader, name="contains"):
    """The reply contains a gold answer as whole words; `every`: it contains all of them (soft: the
    share that it contains).
    """

    every: bool = False
    ignore_case: bool = True

    def compare(self, item: Item, text: str) -> Score:
        held = [self._holds(text, gold) for gold in item.answers]
        missing = "Something that must be in the answer is missing."
        if self.every:
            return verdict(all(held), sum(held) / len(held), wrong=missing)
        return verdict(any(held), wrong=missing)

    def golds(self, item: Item) -> tuple[str, ...]:
        return ("\n".join(item.answers),) if self.every else item.answers

    def _holds(self, text: str, gold: str) -> bool:
        fold = str.casefold if self.ignore_case else str
        text, gold = (" ".join(fold(part).split()) for part in (text, gold))
        return re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text) is not None


class Regex(TextGrader, name="regex", short="pattern"):
    """The answer contains a match of a regex: `pattern` for all items, or the one in each item's
    column `column`. Syntax: Python's, as implemented by the `regex` package.
    """

    pattern: Pattern = ""
    column: str = ""

    def compare(self, item: Item, text: str) -> Score:
        found = first_match(self._pattern_of(item), text) is not None
        return verdict(found, wrong="The answer does not have the expected form.")

    def takes_time(self, attempt: Attempt) -> bool:
        return True

    def _pattern_of(self, item: Item) -> str:
        return self.pattern or str(item.content().get(self.column, ""))

    def problem(self, item: Item) -> str:
        pattern = self._pattern_of(item)
        compiled(pattern)
        if pattern:
            return ""
        return "has no pattern: set regex.pattern, or regex.column to the column that holds it"

    def patterns(self) -> tuple[str, ...]:
        return (self.pattern,) if self.pattern else ()

    def patterns_of(self, item: Item) -> tuple[str, ...]:
        return () if self.pattern else (self._pattern_of(item),)


class Anls(TextGrader, name="anls", short="threshold"):
    """Average normalised Levenshtein similarity, as in DocVQA. Soft: the similarity, 0 up to
    `threshold`; hard: 1 from a similarity of 0.999.
    """

    threshold: float = Field(default=0.5, ge=0, lt=1)

    def compare(self, item: Item, text: str) -> Score:
        best = max(_similarity(text, gold) for gold in item.answers)
        return verdict(
            best >= 0.999,
            best if best > self.threshold else 0.0,
            wrong="The answer is spelled differently.",
        )


def _similarity(text: str, gold: str) -> float:
    one, other = (" ".join(part.lower().split()) for part in (text, gold))
    longest = max(len(one), len(other))
    if not longest or min(len(one), len(other)) / longest < 0.001:
        return float(one == other)
    return 1 - _distance(one, other) / longest


def _distance(one: str, other: str) -> int:
    """Levenshtein distance by Hyyrö's variant of Myers' algorithm: one column of the table at a
    time, whose differences of +1 and -1 are the bits of two integers.
    """
    if not one:
        return len(other)
    every, last, distance = (1 << len(one)) - 1, 1 << (len(one) - 1), len(one)
    at: dict[str, int] = {}
    for place, letter in enumerate(one):
        at[letter] = at.get(letter, 0) | 1 << place
    up, down = every, 0
    for letter in other:
        same = at.get(letter, 0)
        diagonal = same | down
        across = (((same & up) + up) ^ up) | same
        right, left = down | (every & ~(across | up)), up & across
        distance += bool(right & last) - bool(left & last)
        right, left = right << 1 | 1, left << 1
        up, down = (left | ~(diagonal | right)) & every, right & diagonal & every
    return distance


_SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
# 10^5, 10^{5} and 10**5; the stars of **42** are emphasis, not a power.
_POWER = r"\s?(?:\^\s?|\*\*(?=[-+\d]))\{?"
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[-+−]?)\s?[$€£¥]?\s?"
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?P<power>[eE][-+]?\d+)?"
    rf"(?:{_POWER}(?P<raised>[-+−]?\d+)\}}?)?"
    rf"(?:\s?(?:[x×*·]|\\times|\\cdot)\s?10{_POWER}(?P<tens>[-+−]?\d+)\}}?)?"
    r"(?:\s?/\s?(?P<below>\d+))?"
    r"(?:\s?(?P<scale>thousand|million|billion|trillion)\b)?"
    r"(?:\s?(?P<unit>[%°]\w?|[^\W\d_][\w/^²³]*))?",
    re.IGNORECASE,
)
_ANNOUNCED = (
    r"(?i:answer|option|choice|choose|pick|select|go with)(?i:\s+is)?\s*[:=]?\s*(?:\\boxed\{)?"
)


class Choice(TextGrader, name="choice"):
    """The label of a multiple-choice answer: alone, at the start, boxed or announced ("the answer
    is (B)"); or the text of the choice. A `choices` column (list, or label -> text) defines the
    labels; without it they are A to E. Gold answers are labels, texts, or positions from 0.
    """

    def compare(self, item: Item, text: str) -> Score:
        choices = _choices(item)
        chosen = _label(text, choices)
        if chosen is None:
            return verdict(False, wrong="No choice was made.")
        right = {_gold_label(gold, choices) for gold in item.answers}
        return verdict(chosen in right, wrong="The wrong choice was made.")

    def golds(self, item: Item) -> tuple[str, ...]:
        choices = _choices(item)
        return tuple(_gold_label(gold, choices) or gold for gold in item.answers)

    def problem(self, item: Item) -> str:
        choices = _choices(item)
        for gold in item.answers:
            if _gold_label(gold, choices) is None:
                return f"has the answer {gold!r}, which is none of its choices"
        return super().problem(item)


def _choices(item: Item) -> dict[str, str]:
    """Label -> text."""
    return labelled_choices(item.content().get("choices")) or dict.fromkeys("ABCDE", "")


def _gold_label(gold: str, choices: Mapping[str, str]) -> str | None:
    """The label of a gold answer: a label, the text of a choice, or its position from 0."""
    label = _label(gold, choices)
    if label is None and gold.strip().isdecimal() and int(gold) < len(choices):
        return list(choices)[int(gold)]
    return label


def _label(text: str, choices: Mapping[str, str]) -> str | None:
    """The label that the text chooses, or None."""
    by_text = [
        label for label, words in choices.items() if words and normalized(words) == normalized(text)
    ]
    if len(by_text) == 1:
        return by_text[0]
    text = "\n".join(" ".join(line.split()) for line in text.splitlines())
    label = "|".join(re.escape(label) for label in choices)
    dressed = rf"[*_(\[`\s]*({label})[*_)\]`]*"
    reason = rf"\s*,\s+(?!(?:{label})\b)|,?\s+(?:because|since)\b"
    alone_or_first = re.match(
        rf"\s*(?:{dressed}\s*[.:]?\s*$|{dressed}(?:\s*[.:)]\s|{reason})|[(\[]({label})[)\]])",
        text,
        re.IGNORECASE,
    )
    # A lower-case label counts only at the end of a sentence, unlike in "the answer is a cat".
    small = rf"(?i:{label})(?=[*_)\]`}}]|\s*(?:[.,;:!](?:\s|$)|\n|$))"
    announced = re.findall(
        rf"(?:{_ANNOUNCED}|\\boxed\{{)(?:\\text\{{)?[*_(\[`\s]*({label}|{small})(?![\w'])", text
    )
    found = announced or [
        part for part in (alone_or_first.groups() if alone_or_first else ()) if part
    ]
    return found[-1].upper() if found else None


class Numeric(TextGrader, name="numeric"):
    """The last number in the answer, within `abs` or `rel` of a gold one. Understands thousands
    separators, currency signs, fractions, powers and words such as million. Answers with different
    units are different.
    """

    abs: float = Field(default=1e-9, ge=0)
    rel: float = Field(default=1e-6, ge=0)

    def compare(self, item: Item, text: str) -> Score:
        given = _number(text)
        if given is None:
            return verdict(False, wrong="The answer has no number.")
        meant = [number for gold in item.answers if (number := _number(gold)) is not None]
        return verdict(
            any(self._close(given, number) for number in meant), wrong="The number is wrong."
        )

    def _close(self, given: _Quantity, meant: _Quantity) -> bool:
        same_unit = not given.unit or not meant.unit or given.unit == meant.unit
        return same_unit and math.isclose(
            given.value, meant.value, rel_tol=self.rel, abs_tol=self.abs
        )

    def problem(self, item: Item) -> str:
        unread = [gold for gold in item.answers if _number(gold) is None]
        return super().problem(item) or (
            f"has the answer {unread[0]!r}, which is not a number" if unread else ""
        )


@dataclass(frozen=True, slots=True)
class _Quantity:
    value: float
    unit: str


def _number(text: str) -> _Quantity | None:
    """The last number in the text. A word after it is a unit only if the text has nothing else."""
    matches = list(_NUMBER.finditer(text))
    if not matches:
        return None
    match = matches[-1]
    value = _power(
        float(match["digits"].replace(",", "") + (match["power"] or "")), match["raised"] or "1"
    )
    value *= _power(10.0, match["tens"] or "0") * _SCALES.get((match["scale"] or "").lower(), 1.0)
    if match["below"]:
        value = value / float(match["below"]) if float(match["below"]) else math.nan
    whole = match.group().strip() == text.strip(" \n\t.")
    unit = (match["unit"] or "").lower().removesuffix("s") if whole else ""
    return _Quantity(-value if match["sign"] in ("-", "−") else value, unit)


def _power(base: float, exponent: str) -> float:
    """inf where the power is too large, nan where there is none."""
    try:
        return math.pow(base, float(exponent.replace("−", "-")))
    except OverflowError:
        return math.inf
    except ValueError:  # 0^-1
        return math.nan


class JsonFields(TextGrader, name="json_fields", short="fields"):
    """Compares the last JSON object in the reply with the gold object. `fields`: the fields to
    compare (dots reach into nested objects), by default all of the gold object. Hard: all are
    right; soft: the share that is right.
    """

    fields: tuple[str, ...] = ()
    tolerance: float = Field(default=1e-6, ge=0)

    def compare(self, item: Item, text: str) -> Score:
        given = last_json_object(text)
        if given is None:
            return verdict(False, wrong="The reply has no JSON object.")
        golds = [gold for answer in item.answers if (gold := last_json_object(answer))]
        return max((self._against(given, gold) for gold in golds), key=lambda score: score.soft)

    def _against(self, given: JsonObject, gold: JsonObject) -> Score:
        wrong = [
            name
            for name in self.fields or gold
            if not self._same(at_path(given, name), at_path(gold, name))
        ]
        return verdict(
            not wrong,
            1 - len(wrong) / len(self.fields or gold),
            wrong=f"Wrong or missing: {', '.join(wrong)}.",
        )

    def _same(self, one: Any, other: Any) -> bool:
        if isinstance(one, str) and isinstance(other, str):
            return one.strip() == other.strip()
        if {type(one), type(other)} <= {int, float}:  # bool is not a number here
            try:
                return math.isclose(one, other, rel_tol=self.tolerance, abs_tol=1e-9)
            except OverflowError:  # an integer beyond the range of float
                return bool(one == other)
        return type(one) is type(other) and bool(one == other)

    def problem(self, item: Item) -> str:
        golds = [last_json_object(gold) for gold in item.answers]
        if not golds or not all(golds):
            return "has no JSON object as its answer, which the grader 'json_fields' compares with"
        absent = [
            name for name in self.fields for gold in golds if gold and at_path(gold, name) is None
        ]
        return f"has no field {absent[0]!r} in its answer" if absent else ""
