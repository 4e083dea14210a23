"""Find the answer in what the agent said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Self

import regex
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from skillfit.errors import InputError
from skillfit.tasks.item import TaskFailure

_SECONDS = 2.0  # of CPU time, for one search


def first_match(pattern: str, text: str) -> str | None:
    """The first match, or its first group if the pattern has one.

    A search may take up to two seconds of CPU time, so call this in a thread; other threads go on
    meanwhile. A search that takes longer raises `TaskFailure`.
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


def last_json_object(text: str) -> dict[str, Any] | None:
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


def at_path(value: Any, path: str) -> Any:
    """The value at a dotted path of nested objects, or None."""
    if isinstance(value, dict) and path in value:
        return value[path]
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


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
