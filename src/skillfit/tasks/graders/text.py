"""Graders that compare text: exact, normalized, contains, regex, f1, anls."""

from __future__ import annotations

import re
import string
from collections import Counter

from pydantic import Field

from skillfit.tasks.graders.base import TextGrader, verdict
from skillfit.tasks.graders.extract import Pattern, compiled, first_match
from skillfit.tasks.item import Attempt, Item, Score

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalized(text: str) -> str:
    """The text in SQuAD's normal form: lower case, no punctuation, no articles, single spaces."""
    without_punctuation = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def token_f1(text: str, gold: str) -> float:
    """Harmonic mean of precision and recall over normalised tokens."""
    said, meant = normalized(text).split(), normalized(gold).split()
    if not said or not meant:
        return float(said == meant)
    return 2 * (Counter(said) & Counter(meant)).total() / (len(said) + len(meant))


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
