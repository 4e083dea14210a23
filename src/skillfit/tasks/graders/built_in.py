"""Base classes of the built-in graders: finding the answer in what the agent said, grading it, and
compositions of graders (`{all: […]}`, `{any: […]}`, `{mean: […], weights: […]}`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import regex
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from skillfit.errors import InputError, TaskFailure
from skillfit.extensions import PartDescription, in_thread
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import Model
from skillfit.tasks.item import Attempt, Grader, Item, Score

_SECONDS = 2.0  # of CPU time, for one search


def first_match(pattern: str, text: str) -> str | None:
    """The first match, or its first group if the pattern has one.

    A search may take up to two seconds of CPU time, so call this in a thread; other threads
    continue meanwhile. A search that takes longer raises `TaskFailure`.
    """
    return next(_matches(pattern, text), None)


def last_match(pattern: str, text: str) -> str | None:
    """As `first_match`, but the last match."""
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
    """A user's regex. If it does not compile, the error shows where."""
    try:
        return regex.compile(pattern)
    except regex.error as error:
        place = "" if error.pos is None else f" at position {error.pos}"
        raise InputError(f"regex {pattern!r} does not compile: {error.msg}{place}.") from error


Pattern = Annotated[str, AfterValidator(lambda pattern: compiled(pattern).pattern)]
_SHORT = {
    "tag": {"tag": "answer"},
    "boxed": {"boxed": True},
    "last_line": {"last_line": True},
    "json": {"json": ""},
}


class Extract(BaseModel):
    """One way to find the answer; exactly one field is set. `extract: tag` is short for
    `<answer>…</answer>`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

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
        return _SHORT.get(value, value) if isinstance(value, str) else value

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
        """The answer, or None if there is none of this kind. A regex may take a while."""
        if self.tag is not None:
            name = re.escape(self.tag)
            return _last(re.compile(rf"<{name}>(.*?)</{name}>", re.DOTALL | re.IGNORECASE), text)
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
    """This field of the last JSON object as text; the whole object if `name` is empty."""
    record = last_json_object(text)
    if record is None:
        return None
    value = record.get(name) if name else record
    return value if value is None or isinstance(value, str) else as_json(value)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def last_json_object(text: str) -> JsonObject | None:
    """The last complete outermost JSON object in the text."""
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


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    matches = list(pattern.finditer(text))
    return (matches[-1].group(1 if pattern.groups else 0) or "").strip() if matches else None


def _boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    depth = 0
    for at in range(start + 6, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 7 : at].strip()
    return None


def extracted(ways: Sequence[Extract], attempt: Attempt) -> str | None:
    """The answer that the first of these ways finds; None if none does. Without any way, and for a
    gold answer that is checked, it is the whole text.
    """
    if attempt.bare or not ways:
        return attempt.answer.strip()
    found = (way.find(attempt.answer) for way in ways)
    return next((answer for answer in found if answer is not None), None)


_LONG = 10_000  # characters; longer answers are graded in a thread


@dataclass(frozen=True, slots=True)
class Given:
    """What a grader gets besides its settings."""

    judge: Model | None
    base: Path


class BuiltIn(BaseModel):
    """A grader whose settings are its fields. `short` is the field that a bare value sets, as in
    `regex: ^\\d+$`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]
    short: ClassVar[str]

    def __init_subclass__(cls, name: str = "", short: str = "", **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.name, cls.short = name, short

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        raise NotImplementedError

    def problem(self, item: Item) -> str:
        """Why this grader cannot grade this item; empty if it can. Called once per item when the
        task is loaded.
        """
        return ""

    def golds(self, item: Item) -> tuple[str, ...]:
        """Answers that must score 1."""
        return item.answers or ((item.reference,) if item.reference else ())

    def patterns(self) -> tuple[str, ...]:
        """Texts that would reveal the grader if a skill contained them; see `Grader.patterns`."""
        return ()

    def patterns_of(self, item: Item) -> tuple[str, ...]:
        """The same for the grading rules that are part of the item (its regex, checks, tests)."""
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
        """Whether to grade in a thread, so that the event loop is not blocked."""
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
    """A score of 1, or a score of 0 with partial credit and feedback."""
    return Score(1.0) if passed else Score(0.0, soft, wrong)


def listed(value: Any) -> list[Any]:
    """The values of a column that holds one text, several, or none."""
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
