"""Built-in graders that need neither a model nor a program, and the base classes of all of them.

A grader finds the answer in what the agent said and compares it with the gold ones: as text (exact,
normalized, contains, regex, f1, anls), or as values (choice labels, numbers, JSON fields).
Compositions (`{all: […]}`, `{any: […]}`, `{mean: […], weights: […]}`) grade with several.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import regex
from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from skillfit.errors import InputError, TaskFailure
from skillfit.extensions import PartDescription, in_thread
from skillfit.models.json_text import JsonObject, at_path
from skillfit.models.protocol import Model
from skillfit.sandbox.known_good import KnownGood
from skillfit.settings import Settings
from skillfit.tasks.item import Attempt, Grader, Item, Score, labelled_choices

GRADER_KEY = "env.grader"
_SECONDS = 2.0  # of CPU time, for one search


def first_match(pattern: str, text: str) -> str | None:
    """Return the first match, or its first group if the pattern has one.

    A search may take up to two seconds of CPU time, so call this in a thread; other threads
    continue meanwhile. A search that takes longer raises `TaskFailure`.
    """
    return next(_matches(pattern, text), None)


def last_match(pattern: str, text: str) -> str | None:
    """Return the last match, as `first_match` returns the first one."""
    found = None
    for match in _matches(pattern, text):
        found = match
    return found


def _matches(pattern: str, text: str) -> Iterator[str]:
    search = compiled(pattern)
    try:
        for match in search.finditer(text, timeout=_SECONDS, concurrent=True):
            yield match.group(1 if search.groups else 0) or ""
    except TimeoutError as error:
        raise TaskFailure(
            "grader",
            f"the regex {pattern!r:.200} took more than {_SECONDS:g} s of CPU time on an answer of "
            f"{len(text):,} characters.",
            hint="Nested repeats and alternatives, as in (a|aa)+, can take very long: avoid them.",
        ) from error


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> regex.Pattern[str]:
    """Return a user's regex. If it does not compile, the error shows where."""
    try:
        return regex.compile(pattern)
    except regex.error as error:
        place = "" if error.pos is None else f" at position {error.pos}"
        raise InputError(f"regex {pattern!r} does not compile: {error.msg}{place}.") from error


def _compiles(pattern: str) -> str:
    try:
        compiled(pattern)
    except InputError as error:  # pydantic adds the name of the setting to a ValueError
        raise ValueError(error.message.removesuffix(".")) from error
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]
_SHORT = {
    "tag": {"tag": "answer"},
    "boxed": {"boxed": True},
    "last_line": {"last_line": True},
    "json": {"json": ""},
}


class Extract(Settings):
    """One way to find the answer; exactly one field is set. `extract: tag` is short for
    `<answer>…</answer>`.
    """

    model_config = ConfigDict(populate_by_name=True)

    tag: str | None = None
    """The last `<tag>…</tag>`."""
    boxed: bool = False
    """The last `\\boxed{…}`."""
    last_line: bool = False
    """The last line that is not empty."""
    json_field: str | None = Field(default=None, alias="json")
    """This field of the last JSON object; empty: the object itself."""
    regex: Pattern | None = None
    """The last match; its first group where it has one."""

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: Any) -> Any:
        if isinstance(value, (Mapping, cls)):
            return value
        if not isinstance(value, str) or value not in _SHORT:
            names = ", ".join(_SHORT)
            raise ValueError(f"it should be one of {names}, or a mapping such as {{tag: result}}")
        return _SHORT[value]

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [
            name for name in type(self).model_fields if getattr(self, name) not in (None, False)
        ]
        if len(ways) != 1:
            found = " and ".join(ways) or "none"
            raise ValueError(f"exactly one way to extract is needed, found {found}")
        return self

    def find(self, text: str) -> str | None:
        """Return the answer, or None if there is none of this kind. A regex may take a while."""
        if self.tag is not None:
            return _last_in_tag(self.tag, text)
        if self.boxed:
            return _boxed(text)
        if self.regex is not None:
            found = last_match(self.regex, text)
            return None if found is None else found.strip()
        if self.json_field is not None:
            return _json_field(text, self.json_field)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else None

    @property
    def missing(self) -> str:
        """Feedback for an answer in which nothing was found."""
        if self.tag is not None:
            return f"The reply has no <{self.tag}>…</{self.tag}>."
        if self.boxed:
            return "The reply has no \\boxed{…}."
        if self.json_field is not None:
            named = f" with a field {self.json_field!r}" if self.json_field else ""
            return f"The reply has no JSON object{named}."
        return "The reply has no answer in the expected form."


def _json_field(text: str, name: str) -> str | None:
    """Return this field of the last JSON object as text; the whole object if `name` is empty."""
    record = last_json_object(text)
    if record is None:
        return None
    value = record.get(name) if name else record
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def last_json_object(text: str) -> JsonObject | None:
    """Return the last complete outermost JSON object in the text."""
    decoder = json.JSONDecoder()
    found, at = None, text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):  # ValueError also for numbers of too many digits
            end = at + 1
        else:
            found = value
        at = text.find("{", end)
    return found


def _last_in_tag(tag: str, text: str) -> str | None:
    name = re.escape(tag)
    found: list[str] = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL | re.IGNORECASE)
    return found[-1].strip() if found else None


def _boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    depth = 0
    for at in range(start + 6, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 7 : at].strip()
    return None


def extracted(ways: Sequence[Extract], attempt: Attempt) -> str | None:
    """Return the answer that the first of these ways finds; None if none does. Without any way, and
    for a bare answer, it is the whole text.
    """
    if attempt.bare or not ways:
        return attempt.answer.strip()
    found = (way.find(attempt.answer) for way in ways)
    return next((answer for answer in found if answer is not None), None)


_LONG = 10_000  # characters; longer answers are graded in a thread


@dataclass(frozen=True, slots=True)
class GraderContext:
    """What a grader gets besides its settings."""

    judge: Model | None
    base: Path
    key: str = GRADER_KEY  # of the setting that names the grader, for errors


class BuiltIn(Settings):
    """A grader whose settings are its fields. `short` is the field that a bare value sets, as in
    `regex: ^\\d+$`.
    """

    name: ClassVar[str]
    short: ClassVar[str]

    def __init_subclass__(cls, name: str = "", short: str = "", **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.name, cls.short = name, short

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        raise NotImplementedError

    def problem(self, item: Item) -> str:
        """Say why this grader cannot grade this item; empty if it can. Called once per item when
        the task is loaded.
        """
        return ""

    def golds(self, item: Item) -> tuple[str, ...]:
        """Return the answers that must score 1."""
        return item.answers or ((item.reference,) if item.reference else ())

    def known_good(self, items: Sequence[Item]) -> KnownGood | None:
        """Return a program that must work here before answers can be graded; None: it runs none."""
        return None

    def patterns(self) -> tuple[str, ...]:
        """Return the texts that would reveal the grader in a skill; see `Grader.patterns`."""
        return ()

    def patterns_of(self, item: Item) -> tuple[str, ...]:
        """Return the same for the grading rules that are part of the item (its regex, checks,
        tests).
        """
        return ()

    def describe(self) -> PartDescription:
        return {self.name: self.model_dump(mode="json", exclude_defaults=True)}


class TextGrader(BuiltIn):
    """Extracts the answer from the reply, then compares it with the gold answers. `extract` is one
    way to find it, or several that are tried in order.
    """

    extract: tuple[Extract, ...] = ()

    @field_validator("extract", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return value if isinstance(value, (list, tuple)) else [value]

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        grade = partial(self._grade, item, attempt)
        return await in_thread(grade) if self.takes_time(attempt) else grade()

    def takes_time(self, attempt: Attempt) -> bool:
        """Return whether to grade in a thread, so that the event loop is not blocked."""
        return len(attempt.answer) > _LONG or any(way.regex is not None for way in self.extract)

    def _grade(self, item: Item, attempt: Attempt) -> Score:
        answer = extracted(self.extract, attempt)
        if answer is None:
            return Score(0.0, feedback=self.extract[0].missing)
        return self.compare(item, answer)

    def compare(self, item: Item, text: str) -> Score:
        """Score the extracted answer."""
        raise NotImplementedError

    def problem(self, item: Item) -> str:
        if item.has_answers:
            return ""
        return f"has no answer, which the grader {self.name!r} compares with"


def verdict(passed: bool, soft: float = 0.0, *, wrong: str = "The answer does not match.") -> Score:
    """Return a score of 1, or a score of 0 with partial credit and feedback."""
    return Score(1.0) if passed else Score(0.0, soft, wrong)


def listed(value: Any) -> list[Any]:
    """Return the values of a column that holds one text, several, or none."""
    if not value:
        return []
    return [value] if isinstance(value, str) else list(value)


@dataclass(frozen=True, slots=True)
class Composed:
    """Several graders as one. all: the lowest hard score and the mean of the soft ones; any: the
    highest scores; mean: the weighted mean of both.
    """

    how: Literal["all", "any", "mean"]
    parts: tuple[Grader, ...]
    weights: tuple[float, ...]

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        scores = [await part.grade(item, attempt) for part in self.parts]
        hards, softs = [score.hard for score in scores], [score.soft for score in scores]
        if self.how == "all":
            hard, soft = min(hards), self._mean(softs)
        elif self.how == "any":
            hard, soft = max(hards), max(softs)
        else:
            hard, soft = self._mean(hards), self._mean(softs)
        feedback = dict.fromkeys(score.feedback for score in scores if score.feedback)
        evidence = tuple(line for score in scores for line in score.evidence)
        return Score(hard, soft, "" if hard >= 1 else "\n".join(feedback), evidence)

    def _mean(self, values: Sequence[float]) -> float:
        weighted = (value * weight for value, weight in zip(values, self.weights, strict=True))
        return sum(weighted) / sum(self.weights)

    def patterns(self) -> tuple[str, ...]:
        return tuple(pattern for part in self.parts for pattern in part.patterns())

    def describe(self) -> PartDescription:
        return {self.how: [part.describe() for part in self.parts], "weights": list(self.weights)}


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalized(text: str) -> str:
    """Return the text in SQuAD's normal form: lower case, no punctuation, no articles, single
    spaces.
    """
    without_punctuation = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def token_f1(text: str, gold: str) -> float:
    """Return the harmonic mean of precision and recall over normalised tokens."""
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
    """Compute the Levenshtein distance by Hyyrö's variant of Myers' algorithm: one column of the
    table at a time, whose differences of +1 and -1 are the bits of two integers.
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
    """Map labels to texts; an item without choices has the labels A to E."""
    return labelled_choices(item.content().get("choices")) or dict.fromkeys("ABCDE", "")


def _gold_label(gold: str, choices: Mapping[str, str]) -> str | None:
    """Return the label of a gold answer: a label, the text of a choice, or its position from 0."""
    label = _label(gold, choices)
    if label is None and gold.strip().isdecimal() and int(gold) < len(choices):
        return list(choices)[int(gold)]
    return label


def _label(text: str, choices: Mapping[str, str]) -> str | None:
    """Return the label that the text chooses, or None."""
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
    """Return the last number in the text. A word after it is a unit only if the text has nothing
    else.
    """
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
    """Return the power: inf where it is too large, nan where there is none."""
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
